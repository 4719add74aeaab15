"""A process that tries inputs one after another under limits of memory and time.

Reads lines ``kind number`` and answers each by one line of JSON. Its parent starts another one if it dies.
"""

import json
import os
import resource
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

import numpy as np

from tests.fuzz.command import Ending, frames, run_command, run_function
from tests.fuzz.kinds import KINDS
from tests.fuzz.run_folders import prepare_originals

MEMORY_BYTES = 3 << 30  # beyond what the process has when it starts
CPU_SECOND = 15.0  # of one input; processor time, so that a busy machine makes no finds


class _TooSlowError(BaseException):
    """An input took more processor time than allowed; no handler of the program catches it."""


def try_input(kind: int, number: int, seed: int, originals: Path, place: Path) -> Ending:
    """Make one input in an empty folder and run it."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    rng = np.random.default_rng([seed, kind, number])
    work = KINDS[kind].make(rng, originals, place)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECOND)
    try:
        ending = run_function(work) if callable(work) else run_command(work)
    except _TooSlowError as error:
        ending = Ending("find", f"{frames(error)}: more than {CPU_SECOND:g} s of processor time")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if ending.kind == "find":
        return Ending("find", f"{work}\n{ending.text}")
    return ending


def limit_process() -> None:
    """Limit memory and let the processor clock interrupt."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _too_slow)


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise _TooSlowError


def main() -> None:
    """Answer until there is no more input."""
    seed = int(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    with tempfile.TemporaryDirectory(prefix="heliomesh-fuzz-") as name:
        folder = Path(name)
        os.environ["HELIOMESH_DATA"] = str(folder / "cache")
        originals = folder / "originals"
        originals.mkdir()
        prepare_originals(originals)
        os.chdir(folder)
        limit_process()
        for line in sys.stdin:
            kind, number = map(int, line.split())
            ending = try_input(kind, number, seed, originals, folder / "place")
            answers.write(json.dumps([kind, number, ending.kind, ending.text]) + "\n")


if __name__ == "__main__":
    main()
