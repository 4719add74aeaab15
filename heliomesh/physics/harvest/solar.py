"""Harvest of a small solar panel from global horizontal irradiance (GHI), measured or modelled.

A panel of area A [m²] and efficiency η harvests ``A η ∫ GHI dt`` joules in a slot. The law's atoms are ∫ GHI dt
[J/m²] and its scale is A·η [m²]. All clock times are local standard time; a sample of irradiance [W/m²] holds
from its time on, for one step of the data.
"""

import math
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from heliomesh.common.streams import stream
from heliomesh.physics import daylight
from heliomesh.physics.daylight import Array, Atoms, DayWindow, FileFormat, SunSamples, TimeLabel, Weather
from heliomesh.physics.harvesting import HarvestLaw, HarvestReplay, law_of, replay
from heliomesh.scenario.checks import check_law
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import HarvestSettings
from heliomesh.scenario.section import Fraction, NonNegative, PerDeviceNonNegative, Positive, Vector, per_device

if TYPE_CHECKING:
    from heliomesh.physics.solar_time import Ghi

Month = Annotated[int, Field(ge=1, le=12)]

_MAX_TRACE = 50_000_000  # values
_TINY = 1e-6  # seconds; above the rounding of clock times, below any slot
_CLEAR_SKY_DAYS = 1.0  # over which a clear-sky model's weather is remembered, where none is given
_DATA_OF = {  # by field: the data that need it, and those that may have it
    "file": (("file", "midc-file"), ()),
    **dict.fromkeys(("site", "first_day", "last_day"), (("midc-site",), ())),
    "latitude": (("clear-sky",), ()),
    "longitude": (("clear-sky",), ("file",)),
    **dict.fromkeys(("timezone", "time_label"), ((), ("file",))),
}


def _as_text(value: object) -> object:
    """A date of TOML as text, to the minute."""
    return value.isoformat()[:16] if isinstance(value, date) else value


class Settings(HarvestSettings):
    """Irradiance data, the part of it that counts, the panel, and the kind of law."""

    per_device: ClassVar[tuple[str, ...]] = ("panel_cm2", "efficiency")
    source: Literal["solar"] = Field("solar", description="sunlight on a panel")
    data: Literal["tmy3", "file", "midc-file", "midc-site", "clear-sky"] = Field(
        "tmy3",
        description="'tmy3': hourly data of Greensboro NC that come with pvlib; 'midc-site' goes online; "
        "'midc-file': as 'file', but gaps are left out and the time zone is not checked",
    )
    file: str | None = Field(None, description="file, midc-file: irradiance by time")
    format: FileFormat = Field("auto", description="file: its format; 'auto': by its first lines")
    timezone: str | None = Field(
        None, description="file: zone of its times where it names none or a wrong one, e.g. 'America/Denver'"
    )
    time_label: TimeLabel | None = Field(
        None, description="file: what a time is of its sample; default: as the format has it, 'begin' for csv"
    )
    gap_minute: NonNegative = Field(60.0, description="file: longest gap that is interpolated [min]")
    site: str | None = Field(None, description="midc-site: station code, e.g. 'EC'")
    first_day: Annotated[date, Field(strict=False)] | None = Field(None, description="midc-site: first day")
    last_day: Annotated[date, Field(strict=False)] | None = Field(None, description="midc-site: last day")
    latitude: Annotated[float, Field(ge=-90, le=90)] | None = Field(None, description="clear-sky: ° north")
    longitude: Annotated[float, Field(ge=-180, le=180)] | None = Field(
        None, description="clear-sky, file: ° east; default for a file: its own"
    )
    cloudiness_values: Annotated[tuple[Fraction, ...], Field(strict=False, min_length=1)] = Field(
        (1.0, 0.5, 0.2),
        description="clear-sky: factors on the irradiance, drawn anew every 15 minutes, or by weather",
    )
    cloudiness_prob: Vector = Field((0.6, 0.25, 0.15), description="clear-sky: their probabilities")
    month: Month | Annotated[tuple[Month, ...], Field(strict=False, min_length=1)] = Field(
        6, description="month of the data that counts, or a list of them"
    )
    hours: Annotated[tuple[float, float], Field(strict=False)] = Field(
        (6.0, 18.0), description="first hour and end of the daily window, local standard time; [0, 24] has nights"
    )
    law: Literal["iid", "time-of-day", "weather", "trace"] = Field(
        "iid",
        description="one law for all slots, one by clock time, one by clock time and the weather of days, "
        "or the recorded series",
    )
    weather_levels: Annotated[int, Field(ge=2, le=9)] = Field(
        2, description="weather: levels, from the brightest days to the darkest; clear-sky: one per cloudiness value"
    )
    weather_day: Positive | None = Field(
        None, description="weather: days over which it is remembered to 1/e; default: fitted, 1 for clear-sky"
    )
    start: Annotated[int, Field(ge=0, lt=2**31)] | Annotated[str, BeforeValidator(_as_text)] = Field(
        "random",
        description="trace: each device starts anywhere, or all at this slot or time (06-08, 2023-06-08T06:00), and "
        "plans know it; time-of-day, weather: clock time of the first slot (06:00), default the window's first",
    )
    panel_cm2: PerDeviceNonNegative = Field(25.0, description="panel area [cm²]")
    efficiency: PerDeviceNonNegative = Field(0.2, description="share of the irradiance that is harvested")

    @property
    def months(self) -> tuple[int, ...]:
        """The months that count."""
        return (self.month,) if isinstance(self.month, int) else self.month


