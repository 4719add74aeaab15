"""One thread for small networks.

Plans, bounds and simulations of small networks are many operations on small tensors. To wake a second thread for each
takes longer than its half of the work, the more so on a virtual or busy machine.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from heliomesh.model.problem import Problem

_MOST_DEVICES = 200  # of a network for which one thread is the faster choice


def is_small(problem: Problem) -> bool:
    """Whether an operation on all devices takes longer to begin than to do."""
    return problem.device.type == "cpu" and problem.num_devices <= _MOST_DEVICES


@contextmanager
def fitting_threads(problem: Problem) -> Iterator[None]:
    """Compute with one thread where the network is small, and with as many as before afterwards."""
    many = torch.get_num_threads()
    alone = many > 1 and is_small(problem)
    if alone:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if alone:
            torch.set_num_threads(many)
