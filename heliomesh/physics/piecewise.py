"""Piecewise linear functions."""

import torch
from torch import Tensor


def linear(at: Tensor, points: Tensor, values: Tensor) -> Tensor:
    """The function through rising points and their values (point,) each; level beyond both ends; any shape."""
    if len(points) == 1:
        return values[0].expand_as(at)
    at = at.contiguous()  # torch warns of slow searches otherwise
    upper = torch.searchsorted(points, at).clamp(1, len(points) - 1)
    share = (at - points[upper - 1]) / (points[upper] - points[upper - 1])
    return torch.lerp(values[upper - 1], values[upper], share.clamp(0, 1))
