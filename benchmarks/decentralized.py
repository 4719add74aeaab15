"""The paper's algorithm against the exact optimum, in one run: planning times and costs on `ring10`.

Both plan on the same machine, one after the other, each as often as ``--repeats`` says. The least CPU time counts,
since others may use the machine. Costs are simulated with common random numbers. Prints a Markdown table and last the
ratio of the times on `ring10`.
"""

import argparse
import time
from typing import Any

import heliomesh as hm
from heliomesh.simulation.diagnostics import interval


def planned(problem: hm.Problem, planner: str, repeats: int, **options: Any) -> tuple[hm.Plan, float, float]:
    """A plan, and the least wall and CPU time of making it [s]."""
    wall, busy = [], []
    for _ in range(repeats):
        started, used = time.perf_counter(), time.process_time()
        plan = hm.plan(problem, planner, bound=False, **options)
        wall.append(time.perf_counter() - started)
        busy.append(time.process_time() - used)
    return plan, min(wall), min(busy)


def row(name: str, problem: hm.Problem, plan: hm.Plan, seconds: tuple[float, float], episodes: int) -> None:
    """Print times and the simulated cost."""
    cost = interval(hm.simulate_costs(problem, plan, episodes))
    times = f"{seconds[0]:.1f} | {seconds[1]:.1f}"
    print(f"| {name} | {plan.planner} | {times} | {cost.mean:.4f} ± {cost.half_width:.4f} |", flush=True)


def main() -> None:
    """Print the table and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=256)
    settings = parser.parse_args()
    print("| scenario | planner | seconds | CPU seconds | cost |\n|---|---|---|---|---|")
    ring, busy = hm.build(hm.Scenario.load("ring10")), {}
    for planner in ("centralized", "decentralized"):
        plan, *seconds = planned(ring, planner, settings.repeats)
        busy[planner] = seconds[1]
        row("ring10", ring, plan, (seconds[0], seconds[1]), settings.episodes)
    ratio = busy["decentralized"] / busy["centralized"]
    print(f"\nring10: decentralized takes {ratio:.2f} times the CPU time of centralized")


if __name__ == "__main__":
    main()
