"""The week of `field40`: seconds to plan, to simulate 64 episodes and, with ``--size``, to size 16 candidates.

The two simulations, of `contributions` and of `turns`, run in one process: their ratio says what the joint choice of
actions costs over a schedule without one, and depends less on the machine than seconds do. Goals on two cores: 60 s,
60 s and 15 minutes. The last line has the seconds of the week.
"""

import argparse
import time
from collections.abc import Callable

import torch

import heliomesh as hm


def timed(name: str, work: Callable[[], object]) -> tuple[object, float]:
    """A result and its seconds, which are printed."""
    start, busy = time.perf_counter(), time.process_time()
    result = work()
    seconds = time.perf_counter() - start
    print(f"{name:32s} {seconds:8.1f} s, {time.process_time() - busy:8.1f} s of processor", flush=True)
    return result, seconds


def main() -> None:
    """Print one row per step, and last the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--slots", type=int, default=None, help="a shorter horizon")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--size", action="store_true", help="size batteries and panels as well")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    scenario = hm.Scenario.load("field40")
    if asked.slots is not None:
        scenario = scenario.override({"slots": asked.slots})
    problem, seconds = hm.build(scenario), {}
    for planner in ("turns", "contributions"):
        plan, _ = timed(f"plan {planner}", lambda name=planner: hm.plan(problem, name))
        week = f"{asked.episodes} episodes of {planner}"
        _, seconds[planner] = timed(week, lambda plan=plan: hm.simulate(problem, plan, episodes=asked.episodes))
    if asked.size:
        timed("sizing, 16 candidates", lambda: size(scenario))
    ratio = seconds["contributions"] / seconds["turns"]
    print(f"{seconds['contributions']:.1f} s for {asked.episodes} episodes of contributions, {ratio:.1f} times turns")


def size(scenario: hm.Scenario) -> object:
    """Batteries and panels as in docs/field40.md."""
    return hm.size(
        scenario,
        planner="contributions",
        options={"passes": 1},
        target_accuracy=0.93,
        capacity_joule=[150.0, 300.0, 450.0, 600.0],
        panel=[2.2, 3.0, 4.0, 6.0],
        episodes=3,
    )


if __name__ == "__main__":
    main()
