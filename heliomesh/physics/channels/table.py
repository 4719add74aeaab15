"""Explicit channel levels and transition kernel."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from heliomesh.physics.chain import Floats
from heliomesh.scenario.checks import check_kernel
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import ChannelSettings
from heliomesh.scenario.section import Matrix, PerDevicePositive, Vector


class Settings(ChannelSettings):
    """Gains and kernel."""

    per_device: ClassVar[tuple[str, ...]] = ("gain",)
    source: Literal["table"] = Field(description="levels and their transition probabilities as given")
    gains: Vector = Field(description="rising power gains, one for each level")
    kernel: Matrix = Field(description="probability of the next slot's level: kernel[now][next]")
    gain: PerDevicePositive = Field(1.0, description="factor on the gains of each receiver")


def build(settings: Settings, scenario: Scenario) -> tuple[Floats, Floats]:
    """Gains (level,) and kernel (level, level) as they are given."""
    if min(settings.gains) < 0 or list(settings.gains) != sorted(set(settings.gains)):
        raise ScenarioError("channel.gains", "rising gains of at least 0", f"value {list(settings.gains)!s:.60}")
    check_kernel("channel.kernel", settings.kernel, len(settings.gains))
    return np.array(settings.gains), np.array(settings.kernel)
