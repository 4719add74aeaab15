"""Finite Markov chains: sampling and the stationary law."""

import numpy as np
import numpy.typing as npt
from torch import Tensor

Floats = npt.NDArray[np.float64]


def draw(prob: Tensor, uniform: Tensor) -> Tensor:
    """Inverse-transform sampling of ``prob`` (..., outcome) with ``uniform`` (...) → outcome (...)."""
    return pick(borders(prob), uniform)


def borders(prob: Tensor) -> Tensor:
    """Uniform numbers from which on the next outcome is drawn; (..., outcome) → (..., outcome − 1)."""
    cumulative = prob.cumsum(-1)
    return (cumulative / cumulative[..., -1:])[..., :-1]  # exactly 1 from the last possible outcome on


def pick(border: Tensor, uniform: Tensor) -> Tensor:
    """`draw` from the borders of laws."""
    return (uniform.unsqueeze(-1) >= border).sum(-1)


def stationary_law(kernel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Stationary distribution of a stochastic matrix; the uniform mixture limit where it is not unique."""
    n = len(kernel)
    # Cesàro limit from the uniform law: squaring the lazy chain converges for every chain, periodic or reducible
    power = (np.eye(n) + kernel) / 2
    for _ in range(64):
        power = power @ power
        power /= power.sum(axis=1, keepdims=True)
    law: npt.NDArray[np.float64] = power.mean(axis=0)
    law /= law.sum()
    return law
