"""Triton kernels of the filters of convolutions: from the flat matrix and back, and w ← w − η Σ_s partial[s].

Axes and positions are those of `convolution_kernels.py`. Only import this module where Triton is installed.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["positions"])
def filter_update(filters, copy, partial, count, rate, positions, length, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
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
