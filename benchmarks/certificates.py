"""How far from optimal can the plans be? Certified gaps on networks of 100 devices.

4 channel and 9 battery levels, energies {0, 2, 3} steps, mean harvest 0.8 steps, T = 100, idle_penalty 1. Prints a
Markdown table and last the largest certified gap.
"""

import argparse
import time
from itertools import product
from typing import Any

import heliomesh as hm
from heliomesh.simulation.diagnostics import interval

GRAPHS: dict[str, dict[str, Any]] = {
    "ring": {"network.topology": "ring"},
    "grid 10 × 10": {"network.topology": "grid"},
    "geometric, mean degree 4, at most 7": {
        "network.topology": "geometric",
        "network.mean_degree": 4.0,
        "network.max_degree": 7,
        "network.placement": "jittered",
    },
}
MODES: dict[str, dict[str, Any]] = {
    "receiver channels": {},
    "link channels": {"channel.state": "link"},
    "half duplex": {"link.half_duplex": True},
    "train only": {"energy.train_only": True},
}
COMMON = {
    "network.devices": 100,
    "slots": 100,
    "channel.source": "rayleigh",
    "channel.levels": 4,
    "link.noise_watt": 0.3,
    "energy.battery_levels": 9,
    "energy.capacity_joule": 8.0,
}


def certified(problem: hm.Problem, largest_table: int, steps: int, episodes: int) -> tuple[float, str]:
    """The better planner's certified gap [%] and the cell to print."""
    bound, best = 0.0, (float("inf"), "")
    for planner, options in (("receiver", {"largest_table": largest_table, "steps": steps}), ("prices", {})):
        plan = hm.plan(problem, planner, bound=False, **options)
        bound = plan.lower_bound or bound
        cost = interval(hm.simulate_costs(problem, plan, episodes))
        gap = 100 * (cost.mean / bound - 1)
        best = min(best, (gap, f"{gap:.2f} ± {100 * cost.half_width / bound:.2f} ({planner})"))
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), choices=list(GRAPHS))
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--largest-table", type=int, default=3_000_000, help="0: prices for every receiver")
    parser.add_argument("--steps", type=int, default=60, help="ascent steps of prices")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float64")
    options = parser.parse_args()
    print("| mode | network | lazy, φ = .3 | lazy, φ = 1 | plain, φ = .3 | plain, φ = 1 | seconds |")
    print("|---|---|---|---|---|---|---|", flush=True)
    worst = 0.0
    for mode, graph in product(options.modes, options.graphs):
        started, cells = time.perf_counter(), []
        for mixing, waterfall in product(("lazy-metropolis", "metropolis"), (0.3, 1.0)):
            changes = {"network.mixing": mixing, "link.waterfall": waterfall}
            scenario = hm.Scenario.load("tiny").override(COMMON | GRAPHS[graph] | MODES[mode] | changes)
            problem = hm.build(scenario, options.device, options.dtype)
            gap, cell = certified(problem, options.largest_table, options.steps, options.episodes)
            cells.append(cell)
            worst = max(worst, gap)
        print(f"| {mode} | {graph} | {' | '.join(cells)} | {time.perf_counter() - started:.0f} |", flush=True)
    print(f"largest certified gap: {worst:.2f} %")


if __name__ == "__main__":
    main()
