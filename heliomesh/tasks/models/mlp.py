"""A small perceptron for 8×8 digits and feature vectors: 64 hidden units, 4,810 parameters for ten digits."""

import math

from torch import nn

_HIDDEN = 64


def build(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Flatten – 64 – ReLU – classes, for inputs (channel, height, width) or (feature,) of any size."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), _HIDDEN),
        nn.ReLU(),
        nn.Linear(_HIDDEN, num_classes),
    )
