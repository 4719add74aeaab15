"""How far from optimal can the plans be? Certified gaps on networks of 100 devices, and true gaps on a 10-ring.

4 channel and 9 battery levels, energies {0, 2, 3} steps, mean harvest 0.8 steps, T = 100, idle_penalty 1. Prints a
Markdown table and last the largest certified gap under full duplex.
"""

import argparse
import time
from typing import Any

import heliomesh as hm
from heliomesh.simulation.diagnostics import interval

NETWORKS: dict[str, dict[str, Any]] = {
    "ring": {"network.topology": "ring"},
    "grid 10 × 10": {"network.topology": "grid"},
    "geometric, mean degree 4, at most 7": {
        "network.topology": "geometric",
        "network.mean_degree": 4.0,
        "network.max_degree": 7,
        "network.placement": "jittered",
    },
    "ring, link channels": {"network.topology": "ring", "channel.state": "link"},
    "ring, half duplex": {"network.topology": "ring", "link.half_duplex": True},
    "ring, train only": {"network.topology": "ring", "energy.train_only": True},
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


def certified(problem: hm.Problem, episodes: int) -> tuple[str, float, str]:
    """The better planner, its certified gap and the cell to print."""
    bound, best = 0.0, ("", float("inf"), "")
    for planner, options in (("receiver", {"largest_table": 3_000_000}), ("prices", {})):
        plan = hm.plan(problem, planner, bound=False, **options)
        bound = plan.lower_bound or bound
        cost = interval(hm.simulate_costs(problem, plan, episodes))
        gap = 100 * (cost.mean / bound - 1)
        if gap < best[1]:
            best = (planner, gap, f"{gap:.2f} ± {100 * cost.half_width / bound:.2f} ({planner})")
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    options = parser.parse_args()
    print("| network | lazy, φ = .3 | lazy, φ = 1 | plain, φ = .3 | plain, φ = 1 | seconds |")
    print("|---|---|---|---|---|---|", flush=True)
    worst = 0.0
    for name in options.networks:
        started, cells = time.perf_counter(), []
        for mixing in ("lazy-metropolis", "metropolis"):
            for waterfall in (0.3, 1.0):
                changes = COMMON | NETWORKS[name] | {"network.mixing": mixing, "link.waterfall": waterfall}
                _, gap, cell = certified(hm.build(hm.Scenario.load("tiny").override(changes)), options.episodes)
                cells.append(cell)
                if "half duplex" not in name:
                    worst = max(worst, gap)
        print(f"| {name} | {' | '.join(cells)} | {time.perf_counter() - started:.0f} |", flush=True)
    print(f"largest certified gap under full duplex: {worst:.2f} %")


if __name__ == "__main__":
    main()
