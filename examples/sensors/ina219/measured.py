"""Battery, harvest and weather by meters. A packet that came is delivered; of channels the usual level is known.

An agent asks for a slot's start and end. The panel is read at both: what it delivers shortly before a slot tells the
slot's weather. Slots that are asked for one after the other in no time were missed: they say nothing.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch

from heliomesh.field.fleet.device import Fate, Sensed
from heliomesh.model.problem import Problem
from heliomesh.physics.harvesting import HarvestLaw

_LEAST_SHARE = 0.02  # of a slot: shorter readings of the panel are noise
_WIDTH = 0.1  # of the density around a value, as a share of it
_LEAST_WIDTH = 0.01  # of the largest value of all slots: at dusk all levels look alike
_LEAST_PROB = 1e-6  # of a level, whatever was seen


class Meter(ABC):
    """What is read at the start and at the end of every slot."""

    @abstractmethod
    def battery_joule(self) -> float:
        """Energy stored now [J]."""

    def harvested_joule(self) -> float | None:
        """Harvested since the last call [J]; None where nothing measures it."""
        return None

    def spent_joule(self) -> float | None:
        """Spent since the last call [J]; None where nothing measures it."""
        return None

    def keep(self) -> None:  # noqa: B027
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

    def spent_joule(self) -> float | None:
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


class WeatherFilter:
    """The weather level that a panel sees, from the joules it delivers.

    The harvest law says what a slot gives at each level w, and by which chain levels follow one another. A Bayesian
    filter of that chain weighs both:

        P(w) ← P(w) p(u | w),    and from slot to slot    P(w') ← Σ_w P(w) K[w, w']

    A real panel never gives exactly a law's joules. p(u | w) is the law with a Cauchy density around each of its
    values: even far from all of them the nearest level is the likeliest, and no reading excludes a level for good.
    """

    def __init__(self, law: HarvestLaw, device: int) -> None:
        self._law, self._scale = law, law.scale[device]
        self._prob = law.stationary
        self._least_width = _LEAST_WIDTH * float(self._scale * law.joule.max())

    @property
    def level(self) -> int:
        """The likeliest level."""
        return int(self._prob.argmax())

    def see(self, slot: int, joule: float) -> None:
        """A panel that delivers so much in a slot [J]."""
        if not self._least_width > 0:
            return
        phase = int(self._law.phase_of_slot[slot])
        value = self._scale * self._law.joule[phase]  # (weather, atom)
        width = _WIDTH * value + self._least_width
        density = self._law.prob[phase] * width / (width**2 + (joule - value) ** 2)
        self._believe(self._prob * density.sum(-1))

    def move(self) -> None:
        """A slot passes."""
        self._believe(self._prob @ self._law.kernel)

    def _believe(self, weight: torch.Tensor) -> None:
        prob = (weight / weight.sum()).clamp_min(_LEAST_PROB)
        self._prob = prob / prob.sum()
