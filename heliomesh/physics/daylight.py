"""From irradiance by the clock to what slots harvest: energies per slot, by time of day and by weather.

A panel of area A [m²] and efficiency η harvests A η ∫ GHI dt joules in a slot; here are mean GHI [W/m²] over slots
and laws of ∫ GHI dt [J/m²]. A law has one table per time of day, not per slot, so that weeks cost no more than a day.

*Weather* is a state of days: level 0 has the brightest, the last level the darkest. It is kept from slot to slot with
probability e^{−1/(τ n)}, n slots a day, and else drawn anew from the shares of days.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import numpy as np
import numpy.typing as npt

from heliomesh.physics.harvesting import marginal_atoms
from heliomesh.scenario.errors import ScenarioError, refuse

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
TimeLabel = Literal["begin", "middle", "end"]
FileFormat = Literal["auto", "tmy3", "pvgis", "nsrdb", "midc", "csv"]
Atoms = tuple[Array, Array]  # energies [J/m²] and their probabilities

_TINY = 1e-6  # seconds; above the rounding of clock times, below any slot
_MIN_BIN_SECOND = 900.0  # clock bins of laws by time of day
_LEAST_COVERED = 0.5  # share of a slot that samples must cover
_MEANS_ROUNDS = 100
_WEATHER_DAYS = (0.5, 10.0)  # of fitted τ: weather is one of days, and a month tells of no longer ones
_START = re.compile(r"((?:\d{4}-)?\d\d-\d\d)?(?:(?:^|T)(\d\d:\d\d))?")


@dataclass(frozen=True)
class SunSamples:
    """Mean irradiance over spans of equal length, in order."""

    second: Array  # begin of each on the local clock [s] since 1970
    ghi: Array  # W/m²
    step_second: float


@dataclass(frozen=True)
class DayWindow:
    """The part of every day that counts, and the slots in it."""

    first_second: float  # since midnight
    length_second: float
    num_slots: int
    slot_second: float
    first_slot: int = 0  # of the day, in which the horizon begins


@dataclass(frozen=True)
class Weather:
    """Weather of days: the level of each sample, the share of each level, and how long it is remembered."""

    level: Integers  # (sample,)
    share: Array  # (level,)
    days: float  # τ, over which memory falls to 1/e

    def kernel(self, window: DayWindow) -> Array:
        """Moves of the weather from slot to slot, (level, level); its stationary law is the share."""
        kept = np.exp(-1 / (self.days * window.num_slots))
        moves: Array = kept * np.eye(len(self.share)) + (1 - kept) * self.share
        return moves


def slot_means(samples: SunSamples, window: DayWindow) -> SunSamples:
    """Mean irradiance over every slot of every day, (1/Δ) ∫ GHI dt; slots without half their samples are left out.

    A slot within one sample has exactly its value. One that reaches beyond the window has the mean within it.
    """
    days = np.unique(samples.second // 86400)
    within = window.first_second + np.arange(window.num_slots) * window.slot_second
    begin = (days[:, None] * 86400 + within).ravel()
    second, slot_second = samples.second, window.slot_second
    end = np.minimum(second + samples.step_second, np.append(second[1:], np.inf))
    first = np.maximum(np.searchsorted(second, begin + _TINY, side="right") - 1, 0)
    last = np.searchsorted(second, begin + slot_second - _TINY, side="left") - 1
    inside = (second[first] <= begin + _TINY) & (begin + slot_second <= end[first] + _TINY)
    mean, covered = samples.ghi[first], np.where(inside, slot_second, 0.0)
    across = np.flatnonzero(~inside)
    counts = np.maximum(last[across] - first[across] + 1, 0)
    which = np.repeat(np.arange(len(across)), counts)
    number = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    piece, slot_begin = first[across][which] + number, begin[across][which]
    overlap = np.minimum(end[piece], slot_begin + slot_second) - np.maximum(second[piece], slot_begin)
    overlap = overlap.clip(0)
    covered[across] = np.bincount(which, overlap, len(across))
    energy = np.bincount(which, overlap * samples.ghi[piece], len(across))
    mean[across] = energy / np.maximum(covered[across], _TINY)
    length = np.minimum(slot_second, window.first_second + window.length_second - within)
    known = covered >= _LEAST_COVERED * np.tile(length, len(days)) - _TINY
    return SunSamples(begin[known], mean[known], slot_second)


def laws_by_clock(
    samples: SunSamples, level: Integers, window: DayWindow, slots: int, by_clock: bool
) -> tuple[list[list[Atoms]], Integers]:
    """Energies [J/m²] and probabilities by clock bin and weather level, and the bin of each slot of the horizon.

    Bins are about a quarter of an hour, and at least a sample and a slot; all the day is one if not ``by_clock``. A
    bin without samples of every level takes those of the bin before.
    """
    width_second = max(samples.step_second, _MIN_BIN_SECOND, window.slot_second) if by_clock else np.inf
    if by_clock and samples.step_second == window.slot_second:
        width_second = window.slot_second * max(1.0, _MIN_BIN_SECOND // window.slot_second)
    weathers = int(level.max()) + 1
    sample_bin = (samples.second % 86400 - window.first_second + _TINY) // width_second
    filled = np.unique(sample_bin)
    whole = [len(np.unique(level[sample_bin == one])) == weathers for one in filled]
    filled = filled[np.array(whole)]
    slot_of_day = (window.first_slot + np.arange(slots)) % window.num_slots
    slot_bin = (slot_of_day * window.slot_second + _TINY) // width_second
    held = np.maximum(np.searchsorted(filled, slot_bin, side="right") - 1, 0)
    phases, phase_of_slot = np.unique(held, return_inverse=True)
    joule = samples.ghi * window.slot_second
    within = (sample_bin == filled[phase] for phase in phases)
    laws = [[marginal_atoms(joule[bin_ & (level == one)]) for one in range(weathers)] for bin_ in within]
    return laws, phase_of_slot.astype(np.int64)


def tables(laws: list[list[Atoms]], phase_of_slot: Integers) -> tuple[Array, Array, Integers]:
    """Energies and probabilities (phase, weather, atom), and the phase of each slot.

    Rows of unequal length are filled with impossible values. Equal phases, such as all of the night, are kept once.
    """
    width = max(len(atoms) for row in laws for atoms, _ in row)
    both = np.zeros((2, len(laws), len(laws[0]), width))
    for phase, row in enumerate(laws):
        for weather, law in enumerate(row):
            both[:, phase, weather, : len(law[0])] = law
    looks = np.swapaxes(both, 0, 1).reshape(len(laws), -1)
    _, kept, copy_of = np.unique(looks, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(kept)  # phases stay in the order of the clock
    joule, prob = both.take(kept[order], axis=1)
    return joule, prob, np.argsort(order)[copy_of.ravel()][phase_of_slot]


def fitted_weather(samples: SunSamples, levels: int, days: float | None) -> Weather | None:
    """Weather from the brightness of days, as a share of their month's brightest; None for too few unlike days.

    With shares s, days that follow each other have the same level by chance with probability Σ s², and kept weather
    raises that to  e^{−1/τ} (1 − Σ s²) + Σ s².  That gives τ where ``days`` is None.
    """
    day, day_of_sample = np.unique(samples.second // 86400, return_inverse=True)
    bright = np.bincount(day_of_sample, samples.ghi) / np.bincount(day_of_sample)
    month = (day * 86400).astype("datetime64[s]").astype("datetime64[M]").astype(np.int64) % 12
    brightest = np.zeros(12)
    np.maximum.at(brightest, month, bright)
    level = _levels(bright / np.maximum(brightest[month], _TINY), levels)
    if len(np.unique(level)) < levels:
        return None
    level_of_sample = level[day_of_sample]
    share = np.bincount(level_of_sample) / len(level_of_sample)
    return Weather(level_of_sample, share, days or _fitted_days(day, level, float((share**2).sum())))


def _levels(bright: Array, levels: int) -> Integers:
    """Level of each day, 0 the brightest, such that days differ little from their level's mean (k-means)."""
    centre = np.quantile(bright, 1 - (np.arange(levels) + 0.5) / levels)
    level = np.zeros(len(bright), dtype=np.int64)
    for _ in range(_MEANS_ROUNDS):
        level = np.abs(bright[:, None] - centre).argmin(1).astype(np.int64)
        count = np.bincount(level, minlength=levels)
        centre = np.where(count > 0, np.bincount(level, bright, levels) / np.maximum(count, 1), centre)
    return level


