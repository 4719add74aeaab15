"""Path loss: how much of a signal's power distance takes."""

import numpy as np
import numpy.typing as npt

from heliomesh.scenario.schema import Link

Floats = npt.NDArray[np.float64]
_NEAREST_METRE = 1.0  # the far field begins beyond


def path_gain(link: Link, metre: Floats) -> Floats:
    """Mean power gain over distances [m], of any shape: 10^(−(148 + 40 log10(d_km)) / 10), or 1 without path loss."""
    if link.path_loss == "none":
        return np.ones_like(metre)
    distance_km = np.maximum(metre, _NEAREST_METRE) / 1000
    loss_db = link.loss_at_km_db + link.loss_per_decade_db * np.log10(distance_km)
    with np.errstate(over="ignore"):  # `build` refuses what overflows
        gain: Floats = 10 ** (-loss_db / 10)
    return gain
