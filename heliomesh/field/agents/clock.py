"""When slots begin and how long to wait in them.

`WallClock` keeps slots by the time of day, with guard times at both ends. It is lost where most neighbours' time
differs from its own by more than the guard time, or where the time of day jumps. A plain `Clock` waits for neighbours
and for nothing else, so that a test runs as fast as its processes do.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from heliomesh.field.agents.folder import ClockSettings

STATE_SHARE = 0.25  # of a slot, for what devices measure; the rest is for training and models


@dataclass
class Clock:
    """Slots follow one another as fast as neighbours allow; times are seconds of `time.monotonic`."""

    settings: ClockSettings
    day_second: Callable[[], float] = time.time  # the time of day, seconds since 1970
    by_time: bool = False  # whether slots pass though nobody is ready

    def next_slot(self, done: int) -> int:
        """The first slot from ``done`` on that has not begun too long ago to take part."""
        return done

    def begins(self, slot: int) -> float:
        """When to open a slot."""
        return time.monotonic()

    def states_end(self, slot: int, share: float = 1.0) -> float:
        """Until when to wait for measurements, or for a share of what is said before anyone acts."""
        return time.monotonic() + self.settings.patience_second

    def models_end(self, slot: int) -> float:
        """Until when to wait for models."""
        return time.monotonic() + self.settings.patience_second

    def heard(self, device: int, day_second: float) -> None:
        """What time of day it is now by another device's clock, as far as it has told."""

    def trouble(self) -> str | None:
        """Why this clock cannot be trusted, in a sentence; None where it can."""
        return None


@dataclass
class WallClock(Clock):
    """Slots by the time of day."""

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

    def states_end(self, slot: int, share: float = 1.0) -> float:
        """After a quarter of the slot, or a share of that."""
        length = self.settings.slot_second - 2 * self.settings.guard_second
        return self._steady(self._start(slot) + self.settings.guard_second + share * STATE_SHARE * length)

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
