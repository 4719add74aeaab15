"""Triton kernels of convolutions for a whole stack of networks, with ReLU and pooling where they follow.

Activations are (position, image, height, width, channel) and contiguous; a *position* is the n-th active device,
whose weights are row ``rows[n]`` of the flat (row, parameter) matrix. The second axis of every grid is the position,
and programs of positions beyond ``count`` leave at once: one captured graph serves any number of active devices.

Convolutions are implicit matrix products. With filters f, channels c, taps t = (kernel row, kernel column):

- forward           y[p, f]  = Σ_{t,c} x[p·stride − padding + t, c] · w[f, t, c] + bias[f]
- input gradient    dx[q, c] = Σ_{t,f} dy[(q + padding − t) / stride, f] · w[f, t, c]
- weight gradient   dw[f, t, c] = Σ_p dy[p, f] · x[p·stride − padding + t, c]

During the steps of a slot, filters live in (position, filter, tap, channel) order, in float32 and, where products are
of half precision, in a rounded copy too: `move_filters` brings them there and back, `filter_update` makes the step
w ← w − η Σ_s partial[s].
Sizes of layers are compiled in: masks and divisions then cost little beside the products (1.2 to 1.5 times the speed
of kernels that serve all sizes, on one H200). Only import this module where Triton is installed.
"""

# Triton reads a kernel's annotations itself, so kernels have only those that it asks for.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl


@triton.jit
def _and_unless(ALWAYS: tl.constexpr, mask, limit):
    """Restrict ``mask`` by ``limit``, unless the compiler knows that the limit always holds."""
    if not ALWAYS:
        mask = mask & limit
    return mask


