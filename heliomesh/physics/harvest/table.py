"""Harvest from an explicit law, independent in every slot."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from heliomesh.physics.harvesting import HarvestLaw, memoryless
from heliomesh.scenario.checks import check_atoms
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import HarvestSettings
from heliomesh.scenario.section import PerDeviceNonNegative, Vector, per_device


class Settings(HarvestSettings):
    """Values and their probabilities."""

    per_device: ClassVar[tuple[str, ...]] = ("scale",)
    source: Literal["table"] = Field(description="energies with probabilities, drawn anew in every slot")
    joule: Vector = Field(description="energies of a slot [J]")
    prob: Vector = Field(description="their probabilities")
    scale: PerDeviceNonNegative = Field(1.0, description="factor on the energies")


def build(settings: Settings, scenario: Scenario) -> HarvestLaw:
    """Law of the table, the same in every slot."""
    check_atoms(settings.joule, settings.prob)
    return memoryless(
        np.array([settings.joule]),
        np.array([settings.prob]),
        per_device(settings.scale, scenario.network.devices),
        np.zeros(scenario.slots, dtype=np.int64),
    )
