"""Coordinate-wise median of one's own model and those that arrived: a few wrong models do not move it far."""

import torch
from torch import Tensor

from heliomesh.learning.aggregation import Arrived


def mix(arrived: Arrived) -> Tensor:
    """The median of every parameter, the mean of the middle two for even numbers; mixing weights are not used."""
    models = torch.cat([arrived.own.unsqueeze(0), arrived.received]).sort(0).values
    middle = (len(models) - 1) // 2
    return (models[middle] + models[len(models) // 2]) / 2