@triton.jit
def _within(line, column, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    return (line >= 0) & (line < HEIGHT) & (column >= 0) & (column < WIDTH)


@triton.jit
def _place(number, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, WINDOW: tl.constexpr):
    """Image, line and column of output pixels, counted window by window; WINDOW = 1 counts them line by line."""
    cell = number // (WINDOW * WINDOW)
    tap = number % (WINDOW * WINDOW)
    line = cell // (OUT_WIDTH // WINDOW) % (OUT_HEIGHT // WINDOW) * WINDOW + tap // WINDOW
    column = cell % (OUT_WIDTH // WINDOW) * WINDOW + tap % WINDOW
    return cell // ((OUT_HEIGHT // WINDOW) * (OUT_WIDTH // WINDOW)), line, column


@triton.jit(do_not_specialize=["images"])
def convolution_forward(
    x,
    weight,
    bias,
    y,
    chosen,
    images,
    rows,
    count,
    weights_stride,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    FILTERS: tl.constexpr,
    KERNEL_HEIGHT: tl.constexpr,
    KERNEL_WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    WINDOW: tl.constexpr,
    PIXEL_STRIDE: tl.constexpr,
    FILTER_STRIDE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Output pixels × filters. One block of the inner axis spans several taps where inputs have few channels.

    WINDOW > 1 also takes the largest of each WINDOW × WINDOW tile, at least 0, and writes which pixel it was: the
    first of the largest, or WINDOW² where none is positive. WHOLE: blocks of pixels have no remainder.
    """
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    tiles: tl.constexpr = (FILTERS + BLOCK_N - 1) // BLOCK_N
    cells: tl.constexpr = (OUT_HEIGHT // WINDOW) * (OUT_WIDTH // WINDOW)  # of one image
    square: tl.constexpr = WINDOW * WINDOW
    length: tl.constexpr = KERNEL_HEIGHT * KERNEL_WIDTH * CHANNELS
    place = position.to(tl.int64)
    x += place * (images * (HEIGHT * WIDTH * CHANNELS))
    weight += place * (FILTERS * length)
    block = tl.program_id(0) // tiles
    pixel = block * BLOCK_M + tl.arange(0, BLOCK_M)
    kernel = tl.program_id(0) % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    image, top, left = _place(pixel, OUT_HEIGHT, OUT_WIDTH, WINDOW)
    top = top * STRIDE - PADDING
    left = left * STRIDE - PADDING
    corner = ((image * HEIGHT + top) * WIDTH + left) * CHANNELS
    real = pixel < images * (cells * square)
    inner = tl.arange(0, BLOCK_K)
    every_filter: tl.constexpr = FILTERS % BLOCK_N == 0
    product = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if CHANNELS < 16:
        for start in range(0, length, BLOCK_K):
            k = start + inner
            tap_row = k // CHANNELS // KERNEL_WIDTH
            tap_column = k // CHANNELS % KERNEL_WIDTH
            line = top[:, None] + tap_row[None, :]
            column = left[:, None] + tap_column[None, :]
            inside = _and_unless(WHOLE, _within(line, column, HEIGHT, WIDTH) & (k < length)[None, :], real[:, None])
            shift = (tap_row * WIDTH + tap_column) * CHANNELS + k % CHANNELS
            a = tl.load(x + corner[:, None] + shift[None, :], mask=inside, other=0.0)
            known = (k < length)[:, None] & (kernel < FILTERS)[None, :]
            b = tl.load(weight + kernel[None, :] * length + k[:, None], mask=known, other=0.0)
            product = tl.dot(a, b, product, input_precision=PRECISION)
    else:
        blocks: tl.constexpr = (CHANNELS + BLOCK_K - 1) // BLOCK_K
        every_channel: tl.constexpr = CHANNELS % BLOCK_K == 0
        for step in range(KERNEL_HEIGHT * KERNEL_WIDTH * blocks):
            tap = step // blocks
            channel = step % blocks * BLOCK_K + inner
            line = top + tap // KERNEL_WIDTH
            column = left + tap % KERNEL_WIDTH
            inside = _and_unless(WHOLE, _within(line, column, HEIGHT, WIDTH), real)
            shift = (tap // KERNEL_WIDTH * WIDTH + tap % KERNEL_WIDTH) * CHANNELS + channel
            known = _and_unless(every_channel, inside[:, None], (channel < CHANNELS)[None, :])
            a = tl.load(x + corner[:, None] + shift[None, :], mask=known, other=0.0)
            source = kernel[None, :] * length + (tap * CHANNELS + channel)[:, None]
            if every_channel and every_filter:
                b = tl.load(weight + source)
            else:
                taken = (channel < CHANNELS)[:, None] & (kernel < FILTERS)[None, :]
                b = tl.load(weight + source, mask=taken, other=0.0)
            product = tl.dot(a, b, product, input_precision=PRECISION)
    if HAS_BIAS:
        bias += tl.load(rows + position) * weights_stride
        product += tl.load(bias + kernel, mask=kernel < FILTERS, other=0.0)[None, :]
    rounded = product.to(y.dtype.element_ty)
    cell = block * (BLOCK_M // square) + tl.arange(0, BLOCK_M // square)
    written = (cell < images * cells)[:, None] & (kernel < FILTERS)[None, :]
    if WINDOW > 1:
        tile = tl.reshape(rounded.to(tl.float32), (BLOCK_M // square, square, BLOCK_N))
        largest = tl.max(tile, 1)
        order = tl.arange(0, square)[None, :, None]
        first = tl.min(tl.where(tile == largest[:, None, :], order, square), 1)
        first = tl.where(largest > 0, first, square)
        chosen += place * (images * (cells * FILTERS))
        tl.store(chosen + cell[:, None] * FILTERS + kernel[None, :], first.to(tl.uint8), mask=written)
        rounded = tl.maximum(largest, 0.0).to(y.dtype.element_ty)
    y += place * (images * (cells * FILTERS))
    target = cell // cells * (cells * FILTERS) + cell % cells * PIXEL_STRIDE
    tl.store(y + target[:, None] + kernel[None, :] * FILTER_STRIDE, rounded, mask=written)


@triton.jit(do_not_specialize=["images"])
def convolution_input_gradient(
    dy,
    weight,
    dx,
    images,
    count,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    FILTERS: tl.constexpr,
    KERNEL_HEIGHT: tl.constexpr,
    KERNEL_WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Input pixels × channels; each class of pixels modulo the stride by itself visits only the taps that meet it."""
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    tiles: tl.constexpr = (CHANNELS + BLOCK_N - 1) // BLOCK_N
    largest = images * (tl.cdiv(HEIGHT, STRIDE) * tl.cdiv(WIDTH, STRIDE))
    per_class = tl.cdiv(largest, BLOCK_M) * tiles
    group = tl.program_id(0) // per_class if STRIDE > 1 else 0
    tile = tl.program_id(0) % per_class if STRIDE > 1 else tl.program_id(0)
    first_line = group // STRIDE
    first_column = group % STRIDE
    lines = (HEIGHT - first_line + STRIDE - 1) // STRIDE
    columns = (WIDTH - first_column + STRIDE - 1) // STRIDE
    place = position.to(tl.int64)
    dy += place * (images * (OUT_HEIGHT * OUT_WIDTH * FILTERS))
    weight += place * (FILTERS * KERNEL_HEIGHT * KERNEL_WIDTH * CHANNELS)
    dx += place * (images * (HEIGHT * WIDTH * CHANNELS))
    pixel = tile // tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    channel = tile % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    real = pixel < images * lines * columns
    image = pixel // (lines * columns)
    line = pixel // columns % lines * STRIDE + first_line
    column = pixel % columns * STRIDE + first_column
    first_row = (first_line + PADDING) % STRIDE  # of the taps that meet this class
    first_tap = (first_column + PADDING) % STRIDE
    tap_rows = (KERNEL_HEIGHT - first_row + STRIDE - 1) // STRIDE
    tap_columns = (KERNEL_WIDTH - first_tap + STRIDE - 1) // STRIDE
    bottom = (line + PADDING - first_row) // STRIDE
    right = (column + PADDING - first_tap) // STRIDE
    corner = ((image * OUT_HEIGHT + bottom) * OUT_WIDTH + right) * FILTERS
    inner = tl.arange(0, BLOCK_K)
    blocks: tl.constexpr = (FILTERS + BLOCK_K - 1) // BLOCK_K
    every_filter: tl.constexpr = FILTERS % BLOCK_K == 0
    every_channel: tl.constexpr = CHANNELS % BLOCK_N == 0
    product = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tap_rows * tap_columns * blocks):
        tap = step // blocks
        up = tap // tap_columns
        back = tap % tap_columns
        kernel = step % blocks * BLOCK_K + inner
        inside = _and_unless(WHOLE, _within(bottom - up, right - back, OUT_HEIGHT, OUT_WIDTH), real)
        shift = kernel - (up * OUT_WIDTH + back) * FILTERS
        known = _and_unless(every_filter, inside[:, None], (kernel < FILTERS)[None, :])
        a = tl.load(dy + corner[:, None] + shift[None, :], mask=known, other=0.0)
        tap_index = (first_row + up * STRIDE) * KERNEL_WIDTH + first_tap + back * STRIDE
        source = (kernel * (KERNEL_HEIGHT * KERNEL_WIDTH) + tap_index) * CHANNELS
        if every_filter and every_channel:
            b = tl.load(weight + source[:, None] + channel[None, :])
        else:
            taken = (kernel < FILTERS)[:, None] & (channel < CHANNELS)[None, :]
            b = tl.load(weight + source[:, None] + channel[None, :], mask=taken, other=0.0)
        product = tl.dot(a, b, product, input_precision=PRECISION)
    target = ((image * HEIGHT + line) * WIDTH + column) * CHANNELS
    written = real[:, None] & (channel < CHANNELS)[None, :]
    tl.store(dx + target[:, None] + channel[None, :], product.to(dx.dtype.element_ty), mask=written)


@triton.jit(do_not_specialize=["positions", "images", "splits"])
def convolution_weight_gradient(
    dy,
    x,
    partial,
    filters,
    copy,
    positions,
    images,
    splits,
    count,
    rate,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    FILTERS: tl.constexpr,
    KERNEL_HEIGHT: tl.constexpr,
    KERNEL_WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    ALONE: tl.constexpr,
    WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Filters × (tap, channel), summed over one of several ranges of pixels: partial (split, position, filter, …).

    ALONE: one range holds all pixels, so the filters move at once, and no gradient is written.
    """
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    length: tl.constexpr = KERNEL_HEIGHT * KERNEL_WIDTH * CHANNELS
    tiles: tl.constexpr = (length + BLOCK_N - 1) // BLOCK_N
    pixels = images * (OUT_HEIGHT * OUT_WIDTH)
    place = position.to(tl.int64)
    dy += place * (pixels * FILTERS)
    x += place * (images * (HEIGHT * WIDTH * CHANNELS))
    split = tl.program_id(0) % splits
    kernel = tl.program_id(0) // splits // tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) // splits % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    tap_row = n // CHANNELS // KERNEL_WIDTH - PADDING
    tap_column = n // CHANNELS % KERNEL_WIDTH - PADDING
    shift = (tap_row * WIDTH + tap_column) * CHANNELS + n % CHANNELS
    every_filter: tl.constexpr = FILTERS % BLOCK_M == 0
    every_tap: tl.constexpr = length % BLOCK_N == 0
    steps = tl.cdiv(tl.cdiv(pixels, BLOCK_K), splits)
    product = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(split * steps, (split + 1) * steps):
        pixel = step * BLOCK_K + tl.arange(0, BLOCK_K)
        image, line, column = _place(pixel, OUT_HEIGHT, OUT_WIDTH, 1)
        real = (pixel < pixels)[:, None]
        source = dy + pixel[:, None] * FILTERS + kernel[None, :]
        if WHOLE and every_filter:
            a = tl.load(source)
        else:
            a = tl.load(source, mask=real & (kernel < FILTERS)[None, :], other=0.0)
        inside = _within(
            line[:, None] * STRIDE + tap_row[None, :], column[:, None] * STRIDE + tap_column[None, :], HEIGHT, WIDTH
        )
        inside = _and_unless(every_tap, _and_unless(WHOLE, inside, real), (n < length)[None, :])
        if STRIDE == 1 and OUT_HEIGHT == HEIGHT and OUT_WIDTH == WIDTH:
            corner = pixel * CHANNELS
        else:
            corner = ((image * HEIGHT + line * STRIDE) * WIDTH + column * STRIDE) * CHANNELS
        b = tl.load(x + corner[:, None] + shift[None, :], mask=inside, other=0.0)
        product = tl.dot(tl.trans(a), b, product, input_precision=PRECISION)
    at = place * (FILTERS * length) + kernel[:, None] * length + n[None, :]
    written = (kernel < FILTERS)[:, None] & (n < length)[None, :]
    if ALONE:
        value = tl.load(filters + at, mask=written, other=0.0) - tl.load(rate) * product
        tl.store(filters + at, value, mask=written)
        if copy.dtype.element_ty != filters.dtype.element_ty:
            tl.store(copy + at, value.to(copy.dtype.element_ty), mask=written)
    else:
        partial += split.to(tl.int64) * positions * (FILTERS * length)
        tl.store(partial + at, product, mask=written)


@triton.jit(do_not_specialize=["positions", "images", "splits"])
def spread_windows(
    dy,
    chosen,
    dx,
    partial,
    positions,
    images,
    splits,
    count,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    WINDOW: tl.constexpr,
    PIXEL_STRIDE: tl.constexpr,
    CHANNEL_STRIDE: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The gradient of pooling: dy goes to the chosen pixel of its window, to the others nothing.

    Its sums over one of several ranges of windows are those of a bias: partial (split, position, channel).
    """
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    cells: tl.constexpr = (HEIGHT // WINDOW) * (WIDTH // WINDOW)
    place = position.to(tl.int64)
    dy += place * (images * (cells * CHANNELS))
    chosen += place * (images * (cells * CHANNELS))
    dx += place * (images * (HEIGHT * WIDTH * CHANNELS))
    split = tl.program_id(0) % splits
    channel = (tl.program_id(0) // splits * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    steps = tl.cdiv(tl.cdiv(images * cells, BLOCK_P), splits)
    total = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for step in range(split * steps, (split + 1) * steps):
        cell = step * BLOCK_P + tl.arange(0, BLOCK_P)
        known = (cell < images * cells)[:, None] & (channel < CHANNELS)
        source = (cell // cells * (cells * CHANNELS) + cell % cells * PIXEL_STRIDE)[:, None]
        gradient = tl.load(dy + source + channel * CHANNEL_STRIDE, mask=known, other=0.0)
        winner = tl.load(chosen + cell[:, None] * CHANNELS + channel, mask=known, other=WINDOW * WINDOW)
        total += tl.where(winner < WINDOW * WINDOW, gradient, 0.0).to(tl.float32)
        image, line, column = _place(cell * (WINDOW * WINDOW), HEIGHT, WIDTH, WINDOW)
        corner = (((image * HEIGHT + line) * WIDTH + column) * CHANNELS)[:, None] + channel
        for tap in tl.static_range(WINDOW * WINDOW):
            at = corner + (tap // WINDOW * WIDTH + tap % WINDOW) * CHANNELS
            tl.store(dx + at, tl.where(winner == tap, gradient, 0.0).to(dx.dtype.element_ty), mask=known)
    partial += (split * positions + place) * CHANNELS
    tl.store(partial + channel, tl.sum(total, 0)[None, :], mask=channel < CHANNELS)


@triton.jit(do_not_specialize=["positions"])
def filter_update(filters, copy, partial, positions, length, count, rate, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """``length`` numbers of a position: filters −= rate · Σ partial, and their rounded copy."""
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = position.to(tl.int64) * length + index
    known = index < length
    gradient = tl.zeros((BLOCK,), tl.float32)
    for split in tl.static_range(SPLITS):
        gradient += tl.load(partial + positions.to(tl.int64) * length * split + at, mask=known, other=0.0)
    value = tl.load(filters + at, mask=known, other=0.0) - tl.load(rate) * gradient
    tl.store(filters + at, value, mask=known)
    if copy.dtype.element_ty != filters.dtype.element_ty:
        tl.store(copy + at, value.to(copy.dtype.element_ty), mask=known)


@triton.jit
def move_filters(
    weights,
    filters,
    copy,
    rows,
    count,
    weights_stride,
    CHANNELS: tl.constexpr,
    FILTERS: tl.constexpr,
    TAPS: tl.constexpr,
    BACK: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One filter from the flat matrix, (channel, tap), to (tap, channel) and its rounded copy; or BACK."""
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    kernel = tl.program_id(0)
    place = (position.to(tl.int64) * FILTERS + kernel) * (TAPS * CHANNELS)
    weights += tl.load(rows + position) * weights_stride + kernel * (CHANNELS * TAPS)
    tap = tl.arange(0, BLOCK_T)[:, None]
    for start in range(0, CHANNELS, BLOCK_C):
        channel = start + tl.arange(0, BLOCK_C)[None, :]
        known = (tap < TAPS) & (channel < CHANNELS)
        here = place + tap * CHANNELS + channel
        if BACK:
            tl.store(weights + channel * TAPS + tap, tl.load(filters + here, mask=known, other=0.0), mask=known)
        else:
            value = tl.load(weights + channel * TAPS + tap, mask=known, other=0.0)
            tl.store(filters + here, value, mask=known)
            if copy.dtype.element_ty != filters.dtype.element_ty:
                tl.store(copy + here, value.to(copy.dtype.element_ty), mask=known)
