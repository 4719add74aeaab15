"""Work in several processes of this machine, of one thread each: they start at the first use and stay."""

import pickle
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Any

import torch


def parallel_map(function: Callable[[Any], Any], items: Iterable[Any], *, processes: int) -> Iterator[Any]:
    """Like `map`, in so many processes; results in order. The function and its items must be picklable."""
    packed = (pickle.dumps((function, item)) for item in items)
    # plain pickles: the executor's own would leave tensors in shared memory, which ends with the process
    return (pickle.loads(result) for result in _pool(processes).map(_called, packed))  # noqa: S301


def _called(packed: bytes) -> bytes:
    function, item = pickle.loads(packed)  # noqa: S301
    return pickle.dumps(function(item))


@cache
def _pool(processes: int) -> ProcessPoolExecutor:
    """Processes that start anew: a copy of this one would have locks of threads that it lacks."""
    return ProcessPoolExecutor(processes, get_context("spawn"), initializer=_start)


def _start() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once with the one who asked
