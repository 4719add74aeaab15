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

_WANTED_PROGRAMS = 800  # several for each multiprocessor of a large card
_NORM_ELEMENTS = 4096  # of a program, where that leaves enough channels beside one another
_NORM_CHANNELS = 32
_MOST_NORM_ELEMENTS = 16_384  # that the registers of a program hold


def pixels_last(x: Tensor) -> Tensor:
    """(…, channel, height, width) in channels-last memory."""
    return x.contiguous(memory_format=torch.channels_last)


def splits(positions: int, programs: int, pixels: int, block: int) -> int:
    """Ranges of pixels for each sum over pixels: enough to fill the card, each of at least eight blocks.

    A power of two, so that ranges mostly end where blocks do.
    """
    most = max(1, min(_WANTED_PROGRAMS // (positions * programs), pixels // (8 * block), 16))
    return 1 << (most.bit_length() - 1)


def update_bias(stack: Buffers, bias: str, dy: Tensor, pixels: int) -> None:
    """Move a bias by −η Σ dy; dy of ``pixels`` pixels a position, channels last."""
    channels = dy.shape[1]
    block_c = power_of_two(channels, 16, 64)
    block_p, tiles = 4096 // block_c, triton.cdiv(channels, block_c)
    parts = splits(stack.positions, tiles, pixels, block_p)
    partial = torch.empty(parts, stack.positions, channels, device=dy.device)
    kernels.channel_sums[(tiles * parts, stack.positions)](
        dy,
        partial,
        stack.count,
        stack.positions,
        pixels,
        channels,
        parts,
        BLOCK_P=block_p,
        BLOCK_C=block_c,
    )
    update_vectors(stack, [bias], partial, partial.stride(0), partial.stride(1), parts)


def update_vectors(
    stack: Buffers, names: list[str], partial: Tensor, split_stride: int, position_stride: int, parts: int
) -> None:
    """Move one or two vectors of equal length by −η Σ_split partial[split, position, vector]."""
    length = stack.shape(names[0])[0]
    block = power_of_two(len(names) * length, 16, 64)
    kernels.vector_update[(triton.cdiv(len(names) * length, block), stack.positions)](
        stack.parameter(names[0]),
        partial,
        stack.rows,
        stack.count,
        stack.rate,
        stack.stride,
        split_stride,
        position_stride,
        length,
        stack.offset(names[-1]) - stack.offset(names[0]),
        parts,
        VECTORS=len(names),
        BLOCK_S=power_of_two(parts, 1, 32),
        BLOCK=block,
    )


def norm(operation: FusedNorm, x: Tensor, stack: Buffers, *residual: Tensor) -> Tensor:
    """Return ReLU(norm(x) + residual)."""
    y: Tensor = _Norm.apply(x, stack.anchor, operation, stack, *residual)
    return y


def _parameters(norm: GroupNorm) -> tuple[str, str]:
    if norm.weight is None or norm.bias is None:
        raise RuntimeError("a norm without scale or shift is refused when the strategy is built")
    return norm.weight, norm.bias


def _blocks(x: Tensor, norm: GroupNorm, values_of_a_warp: int) -> dict[str, int]:
    """Pixels and channels of a program: whole groups, and whole images where registers hold them."""
    pixels, group = power_of_two(x.shape[2] * x.shape[3], 1, 1 << 20), norm.channels // norm.groups
    channels = min(max(_NORM_CHANNELS, _NORM_ELEMENTS // pixels), _MOST_NORM_ELEMENTS // pixels)
    channels = min(norm.channels, max(group, channels))
    pixels = min(pixels, max(1, _MOST_NORM_ELEMENTS // channels))
    warps = power_of_two(pixels * channels // values_of_a_warp, 2, 16)
    return {"BLOCK_P": pixels, "BLOCK_C": channels, "num_warps": warps}


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor,
        operation: FusedNorm,
        stack: Buffers,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Return ReLU(norm(x) + residual)."""
        x = pixels_last(x)
        y, moments = torch.empty_like(x), torch.empty(len(x), 2, x.shape[1], device=x.device)
        scale, shift = _parameters(operation.norm)
        images, blocks = len(x) // stack.positions, _blocks(x, operation.norm, 2048)
        kernels.group_norm_forward[(images * (x.shape[1] // blocks["BLOCK_C"]), stack.positions)](
            x,
            x if residual is None else pixels_last(residual),
            stack.parameter(scale),
            stack.parameter(shift),
            y,
            moments,
            stack.rows,
            stack.count,
            stack.stride,
            images,
            operation.norm.epsilon,
            **_constants(x, operation),
            **blocks,
        )
        ctx.save_for_backward(x, y if operation.relu else x, moments)
        ctx.operation, ctx.stack = operation, stack
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return dx and the residual's gradient, with the old scale; then scale and shift move."""
        x, y, moments = ctx.saved_tensors
        operation, stack, dy = ctx.operation, ctx.stack, pixels_last(dy)
        scale, shift = _parameters(operation.norm)
        images, blocks = len(x) // stack.positions, _blocks(x, operation.norm, 1024)
        dx = torch.empty_like(x)
        through = torch.empty_like(x) if operation.residual else None
        partial = torch.empty_like(moments)  # (position · batch, 2, channel)
        kernels.group_norm_backward[(images * (x.shape[1] // blocks["BLOCK_C"]), stack.positions)](
            dy,
            x,
            y,
            stack.parameter(scale),
            moments,
            dx,
            dx if through is None else through,
            partial,
            stack.rows,
            stack.count,
            stack.stride,
            images,
            **_constants(x, operation),
            **blocks,
        )
        update_vectors(stack, [scale, shift], partial, partial.stride(0), images * partial.stride(0), images)
        return dx, None, None, None, *(() if through is None else (through,))


def _constants(x: Tensor, operation: FusedNorm) -> dict[str, Any]:
    """What both kernels of a norm are compiled with."""
    norm = operation.norm
    return {
        "PIXELS": x.shape[2] * x.shape[3],
        "CHANNELS": norm.channels,
        "GROUP": norm.channels // norm.groups,
        "HAS_RESIDUAL": operation.residual,
        "RELU": operation.relu,
    }
