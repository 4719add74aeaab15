"""Triton kernels of dense layers for a whole stack of networks, which read and move the flat weights themselves.

SGD moves a dense layer's weights by outer products: after s steps with gradients dy_j and inputs x_j

    w_s = w_0 − η Σ_{j<s} dy_jᵀ x_j.

So a slot need not write its weights in every step. With the products G_j = x x_jᵀ and H_j = dy dy_jᵀ of minibatches,

    x w_sᵀ = x w_0ᵀ − η Σ_j G_j dy_j,    dy w_s = dy w_0 − η Σ_j H_j x_j,

and w is written once, after the last step. Until then a slot reads w_0 only, and where products are of half precision
a rounded copy of it: five steps move half of the bytes. Steps gone by are ``earlier``.

Axes and positions are those of `convolution_kernels.py`. Only import this module where Triton is installed.
"""

# Triton reads a kernel's annotations itself, so kernels have only those that it asks for.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["steps"])
def products_with_earlier(
    now,
    before,
    products,
    steps,
    images,
    length,
    count,
    PRECISION: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """One program for each j: products[j, b, c] = Σ_i now[b, i] · before[j, c, i], of each position."""
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    place = position.to(tl.int64)
    image = tl.arange(0, BLOCK_B)
    now += place * (images * length)
    before += (place * steps + tl.program_id(0)) * (images * length)
    product = tl.zeros((BLOCK_B, BLOCK_B), tl.float32)
    for start in range(0, length, BLOCK_I):
        i = start + tl.arange(0, BLOCK_I)
        known = (image < images)[:, None] & (i < length)[None, :]
        a = tl.load(now + image[:, None] * length + i[None, :], mask=known, other=0.0)
        b = tl.load(before + image[:, None] * length + i[None, :], mask=known, other=0.0)
        product = tl.dot(a, tl.trans(b), product, input_precision=PRECISION)
    products += (place * steps + tl.program_id(0)) * (images * images)
    written = (image < images)[:, None] & (image < images)[None, :]
    target = products + image[:, None] * images + image[None, :]
    tl.store(target, product.to(products.dtype.element_ty), mask=written)


@triton.jit(do_not_specialize=["earlier", "steps"])
def linear_forward(
    x,
    weight,
    bias,
    copy,
    y,
    products,
    gradients,
    images,
    inputs,
    outputs,
    earlier,
    steps,
    rows,
    count,
    rate,
    weights_stride,
    HAS_BIAS: tl.constexpr,
    FROM_COPY: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """y[b, o] = Σ_i x[b, i] · w[o, i] − η Σ_j Σ_c G_j[b, c] · dy_j[c, o] + bias[o].

    Weights come from their row, in float32, or FROM_COPY. ALIGNED divides the place of every row. Gradients are
    (position, step, image, output); BLOCK_R covers a minibatch.
    """
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    tiles = tl.cdiv(outputs, BLOCK_O)
    place = position.to(tl.int64)
    row = tl.multiple_of(tl.load(rows + position) * weights_stride, ALIGNED)
    output = tl.program_id(0) % tiles * BLOCK_O + tl.arange(0, BLOCK_O)
    image = tl.program_id(0) // tiles * BLOCK_B + tl.arange(0, BLOCK_B)
    x += place * (images * inputs)
    copy += place * (outputs * inputs)
    product = tl.zeros((BLOCK_O, BLOCK_B), tl.float32)
    for start in range(0, inputs, BLOCK_I):
        i = start + tl.arange(0, BLOCK_I)
        known = (output < outputs)[:, None] & (i < inputs)[None, :]
        at = output[:, None] * inputs + i[None, :]
        met = (image < images)[:, None] & (i < inputs)[None, :]
        a = tl.load(x + image[:, None] * inputs + i[None, :], mask=met, other=0.0)
        if FROM_COPY:
            w = tl.load(copy + at, mask=known, other=0.0)
        else:
            w = tl.load(weight + row + at, mask=known, other=0.0).to(a.dtype)
        product = tl.dot(w, tl.trans(a), product, input_precision=PRECISION)
    if earlier > 0:
        other = tl.arange(0, BLOCK_R)
        correction = tl.zeros((BLOCK_O, BLOCK_B), tl.float32)
        for j in range(earlier):
            step = place * steps + j
            known = (other < images)[:, None] & (output < outputs)[None, :]
            d = tl.load(
                gradients + (step * images + other[:, None]) * outputs + output[None, :], mask=known, other=0.0
            )
            known = (image < images)[:, None] & (other < images)[None, :]
            g = tl.load(products + (step * images + image[:, None]) * images + other[None, :], mask=known, other=0.0)
            correction = tl.dot(tl.trans(d), tl.trans(g), correction, input_precision=PRECISION)
        product -= tl.load(rate) * correction
    if HAS_BIAS:
        product += tl.load(bias + row + output, mask=output < outputs, other=0.0)[:, None]
    y += place * (images * outputs)
    written = (output < outputs)[:, None] & (image < images)[None, :]
    tl.store(y + image[None, :] * outputs + output[:, None], product.to(y.dtype.element_ty), mask=written)


@triton.jit(do_not_specialize=["earlier", "steps"])
def linear_backward(
    dy,
    x,
    weight,
    bias,
    copy,
    dx,
    products,
    inputs_before,
    images,
    inputs,
    outputs,
    earlier,
    steps,
    rows,
    count,
    rate,
    weights_stride,
    HAS_BIAS: tl.constexpr,
    NEEDS_INPUT: tl.constexpr,
    FROM_COPY: tl.constexpr,
    MOVES: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """One visit to the weights: dx[b, i] = Σ_o dy[b, o] · w[o, i] − η Σ_j Σ_c H_j[b, c] · x_j[c, i].

    Where it MOVES them, w[o, i] −= η Σ_b dy[b, o] · x[b, i].
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
    copy += place * (outputs * inputs)
    inputs_before += place * steps * images * inputs
    step_size = tl.load(rate)
    a = tl.load(x + image[:, None] * inputs + i[None, :], mask=within, other=0.0)
    back = tl.zeros((BLOCK_B, BLOCK_I), tl.float32)
    for start in range(0, outputs, BLOCK_O):
        output = start + tl.arange(0, BLOCK_O)
        known = (image < images)[:, None] & (output < outputs)[None, :]
        d = tl.load(dy + image[:, None] * outputs + output[None, :], mask=known, other=0.0)
        owned = (output < outputs)[:, None] & (i < inputs)[None, :]
        at = output[:, None] * inputs + i[None, :]
        w = tl.load(copy + at if FROM_COPY else weight + row + at, mask=owned, other=0.0)
        if NEEDS_INPUT:
            back = tl.dot(d, w.to(d.dtype), back, input_precision=PRECISION)
        if MOVES:
            gradient = tl.dot(tl.trans(d), a, input_precision=PRECISION)
            tl.store(weight + row + at, w - step_size * gradient, mask=owned)
        if HAS_BIAS:  # noqa: SIM102
            if tl.program_id(0) == 0:  # as `and`, it would no longer be settled when compiled
                b = tl.load(bias + row + output, mask=output < outputs, other=0.0)
                b -= step_size * tl.sum(d.to(tl.float32), 0)
                tl.store(bias + row + output, b, mask=output < outputs)
    if NEEDS_INPUT:
        if earlier > 0:
            correction = tl.zeros((BLOCK_B, BLOCK_I), tl.float32)
            for j in range(earlier):
                pair = (image < images)[:, None] & (image < images)[None, :]
                source = products + ((place * steps + j) * images + image[:, None]) * images + image[None, :]
                h = tl.load(source, mask=pair, other=0.0)
                x_j = tl.load(
                    inputs_before + (j * images + image[:, None]) * inputs + i[None, :], mask=within, other=0.0
                )
                correction = tl.dot(h, x_j, correction, input_precision=PRECISION)
            back -= step_size * correction
        dx += place * (images * inputs)
        tl.store(dx + image[:, None] * inputs + i[None, :], back.to(dx.dtype.element_ty), mask=within)


@triton.jit(do_not_specialize=["steps"])
def rank_update(
    weight,
    inputs_before,
    gradients,
    images,
    inputs,
    outputs,
    steps,
    rows,
    count,
    rate,
    weights_stride,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """The step of a whole slot: w[o, i] −= η Σ_j Σ_b dy_j[b, o] · x_j[b, i]; BLOCK_B covers the batch."""
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    place = position.to(tl.int64)
    row = tl.multiple_of(tl.load(rows + position) * weights_stride, ALIGNED)
    tiles = tl.cdiv(inputs, BLOCK_I)
    i = tl.program_id(0) % tiles * BLOCK_I + tl.arange(0, BLOCK_I)
    output = tl.program_id(0) // tiles * BLOCK_O + tl.arange(0, BLOCK_O)
    image = tl.arange(0, BLOCK_B)
    inputs_before += place * steps * images * inputs
    gradients += place * steps * images * outputs
    gradient = tl.zeros((BLOCK_O, BLOCK_I), tl.float32)
    for j in range(steps):
        line = j * images + image[:, None]
        known = (image < images)[:, None] & (output < outputs)[None, :]
        d = tl.load(gradients + line * outputs + output[None, :], mask=known, other=0.0)
        within = (image < images)[:, None] & (i < inputs)[None, :]
        x = tl.load(inputs_before + line * inputs + i[None, :], mask=within, other=0.0)
        gradient = tl.dot(tl.trans(d), x, gradient, input_precision=PRECISION)
    owned = (output < outputs)[:, None] & (i < inputs)[None, :]
    address = weight + row + output[:, None] * inputs + i[None, :]
    tl.store(address, tl.load(address, mask=owned, other=0.0) - tl.load(rate) * gradient, mask=owned)


@triton.jit
def round_rows(weight, copy, length, rows, count, weights_stride, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """The rounded copy (position, …) of a parameter with ``length`` numbers."""
    position = tl.program_id(1)
    if position >= tl.load(count):
        return
    row = tl.multiple_of(tl.load(rows + position) * weights_stride, ALIGNED)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(weight + row + index, mask=index < length, other=0.0)
    tl.store(copy + position.to(tl.int64) * length + index, value.to(copy.dtype.element_ty), mask=index < length)
