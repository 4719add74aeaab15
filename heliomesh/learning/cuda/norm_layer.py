"""Group norms of a stack of networks, and updates of biases, scales and shifts; see `vector_kernels.py`."""

# PyTorch's autograd functions and Triton's kernels have no types.
# mypy: allow-untyped-calls

from typing import Any

import torch
import triton
from torch import Tensor

from heliomesh.learning.cuda import vector_kernels as kernels
from heliomesh.learning.cuda.buffers import Buffers, power_of_two
from heliomesh.learning.cuda.fusion import FusedNorm
from heliomesh.learning.stacked_graph import GroupNorm

_NORM_ELEMENTS = 4096  # of a program, where that leaves enough channels beside one another
_NORM_CHANNELS = 32
_MOST_NORM_ELEMENTS = 16_384  # that the registers of a program hold


def pixels_last(x: Tensor) -> Tensor:
    """(…, channel, height, width) in channels-last memory."""
    return x.contiguous(memory_format=torch.channels_last)


def update_vectors(stack: Buffers, names: tuple[str, ...], partial: Tensor) -> None:
    """Move one or two vectors of equal length by −η Σ_split partial[split, position, vector]."""
    length, parts = stack.shape(names[0])[0], len(partial)
    block = power_of_two(len(names) * length, 16, 64)
    first, distance = stack.parameter(names[0]), stack.offset(names[-1]) - stack.offset(names[0])
    sizes = (partial.stride(0), partial.stride(1), length, distance, parts)
    form = {"VECTORS": len(names), "BLOCK_S": power_of_two(parts, 1, 32), "BLOCK": block}
    stack.launch(kernels.vector_update, triton.cdiv(len(names) * length, block), first, partial, *sizes, **form)


def _constants(x: Tensor, operation: FusedNorm, values_of_a_warp: int) -> dict[str, Any]:
    """What both kernels of a norm are compiled with: whole groups, and whole images where registers hold them."""
    norm, size = operation.norm, x.shape[2] * x.shape[3]
    pixels, group = power_of_two(size, 1, 1 << 20), norm.channels // norm.groups
    channels = min(max(_NORM_CHANNELS, _NORM_ELEMENTS // pixels), _MOST_NORM_ELEMENTS // pixels)
    channels = min(norm.channels, max(group, channels))
    pixels = min(pixels, max(1, _MOST_NORM_ELEMENTS // channels))
    return {
        "PIXELS": size,
        "CHANNELS": norm.channels,
        "GROUP": group,
        "HAS_RESIDUAL": operation.residual,
        "RELU": operation.relu,
        "BLOCK_P": pixels,
        "BLOCK_C": channels,
        "num_warps": power_of_two(pixels * channels // values_of_a_warp, 2, 16),
    }


def _names(norm: GroupNorm) -> tuple[str, str]:
    return str(norm.weight), str(norm.bias)  # norms without them are refused when the strategy is built


class NormStep(torch.autograd.Function):
    """ReLU(norm(x) + residual)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, operation: FusedNorm, stack: Buffers, residual: Tensor | None = None
    ) -> Tensor:
        """Return ReLU(norm(x) + residual)."""
        x = pixels_last(x)
        y, moments = torch.empty_like(x), torch.empty(len(x), 2, x.shape[1], device=x.device)
        scale, shift = _names(operation.norm)
        images, constants = len(x) // stack.positions, _constants(x, operation, 2048)
        programs = images * (x.shape[1] // constants["BLOCK_C"])
        arrays = x if residual is None else pixels_last(residual), stack.parameter(scale), stack.parameter(shift)
        numbers = (images, operation.norm.epsilon)
        stack.launch(kernels.group_norm_forward, programs, x, *arrays, y, moments, *numbers, **constants)
        ctx.save_for_backward(x, y if operation.relu else x, moments)
        ctx.operation, ctx.stack = operation, stack
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return dx and the residual's gradient, with the old scale; then scale and shift move."""
        x, y, moments = ctx.saved_tensors
        operation, stack, names = ctx.operation, ctx.stack, _names(ctx.operation.norm)
        images, constants = len(x) // stack.positions, _constants(x, operation, 1024)
        dx = torch.empty_like(x)
        through = torch.empty_like(x) if operation.residual else None
        partial = torch.empty_like(moments)  # (position · batch, 2, channel)
        programs = images * (x.shape[1] // constants["BLOCK_C"])
        arrays = pixels_last(dy), x, y, stack.parameter(names[0]), moments
        gradients = dx, dx if through is None else through, partial
        stack.launch(kernels.group_norm_backward, programs, *arrays, *gradients, images, **constants)
        update_vectors(stack, names, partial.view(stack.positions, images, -1).transpose(0, 1))
        return dx, None, None, None, *(() if through is None else (through,))
