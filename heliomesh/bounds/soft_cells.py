"""Expected one-slot minima of cells net of prices, with soft minima, and their gradient by prices.

    least = Σ_c E_h [ −τ log Σ_p exp(−(Σ_{i∈c} f_i(h, p) − Σ_j g_cj(h, p_j)) / τ) ]

The derivative by g_cj(a) is minus the probability of p_j = a under the softmax of the same values. It is found on the
way, one block of slots at a time, so nothing as large as a cell's table is kept.
"""

from collections.abc import Iterable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from heliomesh.bounds.cells import Priced


def expected_least(one: Priced, price: Tensor, temperature: float) -> Tensor:
    """Σ_c E_h min_p (Σ_{i∈c} f_i − Σ_j g_cj) of a group of cells; (block,).

    price (block, level or 1, cell, heard, action). Hard minima at temperature 0.
    """
    with torch.no_grad():
        if temperature == 0:
            return torch.stack([one.channel_prob @ (one.cost - _paid(one, now)).amin(-1).sum(1) for now in price])
        least, taken = zip(*(_soft_least(one, now, temperature) for now in price), strict=True)
    found: Tensor = _WithSlope.apply(price, torch.stack(least), torch.stack(taken))  # type: ignore[no-untyped-call]
    return found


class _WithSlope(torch.autograd.Function):
    """Minima (row,) whose derivative by prices (row, ...) is minus the probability that these are paid."""

    @staticmethod
    def forward(context: Any, price: Tensor, least: Tensor, taken: Tensor) -> Tensor:
        """The minima as they are."""
        context.save_for_backward(taken)
        return least.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The probabilities of actions, with their sign."""
        (taken,) = context.saved_tensors
        return -taken * gradients[0].reshape(-1, *(1,) * (taken.ndim - 1)), None, None


def _paid(one: Priced, price: Tensor) -> Tensor:
    """Σ_j g_cj of all joint actions; price (level or 1, cell, heard, action) → (channel state or 1, cell, joint)."""
    axes = range(one.heard)
    return joint_sums(price[one.level[:, k], :, k] if len(price) > 1 else price[:, :, k] for k in axes)


def joint_sums(prices: Iterable[Tensor]) -> Tensor:
    """Sums of the prices (row, cell, action) of devices for all joint actions; (row, cell, joint)."""
    return reduce(lambda paid, own: (paid.unsqueeze(-1) + own.unsqueeze(2)).flatten(2), prices)


def _soft_least(one: Priced, price: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """One block's soft minima, and how likely each price is paid (level or 1, cell, heard, action)."""
    table = torch.add(_paid(one, price) / temperature, one.cost, alpha=-1 / temperature)
    highest = table.amax(-1, keepdim=True)
    likely = table.sub_(highest).exp_()
    total = likely.sum(-1, keepdim=True)
    least = one.channel_prob @ (total.log() + highest).sum((1, 2)) * -temperature
    share = one.channel_prob.reshape(-1, 1, 1) / total  # (channel state, cell, 1)
    if len(price) == 1:
        joint = share.permute(1, 2, 0) @ likely.transpose(0, 1)  # (cell, 1, joint)
        return least, marginals(joint.transpose(0, 1), one.heard, price.shape[-1])
    seen = marginals(likely.mul_(share), one.heard, price.shape[-1])  # (channel state, cell, heard, action)
    taken = torch.zeros_like(price)
    for axis in range(one.heard):
        taken[:, :, axis].index_add_(0, one.level[:, axis], seen[:, :, axis])
    return least, taken


def marginals(joint: Tensor, heard: int, actions: int) -> Tensor:
    """Sums over the actions of all others; (state, cell, joint) → (state, cell, heard, action)."""
    own = (joint.reshape(*joint.shape[:2], actions**axis, actions, -1).sum((2, 4)) for axis in range(heard))
    return torch.stack(list(own), 2)
