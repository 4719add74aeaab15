"""What sending costs: e_com = p_drawn τ, with p_drawn the power that the radio draws while it radiates p."""

from dataclasses import dataclass

import torch
from torch import Tensor

from heliomesh.physics.piecewise import linear
from heliomesh.scenario import Energy


@dataclass(frozen=True)
class Consumption:
    """What a radio draws at its powers; between two of them it is interpolated."""

    radiated_watt: Tensor  # (power,) rising from 0
    drawn_watt: Tensor  # (power,) rising from 0


@dataclass(frozen=True)
class Sending:
    """One update on air."""

    second: float  # τ
    consumption: Consumption | None = None  # None: the radio draws what it radiates

    def drawn_watt(self, power_watt: Tensor) -> Tensor:
        """What the radio draws at powers [W] of any shape [W]."""
        if self.consumption is None:
            return power_watt
        return linear(power_watt, self.consumption.radiated_watt, self.consumption.drawn_watt)

    def joule(self, power_watt: Tensor) -> Tensor:
        """Energy of sending at powers [W] of any shape [J]."""
        return self.drawn_watt(power_watt) * self.second

    def affordable_watt(self, joule: Tensor) -> Tensor:
        """The largest power that energies [J] of any shape pay for [W]."""
        drawn = joule / self.second
        if self.consumption is None:
            return drawn
        return linear(drawn, self.consumption.drawn_watt, self.consumption.radiated_watt)


def build_sending(energy: Energy, transmit_second: float) -> Sending:
    """The scenario's radio with an update that is so long on air."""
    if energy.consumed_watt is None or len(energy.consumed_watt) == 1:  # a single power is silence
        return Sending(transmit_second)
    powers = (torch.tensor(watt, dtype=torch.float64) for watt in (energy.powers_watt, energy.consumed_watt))
    return Sending(transmit_second, Consumption(*powers))
