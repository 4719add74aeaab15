"""Finite Markov chains: sampling, the stationary law, and the chain that a channel source describes."""

import numpy as np
import numpy.typing as npt
from torch import Tensor

from heliomesh.common import catalog
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import CHANNEL_CATALOG, variant

Floats = npt.NDArray[np.float64]
_LAW_TOLERANCE = 1e-6


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


def fading_chain(scenario: Scenario) -> tuple[Floats, Floats]:
    """Gains (level,) and kernel (level, level) of the scenario's channel source; raises ScenarioError."""
    settings = scenario.channel
    source = variant(CHANNEL_CATALOG, settings.source, "channel.source")
    return _checked(catalog.function(source, "build")(settings, scenario))


def level_cuts(scenario: Scenario) -> Floats:
    """The least gain of each level but the first, for whoever measures gains; (level − 1,).

    A source may say by a function ``cuts(settings)``; else they lie midway between the gains of the levels.
    """
    source = variant(CHANNEL_CATALOG, scenario.channel.source, "channel.source")
    if hasattr(source, "cuts"):
        return np.asarray(source.cuts(scenario.channel), np.float64)
    gain, _ = fading_chain(scenario)
    return (gain[1:] + gain[:-1]) / 2


def mean_fading(scenario: Scenario) -> float:
    """Mean gain of the chain in its stationary law."""
    gain, kernel = fading_chain(scenario)
    return float(stationary_law(kernel) @ gain)


def _checked(chain: tuple[npt.ArrayLike, npt.ArrayLike]) -> tuple[Floats, Floats]:
    """Refuse a source whose chain is none: a user's own may have any fault."""
    try:
        gain, kernel = (np.asarray(part, np.float64) for part in chain)
    except (TypeError, ValueError):
        raise ScenarioError("channel.source", "gains and a kernel", f"value {chain!r:.60}") from None
    if gain.ndim != 1 or not len(gain) or kernel.shape != (len(gain), len(gain)):
        expected = "gains (level,) and a kernel (level, level)"
        raise ScenarioError("channel.source", expected, f"shapes {gain.shape} and {kernel.shape}")
    if not (np.isfinite(gain) & (gain >= 0)).all() or not (np.diff(gain) > 0).all():
        raise ScenarioError("channel.source", "rising, finite gains of at least 0", f"value {gain.tolist()!s:.60}")
    check_rows("channel.source", "the kernel", kernel)
    return gain, kernel


def check_rows(field: str, name: str, table: Floats) -> None:
    """Refuse a table (..., outcome) whose rows are no laws, but for rounding."""
    off = float(np.abs(table.sum(-1) - 1).max())
    if not off <= _LAW_TOLERANCE or not (table >= 0).all():
        actual = f"lowest value {table.min():g} and sums off 1 by up to {off:g}"
        raise ScenarioError(field, f"rows of {name} to be at least 0 and sum to 1", actual)
