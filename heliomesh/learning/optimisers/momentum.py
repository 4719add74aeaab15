"""SGD with heavy-ball momentum, which starts anew in every slot."""

import torch
from torch import Tensor


def build(parameters: list[Tensor], learning_rate: float, momentum: float = 0.9) -> torch.optim.Optimizer:
    """PyTorch's SGD with momentum."""
    return torch.optim.SGD(parameters, learning_rate, momentum=momentum)
