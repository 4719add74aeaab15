"""Convolutions of a stack of networks, whose backward pass is also the SGD step; see `convolution_kernels.py`.

Activations are folded (position · batch, channel, height, width) tensors in channels-last memory.
"""

# PyTorch's autograd functions and Triton's kernels have no types.
# mypy: allow-untyped-calls

from typing import Any

import torch
import triton
from torch import Tensor

from heliomesh.learning.cuda import convolution_kernels as kernels
from heliomesh.learning.cuda.buffers import Buffers, Filters, power_of_two
from heliomesh.learning.cuda.fusion import PooledConvolution
from heliomesh.learning.cuda.norm_layer import pixels_last, update_vectors
from heliomesh.learning.stacked_graph import Convolution

_SPREAD_ELEMENTS = 4096  # of a program of `spread_windows`, at a time
_UPDATED_ELEMENTS = 1024
_FEW_PIXELS = 2048
_WANTED_PROGRAMS = 800  # several for each multiprocessor of a large card


Tile = dict[str, int]


def _tile(m: int, n: int, k: int, warps: int, stages: int) -> Tile:
    """Block sizes of a matrix product, and how a program is executed, as a kernel's arguments."""
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "num_warps": warps, "num_stages": stages}


# Blocks were chosen by timing the convolutions of the CNN and of ResNet-18 on one H200; those of float32 are small
# because their products are made of single multiplications in registers.
def pixel_tile(columns: int, inner: int, half: bool) -> Tile:
    """Blocks of pixels × columns summed over (tap, inner): filters over channels, or going back the reverse."""
    if not half:
        return _tile(64, power_of_two(columns, 16, 64), power_of_two(inner, 16, 32), 4, 2)
    k = power_of_two(inner, 32, 64)
    if columns <= 32:
        return _tile(256, power_of_two(columns, 16, 32), k, 8, 3)
    return _tile(128, power_of_two(columns, 64, 128), k, 4, 3)


def weight_tile(filters: int, channels: int, length: int, pixels: int, half: bool) -> Tile:
    """Blocks of the product over pixels: filters × (tap, channel)."""
    if not half:
        return _tile(power_of_two(filters, 16, 64), power_of_two(length, 16, 64), 32, 4, 2)
    m = power_of_two(filters, 32, 128)
    if channels < 64:  # a block spans several taps
        return _tile(m, power_of_two(length, 32, 128), 64, 2 if m * length <= 2048 else 4, 3)
    if pixels <= _FEW_PIXELS and filters >= 128:
        return _tile(64, 128, 32, 4, 4)  # the sum is short: while one program writes, others compute
    return _tile(m, m, 32, 4, 4)


Size = dict[str, int]


