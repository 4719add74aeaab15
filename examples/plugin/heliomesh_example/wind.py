"""Harvest of a small wind turbine: Weibull wind speeds, independent in every slot.

A rotor of area A [m²] and power coefficient c harvests ``½ ρ A c v³ · slot_second`` joules at wind speed v [m/s],
with the density of air ρ = 1.2 kg/m³.
"""

from typing import ClassVar

import numpy as np
from pydantic import Field

from heliomesh.physics.harvesting import HarvestLaw, memoryless
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import HarvestSettings
from heliomesh.scenario.section import Fraction, PerDeviceNonNegative, Positive, per_device

_AIR = 1.2  # kg/m³
_ATOMS = 32


class Settings(HarvestSettings):
    """The wind and the turbine."""

    per_device: ClassVar[tuple[str, ...]] = ("rotor_cm2",)
    speed: Positive = Field(4.0, description="scale of the Weibull law [m/s]")
    shape: Positive = Field(2.0, description="its shape; 2 is a Rayleigh law")
    coefficient: Fraction = Field(0.3, description="share of the wind's power that is harvested")
    rotor_cm2: PerDeviceNonNegative = Field(50.0, description="rotor area [cm²]")


def build(settings: Settings, scenario: Scenario) -> HarvestLaw:
    """Equally likely wind speeds at the middles of as many quantiles, one law for all slots."""
    quantile = (np.arange(_ATOMS) + 0.5) / _ATOMS
    metre_per_second = settings.speed * (-np.log1p(-quantile)) ** (1 / settings.shape)
    joule_per_m2 = 0.5 * _AIR * settings.coefficient * metre_per_second**3 * scenario.energy.slot_second
    area_m2 = [1e-4 * area for area in per_device(settings.rotor_cm2, scenario.network.devices)]
    law = np.full((1, _ATOMS), 1 / _ATOMS)
    return memoryless(joule_per_m2[None], law, area_m2, np.zeros(scenario.slots, dtype=np.int64))
