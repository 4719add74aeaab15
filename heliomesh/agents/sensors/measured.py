"""Battery and harvest by meters. A packet that came is delivered; of the channel only its usual level is known."""

from typing import Protocol

import numpy as np

from heliomesh.engine.fleet.device import Fate, Sensed
from heliomesh.problem.problem import Problem


class Meter(Protocol):
    """What is read at the end of every slot."""

    def battery_joule(self) -> float:
        """Energy stored now [J]."""

    def harvested_joule(self) -> float | None:
        """Harvested since the last call [J]; None where nothing measures it."""

    def spent_joule(self) -> float | None:
        """Spent since the last call [J]; None where nothing measures it."""


class Measured:
    """One device with meters."""

    def __init__(self, problem: Problem, device: int, meter: Meter) -> None:
        self._problem, self._device, self._meter = problem, device, meter
        self._usual_level = int(problem.channel.stationary.argmax())
        self._spent_joule: float | None = None
        self._before_joule = self.first_battery_joule = meter.battery_joule()

    def open(self, slot: int) -> Sensed:
        """The battery as it is."""
        self._before_joule = self._meter.battery_joule()
        levels = dict.fromkeys(self._problem.sites_into(self._device), self._usual_level)
        return Sensed(levels, 0, 0.0, self._before_joule)

    def close(self, slot: int) -> Fate:
        """The harvest; without a meter at the panel, the battery's rise."""
        num_edges = len(self._problem.topology.neighbours[self._device])
        self._spent_joule, harvested = self._meter.spent_joule(), self._meter.harvested_joule()
        if harvested is None:
            harvested = max(self._meter.battery_joule() - self._before_joule, 0.0)
        return Fate(np.full(num_edges, np.inf), harvested)

    def spent_joule(self, power_watt: float, trained: bool) -> float | None:
        """As the meter at the load says."""
        return self._spent_joule
