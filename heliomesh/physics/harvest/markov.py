"""Harvest modulated by weather: each device has a Markov weather state, and each state its own law."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from heliomesh.physics.daylight import tables
from heliomesh.physics.harvesting import HarvestLaw, law_of
from heliomesh.scenario.checks import check_atoms, check_kernel
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import HarvestSettings
from heliomesh.scenario.section import Matrix, PerDeviceNonNegative, per_device


class Settings(HarvestSettings):
    """Weather kernel, and values with probabilities by weather."""

    per_device: ClassVar[tuple[str, ...]] = ("scale",)
    source: Literal["markov"] = Field(description="energies with probabilities that depend on a Markov weather")
    kernel: Matrix = Field(description="probability of the next slot's weather: kernel[now][next]")
    joule: Matrix = Field(description="energies of a slot, one list for each weather [J]")
    prob: Matrix = Field(description="their probabilities, one list for each weather")
    scale: PerDeviceNonNegative = Field(1.0, description="factor on the energies")


def build(settings: Settings, scenario: Scenario) -> HarvestLaw:
    """Law by weather, of one phase."""
    weathers = len(settings.kernel)
    check_kernel("harvest.kernel", settings.kernel, weathers)
    for field in ("joule", "prob"):
        rows = getattr(settings, field)
        expected = f"{weathers} rows, one per weather"
        refuse(len(rows) != weathers, f"harvest.{field}", expected, f"number of rows {len(rows)}")
    for index, (values, shares) in enumerate(zip(settings.joule, settings.prob, strict=True)):
        check_atoms(values, shares, f".{index}")
    laws = list(zip(map(np.array, settings.joule), map(np.array, settings.prob), strict=True))
    joule, prob, phase_of_slot = tables([laws], np.zeros(scenario.slots, dtype=np.int64))
    return law_of(joule, prob, per_device(settings.scale, scenario.network.devices), settings.kernel, phase_of_slot)