def _size(x: Tensor, operation: Convolution, stack: Buffers) -> Size:
    """Sizes of one convolution, with which every kernel of it is compiled."""
    sides = zip(x.shape[2:], operation.padding, operation.kernel, operation.stride, strict=True)
    lines, columns = ((size + 2 * pad - side) // step + 1 for size, pad, side, step in sides)
    filters, channels = stack.shape(operation.weight)[:2]
    image = {"HEIGHT": x.shape[2], "WIDTH": x.shape[3], "OUT_HEIGHT": lines, "OUT_WIDTH": columns}
    kernel = {"KERNEL_HEIGHT": operation.kernel[0], "KERNEL_WIDTH": operation.kernel[1]}
    steps = {"STRIDE": operation.stride[0], "PADDING": operation.padding[0]}
    return {**image, "CHANNELS": channels, "FILTERS": filters, **kernel, **steps}


def _splits(stack: Buffers, programs: int, pixels: int, block: int) -> int:
    """Ranges of pixels for each sum over pixels: enough to fill the card, each of at least eight blocks.

    A power of two, so that ranges mostly end where blocks do.
    """
    most = max(1, min(_WANTED_PROGRAMS // (stack.positions * programs), pixels // (8 * block), 16))
    return 1 << (most.bit_length() - 1)


def move_filters(stack: Buffers, operation: Convolution, back: bool) -> None:
    """Copy a convolution's weights into the order and the precision of the products; or back into their rows."""
    filters, channels, height, width = stack.shape(operation.weight)
    if not back:
        exact = stack.weights.new_empty(stack.positions, filters, height * width, channels)
        rounded = exact if stack.dtype is exact.dtype else torch.empty_like(exact, dtype=stack.dtype)
        stack.filters[operation.weight] = Filters(exact, rounded)
    own = stack.filters[operation.weight]
    arrays, taps = (stack.parameter(operation.weight), own.exact, own.rounded), height * width
    sizes = {"CHANNELS": channels, "FILTERS": filters, "TAPS": taps, "BACK": back}
    blocks = {"BLOCK_T": power_of_two(taps, 1, 1 << 20), "BLOCK_C": power_of_two(channels, 1, 64)}
    stack.launch(kernels.move_filters, filters, *arrays, **sizes, **blocks, num_warps=2)


class ConvolutionStep(torch.autograd.Function):
    """x ∗ w + b, pooled where the window is larger than a pixel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, pooled: PooledConvolution, stack: Buffers) -> Tensor:
        """Return x ∗ w + b, pooled."""
        x, operation, window = pixels_last(x), pooled.convolution, pooled.window
        size, images = _size(x, operation, stack), len(x) // stack.positions
        filters, lines, columns = size["FILTERS"], size["OUT_HEIGHT"] // window, size["OUT_WIDTH"] // window
        order = torch.contiguous_format if pooled.flat else torch.channels_last
        y = torch.empty((len(x), filters, lines, columns), dtype=x.dtype, device=x.device, memory_format=order)
        kept = len(x) if window > 1 else 0
        # which pixel of each window was the largest; nothing without pooling
        chosen = torch.empty((kept, lines, columns, filters), dtype=torch.uint8, device=x.device)
        tile = pixel_tile(filters, size["CHANNELS"], x.dtype is torch.bfloat16)
        pixels = images * lines * columns * window**2
        programs = triton.cdiv(pixels, tile["BLOCK_M"]) * triton.cdiv(filters, tile["BLOCK_N"])
        weights = stack.filters[operation.weight].rounded, stack.parameter(operation.bias)
        form = {"WINDOW": window, "HAS_BIAS": operation.bias is not None, "WHOLE": pixels % tile["BLOCK_M"] == 0}
        form |= size | _strides(pooled.flat, filters, lines * columns, "FILTER_STRIDE") | tile
        if size["CHANNELS"] < 16:
            form["BLOCK_K"] = 32
        stack.launch(kernels.convolution_forward, programs, x, *weights, y, chosen, images, **form)
        ctx.save_for_backward(x, chosen)
        ctx.pooled, ctx.stack, ctx.size = pooled, stack, size
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return dx, with the old weights; then w −= η dw and b −= η Σ dy."""
        x, chosen = ctx.saved_tensors
        operation, stack, size = ctx.pooled.convolution, ctx.stack, ctx.size
        if ctx.pooled.window > 1:
            dy, partial = _spread(dy, chosen, size, ctx.pooled, stack)
        else:
            dy, partial = pixels_last(dy), None
        if operation.bias is not None:
            if partial is None:
                partial = dy.unflatten(0, (1, stack.positions, -1)).sum((2, 4, 5), dtype=torch.float32)
            update_vectors(stack, (operation.bias,), partial)
        own = stack.filters[operation.weight]
        dx = _input_gradient(x, dy, size, own, stack) if ctx.needs_input_grad[0] else None
        _move_by_gradient(x, dy, size, own, stack)
        return dx, None, None, None


def _strides(flat: bool, channels: int, pixels: int, channel_name: str) -> dict[str, int]:
    """Elements from one pixel, and from one channel, to the next."""
    return {"PIXEL_STRIDE": 1 if flat else channels, channel_name: pixels if flat else 1}


def _spread(
    dy: Tensor, chosen: Tensor, size: Size, pooled: PooledConvolution, stack: Buffers
) -> tuple[Tensor, Tensor]:
    """The gradient before pooling, and its sums over ranges of pixels (split, position, channel)."""
    window, channels, height, width = pooled.window, size["FILTERS"], size["OUT_HEIGHT"], size["OUT_WIDTH"]
    dy = dy.contiguous() if pooled.flat else pixels_last(dy)
    shape, images = (len(dy), channels, height, width), len(dy) // stack.positions
    dx = torch.empty(shape, dtype=dy.dtype, device=dy.device, memory_format=torch.channels_last)
    if height % window or width % window:
        dx.zero_()  # windows do not reach the last lines
    block_c, cells = power_of_two(channels, 16, 64), dy.shape[2] * dy.shape[3]
    block_p, tiles = _SPREAD_ELEMENTS // block_c, triton.cdiv(channels, block_c)
    parts = _splits(stack, tiles, images * cells, block_p)
    partial = torch.empty(parts, stack.positions, channels, device=dy.device)
    numbers = (stack.positions, images, parts)
    form = {"HEIGHT": height, "WIDTH": width, "CHANNELS": channels, "WINDOW": window}
    form |= _strides(pooled.flat, channels, cells, "CHANNEL_STRIDE") | {"BLOCK_P": block_p, "BLOCK_C": block_c}
    stack.launch(kernels.spread_windows, tiles * parts, dy, chosen, dx, partial, *numbers, **form)
    return dx, partial


def _input_gradient(x: Tensor, dy: Tensor, size: Size, own: Filters, stack: Buffers) -> Tensor:
    dx, images, step = torch.empty_like(x), len(x) // stack.positions, size["STRIDE"]
    channels, height, width = x.shape[1:]
    pixels = images * triton.cdiv(height, step) * triton.cdiv(width, step)  # of the largest class
    tile = pixel_tile(channels, size["FILTERS"], x.dtype is torch.bfloat16)
    even = height % step == 0 == width % step  # all classes have as many pixels
    programs = step**2 * triton.cdiv(pixels, tile["BLOCK_M"]) * triton.cdiv(channels, tile["BLOCK_N"])
    form = size | tile | {"WHOLE": even and pixels % tile["BLOCK_M"] == 0}
    stack.launch(kernels.convolution_input_gradient, programs, dy, own.rounded, dx, images, **form)
    return dx


def _move_by_gradient(x: Tensor, dy: Tensor, size: Size, own: Filters, stack: Buffers) -> None:
    """Filters −= η dw; where one program cannot sum all pixels in good time, by sums over ranges of them."""
    filters, length, images = size["FILTERS"], own.exact[0, 0].numel(), len(x) // stack.positions
    pixels = images * size["OUT_HEIGHT"] * size["OUT_WIDTH"]
    tile = weight_tile(filters, size["CHANNELS"], length, pixels, x.dtype is torch.bfloat16)
    programs = triton.cdiv(filters, tile["BLOCK_M"]) * triton.cdiv(length, tile["BLOCK_N"])
    parts = _splits(stack, programs, pixels, tile["BLOCK_K"])
    partial = own.exact.new_empty((parts, *own.exact.shape) if parts > 1 else 0)
    numbers, both = (stack.positions, images, parts), (own.exact, own.rounded)
    form = size | tile | {"ALONE": parts == 1, "WHOLE": pixels % (tile["BLOCK_K"] * parts) == 0}
    stack.launch(kernels.convolution_weight_gradient, programs * parts, dy, x, partial, *both, *numbers, **form)
    if parts > 1:
        length *= filters
        programs, form = triton.cdiv(length, _UPDATED_ELEMENTS), {"SPLITS": parts, "BLOCK": _UPDATED_ELEMENTS}
        stack.launch(kernels.filter_update, programs, *both, partial, stack.positions, length, **form)
