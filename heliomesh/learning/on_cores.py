"""What strategies on a CPU share: the programs that they execute, and tasks on all cores, one thread for each."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import nn

from heliomesh.learning.precision import Precision, check_precision
from heliomesh.learning.stacked_graph import Program, refuse, refuse_repeated_layers, trace

Result = TypeVar("Result")


def program_on_a_cpu(model: nn.Module, precision: Precision, compiled: bool, strategy: str) -> Program:
    """A model's program, for layers that move their own weights; raises ScenarioError for what cannot be executed."""
    check_precision(precision)
    if compiled:
        raise refuse(strategy, "compiled = true")
    if precision == "bf16":
        raise refuse(strategy, "precision = bf16")
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        raise refuse(strategy, "is not in the memory of a CPU")
    program = trace(model, strategy)
    refuse_repeated_layers(program, strategy)
    return program


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
