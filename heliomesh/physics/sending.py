"""What sending costs: e_com = p_drawn τ, with p_drawn the power that the radio draws while it radiates p."""

from dataclasses import dataclass

import torch
from torch import Tensor

from heliomesh.physics.piecewise import linear
from heliomesh.scenario.schema import Energy


@dataclass(frozen=True)
class PowerCurve:
    """What a radio draws at its powers; between two of them it is interpolated."""

    radiated_watt: Tensor  # (power,) rising from 0
    drawn_watt: Tensor  # (power,) rising from 0


@dataclass(frozen=True)
class Sending:
    """One update on air."""

    second: float  # τ
    curve: PowerCurve | None = None  # None: the radio draws what it radiates

    def drawn_watt(self, radiated_watt: Tensor) -> Tensor:
        """What the radio draws at radiated powers [W] of any shape [W]."""
        if self.curve is None:
            return radiated_watt
        return linear(radiated_watt, self.curve.radiated_watt, self.curve.drawn_watt)

    def radiated_watt(self, drawn_watt: Tensor) -> Tensor:
        """The power [W] at which the radio draws so much [W]; any shape."""
        if self.curve is None:
            return drawn_watt
        return linear(drawn_watt, self.curve.drawn_watt, self.curve.radiated_watt)

    def joule(self, power_watt: Tensor) -> Tensor:
        """Energy of sending at powers [W] of any shape [J]."""
        return self.drawn_watt(power_watt) * self.second


def build_sending(energy: Energy, transmit_second: float) -> Sending:
    """The scenario's radio with an update that is so long on air."""
    if energy.consumed_watt is None or len(energy.consumed_watt) == 1:  # a single power is silence
        return Sending(transmit_second)
    powers = (torch.tensor(watt, dtype=torch.float64) for watt in (energy.powers_watt, energy.consumed_watt))
    return Sending(transmit_second, PowerCurve(*powers))
