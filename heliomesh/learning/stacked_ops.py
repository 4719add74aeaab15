"""Operations on stacks of layers that several strategies share."""

import torch
from torch import Tensor


def batched_dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """y[r] = x[r] weight[r]ᵀ + bias[r]; x (row, …, input), weight (row, output, input), bias (row, output)."""
    rows, inputs = x.flatten(1, -2), weight.transpose(1, 2)
    y = torch.bmm(rows, inputs) if bias is None else torch.baddbmm(bias[:, None], rows, inputs)
    return y.view(*x.shape[:-1], -1)
