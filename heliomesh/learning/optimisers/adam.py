"""Adam with PyTorch's defaults; its moments start anew in every slot."""

import torch
from torch import Tensor


def build(parameters: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
    """PyTorch's Adam."""
    return torch.optim.Adam(parameters, learning_rate)
