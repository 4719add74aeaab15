"""What can go wrong around a program; each function makes its own process suffer and cannot be undone."""

import errno
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heliomesh.common.streams import stream

_NOBODY = 65534
_YEAR_SECOND = 3.2e7


def at_change(folder: Path, number: int, strike: Callable[[], None]) -> None:
    """Call ``strike`` before the n-th change (from 0) of a file's name or content below a folder."""
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if _changes(event, arguments, str(folder)):
            seen += 1
            if seen == number + 1:
                strike()

    sys.addaudithook(hook)


def _changes(event: str, arguments: tuple[Any, ...], prefix: str) -> bool:
    """Whether an audit event of Python announces a change of a file below ``prefix``."""
    if event == "open":
        path, mode = arguments[:2]
        return isinstance(mode, str) and bool(set(mode) & set("wax+")) and str(path).startswith(prefix)
    return event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir") and str(arguments[0]).startswith(prefix)


def kill_at_change(folder: Path, number: int) -> None:
    """End by SIGKILL, as at a loss of power."""
    at_change(folder, number, lambda: os.kill(os.getpid(), signal.SIGKILL))


def fail_at_change(folder: Path, number: int, code: int = errno.ENOSPC) -> None:
    """Let one change fail, by default for a full disk."""

    def fail() -> None:
        raise OSError(code, os.strerror(code), str(folder))

    at_change(folder, number, fail)


def file_limit(num_bytes: int) -> None:
    """Let the system refuse to write more than this to any file, in whatever language it is written."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def without_rights() -> None:
    """Be nobody, if root: for root no folder is read-only."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)


def jumping_clock(seed: int) -> None:
    """Let the wall clock jump by years, back and forth, at every look."""
    rng, started = stream(seed, "policy"), time.time()

    def jumped() -> float:
        return started + _YEAR_SECOND * float(rng.uniform(-20, 20))

    time.time = jumped
    time.time_ns = lambda: int(1e9 * jumped())


def counting(folder: Path, count: Path) -> None:
    """Let a file grow by one byte with every change below a folder."""
    descriptor = os.open(count, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if _changes(event, arguments, str(folder)):
            os.write(descriptor, b".")

    sys.addaudithook(hook)
