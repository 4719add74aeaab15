"""The model as it is, vectorised over rows by `torch.func.vmap`: for any model that PyTorch can batch."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from heliomesh.learning.gathered import Gathered
from heliomesh.learning.precision import Precision, check_precision
from heliomesh.learning.stacked import layout_of


def build(model: nn.Module, precision: Precision = "fp32", compiled: bool = False) -> Gathered:
    """The strategy for a model."""
    check_precision(precision)

    def one_row(parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return functional_call(model, parameters, (inputs,))  # type: ignore[no-any-return]

    def logits(parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        return torch.func.vmap(one_row)(dict(parameters), inputs)

    return Gathered("vmap", layout_of(model), logits, precision, compiled, model)