def build(settings: Settings, scenario: Scenario) -> HarvestLaw | HarvestReplay:
    """Law or replay of the window's irradiance; raises ScenarioError for settings or data that do not fit."""
    _check(settings)
    ghi, doubts = _irradiance(settings)
    samples, gaps = _samples(ghi, settings)
    remarks, slots, devices = (*doubts, *gaps), scenario.slots, scenario.network.devices
    panels = zip(per_device(settings.panel_cm2, devices), per_device(settings.efficiency, devices), strict=True)
    scale = [area_cm2 * 1e-4 * efficiency for area_cm2, efficiency in panels]
    window = _window(settings, scenario)
    if settings.law == "trace":
        if settings.data == "clear-sky":  # its clouds are drawn once; slots within gaps of measured data are left out
            factors, size = settings.cloudiness_values, len(samples.ghi)
            clouds = stream(scenario.seed, "harvest").choice(factors, size=size, p=settings.cloudiness_prob)
            samples = replace(samples, ghi=samples.ghi * clouds)
        means = _by_slot(samples, window, settings)
        start = settings.start if isinstance(settings.start, int) else None
        if isinstance(settings.start, str) and settings.start != "random":
            start = daylight.position_of(means.second, *daylight.day_and_clock(settings.start))
        return replay(means.ghi * window.slot_second, scale, slots, start, remarks)
    slots_per_step = samples.step_second / window.slot_second
    if abs(slots_per_step - round(slots_per_step)) >= 1e-9 or round(slots_per_step) < 1:
        samples = _by_slot(samples, window, settings)  # else each slot has the value of one sample
    weather = _weather(samples, settings)
    by_clock = settings.law != "iid"
    laws, phase_of_slot = daylight.laws_by_clock(samples, weather.level, window, slots, by_clock)
    if settings.data == "clear-sky":
        laws = [_under_clouds(*row[0], settings) for row in laws]
    joule, prob, phase_of_slot = daylight.tables(laws, phase_of_slot)
    found = law_of(joule, prob, scale, weather.kernel(window), phase_of_slot)
    return replace(found, remarks=remarks, period=window.num_slots if by_clock else None)


def _check(settings: Settings) -> None:
    for field, (needing, allowing) in _DATA_OF.items():
        needed, given = settings.data in needing, getattr(settings, field) is not None
        known = " or ".join(map(repr, needing + allowing))
        expected = f"a value with data = {known}, and none with other data"
        actual = f"data {settings.data!r}" if given else "value missing"
        missing, unused = needed and not given, given and settings.data not in needing + allowing
        refuse(missing or unused, f"harvest.{field}", expected, actual)
    if settings.first_day and settings.last_day and settings.first_day > settings.last_day:
        raise ScenarioError("harvest.last_day", f"{settings.first_day} or later", f"value {settings.last_day}")
    if not 0 <= settings.hours[0] < settings.hours[1] <= 24:
        raise ScenarioError("harvest.hours", "0 ≤ first < end ≤ 24", f"value {list(settings.hours)}")
    if max(per_device(settings.efficiency, 1)) > 1:
        raise ScenarioError("harvest.efficiency", "at most 1", f"value {settings.efficiency}")
    wanted, found = len(settings.cloudiness_values), len(settings.cloudiness_prob)
    refuse(wanted != found, "harvest.cloudiness_prob", f"{wanted} values", f"number of values {found}")
    check_law("harvest.cloudiness_prob", settings.cloudiness_prob)
    _check_start(settings)


def _check_start(settings: Settings) -> None:
    """Refuse a start that the law has no use for."""
    start, law = settings.start, settings.law
    if start == "random" or (law == "trace" and isinstance(start, int)):
        return
    refuse(law == "iid", "harvest.start", "'random' with law 'iid'", f"value {start}")
    day = daylight.day_and_clock(start)[0] if isinstance(start, str) else "none"
    if law == "trace" and day is None:
        raise ScenarioError("harvest.start", "a slot or a day such as 06-08 with law 'trace'", f"value {start!r}")
    if law != "trace" and day is not None:
        raise ScenarioError("harvest.start", f"a clock time such as 06:00 with law {law!r}", f"value {start!r}")


