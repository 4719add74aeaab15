"""When slots begin and how long to wait in them.

`WallClock` keeps slots by the time of day, with guard times at both ends. It is lost where most neighbours' time
differs from its own by more than the guard time, or where the time of day jumps. `ReadyClock` waits for neighbours
and for nothing else, so that a test runs as fast as its processes do.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from heliomesh.field.agents.folder import ClockSettings

_STATE_SHARE = 0.25  # of a slot, for what devices measure; the rest is for training and models


class Clock(Protocol):
    """What an agent asks of its clock; times are seconds of `time.monotonic`."""

    by_time: bool  # whether slots pass though nobody is ready

    def day_second(self) -> float:
        """The time of day, seconds since 1970."""

    def next_slot(self, done: int) -> int:
        """The first slot from ``done`` on that has not begun too long ago to take part."""

    def begins(self, slot: int) -> float:
        """When to open a slot."""

    def states_end(self, slot: int) -> float:
        """Until when to wait for measurements."""

    def models_end(self, slot: int) -> float:
        """Until when to wait for models."""

    def heard(self, device: int, day_second: float) -> None:
        """What time of day it is now by another device's clock, as far as it has told."""

    def trouble(self) -> str | None:
        """Why this clock cannot be trusted, in a sentence; None where it can."""


@dataclass
class ReadyClock:
    """Slots follow one another as fast as neighbours allow."""

    settings: ClockSettings
    by_time: bool = False

    def day_second(self) -> float:
        """The machine's."""
        return time.time()

    def next_slot(self, done: int) -> int:
        """The next one."""
        return done

    def begins(self, slot: int) -> float:
        """At once."""
        return time.monotonic()

    def states_end(self, slot: int) -> float:
        """After the patience."""
        return time.monotonic() + self.settings.patience_second

    def models_end(self, slot: int) -> float:
        """After the patience."""
        return time.monotonic() + self.settings.patience_second

    def heard(self, device: int, day_second: float) -> None:
        """Time of day does not matter."""

    def trouble(self) -> str | None:
        """None: it asks for no time."""
        return None


@dataclass
class WallClock:
    """Slots by the time of day."""

    settings: ClockSettings
    day_second: Callable[[], float] = time.time
    by_time: bool = True
    _ahead_second: dict[int, float] = field(default_factory=dict)  # of others' clocks, by device
    _offset_second: float | None = None  # of the time of day against the steady clock, when last looked at

    def next_slot(self, done: int) -> int:
        """The slot that begins next, or one that has just begun."""
        settings = self.settings
        late_second = 2 * settings.guard_second  # after the first moment: as late as others allow for
        passed = self.day_second() - settings.start_second - late_second
        return max(done, -int(-passed // settings.slot_second), 0)  # rounded up

    def begins(self, slot: int) -> float:
        """A guard time after the slot's first moment."""
        return self._steady(self._start(slot) + self.settings.guard_second)

    def states_end(self, slot: int) -> float:
        """After a quarter of the slot."""
        length = self.settings.slot_second - 2 * self.settings.guard_second
        return self._steady(self._start(slot) + self.settings.guard_second + _STATE_SHARE * length)

    def models_end(self, slot: int) -> float:
        """A guard time before the slot's last moment."""
        return self._steady(self._start(slot + 1) - self.settings.guard_second)

    def heard(self, device: int, day_second: float) -> None:
        """Remember by how much another's clock is ahead."""
        self._ahead_second[device] = day_second - self.day_second()

    def trouble(self) -> str | None:
        """A jump since it was last asked, or most neighbours' clocks far from this one."""
        guard = self.settings.guard_second
        before, self._offset_second = self._offset_second, self.day_second() - time.monotonic()
        if before is not None and abs(self._offset_second - before) > guard:
            self._ahead_second.clear()
            jump = self._offset_second - before
            return f"clock: expected to run steadily within {guard:g} s, actual: it jumped by {jump:+.3g} s"
        far = [ahead for ahead in self._ahead_second.values() if abs(ahead) > guard]
        if 2 * len(far) <= len(self._ahead_second):
            return None
        actual = sorted(far)[len(far) // 2]
        return f"clock: expected within {guard:g} s of the neighbours' clocks, actual: they are {actual:+.3g} s ahead"

    def _start(self, slot: int) -> float:
        return self.settings.start_second + slot * self.settings.slot_second

    def _steady(self, day_second: float) -> float:
        return day_second - self.day_second() + time.monotonic()


def clock_of(settings: ClockSettings) -> Clock:
    """The clock that the settings name."""
    return ReadyClock(settings) if settings.kind == "ready" else WallClock(settings)
