"""What sending costs: e_com = p_drawn τ, with p_drawn the power that the radio draws while it radiates p."""

from dataclasses import dataclass

import torch
from torch import Tensor

from heliomesh.physics.piecewise import linear
from heliomesh.scenario.schema import Energy


@dataclass(frozen=True)
class Sending:
    """One update on air; between its powers, a radio's consumption is interpolated."""

    second: float  # τ
    powers_watt: Tensor | None = None  # (power,) radiated, rising from 0; None: the radio draws what it radiates
    consumed_watt: Tensor | None = None  # (power,) drawn, rising from 0

    def drawn_watt(self, radiated_watt: Tensor) -> Tensor:
        """What the radio draws at radiated powers [W] of any shape [W]."""
        return _between(radiated_watt, self.powers_watt, self.consumed_watt)

    def radiated_watt(self, drawn_watt: Tensor) -> Tensor:
        """The power [W] at which the radio draws so much [W]; any shape."""
        return _between(drawn_watt, self.consumed_watt, self.powers_watt)

    def joule(self, power_watt: Tensor) -> Tensor:
        """Energy of sending at powers [W] of any shape [J]."""
        return self.drawn_watt(power_watt) * self.second


def _between(at: Tensor, points: Tensor | None, values: Tensor | None) -> Tensor:
    return at if points is None or values is None else linear(at, points, values)


def build_sending(energy: Energy, transmit_second: float) -> Sending:
    """The scenario's radio with an update that is so long on air."""
    if energy.consumed_watt is None or len(energy.consumed_watt) == 1:  # a single power is silence
        return Sending(transmit_second)
    powers = (torch.tensor(watt, dtype=torch.float64) for watt in (energy.powers_watt, energy.consumed_watt))
    return Sending(transmit_second, *powers)
