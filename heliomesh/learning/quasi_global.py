"""Quasi-global momentum (Lin, Karimireddy, Stich and Jaggi, "Quasi-global momentum", ICML 2021), slot by slot.

With β = `learning.quasi_global`, w_t a device's weights at the start of slot t, and m̂_0 = 0,

    w ← w_t − β m̂_t                          before the K local steps of who trains;
    m̂_t+1 = β m̂_t + (1 − β)(w_t − w_t+1)      once the slot's packets are averaged.

So a device keeps on moving as it moved together with its neighbours, not along its own gradients alone. The paper
has one gradient step between averages; here m̂ counts the movement of a whole slot, in the unit of weights. Nothing
more is sent: m̂ follows from a device's own weights.

Products and sums are rounded one by one, so the bits do not depend on how rows are stacked.
"""

from collections.abc import Iterable

from torch import Tensor


def lean(weights: Tensor, momentum: Tensor, rows: Iterable[int], decay: float) -> None:
    """Move rows of the weights (row, parameter) by −β m̂, in place."""
    for row in rows:  # one after the other, to need no second stack
        weights[row].sub_(momentum[row] * decay)


def remember(momentum: Tensor, before: Tensor, after: Tensor, decay: float) -> None:
    """Let m̂ (row, parameter) follow the slot's movement, in place; ``before`` is overwritten."""
    momentum.mul_(decay).add_(before.sub_(after).mul_(1 - decay))
