"""Children that start in milliseconds: forked from a server that has loaded everything and has one thread."""

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.forking import CONTEXT

_PATIENCE_SECOND = 300.0


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    code: int  # exit code, or minus the signal's number
    told: str  # standard output and error

    @property
    def refused(self) -> bool:
        """Whether it ended as for a user's mistake: code 2 and one sentence."""
        errors = [line for line in self.told.splitlines() if line.startswith("error: ")]
        return self.code == 2 and len(errors) == 1 and "Traceback" not in self.told


Job = Callable[[], object]


def call(job: Job, log: Path, fault: Job | None = None) -> Ended:
    """Run a job in a child, after ``fault`` has prepared its trouble there."""
    child = start(job, log, fault)
    child.join(_PATIENCE_SECOND)
    if child.exitcode is None:
        child.kill()
        raise TimeoutError(
            f"a child was still running after {_PATIENCE_SECOND:g} s: {log.read_text(encoding='utf-8')}"
        )
    return Ended(child.exitcode, log.read_text(encoding="utf-8"))


def start(job: Job, log: Path, fault: Job | None = None) -> Any:
    """The same, without waiting: a process."""
    log.write_text("", encoding="utf-8")
    child = CONTEXT.Process(target=_child, args=(job, log, fault))
    child.start()
    return child


def command(*arguments: object) -> None:
    """A job: one command of the command line."""
    from heliomesh.cli import main

    sys.argv = ["heliomesh", *map(str, arguments)]
    main()


def _child(job: Job, log: Path, fault: Job | None) -> None:
    import torch

    torch.set_num_threads(1)  # threads of the pool did not survive the fork
    with log.open("a", buffering=1) as out:
        sys.stdout = sys.stderr = out
        try:
            if fault is not None:
                fault()
            job()
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        except BaseException:
            traceback.print_exc()
            code = 1
        out.flush()
    os._exit(code)
