"""Battery, harvest and weather by meters. A packet that came is delivered; of channels the usual level is known.

An agent asks for a slot's start and end. The panel is read at both: what it delivers shortly before a slot tells the
slot's weather. Slots that are asked for one after the other in no time were missed: they say nothing.
"""

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from heliomesh.field.agents.sensors.weather import WeatherFilter
from heliomesh.field.fleet.device import Fate, Sensed
from heliomesh.model.problem import Problem

_LEAST_SHARE = 0.02  # of a slot: shorter readings of the panel are noise


class Meter(Protocol):
    """What is read at the start and at the end of every slot."""

    def battery_joule(self) -> float:
        """Energy stored now [J]."""

    def harvested_joule(self) -> float | None:
        """Harvested since the last call [J]; None where nothing measures it."""

    def spent_joule(self) -> float | None:
        """Spent since the last call [J]; None where nothing measures it."""

    def keep(self) -> None:
        """Write down what the next start needs."""


class Measured:
    """One device with meters, in slots of ``slot_second``."""

    def __init__(
        self,
        problem: Problem,
        device: int,
        meter: Meter,
        slot_second: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._problem, self._device, self._meter = problem, device, meter
        self._slot_second, self._now = slot_second, now
        self._usual_level = int(problem.channel.stationary.argmax())
        self._weather = WeatherFilter(problem.harvest.law, device)
        self._capacity_joule = float(problem.battery.capacity_joule[device])
        self._spent_joule: float | None = None
        self._harvested_joule: float | None = None  # since the last slot ended
        self._read_second = self._closed_second = now()  # when the panel was read last, and the last slot ended
        self._before_joule = self.first_battery_joule = self._battery_joule()

    def open(self, slot: int) -> Sensed:
        """The battery as it is, and the weather by what the panel has delivered since the last slot."""
        self._read_panel(slot)
        self._before_joule = self._battery_joule()
        levels = dict.fromkeys(self._problem.sites_into(self._device), self._usual_level)
        return Sensed(levels, self._weather.level, 0.0, self._before_joule)

    def close(self, slot: int) -> Fate:
        """The harvest; without a meter at the panel, the battery's rise."""
        num_edges = len(self._problem.topology.neighbours[self._device])
        self._spent_joule = self._meter.spent_joule()
        self._read_panel(slot)
        harvested, self._harvested_joule = self._harvested_joule, None
        if harvested is None:
            harvested = max(self._battery_joule() - self._before_joule, 0.0)
        self._weather.move()
        if self._lasted(self._closed_second):
            self._meter.keep()
        self._closed_second = self._now()
        return Fate(np.full(num_edges, np.inf), harvested)

    def spent_joule(self, power_watt: float, trained: bool) -> float | None:
        """As the meter at the load says."""
        return self._spent_joule

    def _battery_joule(self) -> float:
        """No more than the scenario's battery holds: plans know no more."""
        return min(self._meter.battery_joule(), self._capacity_joule)

    def _read_panel(self, slot: int) -> None:
        """Read the panel for the harvest and the weather of a slot."""
        joule, since = self._meter.harvested_joule(), self._read_second
        self._read_second = self._now()
        if joule is None:
            return
        self._harvested_joule = (self._harvested_joule or 0.0) + joule
        if self._lasted(since):
            self._weather.see(slot, joule * self._slot_second / (self._read_second - since))

    def _lasted(self, since_second: float) -> bool:
        """Whether so much time has passed that meters tell something."""
        return self._now() - since_second >= _LEAST_SHARE * self._slot_second
