"""Softmax regression: one linear layer, for inputs of any size."""

import math

from torch import nn


def build(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Flatten – classes, for images (channel, height, width) and vectors (feature,)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), num_classes))
