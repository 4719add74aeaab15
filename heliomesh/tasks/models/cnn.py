"""The paper's network for 28×28 images: two convolutions and two dense layers, 1,663,370 parameters."""

from torch import nn


def build(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Conv 5×5×32 – ReLU – pool – conv 5×5×64 – ReLU – pool – 512 – ReLU – classes.

    Convolutions keep the size and each pooling halves it, so an input (channel, height, width) of at least
    4×4 pixels fits.
    """
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Linear(512, num_classes),
    )
