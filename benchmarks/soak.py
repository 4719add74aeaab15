"""Soak: hundreds of small jobs through one store on two worker processes; does anything grow, is all there?

Plans, simulates and trains every job, verifies every stored file, and prints memory and open files of the driver and
of the workers on the way. Ends with code 1 where something is missing, damaged or grows. `--jobs 40` is a short one.
"""

import argparse
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import heliomesh as hm
from heliomesh.cli import app
from heliomesh.engine.processes import called
from heliomesh.jobs.job import Job
from heliomesh.jobs.store import Store
from heliomesh.learning.trainer import Execution

_WORKERS = 2
_AHEAD = 8  # jobs handed out at a time
_PLANNERS = ("uncoordinated", "battery_threshold", "myopic")
_MAX_GROWTH_MIB = 16.0  # of three processes, between the first and the last quarter of a phase


def small_jobs(number: int) -> list[Job]:
    """Distinct small jobs: planners by seeds of the scenario."""
    tiny, training = hm.Scenario.load("tiny").override({"slots": 4}), hm.TrainSettings(strategy="loop")
    return [Job(tiny.override({"seed": n}), _PLANNERS[n % 3], training=training) for n in range(number)]


class Watch:
    """Memory and open files of this process and of its workers, as the jobs of one phase end."""

    def __init__(self, phase: str, pool: ProcessPoolExecutor) -> None:
        self._phase, self._pool = phase, pool
        self._rows: list[tuple[int, float, float, int]] = []  # jobs, MiB of driver, MiB of workers, open files

    def look(self, done: int) -> None:
        """Take a row."""
        workers = list(self._pool._processes)  # there is no public way to ask for them
        files = sum(sum(1 for _ in Path(f"/proc/{number}/fd").iterdir()) for number in (os.getpid(), *workers))
        row = (done, _resident_mib(os.getpid()), sum(map(_resident_mib, workers)), files)
        self._rows.append(row)
        text = "{:5d} jobs: driver {:6.0f} MiB, workers {:6.0f} MiB, {:4d} open files".format(*row)
        print(f"{self._phase} {text}", flush=True)

    @property
    def growth_mib(self) -> float:
        """From the first quarter's largest to the last quarter's largest, driver and workers together."""
        return self._growth([row[1] + row[2] for row in self._rows])

    @property
    def more_files(self) -> float:
        """The same for open files: workers hold some for a moment."""
        return self._growth([row[3] for row in self._rows])

    def _growth(self, values: Sequence[float]) -> float:
        quarter = max(1, len(values) // 4)
        return max(values[-quarter:]) - max(values[:quarter])


def _resident_mib(number: int) -> float:
    pages = int(Path(f"/proc/{number}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def in_pool(
    pool: ProcessPoolExecutor, watch: Watch, every: int, function: Callable[[Any], Any], items: Iterable[Any]
) -> Iterator[Any]:
    """``map`` over the workers, some items ahead: traces are not all read at once."""
    waiting, done = iter(items), 0
    while some := list(islice(waiting, _AHEAD)):
        # as the package's own processes do: else tensors come as open files that live as long as they do
        for result in pool.map(called, [pickle.dumps((function, item)) for item in some]):
            yield pickle.loads(result)  # noqa: S301
            done += 1
            if done % every == 0:
                watch.look(done)


def soak(number: int, folder: Path) -> bool:
    """Run all jobs; whether all is well."""
    store, jobs, started = Store(folder), small_jobs(number), time.monotonic()
    with ProcessPoolExecutor(_WORKERS, get_context("spawn")) as pool:
        watches = {phase: Watch(phase, pool) for phase in ("plan", "train")}
        every = max(1, number // 20)
        maps = {phase: partial(in_pool, pool, watch, every) for phase, watch in watches.items()}
        work = Execution(parallel_map=maps["plan"], train_map=maps["train"], runs_at_once=1, keep_weights=False)
        runs = store.runs(jobs, work)
    whole = sum(run.final["slot"] == 4 for run in runs)
    verified = CliRunner().invoke(app, ["store", "verify", str(folder)])
    print("\n".join(verified.stdout.splitlines()[-2:]))
    left = [path for path in folder.rglob(".*") if path.is_file()]
    print(f"{whole} of {number} results present and verified, {len(left)} temporary files left")
    for phase, watch in watches.items():
        print(f"growth while it does {phase}: {watch.growth_mib:+.1f} MiB, {watch.more_files:+.0f} open files")
    print(f"{number} jobs in {time.monotonic() - started:.0f} s on {_WORKERS} workers")
    grows = any(watch.growth_mib > _MAX_GROWTH_MIB or watch.more_files > 0 for watch in watches.values())
    return whole == number and verified.exit_code == 0 and not left and not grows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    number = parser.parse_args().jobs
    with tempfile.TemporaryDirectory() as name:
        sys.exit(0 if soak(number, Path(name)) else 1)


if __name__ == "__main__":
    main()
