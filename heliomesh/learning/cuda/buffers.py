"""What all layers of one pass over a stack of networks share: weights in rows, who is active, and working copies."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from heliomesh.learning.stacked import Layout


@dataclass(frozen=True)
class Filters:
    """Weights of one convolution during a slot, (position, filter, tap, channel)."""

    exact: Tensor  # float32
    rounded: Tensor  # in the precision of the products; the same memory where that is float32


@dataclass(frozen=True)
class Earlier:
    """What a dense layer met in the steps of a slot, from which its weights follow; see `dense_kernels.py`."""

    inputs: Tensor  # (position, step, image, input)
    gradients: Tensor  # (position, step, image, output)
    input_products: Tensor  # (position, step, image, image): of this step's inputs with those of earlier steps
    gradient_products: Tensor  # the same of gradients
    copy: Tensor | None  # (position, output, input): the first weights, rounded; None where products are float32


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
    filters: dict[str, Filters] = field(default_factory=dict)  # by the weight's name
    earlier: dict[str, Earlier] = field(default_factory=dict)  # by the weight's name; only where it serves

    @property
    def positions(self) -> int:
        """Largest number of active rows."""
        return len(self.rows)

    def offset(self, name: str) -> int:
        """Elements before a parameter in every row."""
        return self.layout.offsets[self.layout.names.index(name)]

    def parameter(self, name: str | None) -> Tensor:
        """(row, …) view of one parameter; all weights where a layer has none of this kind."""
        if name is None:
            return self.weights
        place = self.layout.names.index(name)
        return self.weights[:, self.layout.offsets[place] : self.layout.offsets[place + 1]]

    def shape(self, name: str) -> torch.Size:
        """Shape of one parameter of one row."""
        return self.layout.shapes[self.layout.names.index(name)]

    def alignment(self, name: str) -> int:
        """A power of two up to 4 that divides the place of the parameter in every row."""
        return math.gcd(4, self.weights.stride(0), self.offset(name))

    def launch(self, kernel: Any, programs: int, *arguments: object, **constants: object) -> None:
        """Start so many programs of a Triton kernel for every position.

        What it asks for by the names below comes from here; ``weights_stride`` are elements from row to row.
        """
        shared = {
            "rows": self.rows,
            "count": self.count,
            "rate": self.rate,
            "weights_stride": self.weights.stride(0),
            "PRECISION": self.precision,
        }
        asked = {name: value for name, value in shared.items() if name in kernel.arg_names}
        kernel[(programs, self.positions)](*arguments, **asked, **constants)


def power_of_two(number: int, least: int, most: int) -> int:
    """The next power of two within limits."""
    return max(least, min(most, 1 << (number - 1).bit_length()))
