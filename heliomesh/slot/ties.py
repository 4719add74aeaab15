"""Ties are broken by a rule: of actions that cost the same to within rounding, the first is taken.

Two actions of equal cost hardly ever have equal numbers, because sums of other order round otherwise, and so do
other processors. Costs count as equal where they differ by less than TIE (1 + |least cost|), which is far more than
what rounding leaves and far less than what matters. Plans and traces then are the same on every processor.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

TIE, _SINGLE_TIE = 1e-10, 1e-6  # of double and single precision
_TIE = {torch.float64: TIE, torch.float32: _SINGLE_TIE}
_TIE_OF = {np.dtype("float64"): TIE, np.dtype("float32"): _SINGLE_TIE}


def tie(size: Tensor) -> Tensor:
    """By how much costs of a size may differ and still count as equal; of the same shape."""
    return (size.abs() + 1) * _TIE[size.dtype]


def tied(costs: Tensor, dim: int) -> Tensor:
    """Which costs along an axis count as equal to the least."""
    least = costs.amin(dim, keepdim=True)
    return costs <= least + tie(least)


def first_least(costs: Tensor, dim: int = -1) -> Tensor:
    """Index of the first of the costs along an axis that count as equal to the least; the axis is gone."""
    equal = tied(costs, dim)
    if dim in (-1, costs.ndim - 1):
        return equal.view(torch.uint8).argmax(dim)
    return _first_true(equal.unbind(dim))


def _first_true(flags: Sequence[Tensor]) -> Tensor:
    """Number of the first flag that is set, one of them being; many times faster than an `argmax` across rows."""
    found = torch.full(flags[0].shape, len(flags) - 1, device=flags[0].device)
    for number in range(len(flags) - 2, -1, -1):
        found.masked_fill_(flags[number], number)
    return found


def first_least_of(costs: npt.NDArray[np.floating[Any]], axis: int) -> npt.NDArray[np.int64]:
    """`first_least` of an array."""
    least = costs.min(axis, keepdims=True)
    equal = costs <= least + (abs(least) + 1) * _TIE_OF[costs.dtype]
    found: npt.NDArray[np.int64] = equal.argmax(axis)
    return found
