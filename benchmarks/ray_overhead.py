"""What Ray costs: a sweep of jobs longer than ten seconds, on the local engine and on a local Ray.

Both engines take the same jobs, with the same number of threads and one at a time, so that the difference is Ray's:
starting it, starting workers, sending traces and results. The engines take turns, and the shortest time of each
counts, since other programs on the machine only ever make them longer. Prints both times and last their ratio.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from heliomesh.jobs.job import Job  # before torch: the package sets how threads wait
from heliomesh.jobs.store import Store
from heliomesh.learning.trainer import Execution
from heliomesh.scenario.scenario import Scenario

import torch  # isort: skip

from heliomesh.engine import ray  # isort: skip


def sweep(num_jobs: int, slots: int) -> list[Job]:
    """Jobs that differ in their data."""
    ring = Scenario.load("ring10").override({"slots": slots, "learning.dataset": "digits"})
    alphas = [0.5 + 0.1 * number for number in range(num_jobs)]
    return [
        Job(ring.override({"learning.partition": "dirichlet", "learning.alpha": alpha}), "uncoordinated")
        for alpha in alphas
    ]


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def turn(jobs: list[Job]) -> tuple[float, float, float]:
    """Seconds of the local engine, of starting Ray, and of the work over Ray."""
    with tempfile.TemporaryDirectory() as folder:
        alone, spread = Store(Path(folder) / "local"), Store(Path(folder) / "ray")
        alone.traces(jobs)
        spread.traces(jobs)
        on_local = seconds(lambda: alone.runs(jobs, Execution(runs_at_once=1)))
        starting = seconds(ray.start)
        on_ray = seconds(lambda: spread.runs(jobs, Execution(runs_at_once=1, parallel_map=ray.parallel_map)))
        ray.stop()
    return on_local, starting, on_ray


def main() -> None:
    """Print the times and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--slots", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    jobs = sweep(options.jobs, options.slots)
    turns = [turn(jobs) for _ in range(options.repeats)]
    on_local, starting, on_ray = (min(times) for times in zip(*turns, strict=True))
    print(f"{options.jobs} jobs, {torch.get_num_threads()} threads each, the shortest of {options.repeats} turns")
    print(f"local engine: {on_local:.1f} s, {on_local / options.jobs:.1f} s a job")
    print(f"Ray: {on_ray:.1f} s, and {starting:.1f} s to start it")
    print(f"ratio, start not counted: {on_ray / on_local:.3f}")
    print(f"ratio: {(starting + on_ray) / on_local:.3f}")


if __name__ == "__main__":
    main()
