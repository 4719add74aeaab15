"""How far from the exact optimum are the plans? Rings small enough to solve, simulated with common random numbers.

10-ring: 4 channel and 5 battery levels; half-duplex 6-ring: 2 channel and 4 battery levels; energies {0, 2, 3} steps,
mean harvest 0.8 steps, idle_penalty 1. Gaps are paired by episode with the optimum. Prints a Markdown table and last
the largest gap of the better planner on each ring.
"""

import argparse
import time
from itertools import product
from typing import Any

import heliomesh as hm
from heliomesh.simulation.diagnostics import interval

RINGS: dict[str, dict[str, Any]] = {
    "10-ring": {
        "network.devices": 10,
        "channel.source": "rayleigh",
        "channel.levels": 4,
        "energy.battery_levels": 5,
        "energy.capacity_joule": 4.0,
    },
    "half-duplex 6-ring": {"network.devices": 6, "link.half_duplex": True, "energy.battery_levels": 4},
}


def gaps(problem: hm.Problem, planners: list[str], episodes: int) -> dict[str, tuple[float, str]]:
    """Each planner's paired gap to the simulated optimum [%] and the cell to print."""
    cost = {name: hm.simulate_costs(problem, hm.plan(problem, name, bound=False), episodes) for name in planners}
    optimum = hm.simulate_costs(problem, hm.plan(problem, "centralized", bound=False), episodes)
    found = {name: interval(100 * (own - optimum) / optimum.mean()) for name, own in cost.items()}
    return {name: (gap.mean, f"{gap.mean:.3f} ± {gap.half_width:.3f}") for name, gap in found.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=50)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--planners", nargs="+", default=["receiver", "prices"])
    options = parser.parse_args()
    print(f"| ring | mixing | φ | {' | '.join(options.planners)} | seconds |")
    print("|---|---|---|" + "---|" * len(options.planners) + "---|", flush=True)
    worst = dict.fromkeys(RINGS, 0.0)
    for ring, mixing, waterfall in product(RINGS, ("lazy-metropolis", "metropolis"), (0.3, 1.0)):
        started = time.perf_counter()
        changes = {"network.topology": "ring", "network.mixing": mixing, "link.waterfall": waterfall}
        scenario = hm.Scenario.load("tiny").override(RINGS[ring] | changes | {"slots": options.slots})
        found = gaps(hm.build(scenario), options.planners, options.episodes)
        worst[ring] = max(worst[ring], min(gap for gap, _ in found.values()))
        cells = " | ".join(cell for _, cell in found.values())
        print(f"| {ring} | {mixing} | {waterfall} | {cells} | {time.perf_counter() - started:.0f} |", flush=True)
    print("largest gap to the optimum: " + ", ".join(f"{ring} {gap:.3f} %" for ring, gap in worst.items()))


if __name__ == "__main__":
    main()
