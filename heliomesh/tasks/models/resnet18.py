"""ResNet-18 for 32×32 images: a 3×3 stem, and GroupNorm because averaging breaks BatchNorm's running statistics."""

from itertools import pairwise

import torch
from torch import nn

_GROUPS = 32
_STAGE_CHANNELS = (64, 128, 256, 512)


def build(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Stem 3×3×64 – four stages of two residual blocks (64, 128, 256, 512 channels) – mean over pixels – classes.

    Every stage but the first halves height and width; inputs are (channel, height, width).
    """
    first = _STAGE_CHANNELS[0]
    layers: list[nn.Module] = [_conv3x3(input_shape[0], first, 1), nn.GroupNorm(_GROUPS, first), nn.ReLU()]
    layers += [_Block(first, first, 1), _Block(first, first, 1)]
    for before, after in pairwise(_STAGE_CHANNELS):
        layers += [_Block(before, after, 2), _Block(after, after, 1)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(_STAGE_CHANNELS[-1], num_classes)]
    return nn.Sequential(*layers)


def _conv3x3(before: int, after: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)  # the norm that follows has a bias


class _Block(nn.Module):
    """y = ReLU(x' + norm(conv(ReLU(norm(conv(x)))))), with x' = x, or a 1×1 projection where the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _conv3x3(before, after, stride),
            nn.GroupNorm(_GROUPS, after),
            nn.ReLU(),
            _conv3x3(after, after, 1),
            nn.GroupNorm(_GROUPS, after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.GroupNorm(_GROUPS, after)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, before, height, width) → (batch, after, height / stride, width / stride)."""
        return torch.relu(self.shortcut(x) + self.residual(x))