def _fitted_days(day: Array, level: Integers, chance: float) -> float:
    """τ [days] from how often a day's level is the next day's."""
    low, high = _WEATHER_DAYS
    following = np.diff(day) == 1
    if not following.any():
        return low
    same = float((level[1:] == level[:-1])[following].mean())
    kept = (same - chance) / (1 - chance)
    return float(np.clip(-1 / np.log(kept), low, high)) if 0 < kept < 1 else (high if kept >= 1 else low)


def step_of(second: Array) -> float:
    """The step of samples in order: the median distance of those at different times [s]; 0 for a single time."""
    steps = np.diff(second)
    return float(np.median(steps[steps > 0])) if (steps > 0).any() else 0.0


def day_and_clock(start: str) -> tuple[str | None, float]:
    """Day of a start such as 06-08T06:00, 2023-06-08 or 06:00, None where it has none, and seconds since midnight."""
    expected = "a day such as 06-08 or 2023-06-08T06:00, or a time such as 06:00"
    found = _START.fullmatch(start)
    if not found or not start:
        raise ScenarioError("harvest.start", expected, f"value {start!r}")
    day, clock = found[1], found[2] or "00:00"
    try:
        whole = day if day and len(day) > len("06-08") else f"2000-{day or '01-01'}"  # 2000 has all days
        time = datetime.fromisoformat(f"{whole}T{clock}")
    except ValueError as error:
        raise ScenarioError("harvest.start", expected, f"value {start!r}: {error}") from None
    return day, time.hour * 3600.0 + time.minute * 60


def position_of(second: Array, day: str | None, since_midnight: float) -> int:
    """Position of the first time of a day, with or without a year, at or after a time of it; times [s] in order."""
    text = np.datetime_as_string(second.astype("datetime64[s]"), unit="D")
    same_day = np.char.endswith(text, day or "")
    found = np.flatnonzero(same_day & (second % 86400 >= since_midnight))
    asked = f"{day}T{clock_time(since_midnight / 3600)}"
    expected = f"a day and time of the data, {text[0]} to {text[-1]}"
    refuse(not len(found), "harvest.start", expected, f"value {asked!r}")
    return int(found[0])


def clock_time(hour: float) -> str:
    """An hour of the day as a clock shows it."""
    minute = round(hour * 60) % 1440
    return f"{minute // 60:02d}:{minute % 60:02d}"
