"""A supercapacitor whose leakage current grows faster than its voltage: the fuller it is, the larger a share leaks.

With a full storage leaking at the rate ρ = −ln(1 − leak_per_day) per day, and x = r / b^max,

    dx/dt = −ρ x^(1 + k)    ⟹    λ(x) = (1 + k ρ t x^k)^(−1/k)

over a slot of t days. The energy is C V² / 2, so the current goes as V^(1 + 2k); k → 0 is the linear law. λ falls
with x from 1, and x λ(x) rises: more energy now is more energy later, and the linear law with λ = 1 bounds it.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from heliomesh.physics.storage import Losses, by_device, charge_efficiency, leak_per_day, slot_days
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import StorageSettings
from heliomesh.scenario.section import Positive


class Settings(StorageSettings):
    """How fast leakage grows."""

    source: Literal["voltage"] = Field(
        description="leakage grows with the charge; energy.leak_per_day is that when full"
    )
    exponent: Positive = Field(1.0, description="k: the leakage current goes as voltage to the power of 1 + 2 k")


@dataclass(frozen=True)
class VoltageLosses(Losses):
    """The law's numbers; (device,) each."""

    exponent: Tensor  # k
    leakage: Tensor  # k ρ t
    per_joule: Tensor  # 1 / b^max

    def kept_share(self, left_joule: Any) -> Any:
        """λ(x); (..., device)."""
        return (1 + self.leakage * (left_joule * self.per_joule) ** self.exponent) ** (-1 / self.exponent)


def build(settings: Settings, scenario: Scenario, drain_joule: Tensor) -> VoltageLosses:
    """How fast a full storage leaks, by device."""
    one = torch.ones_like(drain_joule)
    leakage = -torch.log1p(-leak_per_day(scenario)) * (settings.exponent * slot_days(scenario))
    full = by_device(scenario.energy.capacity_joule, scenario.network.devices)
    return VoltageLosses(one, charge_efficiency(scenario), drain_joule, settings.exponent * one, leakage, 1 / full)
