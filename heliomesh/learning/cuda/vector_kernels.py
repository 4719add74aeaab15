"""Triton kernels of group norms, and of parameters that are vectors: biases, scales and shifts.

Axes and positions are those of `convolution_kernels.py`. Only import this module where Triton is installed.
"""

# Triton reads a kernel's annotations itself, so kernels have only those that it asks for.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["splits"])
def vector_update(
    weights,
    partial,
    split_stride,
    position_stride,
    length,
    distance,
    splits,
    rows,
    count,
    rate,
    weights_stride,
    VECTORS: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Vectors of one length: w −= rate · Σ_split partial[split · split_stride + position · position_stride + …].

    In ``partial`` VECTORS follow one another; in the row of weights each starts ``distance`` after the one before.
    """
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = index < VECTORS * length
    partial += position.to(tl.int64) * position_stride
    gradient = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, splits, BLOCK_S):
        split = start + tl.arange(0, BLOCK_S)
        source = partial + split[:, None] * split_stride + index[None, :]
        gradient += tl.sum(tl.load(source, mask=(split < splits)[:, None] & known[None, :], other=0.0), 0)
    target = weights + tl.load(rows + position) * weights_stride + index // length * distance + index % length
    value = tl.load(target, mask=known, other=0.0)
    tl.store(target, value - tl.load(rate) * gradient, mask=known)


@triton.jit
def _over_groups(values, CHANNELS: tl.constexpr, GROUP: tl.constexpr):
    """Each channel's value replaced by the sum over its group of GROUP channels; (channel,)."""
    grouped = tl.reshape(values, (CHANNELS // GROUP, GROUP))
    total = tl.sum(grouped, 1)
    return tl.reshape(tl.broadcast_to(total[:, None], (CHANNELS // GROUP, GROUP)), (CHANNELS,))


@triton.jit
def group_norm_forward(
    x,
    residual,
    scale,
    shift,
    y,
    moments,
    images,
    epsilon,
    rows,
    count,
    weights_stride,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One image, BLOCK_C channels: y = ReLU(scale · (x − mean) / √(var + ε) + shift + residual).

    Moments (…, 2, channel) are kept. Where BLOCK_P covers the image, its numbers stay in registers between the two
    visits that a norm needs, and are read once.
    """
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    parts: tl.constexpr = CHANNELS // BLOCK_C
    image = position.to(tl.int64) * images + tl.program_id(0) // parts
    channel = tl.program_id(0) % parts * BLOCK_C + tl.arange(0, BLOCK_C)
    row = tl.load(rows + position) * weights_stride
    start_of_image = image * (PIXELS * CHANNELS)
    value = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    total = tl.zeros((BLOCK_C,), tl.float32)
    square = tl.zeros((BLOCK_C,), tl.float32)
    for start in range(0, PIXELS, BLOCK_P):
        pixel = start + tl.arange(0, BLOCK_P)
        at = start_of_image + pixel[:, None] * CHANNELS + channel[None, :]
        value = tl.load(x + at, mask=(pixel < PIXELS)[:, None], other=0.0).to(tl.float32)
        total += tl.sum(value, 0)
        square += tl.sum(value * value, 0)
    size: tl.constexpr = PIXELS * GROUP
    mean = _over_groups(total, BLOCK_C, GROUP) / size
    variance = tl.maximum(_over_groups(square, BLOCK_C, GROUP) / size - mean * mean, 0.0)
    inverse = 1.0 / tl.sqrt(variance + epsilon)
    tl.store(moments + image * (2 * CHANNELS) + channel, mean)
    tl.store(moments + image * (2 * CHANNELS) + CHANNELS + channel, inverse)
    slope = tl.load(scale + row + channel) * inverse
    offset = tl.load(shift + row + channel) - mean * slope
    for start in range(0, PIXELS, BLOCK_P):
        pixel = start + tl.arange(0, BLOCK_P)
        known = (pixel < PIXELS)[:, None]
        at = start_of_image + pixel[:, None] * CHANNELS + channel[None, :]
        if BLOCK_P < PIXELS:
            value = tl.load(x + at, mask=known, other=0.0).to(tl.float32)
        result = value * slope[None, :] + offset[None, :]
        if HAS_RESIDUAL:
            result += tl.load(residual + at, mask=known, other=0.0).to(tl.float32)
        if RELU:
            result = tl.maximum(result, 0.0)
        tl.store(y + at, result.to(y.dtype.element_ty), mask=known)


@triton.jit
def _gated(dy, x, y, at, known, mean, inverse, RELU: tl.constexpr):
    """The gradient where y > 0, and the normalised x; (pixel, channel)."""
    g = tl.load(dy + at, mask=known, other=0.0).to(tl.float32)
    if RELU:
        g = tl.where(tl.load(y + at, mask=known, other=0.0) > 0, g, 0.0)
    z = (tl.load(x + at, mask=known, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
    return g, z


@triton.jit
def group_norm_backward(
    dy,
    x,
    y,
    scale,
    moments,
    dx,
    residual_gradient,
    partial,
    images,
    rows,
    count,
    weights_stride,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """With g = dy where y > 0 and z the normalised x: partial = (Σ g·z, Σ g) of each image, residual_gradient = g and

    dx = (scale · g − (z · Σ_group scale·g·z + Σ_group scale·g) / size) / √(var + ε).
    """
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    parts: tl.constexpr = CHANNELS // BLOCK_C
    image = position.to(tl.int64) * images + tl.program_id(0) // parts
    channel = tl.program_id(0) % parts * BLOCK_C + tl.arange(0, BLOCK_C)
    row = tl.load(rows + position) * weights_stride
    start_of_image = image * (PIXELS * CHANNELS)
    mean = tl.load(moments + image * (2 * CHANNELS) + channel)
    inverse = tl.load(moments + image * (2 * CHANNELS) + CHANNELS + channel)
    slope = tl.load(scale + row + channel)
    g = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    z = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    total = tl.zeros((BLOCK_C,), tl.float32)
    along = tl.zeros((BLOCK_C,), tl.float32)
    for start in range(0, PIXELS, BLOCK_P):
        pixel = start + tl.arange(0, BLOCK_P)
        known = (pixel < PIXELS)[:, None]
        at = start_of_image + pixel[:, None] * CHANNELS + channel[None, :]
        g, z = _gated(dy, x, y, at, known, mean, inverse, RELU)
        if HAS_RESIDUAL:
            tl.store(residual_gradient + at, g.to(residual_gradient.dtype.element_ty), mask=known)
        total += tl.sum(g, 0)
        along += tl.sum(g * z, 0)
    tl.store(partial + image * (2 * CHANNELS) + channel, along)
    tl.store(partial + image * (2 * CHANNELS) + CHANNELS + channel, total)
    size: tl.constexpr = PIXELS * GROUP
    pull = _over_groups(slope * along, BLOCK_C, GROUP) / size
    level = _over_groups(slope * total, BLOCK_C, GROUP) / size
    for start in range(0, PIXELS, BLOCK_P):
        pixel = start + tl.arange(0, BLOCK_P)
        known = (pixel < PIXELS)[:, None]
        at = start_of_image + pixel[:, None] * CHANNELS + channel[None, :]
        if BLOCK_P < PIXELS:
            g, z = _gated(dy, x, y, at, known, mean, inverse, RELU)
        value = (slope[None, :] * g - (z * pull[None, :] + level[None, :])) * inverse[None, :]
        tl.store(dx + at, value.to(dx.dtype.element_ty), mask=known)
