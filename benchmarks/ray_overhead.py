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

from heliomesh.engine import local  # before torch: the package sets how threads wait
from heliomesh.engine.arm import Arm, Scheme
from heliomesh.engine.local import Hardware
from heliomesh.engine.store import Store
from heliomesh.scenario import Scenario

import torch  # isort: skip

from heliomesh.engine import ray  # isort: skip


def sweep(num_jobs: int, slots: int) -> list[Arm]:
    """Jobs that differ in their data."""
    ring = Scenario.load("ring10").override({"slots": slots, "learning.dataset": "digits"})
    scheme = Scheme("uncoordinated", "uncoordinated")
    alphas = [0.5 + 0.1 * number for number in range(num_jobs)]
    return [
        Arm("overhead", scheme, ring.override({"learning.partition": "dirichlet", "learning.alpha": alpha}), 1)
        for alpha in alphas
    ]


def seconds(work: Callable[[], None]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def turn(arms: list[Arm]) -> tuple[float, float, float]:
    """Seconds of the local engine, of starting Ray, and of the work over Ray."""
    with tempfile.TemporaryDirectory() as folder:
        alone, spread = Store(Path(folder) / "local"), Store(Path(folder) / "ray")
        local.prepare_all(arms, alone)
        local.prepare_all(arms, spread)
        on_local = seconds(lambda: local.train_all(arms, alone, Hardware()))
        starting = seconds(ray.start)
        on_ray = seconds(lambda: ray.train_all(arms, spread, Hardware()))
        ray.stop()
    return on_local, starting, on_ray


def main() -> None:
    """Print the times and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--slots", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    arms = sweep(options.jobs, options.slots)
    turns = [turn(arms) for _ in range(options.repeats)]
    on_local, starting, on_ray = (min(times) for times in zip(*turns, strict=True))
    print(f"{options.jobs} jobs, {torch.get_num_threads()} threads each, the shortest of {options.repeats} turns")
    print(f"local engine: {on_local:.1f} s, {on_local / options.jobs:.1f} s a job")
    print(f"Ray: {on_ray:.1f} s, and {starting:.1f} s to start it")
    print(f"ratio, start not counted: {on_ray / on_local:.3f}")
    print(f"ratio: {(starting + on_ray) / on_local:.3f}")


if __name__ == "__main__":
    main()
