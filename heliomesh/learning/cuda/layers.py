"""Layers of a stack of networks whose backward pass is also the SGD step; executed by the kernels of `kernels.py`.

Activations are folded (position · batch, channel, height, width) tensors in channels-last memory. A layer reads its
weights from the flat (row, parameter) matrix and, when its gradient arrives, computes the gradient of its input and
then moves its own weights: w ← w − η ∂f/∂w. Autograd carries activations only; the gradient of a dense layer's
weights is never stored, that of a convolution's for a moment. Only import this module where Triton is installed.
"""

# PyTorch's autograd functions and Triton's kernels have no types.
# mypy: allow-untyped-calls

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from heliomesh.learning.cuda import kernels
from heliomesh.learning.cuda.fusion import FusedNorm
from heliomesh.learning.stacked import Layout
from heliomesh.learning.stacked_graph import Convolution, Dense, Executors, FusedPool

LARGEST_BATCH = 128  # the backward pass of a dense layer holds a whole batch in registers
_WEIGHT_PROGRAMS = 800  # several for each multiprocessor of a large card
_ELEMENTS = 1024


class Tile(NamedTuple):
    """Block sizes of a matrix product, and how a program is executed."""

    m: int
    n: int
    k: int
    warps: int
    stages: int

    @property
    def options(self) -> dict[str, int]:
        """As a kernel's arguments."""
        blocks = {"BLOCK_M": self.m, "BLOCK_N": self.n, "BLOCK_K": self.k}
        return blocks | {"num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class Buffers:
    """What all layers of one pass share. Only the first ``count`` positions are computed."""

    weights: Tensor  # (row, parameter) float32
    layout: Layout
    rows: Tensor  # (position,) int64
    count: Tensor  # (1,) int32
    rate: Tensor  # (1,) float32
    dtype: torch.dtype  # of activations
    precision: str  # of products of float32 tiles: ieee or tf32
    anchor: Tensor  # any tensor that needs a gradient, so that the first layer has a backward pass too
    copies: dict[str, Tensor] = field(
        default_factory=dict
    )  # weights of convolutions, (position, filter, tap, channel)

    @property
    def positions(self) -> int:
        """Largest number of active rows."""
        return len(self.rows)

    def parameter(self, name: str) -> Tensor:
        """(row, …) view of one parameter."""
        place = self.layout.names.index(name)
        return self.weights[:, self.layout.offsets[place] : self.layout.offsets[place + 1]]

    def shape(self, name: str) -> torch.Size:
        """Shape of one parameter of one row."""
        return self.layout.shapes[self.layout.names.index(name)]

    @property
    def stride(self) -> int:
        """Elements from one row of weights to the next."""
        return self.weights.stride(0)

    def alignment(self, name: str) -> int:
        """A power of two up to 4 that divides the place of the parameter in every row."""
        place = self.layout.offsets[self.layout.names.index(name)]
        return next(factor for factor in (4, 2, 1) if self.stride % factor == 0 and place % factor == 0)

    def refresh(self, operations: list[Any]) -> None:
        """Round the weights of all convolutions for the products."""
        for operation in operations:
            if isinstance(operation, Convolution):
                filters, channels, *kernel = self.shape(operation.weight)
                copy = self.weights.new_empty(
                    self.positions, filters, kernel[0] * kernel[1], channels, dtype=self.dtype
                )
                self.copies[operation.weight] = copy
                _update_convolution(self, operation, None)

    def layers(self) -> Executors:
        """Executors by operation, for `Program.run`."""
        return {
            Dense: lambda operation, x: _Dense.apply(x, self.anchor, operation, self),
            Convolution: lambda operation, x: _Convolution.apply(x, self.anchor, operation, self),
            FusedNorm: lambda operation, x, *residual: _Norm.apply(x, self.anchor, operation, self, *residual),
            FusedPool: lambda operation, x: _Pool.apply(x, operation, self),
        }


def _power(number: int, least: int, most: int) -> int:
    """The next power of two within limits."""
    return max(least, min(most, 1 << (number - 1).bit_length()))


# Blocks were chosen by timing the convolutions of the CNN and of ResNet-18 on one H200; those of float32 are small
# because their products are made of single multiplications in registers.
def pixel_tile(columns: int, inner: int, half: bool, backward: bool) -> Tile:
    """Blocks of pixels × columns summed over (tap, inner): filters over channels, or going back the reverse."""
    if not half:
        return Tile(64, _power(columns, 16, 64), _power(inner, 16, 32), 4, 2)
    k = _power(inner, 32, 64)
    if columns <= 32:
        return Tile(256, _power(columns, 16, 32), k, 8, 3)
    if columns <= 64:
        return Tile(128, 64, k, 4, 3 if k == 64 else 4)
    return Tile(128, 256, k, 8, 3) if backward and columns >= 256 else Tile(128, 128, k, 4, 3)


def weight_tile(filters: int, length: int, half: bool) -> Tile:
    """Blocks of the product over pixels: filters × (tap, channel)."""
    if not half:
        return Tile(_power(filters, 16, 64), _power(length, 16, 64), 32, 4, 2)
    return Tile(_power(filters, 32, 128), _power(length, 32, 128), 64, 4, 3)


def splits(positions: int, programs: int, pixels: int, block: int) -> int:
    """Ranges of pixels for each weight gradient: enough to fill the card, each of at least eight blocks."""
    wanted = -(-_WEIGHT_PROGRAMS // (positions * programs))
    return max(1, min(wanted, pixels // (8 * block), 16))


class _Shape(NamedTuple):
    """Sizes of one convolution."""

    images: int
    height: int
    width: int
    out_height: int
    out_width: int
    channels: int
    filters: int


def _sizes(x: Tensor, operation: Convolution, stack: Buffers) -> _Shape:
    folded, channels, height, width = x.shape
    out = [
        (size + 2 * pad - side) // step + 1
        for size, pad, side, step in zip(
            (height, width), operation.padding, operation.kernel, operation.stride, strict=True
        )
    ]
    filters = stack.shape(operation.weight)[0]
    return _Shape(folded // stack.positions, height, width, out[0], out[1], channels, filters)


def _kernel_sides(operation: Convolution) -> dict[str, int]:
    return dict(zip(("KERNEL_HEIGHT", "KERNEL_WIDTH"), operation.kernel, strict=True))


def _pixels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _empty(like: Tensor, channels: int, height: int, width: int) -> Tensor:
    shape = (like.shape[0], channels, height, width)
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, operation: Convolution, stack: Buffers) -> Tensor:
        """Return x ∗ w + b."""
        x = _pixels_last(x)
        ctx.save_for_backward(x)
        ctx.operation, ctx.stack = operation, stack
        size = _sizes(x, operation, stack)
        y = _empty(x, size.filters, size.out_height, size.out_width)
        pixels = size.images * size.out_height * size.out_width
        tile = pixel_tile(size.filters, size.channels, x.dtype is torch.bfloat16, backward=False)
        packed = size.channels < 16
        bias = stack.weights if operation.bias is None else stack.parameter(operation.bias)
        grid = (triton.cdiv(pixels, tile.m) * triton.cdiv(size.filters, tile.n), stack.positions)
        kernels.convolution_forward[grid](
            x,
            stack.copies[operation.weight],
            bias,
            y,
            stack.rows,
            stack.count,
            stack.stride,
            *size,
            operation.stride[0],
            operation.padding[0],
            **_kernel_sides(operation),
            HAS_BIAS=operation.bias is not None,
            PACKED=packed,
            PRECISION=stack.precision,
            **tile.options | ({"BLOCK_K": 32} if packed else {}),
        )
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None]:
        """Return dx, with the old weights; then w −= η dw and b −= η Σ dy."""
        (x,) = ctx.saved_tensors
        operation, stack, dy = ctx.operation, ctx.stack, _pixels_last(dy)
        size = _sizes(x, operation, stack)
        dx = _input_gradient(x, dy, size, operation, stack) if ctx.needs_input_grad[0] else None
        _update_convolution(stack, operation, _weight_gradient(x, dy, size, operation, stack))
        if operation.bias is not None:
            _update_bias(stack, operation.bias, dy, size)
        return dx, None, None, None


def _input_gradient(x: Tensor, dy: Tensor, size: _Shape, operation: Convolution, stack: Buffers) -> Tensor:
    dx = torch.empty_like(x)
    step = operation.stride[0]
    pixels = size.images * triton.cdiv(size.height, step) * triton.cdiv(size.width, step)  # of the largest class
    tile = pixel_tile(size.channels, size.filters, x.dtype is torch.bfloat16, backward=True)
    grid = (step**2 * triton.cdiv(pixels, tile.m) * triton.cdiv(size.channels, tile.n), stack.positions)
    kernels.convolution_input_gradient[grid](
        dy,
        stack.copies[operation.weight],
        dx,
        stack.count,
        *size,
        operation.padding[0],
        STRIDE=step,
        **_kernel_sides(operation),
        PRECISION=stack.precision,
        **tile.options,
    )
    return dx


def _weight_gradient(x: Tensor, dy: Tensor, size: _Shape, operation: Convolution, stack: Buffers) -> Tensor:
    """Sums over ranges of pixels; (split, position, filter, tap · channel)."""
    length = operation.kernel[0] * operation.kernel[1] * size.channels
    tile = weight_tile(size.filters, length, x.dtype is torch.bfloat16)
    programs = triton.cdiv(size.filters, tile.m) * triton.cdiv(length, tile.n)
    parts = splits(stack.positions, programs, size.images * size.out_height * size.out_width, tile.k)
    partial = torch.empty(parts, stack.positions, size.filters, length, device=x.device)
    kernels.convolution_weight_gradient[(programs * parts, stack.positions)](
        dy,
        x,
        partial,
        stack.count,
        stack.positions,
        size.images,
        size.height,
        size.width,
        size.filters,
        operation.stride[0],
        operation.padding[0],
        parts,
        OUT_HEIGHT=size.out_height,
        OUT_WIDTH=size.out_width,
        CHANNELS=size.channels,
        **_kernel_sides(operation),
        PRECISION=stack.precision,
        **tile.options,
    )
    return partial


def _update_convolution(stack: Buffers, operation: Convolution, partial: Tensor | None) -> None:
    """Move the weights by the summed ``partial``, if any, and renew their copy."""
    filters, channels, height, width = stack.shape(operation.weight)
    copy, taps = stack.copies[operation.weight], height * width
    kernels.convolution_update[(filters, stack.positions)](
        stack.parameter(operation.weight),
        copy,
        copy if partial is None else partial,
        stack.rows,
        stack.count,
        stack.rate,
        stack.stride,
        stack.positions,
        filters,
        channels,
        TAPS=taps,
        SPLITS=0 if partial is None else len(partial),
        BLOCK_T=_power(taps, 1, 1 << 20),
        BLOCK_C=_power(channels, 1, 64),
        num_warps=2,
    )


def _update_bias(stack: Buffers, bias: str, dy: Tensor, size: _Shape) -> None:
    pixels, block_c = size.images * size.out_height * size.out_width, _power(size.filters, 16, 64)
    block_p, tiles = 4096 // block_c, triton.cdiv(size.filters, block_c)
    parts = splits(stack.positions, tiles, pixels, block_p)
    partial = torch.empty(parts, stack.positions, size.filters, device=dy.device)
    kernels.channel_sums[(tiles * parts, stack.positions)](
        dy,
        partial,
        stack.count,
        stack.positions,
        pixels,
        size.filters,
        parts,
        BLOCK_P=block_p,
        BLOCK_C=block_c,
    )
    _update_vector(stack, bias, partial, partial.stride(0), partial.stride(1), parts)


def _update_vector(
    stack: Buffers, name: str, partial: Tensor, split_stride: int, position_stride: int, parts: int
) -> None:
    """Move a bias, or a norm's scale or shift, by −η Σ_split partial[split, position]."""
    length = stack.shape(name)[0]
    block = _power(length, 16, 256)
    kernels.vector_update[(triton.cdiv(length, block), stack.positions)](
        stack.parameter(name),
        partial,
        stack.rows,
        stack.count,
        stack.rate,
        stack.stride,
        split_stride,
        position_stride,
        length,
        parts,
        BLOCK=block,
        num_warps=1,
    )


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, operation: Dense, stack: Buffers) -> Tensor:
        """Return x wᵀ + b; x (position · batch, input)."""
        x = x.contiguous()
        ctx.save_for_backward(x)
        ctx.operation, ctx.stack = operation, stack
        outputs, inputs = stack.shape(operation.weight)
        images = len(x) // stack.positions
        block_b = _power(images, 16, 64)
        y = x.new_empty(len(x), outputs)
        grid = (triton.cdiv(outputs, 64) * triton.cdiv(images, block_b), stack.positions)
        kernels.linear_forward[grid](
            x,
            stack.parameter(operation.weight),
            stack.weights if operation.bias is None else stack.parameter(operation.bias),
            y,
            stack.rows,
            stack.count,
            stack.stride,
            images,
            inputs,
            outputs,
            HAS_BIAS=operation.bias is not None,
            ALIGNED=stack.alignment(operation.weight),
            PRECISION=stack.precision,
            BLOCK_B=block_b,
            BLOCK_O=64,
            BLOCK_I=64 if x.dtype is torch.bfloat16 else 32,
            num_warps=8 if x.dtype is torch.bfloat16 else 4,
            num_stages=4 if x.dtype is torch.bfloat16 else 2,
        )
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None]:
        """Return dx, with the old weights, and w −= η dyᵀ x in one visit."""
        (x,) = ctx.saved_tensors
        operation, stack, dy = ctx.operation, ctx.stack, dy.contiguous()
        outputs, inputs = stack.shape(operation.weight)
        images = len(x) // stack.positions
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        block_i = 128 if images <= 32 else 64  # what a program holds grows with the batch
        kernels.linear_backward[(triton.cdiv(inputs, block_i), stack.positions)](
            dy,
            x,
            stack.parameter(operation.weight),
            stack.weights if operation.bias is None else stack.parameter(operation.bias),
            x if dx is None else dx,
            stack.rows,
            stack.count,
            stack.rate,
            stack.stride,
            images,
            inputs,
            outputs,
            HAS_BIAS=operation.bias is not None,
            NEEDS_INPUT=dx is not None,
            ALIGNED=stack.alignment(operation.weight),
            PRECISION=stack.precision,
            BLOCK_B=_power(images, 16, LARGEST_BATCH),
            BLOCK_O=32,
            BLOCK_I=block_i,
            num_warps=4,
            num_stages=2,
        )
        return dx, None, None, None


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
        x = _pixels_last(x)
        other = x if residual is None else _pixels_last(residual)
        y, moments = torch.empty_like(x), torch.empty(len(x), 2, x.shape[1], device=x.device)
        images, norm = len(x) // stack.positions, operation.norm
        if norm.weight is None or norm.bias is None:
            raise RuntimeError("a norm without scale or shift is refused when the strategy is built")
        kernels.group_norm_forward[(images, stack.positions)](
            x,
            other,
            stack.parameter(norm.weight),
            stack.parameter(norm.bias),
            y,
            moments,
            stack.rows,
            stack.count,
            stack.stride,
            images,
            x.shape[2] * x.shape[3],
            norm.epsilon,
            CHANNELS=norm.channels,
            GROUPS=norm.groups,
            HAS_RESIDUAL=operation.residual,
            RELU=operation.relu,
            BLOCK_P=_norm_block(x, 4096),
            num_warps=4,
        )
        ctx.save_for_backward(x, y if operation.relu else x, moments)
        ctx.operation, ctx.stack = operation, stack
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return dx and the residual's gradient, with the old scale; then scale and shift move."""
        x, y, moments = ctx.saved_tensors
        operation, stack, dy = ctx.operation, ctx.stack, _pixels_last(dy)
        norm, images = operation.norm, len(x) // stack.positions
        dx = torch.empty_like(x)
        through = torch.empty_like(x) if operation.residual else None
        partial = torch.empty_like(moments)  # (position · batch, 2, channel)
        kernels.group_norm_backward[(images, stack.positions)](
            dy,
            x,
            y,
            stack.parameter(norm.weight),
            moments,
            dx,
            dx if through is None else through,
            partial,
            stack.rows,
            stack.count,
            stack.stride,
            images,
            x.shape[2] * x.shape[3],
            CHANNELS=norm.channels,
            GROUPS=norm.groups,
            HAS_RESIDUAL=operation.residual,
            RELU=operation.relu,
            BLOCK_P=_norm_block(x, 2048),
            num_warps=4,
        )
        for name, place in ((norm.weight, 0), (norm.bias, 1)):
            _update_vector(stack, name, partial[:, place], partial.stride(0), images * partial.stride(0), images)
        return dx, None, None, None, *(() if through is None else (through,))


def _norm_block(x: Tensor, values: int) -> int:
    """Pixels at once, such that a program holds ``values`` values at most, in registers."""
    return min(_power(values // x.shape[1], 1, values), _power(x.shape[2] * x.shape[3], 1, values))


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, operation: FusedPool, stack: Buffers) -> Tensor:
        """Maximum over windows, at least 0."""
        x = _pixels_last(x)
        channels, height, width = x.shape[1:]
        y = _empty(x, channels, height // operation.window, width // operation.window)
        kernels.relu_pool_forward[_pool_grid(y, stack)](
            x, y, stack.count, *_pool_sizes(x, stack), **_pool_constants(y, operation.window)
        )
        ctx.save_for_backward(x, y)
        ctx.operation, ctx.stack = operation, stack
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        """The gradient goes to the largest of each window."""
        x, y = ctx.saved_tensors
        stack, window = ctx.stack, ctx.operation.window
        covered = x.shape[2] % window == 0 == x.shape[3] % window
        dx = torch.empty_like(x) if covered else torch.zeros_like(x)  # windows do not reach the last lines
        kernels.relu_pool_backward[_pool_grid(y, stack)](
            _pixels_last(dy), x, y, dx, stack.count, *_pool_sizes(x, stack), **_pool_constants(y, window)
        )
        return dx, None, None


def _pool_grid(y: Tensor, stack: Buffers) -> tuple[int, int]:
    return triton.cdiv(y.numel() // stack.positions, _ELEMENTS), stack.positions


def _pool_sizes(x: Tensor, stack: Buffers) -> tuple[int, int, int]:
    return len(x) // stack.positions, x.shape[2], x.shape[3]


def _pool_constants(y: Tensor, window: int) -> dict[str, int]:
    return {
        "CHANNELS": y.shape[1],
        "OUT_HEIGHT": y.shape[2],
        "OUT_WIDTH": y.shape[3],
        "WINDOW": window,
        "BLOCK": _ELEMENTS,
    }