def _irradiance(settings: Settings) -> tuple["Ghi", list[str]]:
    """All irradiance of the chosen data by local standard time, and remarks on it."""
    from heliomesh.physics import irradiance  # with pandas, which is slow to import

    match settings.data:
        case "file":
            place = settings.timezone, settings.time_label, settings.longitude
            return irradiance.irradiance_file(str(settings.file), settings.format, *place)
        case "midc-file":
            return irradiance.midc_file(str(settings.file)), []
        case "midc-site" if settings.first_day and settings.last_day:
            return irradiance.midc_site(str(settings.site), settings.first_day, settings.last_day), []
        case "clear-sky":
            north, east = settings.latitude or 0.0, settings.longitude or 0.0
            ghi = irradiance.clear_sky(north, east, settings.months)
            hours = f"{24 * float((ghi > 0).mean()):.1f} hours a day, and local time is UTC{round(east / 15):+d}"
            # a reader sees whether the two numbers are swapped
            return ghi, [f"harvest.latitude: at {north:g}° north and {east:g}° east the sun is up for {hours}"]
    return irradiance.greensboro(), []


def _samples(ghi: "Ghi", settings: Settings) -> tuple[SunSamples, list[str]]:
    """Irradiance of the months and daily hours, in order, and remarks on what was filled in."""
    import pandas as pd

    from heliomesh.physics.solar_time import seconds, without_gaps

    ghi = ghi.set_axis(pd.DatetimeIndex(ghi.index).tz_localize(None)).sort_index(kind="stable")
    remarks: list[str] = []
    if settings.data == "file":
        ghi, remarks = without_gaps(ghi, settings.months, settings.gap_minute)
    months = pd.DatetimeIndex(ghi.index).month
    chosen = ghi[months.isin(settings.months)]
    second = seconds(chosen)
    step_second = daylight.step_of(second)
    known = sorted(months.unique().tolist())
    expected = f"a month with samples at two times or more; the data have months {known}"
    refuse(not step_second, "harvest.month", expected, f"value {settings.month}")
    hour = (second % 86400 + _TINY) / 3600
    inside = (settings.hours[0] <= hour) & (hour < settings.hours[1])
    expected = f"a window with samples of the data, which come every {step_second / 60:g} minutes"
    refuse(not inside.any(), "harvest.hours", expected, f"value {list(settings.hours)}")
    return SunSamples(second[inside], np.asarray(chosen, dtype=np.float64)[inside], step_second), remarks


def _window(settings: Settings, scenario: Scenario) -> DayWindow:
    """The daily window with as many slots as begin in it, one at least, however long it is."""
    slot_second = scenario.energy.slot_second
    first, end = (hour * 3600 for hour in settings.hours)
    slots = max(1, math.ceil((end - first) / slot_second - _TINY))
    if settings.law == "trace" or settings.start == "random":
        return DayWindow(first, end - first, slots, slot_second)
    _, clock = daylight.day_and_clock(str(settings.start))
    expected = f"a time within harvest.hours = {list(settings.hours)}"
    refuse(not first <= clock < end, "harvest.start", expected, f"value {settings.start!r}")
    return DayWindow(first, end - first, slots, slot_second, int((clock - first + _TINY) // slot_second))


def _by_slot(samples: SunSamples, window: DayWindow, settings: Settings) -> SunSamples:
    """Mean irradiance of every slot of every day."""
    values = len(np.unique(samples.second // 86400)) * window.num_slots
    expected = f"slots so long that the trace has at most {_MAX_TRACE} values"
    refuse(values > _MAX_TRACE, "energy.slot_second", expected, f"number {values}")
    found = daylight.slot_means(samples, window)
    expected = f"a window where slots of {window.slot_second:g} s meet samples"
    refuse(not len(found.ghi), "harvest.hours", expected, f"value {list(settings.hours)}")
    return found


def _under_clouds(joule: Array, prob: Array, settings: Settings) -> list[Atoms]:
    """A clear sky's law by weather, a factor each, or with clouds drawn anew in every slot."""
    dimmed = np.outer(settings.cloudiness_values, joule)
    if settings.law == "weather":
        return [(row, prob) for row in dimmed]
    return [(dimmed.ravel(), np.outer(settings.cloudiness_prob, prob).ravel())]


def _weather(samples: SunSamples, settings: Settings) -> Weather:
    """Weather of the samples' days: none, a clear sky's given one, or fitted to the days."""
    anywhere = np.zeros(len(samples.ghi), dtype=np.int64)
    if settings.law != "weather":
        return Weather(anywhere, np.ones(1), 1.0)
    if settings.data == "clear-sky":
        return Weather(anywhere, np.array(settings.cloudiness_prob), settings.weather_day or _CLEAR_SKY_DAYS)
    found = daylight.fitted_weather(samples, settings.weather_levels, settings.weather_day)
    if found is None:
        expected = f"months with days of at least {settings.weather_levels} brightnesses (harvest.weather_levels)"
        raise ScenarioError("harvest.month", expected, f"value {settings.month} has fewer")
    return found
