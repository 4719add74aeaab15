"""Expectation over the next state, axis by axis.

With independent transitions the joint kernel is a Kronecker product, so E[V(s') | s] is one small matrix product per
axis; the joint kernel is never built. Tables over the state *after spending* (post-decision tables) need no action
axis: Q(s, p) = c(s, p) + W(h, b − e(p)).
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def contract_axis(table: Tensor, axis: int, kernel: Tensor) -> Tensor:
    """Replace ``axis`` (next) by its expectation given now: Σ_next kernel[now, next] · table[..., next, ...]."""
    shape = table.shape
    before, after = shape[:axis].numel(), shape[axis + 1 :].numel()
    if after == 1:
        return (table.reshape(before, shape[axis]) @ kernel.T).reshape(shape)
    return torch.matmul(kernel, table.reshape(before, shape[axis], after)).reshape(shape)


def expectation(table: Tensor, kernels: Sequence[Tensor]) -> Tensor:
    """E[table(next) | now] with one kernel [now, next] per axis."""
    for axis, kernel in enumerate(kernels):
        table = contract_axis(table, axis, kernel)
    return table
