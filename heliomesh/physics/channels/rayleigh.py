"""Rayleigh fading as a finite-state Markov chain of equally likely levels.

Thresholds Γ_k = −ln(1 − k/N); P(k → k±1) = Z(Γ)·T_slot / P_k with the level-crossing rate Z(Γ) = √(2πΓ)·f_d·e^{−Γ};
each level is represented by its conditional mean gain.
"""

import math
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from heliomesh.physics.chain import Floats
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import ChannelSettings
from heliomesh.scenario.section import NonNegative, PerDevicePositive


class Settings(ChannelSettings):
    """Levels, Doppler and mean gain."""

    per_device: ClassVar[tuple[str, ...]] = ("gain",)
    source: Literal["rayleigh"] = Field("rayleigh", description="Rayleigh fading as a finite Markov chain")
    levels: Annotated[int, Field(ge=1, le=64)] = Field(4, description="equally likely levels of the power gain")
    doppler_slot: NonNegative = Field(0.05, description="Doppler frequency times slot length, f_d·T_slot")
    gain: PerDevicePositive = Field(1.0, description="mean power gain of each receiver")


def cuts(settings: Settings) -> Floats:
    """Γ_2 … Γ_N: the least gain of each level but the first."""
    found: Floats = -np.log1p(-np.arange(1, settings.levels) / settings.levels)
    return found


def build(settings: Settings, scenario: Scenario) -> tuple[Floats, Floats]:
    """Gains (level,) and kernel (level, level) of unit-mean Rayleigh fading with equally likely levels."""
    n = settings.levels
    threshold = np.append(0.0, cuts(settings))  # Γ_1 … Γ_N; Γ_{N+1} = ∞
    rate = np.sqrt(2 * np.pi * threshold) * np.exp(-threshold)  # Z(Γ) / f_d
    # a level is left by its lower and its upper threshold, with a probability proportional to the Doppler
    fastest = 1 / max(float((rate + np.append(rate[1:], 0.0)).max()) * n, 1e-300)
    expected = f"at most {math.floor(fastest * 1000) / 1000:g} for {n} levels (every row must stay a distribution)"
    refuse(settings.doppler_slot > fastest, "channel.doppler_slot", expected, f"value {settings.doppler_slot:g}")
    crossing = rate * settings.doppler_slot * n
    kernel = np.diag(crossing[1:], k=-1) + np.diag(crossing[1:], k=1)
    stay = np.maximum(1 - kernel.sum(axis=1), 0.0)  # rounding dust at the fastest
    # E[g; g > Γ] = (1 + Γ) e^{−Γ} for unit-mean exponential power
    tail = np.append((1 + threshold) * np.exp(-threshold), 0.0)
    return n * (tail[:-1] - tail[1:]), kernel + np.diag(stay)
