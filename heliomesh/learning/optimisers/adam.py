"""Adam, whose moments start anew in every slot."""

import torch
from torch import Tensor


def build(
    parameters: list[Tensor], learning_rate: float, momentum: float = 0.9, second_momentum: float = 0.999
) -> torch.optim.Optimizer:
    """PyTorch's Adam with β1 = ``momentum`` and β2 = ``second_momentum``."""
    return torch.optim.Adam(parameters, learning_rate, betas=(momentum, second_momentum))
