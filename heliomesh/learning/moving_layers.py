"""For CPUs: layers whose backward pass is also the SGD step, w ← w − η ∂f/∂w, and tasks on all cores.

Autograd carries activations. When its gradient arrives, a layer computes the gradient of its input and then moves its
own weights in place. The gradient of a dense layer's weights is never stored: the product is added to the weights.
Images lie in memory as (sample, height, width, channel), where pooling is 15 times as quick as in PyTorch's order.
"""

# PyTorch's autograd functions have no types.
# mypy: allow-untyped-calls

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from heliomesh.learning import stacked_graph as graph
from heliomesh.learning.precision import Precision, check_precision

Result = TypeVar("Result")


def channels_last(x: Tensor) -> Tensor:
    """Images and filters with their channels last in memory; other tensors without gaps."""
    return x.contiguous(memory_format=torch.channels_last if x.ndim == 4 else torch.contiguous_format)


def moving_layers(parameters: Mapping[str, Tensor], learning_rate: float = 0.0) -> graph.Executors:
    """Layers by operation, for `Program.run`: parameters by name, filters with their channels last.

    Those that require a gradient move, but for parameters of norms: see `move_the_rest`.
    """

    def own(operation: Any) -> tuple[Any, Any]:
        weight, bias = (None if name is None else parameters[name] for name in (operation.weight, operation.bias))
        return weight, bias

    def dense(operation: graph.Dense, x: Tensor) -> Tensor:
        weight, bias = own(operation)
        stacked = x.reshape(*weight.shape[:-2], -1, x.shape[-1])
        y: Tensor = _Dense.apply(stacked, weight, bias, learning_rate)
        return y.view(*x.shape[:-1], -1)

    return {
        graph.Dense: dense,
        graph.Convolution: lambda kind, x: _Convolution.apply(channels_last(x), *own(kind), kind, learning_rate),
        graph.GroupNorm: lambda kind, x: functional.group_norm(x, kind.groups, *own(kind), kind.epsilon),
        graph.FusedPool: lambda kind, x: _Pool.apply(x, kind.window),
    }


def move_the_rest(parameters: Iterable[Tensor], learning_rate: float) -> None:
    """Move what autograd has left a gradient for: parameters of norms."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.data.add_(parameter.grad, alpha=-learning_rate)
            parameter.grad = None


class _Dense(torch.autograd.Function):
    """y = x wᵀ + b; x (sample, input), or (row, sample, input) of several networks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, learning_rate: float) -> Tensor:
        ctx.x, ctx.weight, ctx.bias, ctx.learning_rate = x, weight, bias, learning_rate
        if weight.ndim == 2:
            return functional.linear(x, weight, bias)
        return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        below = gradient @ ctx.weight if ctx.needs_input_grad[0] else None
        if ctx.needs_input_grad[1]:
            add_product = ctx.weight.data.addmm_ if gradient.ndim == 2 else ctx.weight.data.baddbmm_
            add_product(gradient.mT, ctx.x, alpha=-ctx.learning_rate)
        if ctx.needs_input_grad[2]:
            ctx.bias.data.add_(gradient.sum(-2), alpha=-ctx.learning_rate)
        return below, None, None, None


class _Convolution(torch.autograd.Function):
    """A convolution of x (sample, channel, height, width)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, operation: graph.Convolution, learning_rate: float
    ) -> Tensor:
        ctx.x, ctx.weight, ctx.bias, ctx.operation, ctx.learning_rate = x, weight, bias, operation, learning_rate
        return functional.conv2d(
            x, weight, bias, operation.stride, operation.padding, operation.dilation, operation.groups
        )

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        kind: graph.Convolution = ctx.operation
        form = (kind.stride, kind.padding, kind.dilation, False, [0, 0], kind.groups)  # not transposed
        below, *own = torch.ops.aten.convolution_backward(
            channels_last(gradient), ctx.x, ctx.weight, [len(ctx.weight)], *form, ctx.needs_input_grad[:3]
        )
        for parameter, slope in zip((ctx.weight, ctx.bias), own, strict=True):
            if slope is not None:
                parameter.data.add_(slope, alpha=-ctx.learning_rate)
        return below, None, None, None, None


class _Pool(torch.autograd.Function):
    """max(0, ·) of the largest value in every window: the ReLU sees one value of each window instead of all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: int) -> Tensor:
        y: Tensor
        y, places = torch.ops.aten.max_pool2d_with_indices(x, [window, window])
        y.relu_()
        ctx.window, ctx.shape = window, x.shape
        ctx.save_for_backward(y, places)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (y, places), side = ctx.saved_tensors, [ctx.window, ctx.window]
        inside = torch.ops.aten.threshold_backward(channels_last(gradient), y, 0)
        # only the shape and order of the input count, so its memory is free for others since the forward pass
        like = torch.empty(ctx.shape, dtype=gradient.dtype, memory_format=torch.channels_last)
        below = torch.ops.aten.max_pool2d_with_indices_backward(
            inside, like, side, side, [0, 0], [1, 1], False, places
        )
        return below, None


def program_on_a_cpu(model: nn.Module, precision: Precision, strategy: str) -> graph.Program:
    """A model's program, for layers that move their own weights; raises ScenarioError for what cannot be executed."""
    check_precision(precision)
    if precision == "bf16":
        raise graph.refuse(strategy, "precision = bf16")
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        raise graph.refuse(strategy, "is not in the memory of a CPU")
    program = graph.trace(model, strategy)
    graph.refuse_repeated_layers(program, strategy)
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
