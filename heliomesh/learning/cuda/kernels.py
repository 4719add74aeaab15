"""Triton kernels of the fused strategy: convolutions, dense layers, norms and pooling of a whole stack of networks.

Activations are (position, image, height, width, channel) and contiguous; a *position* is the n-th active device,
whose weights are row ``rows[n]`` of the flat (row, parameter) matrix. The second axis of every grid is the position,
and programs of positions beyond ``count`` leave at once: one captured graph serves any number of active devices.

Convolutions are implicit matrix products. With filters f, channels c, taps t = (kernel row, kernel column):

- forward           y[p, f]  = Σ_{t,c} x[p·stride − padding + t, c] · w[f, t, c] + bias[f]
- input gradient    dx[q, c] = Σ_{t,f} dy[(q + padding − t) / stride, f] · w[f, t, c]
- weight gradient   dw[f, t, c] = Σ_p dy[p, f] · x[p·stride − padding + t, c]

``w`` is a copy (position, filter, tap, channel) of the weights in the precision of the products; weights themselves
stay where they are, in float32 and PyTorch's order (filter, channel, tap), and `convolution_update` keeps both.
Only import this module where Triton is installed.
"""

# Triton reads a kernel's annotations itself, so kernels have only those that it asks for.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl

# These vary from layer to layer and from slot to slot: compiled code that does not depend on them serves all.
_IMAGES = ["images", "height", "width", "out_height", "out_width"]
_COUNTS = ["positions", "splits"]


