"""Dense layers of a stack of networks, whose backward pass is also the SGD step; see `dense_kernels.py`."""

# PyTorch's autograd functions and Triton's kernels have no types.
# mypy: allow-untyped-calls

from typing import Any

import torch
import triton
from torch import Tensor

from heliomesh.learning.cuda import dense_kernels as kernels
from heliomesh.learning.cuda.buffers import Buffers, Earlier, power_of_two
from heliomesh.learning.stacked_graph import Dense

LARGEST_BATCH = 128  # the backward pass holds a whole minibatch in registers
_ROUNDED_ELEMENTS = 8192
_LEAST_RANK_RATIO = 3  # of a layer's width to the rank of a slot's change, from which on it is written once


def earlier_steps(stack: Buffers, operation: Dense, steps: int, images: int) -> Earlier | None:
    """Memory for the steps of a slot; None where the weights had better be written in every step."""
    outputs, inputs = stack.shape(operation.weight)
    if steps == 1 or min(outputs, inputs) < _LEAST_RANK_RATIO * steps * images:
        return None

    def empty(*shape: int) -> Tensor:
        return torch.empty(stack.positions, *shape, dtype=stack.dtype, device=stack.weights.device)

    copy = None if stack.dtype is torch.float32 else empty(outputs, inputs)
    if copy is not None:
        weight, length = stack.parameter(operation.weight), outputs * inputs
        form = {"ALIGNED": stack.alignment(operation.weight), "BLOCK": _ROUNDED_ELEMENTS, "num_warps": 8}
        stack.launch(kernels.round_rows, triton.cdiv(length, _ROUNDED_ELEMENTS), weight, copy, length, **form)
    rows, gradients, *products = (empty(steps, images, length) for length in (inputs, outputs, images, images))
    return Earlier(rows, gradients, products[0], products[1], copy)


class DenseStep(torch.autograd.Function):
    """x wᵀ + b in one of a slot's steps; x (position · batch, input)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, operation: Dense, stack: Buffers, step: int) -> Tensor:
        """Return x wᵀ + b."""
        x, earlier = x.contiguous(), stack.earlier.get(operation.weight)
        ctx.save_for_backward(x)
        ctx.operation, ctx.stack, ctx.step = operation, stack, step
        weights, sizes, form = _given(x, operation, stack, step)
        images, _, outputs, *_ = sizes
        if earlier is not None:
            _multiply(stack, x, earlier.inputs, earlier.input_products, step)
        y, block_b = x.new_empty(len(x), outputs), power_of_two(images, 16, 64)
        before = (x, x) if earlier is None else (earlier.input_products, earlier.gradients)
        form |= {"BLOCK_B": block_b, "BLOCK_R": power_of_two(images, 16, LARGEST_BATCH), "BLOCK_O": 64}
        half = {"BLOCK_I": 64, "num_warps": 8, "num_stages": 4}
        form |= half if x.dtype is torch.bfloat16 else {"BLOCK_I": 32, "num_warps": 4, "num_stages": 2}
        programs = triton.cdiv(outputs, 64) * triton.cdiv(images, block_b)
        stack.launch(kernels.linear_forward, programs, x, *weights, y, *before, *sizes, **form)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return dx, with the old weights; w −= η dyᵀ x in the same visit, or for all steps after the last."""
        (x,) = ctx.saved_tensors
        operation, stack, step, dy = ctx.operation, ctx.stack, ctx.step, dy.contiguous()
        weights, sizes, form = _given(x, operation, stack, step)
        (images, inputs, outputs, *_), earlier = sizes, stack.earlier.get(operation.weight)
        if earlier is not None:
            _multiply(stack, dy, earlier.gradients, earlier.gradient_products, step)
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        block_i = 128 if images <= 32 else 64  # what a program holds grows with the batch
        arrays = dy, x, *weights, x if dx is None else dx
        before = (x, x) if earlier is None else (earlier.gradient_products, earlier.inputs)
        form |= {"NEEDS_INPUT": dx is not None, "MOVES": earlier is None}
        form |= {"BLOCK_B": power_of_two(images, 16, LARGEST_BATCH), "BLOCK_O": 32, "BLOCK_I": block_i}
        form |= {"num_warps": 4, "num_stages": 4 if form["FROM_COPY"] else 2}
        stack.launch(kernels.linear_backward, triton.cdiv(inputs, block_i), *arrays, *before, *sizes, **form)
        if earlier is not None:
            earlier.inputs[:, step] = x.view(stack.positions, images, inputs)
            earlier.gradients[:, step] = dy.view(stack.positions, images, outputs)
            if step == earlier.inputs.shape[1] - 1:
                _update(operation, stack, earlier)
        return dx, None, None, None, None


def _given(
    x: Tensor, operation: Dense, stack: Buffers, step: int
) -> tuple[tuple[Tensor, ...], tuple[int, ...], dict[str, Any]]:
    """For both kernels: weight, bias and rounded copy; images, inputs, outputs, earlier and all steps; constants."""
    outputs, inputs = stack.shape(operation.weight)
    earlier = stack.earlier.get(operation.weight)
    copy = None if earlier is None else earlier.copy
    weights = stack.parameter(operation.weight), stack.parameter(operation.bias), x if copy is None else copy
    steps = (0, 1) if earlier is None else (step, earlier.inputs.shape[1])
    form: dict[str, Any] = {"HAS_BIAS": operation.bias is not None, "FROM_COPY": copy is not None}
    form["ALIGNED"] = stack.alignment(operation.weight)
    return weights, (len(x) // stack.positions, inputs, outputs, *steps), form


def _multiply(stack: Buffers, now: Tensor, before: Tensor, products: Tensor, step: int) -> None:
    """Products of this step's rows with those of all earlier steps."""
    if step == 0:
        return
    block_b = power_of_two(before.shape[2], 16, LARGEST_BATCH)
    form = {"BLOCK_B": block_b, "BLOCK_I": 128 if stack.dtype is torch.bfloat16 else 32, "num_warps": 4}
    stack.launch(kernels.products_with_earlier, step, now, before, products, *before.shape[1:], **form)


def _update(operation: Dense, stack: Buffers, earlier: Earlier) -> None:
    """Move the weights by all steps of the slot."""
    outputs, inputs = stack.shape(operation.weight)
    steps, images = earlier.inputs.shape[1:3]
    side = 64 if stack.dtype is torch.bfloat16 else 32
    arrays = stack.parameter(operation.weight), earlier.inputs, earlier.gradients
    form = {"ALIGNED": stack.alignment(operation.weight), "num_warps": 4, "num_stages": 3}
    form |= {"BLOCK_B": power_of_two(images, 16, LARGEST_BATCH), "BLOCK_O": side, "BLOCK_I": side}
    programs = triton.cdiv(outputs, side) * triton.cdiv(inputs, side)
    stack.launch(kernels.rank_update, programs, *arrays, images, inputs, outputs, steps, **form)
