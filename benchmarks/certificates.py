"""How far from optimal can the plans be? Certified gaps of the better of `receiver` and `prices`.

First the shipped scenarios, then networks of 100 devices: 4 channel levels, energies of 2 and 3 J, mean harvest of
0.8 J, batteries of 8 J, T = 100, idle_penalty 1. The bound speaks of continuous batteries. Prints Markdown tables and
last the largest certified gap.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import heliomesh as hm
from heliomesh.simulation.diagnostics import Interval, interval

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
    "energy.battery_levels": 9,  # on which batteries stay
    "energy.capacity_joule": 8.0,
}
SHIPPED = ("ring10", "paper", "grid25", "geometric30")


@dataclass(frozen=True)
class Certified:
    """What the better planner reaches, beside what none can go below."""

    planner: str
    cost: Interval
    bound: float

    @property
    def gap(self) -> float:
        """In percent of the bound."""
        return 100 * (self.cost.mean / self.bound - 1)

    def __str__(self) -> str:
        return f"{self.gap:.2f} ± {100 * self.cost.half_width / self.bound:.2f} ({self.planner})"


def certified(problem: hm.Problem, episodes: int, paths: int = 0) -> Certified:
    """The better planner's certified gap; along sampled paths to the lower end of the bound's interval."""
    bound = hm.sampled_bound(problem, paths=paths).lower if paths else hm.lower_bound(problem)
    assert bound is not None
    found = []
    for planner in ("receiver", "prices"):
        plan = hm.plan(problem, planner, bound=False)
        found.append(Certified(planner, interval(hm.simulate_costs(problem, plan, episodes)), bound))
    return min(found, key=lambda one: one.cost.mean)


def shipped(names: Sequence[str], episodes: int) -> float:
    """A row per scenario; returns the largest gap [%]."""
    print("| scenario | cost | lower bound | gap % | seconds |\n|---|---|---|---|---|", flush=True)
    worst = 0.0
    for name in names:
        started = time.perf_counter()
        one = certified(hm.build(hm.Scenario.load(name)), episodes)
        seconds = time.perf_counter() - started
        print(f"| `{name}` | {one.cost.mean:.3f} | {one.bound:.3f} | {one} | {seconds:.0f} |", flush=True)
        worst = max(worst, one.gap)
    return worst


def networks(options: argparse.Namespace) -> float:
    """A row per mode and graph; returns the largest gap [%]."""
    print("\n| mode | network | lazy, φ = .3 | lazy, φ = 1 | plain, φ = .3 | plain, φ = 1 | seconds |")
    print("|---|---|---|---|---|---|---|", flush=True)
    worst = 0.0
    for mode, graph in product(options.modes, options.graphs):
        started, cells = time.perf_counter(), []
        for mixing, waterfall in product(("lazy-metropolis", "metropolis"), (0.3, 1.0)):
            changes = {"network.mixing": mixing, "link.waterfall": waterfall, "network.devices": options.devices}
            scenario = hm.Scenario.load("tiny").override(COMMON | GRAPHS[graph] | MODES[mode] | changes)
            problem = hm.build(scenario, options.device, options.dtype)
            cells.append(certified(problem, options.episodes, options.paths))
        worst = max([worst, *(cell.gap for cell in cells)])
        shown = " | ".join(map(str, cells))
        print(f"| {mode} | {graph} | {shown} | {time.perf_counter() - started:.0f} |", flush=True)
    return worst


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--shipped", nargs="*", default=list(SHIPPED), help="shipped scenarios; none if empty")
    parser.add_argument("--graphs", nargs="*", default=list(GRAPHS), choices=list(GRAPHS))
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES))
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--paths", type=int, default=0, help="bound the networks along so many sampled paths")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float64")
    options = parser.parse_args()
    worst = shipped(options.shipped, options.episodes) if options.shipped else 0.0
    if options.graphs and options.modes:
        worst = max(worst, networks(options))
    print(f"largest certified gap: {worst:.2f} %")


if __name__ == "__main__":
    main()
