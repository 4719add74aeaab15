"""A constant share leaks, λ = (1 − leak_per_day)^(slot / day), as through a resistor parallel to a capacitor.

The law is linear between empty and full, so grids keep its means and bounds their proofs.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from heliomesh.physics.storage import Losses, charge_efficiency, leak_per_day, slot_days
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import StorageSettings


class Settings(StorageSettings):
    """All its numbers are those of ``[energy]``."""

    source: Literal["linear"] = Field("linear", description="a constant share of what is stored leaks")


def build(settings: Settings, scenario: Scenario, drain_joule: Tensor) -> Losses:
    """λ and η_in of every device."""
    retention = (1 - leak_per_day(scenario)) ** slot_days(scenario)
    return Losses(retention, charge_efficiency(scenario), drain_joule)