@triton.jit
def _corner(pixel, height, width, out_height, out_width, channels, stride, padding):
    """Top, left and address of the input window of each output pixel; top and left may lie in the padding."""
    top = pixel // out_width % out_height * stride - padding
    left = pixel % out_width * stride - padding
    return top, left, ((pixel // (out_width * out_height) * height + top) * width + left) * channels


@triton.jit
def _within(line, column, height, width):
    return (line >= 0) & (line < height) & (column >= 0) & (column < width)


@triton.jit(do_not_specialize=_IMAGES)
def convolution_forward(
    x,
    weight,
    bias,
    y,
    rows,
    count,
    weights_stride,
    images,
    height,
    width,
    out_height,
    out_width,
    channels,
    filters,
    stride,
    padding,
    KERNEL_HEIGHT: tl.constexpr,
    KERNEL_WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PACKED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Output pixels × filters; PACKED lets one block of the inner axis span taps, for inputs of few channels."""
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    tiles = tl.cdiv(filters, BLOCK_N)
    pixels = images * out_height * out_width
    length = KERNEL_HEIGHT * KERNEL_WIDTH * channels
    place = position.to(tl.int64)
    x += place * (images * height * width * channels)
    weight += place * (filters * length)
    pixel = tl.program_id(0) // tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    kernel = tl.program_id(0) % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    top, left, corner = _corner(pixel, height, width, out_height, out_width, channels, stride, padding)
    inner = tl.arange(0, BLOCK_K)
    product = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if PACKED:
        for start in range(0, length, BLOCK_K):
            k = start + inner
            tap_row = k // channels // KERNEL_WIDTH
            tap_column = k // channels % KERNEL_WIDTH
            line = top[:, None] + tap_row[None, :]
            column = left[:, None] + tap_column[None, :]
            inside = _within(line, column, height, width) & (pixel < pixels)[:, None] & (k < length)[None, :]
            shift = (tap_row * width + tap_column) * channels + k % channels
            a = tl.load(x + corner[:, None] + shift[None, :], mask=inside, other=0.0)
            known = (k < length)[:, None] & (kernel < filters)[None, :]
            b = tl.load(weight + kernel[None, :] * length + k[:, None], mask=known, other=0.0)
            product = tl.dot(a, b, product, input_precision=PRECISION)
    else:
        blocks = tl.cdiv(channels, BLOCK_K)
        for step in range(KERNEL_HEIGHT * KERNEL_WIDTH * blocks):
            tap = step // blocks
            channel = step % blocks * BLOCK_K + inner
            line = top + tap // KERNEL_WIDTH
            column = left + tap % KERNEL_WIDTH
            inside = _within(line, column, height, width) & (pixel < pixels)
            shift = (tap // KERNEL_WIDTH * width + tap % KERNEL_WIDTH) * channels + channel
            known = channel < channels
            a = tl.load(x + corner[:, None] + shift[None, :], mask=inside[:, None] & known[None, :], other=0.0)
            taken = known[:, None] & (kernel < filters)[None, :]
            b = tl.load(
                weight + kernel[None, :] * length + (tap * channels + channel)[:, None], mask=taken, other=0.0
            )
            product = tl.dot(a, b, product, input_precision=PRECISION)
    if HAS_BIAS:
        bias += tl.load(rows + position) * weights_stride
        product += tl.load(bias + kernel, mask=kernel < filters, other=0.0)[None, :]
    y += place * (pixels * filters)
    written = (pixel < pixels)[:, None] & (kernel < filters)[None, :]
    tl.store(y + pixel[:, None] * filters + kernel[None, :], product.to(y.dtype.element_ty), mask=written)


@triton.jit(do_not_specialize=_IMAGES)
def convolution_input_gradient(
    dy,
    weight,
    dx,
    count,
    images,
    height,
    width,
    out_height,
    out_width,
    channels,
    filters,
    padding,
    STRIDE: tl.constexpr,
    KERNEL_HEIGHT: tl.constexpr,
    KERNEL_WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Input pixels × channels; each class of pixels modulo the stride by itself visits only the taps that meet it."""
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    tiles = tl.cdiv(channels, BLOCK_N)
    largest = images * tl.cdiv(height, STRIDE) * tl.cdiv(width, STRIDE)
    per_class = tl.cdiv(largest, BLOCK_M) * tiles
    first_line = tl.program_id(0) // per_class // STRIDE
    first_column = tl.program_id(0) // per_class % STRIDE
    tile = tl.program_id(0) % per_class
    lines = tl.cdiv(height - first_line, STRIDE)
    columns = tl.cdiv(width - first_column, STRIDE)
    pixels = images * lines * columns
    place = position.to(tl.int64)
    dy += place * (images * out_height * out_width * filters)
    weight += place * (filters * KERNEL_HEIGHT * KERNEL_WIDTH * channels)
    dx += place * (images * height * width * channels)
    pixel = tile // tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    channel = tile % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    image = pixel // (lines * columns)
    line = pixel // columns % lines * STRIDE + first_line
    column = pixel % columns * STRIDE + first_column
    first_row = (first_line + padding) % STRIDE  # of the taps that meet this class
    first_tap = (first_column + padding) % STRIDE
    tap_rows = (KERNEL_HEIGHT - first_row + STRIDE - 1) // STRIDE
    tap_columns = (KERNEL_WIDTH - first_tap + STRIDE - 1) // STRIDE
    bottom = (line + padding - first_row) // STRIDE
    right = (column + padding - first_tap) // STRIDE
    corner = ((image * out_height + bottom) * out_width + right) * filters
    inner = tl.arange(0, BLOCK_K)
    blocks = tl.cdiv(filters, BLOCK_K)
    product = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tap_rows * tap_columns * blocks):
        tap = step // blocks
        up = tap // tap_columns
        back = tap % tap_columns
        kernel = step % blocks * BLOCK_K + inner
        inside = (bottom >= up) & (bottom - up < out_height) & (right >= back) & (right - back < out_width)
        inside = inside & (pixel < pixels)
        shift = kernel - (up * out_width + back) * filters
        known = kernel < filters
        a = tl.load(dy + corner[:, None] + shift[None, :], mask=inside[:, None] & known[None, :], other=0.0)
        tap_index = (first_row + up * STRIDE) * KERNEL_WIDTH + first_tap + back * STRIDE
        source = (kernel * (KERNEL_HEIGHT * KERNEL_WIDTH) + tap_index) * channels
        taken = known[:, None] & (channel < channels)[None, :]
        b = tl.load(weight + source[:, None] + channel[None, :], mask=taken, other=0.0)
        product = tl.dot(a, b, product, input_precision=PRECISION)
    target = ((image * height + line) * width + column) * channels
    written = (pixel < pixels)[:, None] & (channel < channels)[None, :]
    tl.store(dx + target[:, None] + channel[None, :], product.to(dx.dtype.element_ty), mask=written)


@triton.jit(do_not_specialize=[*_COUNTS, "images", "height", "width"])
def convolution_weight_gradient(
    dy,
    x,
    partial,
    count,
    positions,
    images,
    height,
    width,
    filters,
    stride,
    padding,
    splits,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    KERNEL_HEIGHT: tl.constexpr,
    KERNEL_WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Filters × (tap, channel), summed over one of several ranges of pixels: partial (split, position, filter, …)."""
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    length: tl.constexpr = KERNEL_HEIGHT * KERNEL_WIDTH * CHANNELS
    tiles: tl.constexpr = (length + BLOCK_N - 1) // BLOCK_N
    pixels = images * (OUT_HEIGHT * OUT_WIDTH)
    place = position.to(tl.int64)
    dy += place * (pixels * filters)
    x += place * (images * height * width * CHANNELS)
    split = tl.program_id(0) % splits
    kernel = tl.program_id(0) // splits // tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) // splits % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    tap_row = n // CHANNELS // KERNEL_WIDTH
    tap_column = n // CHANNELS % KERNEL_WIDTH
    shift = (tap_row * width + tap_column) * CHANNELS + n % CHANNELS
    steps = tl.cdiv(tl.cdiv(pixels, BLOCK_K), splits)
    product = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(split * steps, (split + 1) * steps):
        pixel = step * BLOCK_K + tl.arange(0, BLOCK_K)
        top, left, corner = _corner(pixel, height, width, OUT_HEIGHT, OUT_WIDTH, CHANNELS, stride, padding)
        known = (pixel < pixels)[:, None]
        a = tl.load(
            dy + pixel[:, None] * filters + kernel[None, :], mask=known & (kernel < filters)[None, :], other=0.0
        )
        line = top[:, None] + tap_row[None, :]
        column = left[:, None] + tap_column[None, :]
        inside = _within(line, column, height, width) & known & (n < length)[None, :]
        b = tl.load(x + corner[:, None] + shift[None, :], mask=inside, other=0.0)
        product = tl.dot(tl.trans(a), b, product, input_precision=PRECISION)
    partial += (split.to(tl.int64) * positions + place) * (filters * length)
    written = (kernel < filters)[:, None] & (n < length)[None, :]
    tl.store(partial + kernel[:, None] * length + n[None, :], product, mask=written)


@triton.jit(do_not_specialize=["positions"])
def convolution_update(
    weights,
    copy,
    partial,
    rows,
    count,
    rate,
    weights_stride,
    positions,
    filters,
    channels,
    TAPS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One filter: weights −= rate · Σ partial, and their rounded copy; with SPLITS = 0 only the copy."""
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    kernel = tl.program_id(0)
    place = position.to(tl.int64)
    weights += tl.load(rows + position) * weights_stride + kernel * (channels * TAPS)
    copy += (place * filters + kernel) * (TAPS * channels)
    tap = tl.arange(0, BLOCK_T)[:, None]
    for start in range(0, channels, BLOCK_C):
        channel = start + tl.arange(0, BLOCK_C)[None, :]
        known = (tap < TAPS) & (channel < channels)
        value = tl.load(weights + channel * TAPS + tap, mask=known, other=0.0)
        if SPLITS > 0:
            gradient = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
            for split in range(SPLITS):
                part = partial + ((split * positions + place) * filters + kernel) * (TAPS * channels)
                gradient += tl.load(part + tap * channels + channel, mask=known, other=0.0)
            value -= tl.load(rate) * gradient
            tl.store(weights + channel * TAPS + tap, value, mask=known)
        tl.store(copy + tap * channels + channel, value.to(copy.dtype.element_ty), mask=known)


@triton.jit(do_not_specialize=_COUNTS)
def channel_sums(
    dy, partial, count, positions, pixels, channels, splits, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Σ over one of several ranges of pixels: partial (split, position, channel) of dy (position, pixel, channel)."""
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    place = position.to(tl.int64)
    split = tl.program_id(0) % splits
    channel = tl.program_id(0) // splits * BLOCK_C + tl.arange(0, BLOCK_C)
    dy += place * (pixels * channels)
    steps = tl.cdiv(tl.cdiv(pixels, BLOCK_P), splits)
    total = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for step in range(split * steps, (split + 1) * steps):
        pixel = step * BLOCK_P + tl.arange(0, BLOCK_P)
        known = (pixel < pixels)[:, None] & (channel < channels)[None, :]
        total += tl.load(dy + pixel[:, None] * channels + channel[None, :], mask=known, other=0.0).to(tl.float32)
    partial += (split * positions + place) * channels
    tl.store(partial + channel, tl.sum(total, 0), mask=channel < channels)


@triton.jit(do_not_specialize=["splits"])
def vector_update(
    weights,
    partial,
    rows,
    count,
    rate,
    weights_stride,
    split_stride,
    position_stride,
    length,
    splits,
    BLOCK: tl.constexpr,
):
    """A bias or a norm: weights −= rate · Σ_split partial[split · split_stride + position · position_stride + …]."""
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = index < length
    weights += tl.load(rows + position) * weights_stride
    partial += position.to(tl.int64) * position_stride
    gradient = tl.zeros((BLOCK,), tl.float32)
    for split in range(splits):
        gradient += tl.load(partial + split * split_stride + index, mask=known, other=0.0)
    value = tl.load(weights + index, mask=known, other=0.0)
    tl.store(weights + index, value - tl.load(rate) * gradient, mask=known)


@triton.jit
def linear_forward(
    x,
    weight,
    bias,
    y,
    rows,
    count,
    weights_stride,
    images,
    inputs,
    outputs,
    HAS_BIAS: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """y[b, o] = Σ_i x[b, i] · w[o, i] + bias[o], from the float32 weights; ALIGNED divides the place of every row."""
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    tiles = tl.cdiv(outputs, BLOCK_O)
    place = position.to(tl.int64)
    row = tl.multiple_of(tl.load(rows + position) * weights_stride, ALIGNED)
    output = tl.program_id(0) % tiles * BLOCK_O + tl.arange(0, BLOCK_O)
    image = tl.program_id(0) // tiles * BLOCK_B + tl.arange(0, BLOCK_B)
    x += place * (images * inputs)
    product = tl.zeros((BLOCK_O, BLOCK_B), tl.float32)
    for start in range(0, inputs, BLOCK_I):
        i = start + tl.arange(0, BLOCK_I)
        known = (output < outputs)[:, None] & (i < inputs)[None, :]
        w = tl.load(weight + row + output[:, None] * inputs + i[None, :], mask=known, other=0.0)
        known = (image < images)[:, None] & (i < inputs)[None, :]
        a = tl.load(x + image[:, None] * inputs + i[None, :], mask=known, other=0.0)
        product = tl.dot(w.to(a.dtype), tl.trans(a), product, input_precision=PRECISION)
    if HAS_BIAS:
        product += tl.load(bias + row + output, mask=output < outputs, other=0.0)[:, None]
    y += place * (images * outputs)
    written = (output < outputs)[:, None] & (image < images)[None, :]
    tl.store(y + image[None, :] * outputs + output[:, None], product.to(y.dtype.element_ty), mask=written)


@triton.jit
def linear_backward(
    dy,
    x,
    weight,
    bias,
    dx,
    rows,
    count,
    rate,
    weights_stride,
    images,
    inputs,
    outputs,
    HAS_BIAS: tl.constexpr,
    NEEDS_INPUT: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """One visit to the weights: dx[b, i] = Σ_o dy[b, o] · w[o, i], then w[o, i] −= rate · Σ_b dy[b, o] · x[b, i].

    The gradient of a dense layer, often most of a network, never exists in memory. BLOCK_B covers the batch.
    """
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    place = position.to(tl.int64)
    row = tl.multiple_of(tl.load(rows + position) * weights_stride, ALIGNED)
    i = tl.program_id(0) * BLOCK_I + tl.arange(0, BLOCK_I)
    image = tl.arange(0, BLOCK_B)
    within = (image < images)[:, None] & (i < inputs)[None, :]
    x += place * (images * inputs)
    dy += place * (images * outputs)
    step_size = tl.load(rate)
    a = tl.load(x + image[:, None] * inputs + i[None, :], mask=within, other=0.0)
    back = tl.zeros((BLOCK_B, BLOCK_I), tl.float32)
    for start in range(0, outputs, BLOCK_O):
        output = start + tl.arange(0, BLOCK_O)
        known = (image < images)[:, None] & (output < outputs)[None, :]
        d = tl.load(dy + image[:, None] * outputs + output[None, :], mask=known, other=0.0)
        owned = (output < outputs)[:, None] & (i < inputs)[None, :]
        address = weight + row + output[:, None] * inputs + i[None, :]
        w = tl.load(address, mask=owned, other=0.0)
        if NEEDS_INPUT:
            back = tl.dot(d, w.to(d.dtype), back, input_precision=PRECISION)
        gradient = tl.dot(tl.trans(d), a, input_precision=PRECISION)
        tl.store(address, w - step_size * gradient, mask=owned)
        if HAS_BIAS:  # noqa: SIM102
            if tl.program_id(0) == 0:  # as `and`, it would no longer be settled when compiled
                b = tl.load(bias + row + output, mask=output < outputs, other=0.0)
                b -= step_size * tl.sum(d.to(tl.float32), 0)
                tl.store(bias + row + output, b, mask=output < outputs)
    if NEEDS_INPUT:
        dx += place * (images * inputs)
        tl.store(dx + image[:, None] * inputs + i[None, :], back.to(dx.dtype.element_ty), mask=within)


@triton.jit
def _over_groups(values, CHANNELS: tl.constexpr, GROUPS: tl.constexpr):
    """Each channel's value replaced by the sum over its group; (channel,)."""
    grouped = tl.reshape(values, (GROUPS, CHANNELS // GROUPS))
    total = tl.sum(grouped, 1)
    return tl.reshape(tl.broadcast_to(total[:, None], (GROUPS, CHANNELS // GROUPS)), (CHANNELS,))


@triton.jit
def group_norm_forward(
    x,
    residual,
    scale,
    shift,
    y,
    moments,
    rows,
    count,
    weights_stride,
    images,
    pixels,
    epsilon,
    CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """One image: y = ReLU(scale · (x − mean) / √(var + ε) + shift + residual); moments (…, 2, channel) are kept."""
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    image = position.to(tl.int64) * images + tl.program_id(0)
    row = tl.load(rows + position) * weights_stride
    channel = tl.arange(0, CHANNELS)
    start_of_image = image * pixels * CHANNELS
    total = tl.zeros((BLOCK_P, CHANNELS), tl.float32)
    square = tl.zeros((BLOCK_P, CHANNELS), tl.float32)
    for start in range(0, pixels, BLOCK_P):
        pixel = start + tl.arange(0, BLOCK_P)
        at = start_of_image + pixel[:, None] * CHANNELS + channel[None, :]
        value = tl.load(x + at, mask=(pixel < pixels)[:, None], other=0.0).to(tl.float32)
        total += value
        square += value * value
    size = pixels * (CHANNELS // GROUPS)
    mean = _over_groups(tl.sum(total, 0), CHANNELS, GROUPS) / size
    variance = tl.maximum(_over_groups(tl.sum(square, 0), CHANNELS, GROUPS) / size - mean * mean, 0.0)
    inverse = 1.0 / tl.sqrt(variance + epsilon)
    tl.store(moments + image * (2 * CHANNELS) + channel, mean)
    tl.store(moments + image * (2 * CHANNELS) + CHANNELS + channel, inverse)
    slope = tl.load(scale + row + channel) * inverse
    offset = tl.load(shift + row + channel) - mean * slope
    for start in range(0, pixels, BLOCK_P):
        pixel = start + tl.arange(0, BLOCK_P)
        known = (pixel < pixels)[:, None]
        at = start_of_image + pixel[:, None] * CHANNELS + channel[None, :]
        value = tl.load(x + at, mask=known, other=0.0).to(tl.float32) * slope[None, :] + offset[None, :]
        if HAS_RESIDUAL:
            value += tl.load(residual + at, mask=known, other=0.0).to(tl.float32)
        if RELU:
            value = tl.maximum(value, 0.0)
        tl.store(y + at, value.to(y.dtype.element_ty), mask=known)


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
    rows,
    count,
    weights_stride,
    images,
    pixels,
    CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """With g = dy where y > 0 and z the normalised x: partial = (Σ g·z, Σ g) of each image, residual_gradient = g and

    dx = (scale · g − (z · Σ_group scale·g·z + Σ_group scale·g) / size) / √(var + ε).
    """
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    image = position.to(tl.int64) * images + tl.program_id(0)
    row = tl.load(rows + position) * weights_stride
    channel = tl.arange(0, CHANNELS)
    start_of_image = image * pixels * CHANNELS
    mean = tl.load(moments + image * (2 * CHANNELS) + channel)
    inverse = tl.load(moments + image * (2 * CHANNELS) + CHANNELS + channel)
    slope = tl.load(scale + row + channel)
    total = tl.zeros((BLOCK_P, CHANNELS), tl.float32)
    along = tl.zeros((BLOCK_P, CHANNELS), tl.float32)
    for start in range(0, pixels, BLOCK_P):
        pixel = start + tl.arange(0, BLOCK_P)
        known = (pixel < pixels)[:, None]
        at = start_of_image + pixel[:, None] * CHANNELS + channel[None, :]
        g, z = _gated(dy, x, y, at, known, mean, inverse, RELU)
        if HAS_RESIDUAL:
            tl.store(residual_gradient + at, g.to(residual_gradient.dtype.element_ty), mask=known)
        total += g
        along += g * z
    sum_along = tl.sum(along, 0)
    sum_total = tl.sum(total, 0)
    tl.store(partial + image * (2 * CHANNELS) + channel, sum_along)
    tl.store(partial + image * (2 * CHANNELS) + CHANNELS + channel, sum_total)
    size = pixels * (CHANNELS // GROUPS)
    pull = _over_groups(slope * sum_along, CHANNELS, GROUPS) / size
    level = _over_groups(slope * sum_total, CHANNELS, GROUPS) / size
    for start in range(0, pixels, BLOCK_P):
        pixel = start + tl.arange(0, BLOCK_P)
        known = (pixel < pixels)[:, None]
        at = start_of_image + pixel[:, None] * CHANNELS + channel[None, :]
        g, z = _gated(dy, x, y, at, known, mean, inverse, RELU)
        value = (slope[None, :] * g - (z * pull[None, :] + level[None, :])) * inverse[None, :]
        tl.store(dx + at, value.to(dx.dtype.element_ty), mask=known)


@triton.jit
def relu_pool_forward(
    x,
    y,
    count,
    images,
    height,
    width,
    CHANNELS: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest of each WINDOW × WINDOW tile of x, at least 0."""
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = element < images * (OUT_HEIGHT * OUT_WIDTH * CHANNELS)
    x += position.to(tl.int64) * (images * height * width * CHANNELS)
    y += position.to(tl.int64) * (images * OUT_HEIGHT * OUT_WIDTH * CHANNELS)
    _, _, corner = _corner(element // CHANNELS, height, width, OUT_HEIGHT, OUT_WIDTH, CHANNELS, WINDOW, 0)
    source = corner + element % CHANNELS
    largest = tl.zeros((BLOCK,), tl.float32)
    for tap in tl.static_range(WINDOW * WINDOW):
        at = source + (tap // WINDOW * width + tap % WINDOW) * CHANNELS
        largest = tl.maximum(largest, tl.load(x + at, mask=known, other=0.0).to(tl.float32))
    tl.store(y + element, largest.to(y.dtype.element_ty), mask=known)


@triton.jit
def relu_pool_backward(
    dy,
    x,
    y,
    dx,
    count,
    images,
    height,
    width,
    CHANNELS: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """To the first largest element of each tile goes dy, if that element is positive; to the others nothing."""
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = element < images * (OUT_HEIGHT * OUT_WIDTH * CHANNELS)
    before = position.to(tl.int64) * (images * height * width * CHANNELS)
    after = position.to(tl.int64) * (images * OUT_HEIGHT * OUT_WIDTH * CHANNELS)
    _, _, corner = _corner(element // CHANNELS, height, width, OUT_HEIGHT, OUT_WIDTH, CHANNELS, WINDOW, 0)
    source = before + corner + element % CHANNELS
    largest = tl.load(y + after + element, mask=known, other=0.0)
    gradient = tl.load(dy + after + element, mask=known, other=0.0)
    waiting = largest > 0  # no element of the tile has been chosen yet
    for tap in tl.static_range(WINDOW * WINDOW):
        at = source + (tap // WINDOW * width + tap % WINDOW) * CHANNELS
        chosen = waiting & (tl.load(x + at, mask=known, other=0.0) == largest)
        waiting = waiting & (chosen == 0)
        tl.store(dx + at, tl.where(chosen, gradient, 0.0).to(dx.dtype.element_ty), mask=known)
