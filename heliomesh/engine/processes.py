"""Work in several processes of this machine, of one thread each: they start at the first use and stay.

They are copies of a server that has loaded PyTorch and has one thread. A copy of the caller could lack threads that
hold its locks.
"""

import os
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_all_start_methods, get_context, parent_process
from multiprocessing.context import BaseContext
from threading import Thread
from typing import Any

# what plans, simulations and trainings need, and what is slow to import on their way
LOADED = ("heliomesh.jobs.store", "pvlib.irradiance", "sklearn.datasets")


def parallel_map(function: Callable[[Any], Any], items: Iterable[Any], *, processes: int) -> Iterator[Any]:
    """Like `map`, in so many processes; results in order. The function and its items must be picklable."""
    packed = (pickle.dumps((function, item)) for item in items)
    # plain pickles: the executor's own would leave tensors in shared memory, which ends with the process
    return (pickle.loads(result) for result in _pool(processes).map(called, packed))  # noqa: S301


def work_fields(processes: int, device: str) -> dict[str, Any]:
    """How processes share the work, as fields of `Work`; on a GPU one stack has more room than several."""
    spread = partial(parallel_map, processes=processes)
    return {"parallel_map": spread, "stacks_at_once": processes if device == "cpu" else 1, "same_disk": True}


def load_ahead() -> None:
    """Start the server, if there can be one, while the caller does something else."""
    if _context().get_start_method() == "forkserver":
        from multiprocessing.forkserver import ensure_running  # Windows lacks the module

        ensure_running()


def called(packed: bytes) -> bytes:
    """A function and its item, pickled, to what it returns, pickled."""
    function, item = pickle.loads(packed)  # noqa: S301
    return pickle.dumps(function(item))


@cache
def _context() -> BaseContext:
    """How processes start: from a server, or anew where the system knows none."""
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(list(LOADED))
    return context


@cache
def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, _context(), initializer=_start)


def _start() -> None:
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once with the one who asked
    Thread(target=_end_with_the_one_who_asked, daemon=True).start()


def _end_with_the_one_who_asked() -> None:
    """Also where that one is killed: a later command may do the same work in the same folder."""
    asked_by = parent_process()
    if asked_by is not None:
        asked_by.join()
        os._exit(1)
