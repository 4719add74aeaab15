"""Print how often each fault was tried and how it ended: `python -m tests.faults [--every 10]`."""

import argparse
import errno
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.faults import trials
from tests.faults.jobs import JOBS
from tests.faults.trials import Bench, Outcome

_HEADINGS = ("same", "refused", "wrong", "crash")


def rows(bench: Bench, every: int) -> Iterator[tuple[str, str, Counter[Outcome]]]:
    """(fault, command, outcomes) of everything that is tried: all of it, or one trial in ``every``."""
    rng, number = random.Random(0), math.ceil(20 / every)  # noqa: S311
    for name in JOBS:
        bench.undisturbed(name)
        changes = range(rng.randrange(every), bench.changes[name], every)
        yield "SIGKILL before a change of a file", name, trials.kill_at_changes(bench, name, changes)
        times = [rng.uniform(0, 0.4) for _ in range(number)]
        yield "SIGKILL at a random time", name, trials.kill_at_times(bench, name, times)
        yield "disk full at a change", name, trials.fail_at_changes(bench, name, changes, errno.ENOSPC)
        sizes = [round(1500 * 100 ** rng.random()) for _ in range(number)]
        yield "files limited in size", name, trials.limit_files(bench, name, sizes)
        if trials.can_mount():
            disks = [4096 * rng.randint(1, 64) for _ in range(number)]
            yield "small disk (tmpfs)", name, trials.fill_disks(bench, name, disks)
        yield "read-only folder", name, trials.read_only(bench, name)
        yield "clock jumps, with a kill", name, trials.jump_clock(bench, name, range(number))
        yield "started twice at once", name, trials.two_at_once(bench, name, number)
    for how in ("truncated", "bit flipped"):
        for name in ("run", "reproduce", "size"):
            folder = bench.undisturbed(name)
            yield f"file {how}, finished", name, trials.spoil_files(bench, name, folder, how, number, rng)
        half = trials.stopped_run(bench)
        yield f"file {how}, half-way", "run", trials.spoil_files(bench, "run", half, how, number, rng)
        trace = bench.undisturbed("simulate")
        yield f"trace {how}", "train", trials.spoil_trace(bench, trace, how, 20 * number, rng)
    yield "files swapped", "run", trials.swap_files(bench, "run", bench.undisturbed("run"), trials.other_run(bench))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="make one trial in so many")
    every = parser.parse_args().every
    started, found_by = time.monotonic(), dict[str, Counter[Outcome]]()
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)  # a child without rights works below it
        for fault, command, found in rows(Bench(Path(name)), every):
            print(f"{fault}, {command}: {dict(found)}", file=sys.stderr, flush=True)
            found_by[fault] = found_by.get(fault, Counter()) + found
    total = found_by["all"] = sum(found_by.values(), Counter())
    print("| fault | trials | same result | refused clearly | wrong result | crash |")
    print("|---|---|---|---|---|---|")
    for fault, found in found_by.items():
        cells = [fault, found.total(), *(found[heading] for heading in _HEADINGS)]
        print(f"| {' | '.join(map(str, cells))} |")
    print(f"\n{time.monotonic() - started:.0f} s")
    if total["wrong"] or total["crash"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
