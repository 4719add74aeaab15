"""A limit of processor time, so that one slow planner does not stop the benchmark."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from heliomesh.common.mistakes import MistakeError


class TooSlowError(MistakeError):
    """A planner took more processor time than it is allowed."""


@contextmanager
def processor_limit(seconds: float) -> Iterator[None]:
    """Raise TooSlowError once the block has used so much processor time [s], all threads of this process together.

    The operating system's timer does it, which Windows lacks, and which reaches the main thread only: elsewhere there
    is no limit.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise TooSlowError("time", f"at most {seconds:g} s of processors to plan and simulate", ": more")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
