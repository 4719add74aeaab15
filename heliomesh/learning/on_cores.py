"""Tasks on all cores: as many at once as PyTorch has threads, each by one thread."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def on_all_cores(function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]) -> list[Result]:
    """Results of the tasks in order, each computed by one thread."""
    listed, threads = list(tasks), torch.get_num_threads()
    try:
        if threads == 1 or len(listed) <= 1:
            torch.set_num_threads(1)
            return [function(*task) for task in listed]
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(lambda task: function(*task), listed))
    finally:
        torch.set_num_threads(threads)  # of this thread and of threads to come
