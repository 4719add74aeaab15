"""Energy in a battery: counted, drawn slowly towards what the voltage says, and kept across restarts.

Counting is exact for hours and drifts over days; a voltage is rough and does not drift. With the curve's energy E(V)
and the time Δt since the last look, the count b moves by

    b ← b + (1 − exp(−Δt / τ)) (E(V) − b)

The time for which a device was off counts as Δt too: nobody knows what the panel stored meanwhile.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heliomesh.common.durable import Sealed
from heliomesh.scenario.errors import refuse
from ina219.settings import Settings

_KEPT = Sealed("the state of charge of a battery", 1, (("joule", float), ("second", float)))


@dataclass(frozen=True)
class VoltageCurve:
    """The share of a battery's energy by its voltage, linear between points."""

    volt: tuple[float, ...]  # rising
    share: tuple[float, ...]  # rising, from 0 to 1

    @classmethod
    def of(cls, settings: Settings) -> "VoltageCurve | None":
        """The one that the settings name, if they do; raises ScenarioError."""
        points = settings.voltage_curve
        if points is None:
            return None
        volt, share = (tuple(column) for column in zip(*points, strict=True)) if points else ((), ())
        rising = bool(np.all(np.diff(volt) > 0)) and bool(np.all(np.diff(share) >= 0))
        wrong = len(points) < 2 or not rising or (share[0], share[-1]) != (0.0, 1.0)
        expected = "rising voltages with rising shares from 0 to 1, such as [[3.0, 0.0], [4.2, 1.0]]"
        refuse(wrong, "sensor.options.voltage_curve", expected, f"value {[list(point) for point in points]}")
        return cls(volt, share)

    def at(self, volt: float) -> float:
        """The share at a voltage [V]."""
        return float(np.interp(volt, self.volt, self.share))


@dataclass
class StateOfCharge:
    """Energy in one battery [J]."""

    capacity_joule: float
    file: Path  # where it is kept
    curve: VoltageCurve | None
    correction_second: float  # τ
    joule: float = 0.0

    def begin(self, volt: float, notify: Callable[[str], None]) -> None:
        """Start from what was kept, else from the voltage [V], else from a full battery; says which."""
        kept = self._kept(notify)
        if kept is not None:
            self.joule, off_second = min(max(kept[0], 0.0), self.capacity_joule), max(time.time() - kept[1], 0.0)
            self.correct(volt, off_second)
            notify(f"battery: {self.joule:.4g} J, from {kept[0]:.4g} J kept {off_second:.0f} s ago")
        elif self.curve is not None:
            self.joule = self.curve.at(volt) * self.capacity_joule
            notify(f"battery: {self.joule:.4g} J, from its voltage of {volt:.3g} V")
        else:
            self.joule = self.capacity_joule
            notify("battery: taken for full, since sensor.options.voltage_curve is not set and nothing was kept")

    def count(self, stored_joule: float, spent_joule: float) -> None:
        """What came and went."""
        self.joule = min(max(self.joule + stored_joule - spent_joule, 0.0), self.capacity_joule)

    def correct(self, volt: float, elapsed_second: float) -> None:
        """Draw the count towards the energy at a voltage [V]."""
        if self.curve is not None:
            drawn = -math.expm1(-elapsed_second / self.correction_second)
            self.joule += drawn * (self.curve.at(volt) * self.capacity_joule - self.joule)

    def keep(self) -> None:
        """Write it down, for the next start."""
        _KEPT.write(self.file, {"joule": self.joule, "second": time.time()})

    def _kept(self, notify: Callable[[str], None]) -> tuple[float, float] | None:
        """Energy [J] and time of day [s since 1970] of the last slot; None where there is none."""
        if not self.file.exists():
            return None
        try:
            found = _KEPT.read(self.file, ValueError)
        except ValueError as error:  # a device in the field goes on
            notify(str(error))
            return None
        return found["joule"], found["second"]
