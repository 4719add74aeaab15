"""Samples of irradiance in time: from a file's clock to local standard time, typical years, gaps, and noon.

A series has one value [W/m²] per sample. Times without a zone are local standard time.
"""

import math
from typing import TypeAlias

import numpy as np
import pandas as pd

from heliomesh.physics.daylight import Array, TimeLabel, clock_time, step_of
from heliomesh.scenario.errors import ScenarioError, refuse

Ghi: TypeAlias = "pd.Series[float]"  # W/m² by time
_TYPICAL_YEAR = 2001  # has no leap day, as typical years have none
_SHIFT = {"begin": 0.0, "middle": 0.5, "end": 1.0}  # of a sample, from its label back to its begin
_SUNNY = 0.3  # least length of the day's mean direction: a sun gives 0.5 to 1, the same value all day 0
_OFF_NOON_HOUR = {True: 2.0, False: 3.0}  # most, by whether the sun's noon is known: legal noon may be far from it
_GAP = 1.5  # steps between two samples that are a gap


def seconds(ghi: Ghi) -> Array:
    """Times of samples [s] since 1970; a time with a zone in UTC."""
    return ghi.index.to_numpy(dtype="datetime64[s]").astype(np.float64)


def from_begin(ghi: Ghi, label: TimeLabel) -> Ghi:
    """Samples in order, by the time they begin at instead of by their label."""
    ghi = ghi.sort_index(kind="stable")
    step = pd.Timedelta(seconds=_SHIFT[label] * step_of(seconds(ghi)))
    return ghi.set_axis(pd.DatetimeIndex(ghi.index) - step)


def in_one_year(ghi: Ghi) -> Ghi:
    """A typical year, whose months are of different years, in one year; other samples as they are, in order.

    Typical is what spans more than a year and has every month once, but for less than a day at its ends.
    """
    time = pd.DatetimeIndex(ghi.index)
    days = pd.Series(1.0, index=ghi.index).groupby([time.year, time.month]).count() * step_of(seconds(ghi)) / 86400
    months = [month for _, month in days[days > 1].index]
    if time[-1] - time[0] < pd.Timedelta(days=367) or len(set(months)) < len(months):
        return ghi
    day = np.where((time.month == 2) & (time.day == 29), 28, time.day)  # pvlib's end of 28 February in a leap year
    parts = {"month": time.month, "day": day, "hour": time.hour, "minute": time.minute, "second": time.second}
    moved = pd.to_datetime(pd.DataFrame({"year": _TYPICAL_YEAR, **parts}))
    return ghi.set_axis(pd.DatetimeIndex(moved)).sort_index(kind="stable")


def on_local_clock(ghi: Ghi, timezone: str | None, longitude: float | None) -> tuple[Ghi, float | None]:
    """Samples by local standard time without a zone, and its hours east of UTC where they are known.

    ``timezone`` takes the place of the file's own. Standard time is that of the zone, or of the nearest whole hour
    at the longitude [° east] where the file reads UTC. Without any zone times are taken as local standard time.
    """
    time = pd.DatetimeIndex(ghi.index)
    if timezone is not None:
        time = _localized(time.tz_localize(None), timezone)
    if time.tz is None:
        return ghi, None
    seasons = [pd.Timestamp(int(time[0].year), month, 1, tz=time.tz).utcoffset() for month in (1, 7)]
    east_hour = min(offset.total_seconds() for offset in seasons if offset is not None) / 3600
    if east_hour == 0 and longitude is not None:
        east_hour = float(round(longitude / 15))
    clock = time.tz_convert("UTC").tz_localize(None) + pd.Timedelta(hours=east_hour)
    return ghi.set_axis(clock), east_hour


def _localized(time: pd.DatetimeIndex, timezone: str) -> pd.DatetimeIndex:
    """Times of a zone; of those that occur twice in autumn a single one is standard time."""
    try:
        return time.tz_localize(timezone, ambiguous="infer" if time.has_duplicates else False)
    except Exception as error:  # pandas raises its zone library's own kinds
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:100]
        expected = "a time zone that the file's times can be in, such as 'America/Denver' or 'UTC-07:00'"
        raise ScenarioError("harvest.timezone", expected, f"value {timezone!r}: {reason}") from None


def check_noon(ghi: Ghi, east_hour: float | None, longitude: float | None) -> str | None:
    """Refuse irradiance whose daily middle is far from noon: its times are in another zone than the file says.

    The middle is the direction of the mean of e^{2πi t / 24 h} weighted by irradiance; it needs samples all day.
    Its clock time is returned, or None where there is none.
    """
    second = seconds(ghi)
    hour = (second + step_of(second) / 2) % 86400 / 3600  # the middle of each sample
    weight = np.asarray(ghi, dtype=np.float64)
    if len(np.unique(hour.astype(int))) < 24 or weight.sum() == 0:
        return None
    direction = complex((weight * np.exp(2j * np.pi * hour / 24)).sum() / weight.sum())
    if abs(direction) < _SUNNY:
        return None
    noon, where = 12.0, "noon"
    if longitude is not None and east_hour is not None:
        noon, where = 12.0 + east_hour - longitude / 15, f"solar noon at longitude {longitude:g}°"
    middle = math.atan2(direction.imag, direction.real) * 12 / math.pi
    most = _OFF_NOON_HOUR[where != "noon"]
    expected = f"the middle of the day's irradiance within {most:g} hours of {clock_time(noon)}, {where}"
    actual = f"middle {clock_time(middle)}; the file's times are in another zone"
    refuse(abs((middle - noon + 12) % 24 - 12) > most, "harvest.timezone", expected, actual)
    return clock_time(middle)


def without_gaps(ghi: Ghi, months: tuple[int, ...], most_minute: float) -> tuple[Ghi, list[str]]:
    """Samples with short gaps within the months interpolated, and remarks on them; a long gap is refused."""
    second, step = seconds(ghi), step_of(seconds(ghi))
    before = np.flatnonzero(np.diff(second) > _GAP * step)
    begin, end = second[before] + step, second[before + 1]
    asked = [np.isin(pd.to_datetime(at, unit="s").month, months) for at in (begin, end - 1)]
    begin, end = begin[asked[0] | asked[1]], end[asked[0] | asked[1]]
    if not len(begin):
        return ghi, []
    for first, last in zip(begin, end, strict=True):
        if last - first > most_minute * 60:
            times = [f"{pd.Timestamp(at, unit='s'):%Y-%m-%d %H:%M}" for at in (first, last)]
            actual = f"first gap from {times[0]} to {times[1]}, {(last - first) / 60:g} minutes"
            raise ScenarioError(
                "harvest.file", f"gaps of at most {most_minute:g} minutes (harvest.gap_minute)", actual
            )
    counts = np.rint((end - begin) / step).astype(int).clip(1)
    number = np.concatenate([np.arange(count) for count in counts])
    missing = np.repeat(begin, counts) + number * np.repeat((end - begin) / counts, counts)
    values = np.interp(missing, second, np.asarray(ghi, dtype=np.float64))
    filled = pd.Series(values, index=pd.DatetimeIndex(missing.astype("datetime64[s]")))
    gaps = "1 gap" if len(begin) == 1 else f"{len(begin)} gaps"
    remark = f"harvest.file: {(end - begin).sum() / 60:g} minutes of irradiance in {gaps} were interpolated"
    return pd.concat([ghi, filled]).sort_index(kind="stable"), [remark]
