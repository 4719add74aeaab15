"""Harvest of a small solar panel from global horizontal irradiance (GHI), measured or modelled.

A panel of area A [m²] and efficiency η harvests ``GHI · A · η · slot_second`` joules in a slot. The law's
atoms are GHI · slot_second [J/m²] and its scale is A·η [m²]. All clock times are local standard time; a
sample of irradiance [W/m²] holds from its time on, for one step of the data.
"""

import csv
import math
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NoReturn

import numpy as np
import numpy.typing as npt
from pydantic import Field

from heliomesh.physics.harvesting import HarvestLaw, HarvestReplay, marginal_atoms, memoryless, replay
from heliomesh.scenario import (
    Fraction,
    HarvestSettings,
    PerDeviceNonNegative,
    Scenario,
    ScenarioError,
    Vector,
    check_law,
    per_device,
    read_text,
)
from heliomesh.streams import stream

if TYPE_CHECKING:  # pandas and pvlib are slow to import: the functions that need them do so
    import pandas as pd

Array = npt.NDArray[np.float64]

_GHI_RANGE = (-100.0, 2000.0)  # W/m²; loggers mark missing values by numbers far outside, e.g. -99999
_MIN_BIN_SECOND = 900.0  # clock bins of the time-of-day law
_MAX_TRACE = 50_000_000  # values
_TINY = 1e-6  # seconds; above the rounding of clock times, below any slot
_NEEDED = {
    "midc-file": ("file",),
    "midc-site": ("site", "first_day", "last_day"),
    "clear-sky": ("latitude", "longitude"),
}


class Settings(HarvestSettings):
    """Irradiance data, the part of it that counts, the panel, and the kind of law."""

    per_device: ClassVar[tuple[str, ...]] = ("panel_cm2", "efficiency")
    source: Literal["solar"] = "solar"
    data: Literal["tmy3", "midc-file", "midc-site", "clear-sky"] = Field(
        "tmy3",
        description="'tmy3': hourly data of Greensboro NC that come with pvlib; 'midc-site' goes online",
    )
    file: str | None = Field(None, description="midc-file: columns date, time, ..., 'Global ... [W/m^2]'")
    site: str | None = Field(None, description="midc-site: station code, e.g. 'EC'")
    first_day: Annotated[date, Field(strict=False)] | None = Field(None, description="midc-site: first day")
    last_day: Annotated[date, Field(strict=False)] | None = Field(None, description="midc-site: last day")
    latitude: Annotated[float, Field(ge=-90, le=90)] | None = Field(None, description="clear-sky: ° north")
    longitude: Annotated[float, Field(ge=-180, le=180)] | None = Field(None, description="clear-sky: ° east")
    cloudiness_values: Annotated[tuple[Fraction, ...], Field(strict=False, min_length=1)] = Field(
        (1.0, 0.5, 0.2), description="clear-sky: factors on the irradiance, drawn anew every 15 minutes"
    )
    cloudiness_prob: Vector = Field((0.6, 0.25, 0.15), description="clear-sky: their probabilities")
    month: Annotated[int, Field(ge=1, le=12)] = 6
    hours: Annotated[tuple[float, float], Field(strict=False)] = Field(
        (6.0, 18.0), description="first hour and end of the daily window, local standard time"
    )
    law: Literal["iid", "time-of-day", "trace"] = Field(
        "iid", description="one law for all slots, one by clock time, or the recorded series, gaps left out"
    )
    start: Annotated[int, Field(ge=0, lt=2**31)] | Literal["random"] = Field(
        "random", description="trace: each device starts anywhere, or all at this slot, and plans know it"
    )
    panel_cm2: PerDeviceNonNegative = Field(25.0, description="panel area [cm²]")
    efficiency: PerDeviceNonNegative = Field(0.2, description="share of the irradiance that is harvested")


def build(settings: Settings, scenario: Scenario) -> HarvestLaw | HarvestReplay:
    """Law or replay of the window's irradiance; raises ScenarioError for settings or data that do not fit."""
    _check(settings)
    second, ghi, step_second = _window(_irradiance(settings), settings)
    devices = scenario.network.devices
    panels = zip(per_device(settings.panel_cm2, devices), per_device(settings.efficiency, devices), strict=True)
    scale = [area_cm2 * 1e-4 * efficiency for area_cm2, efficiency in panels]
    if settings.law == "trace":
        start = None if settings.start == "random" else int(settings.start)
        return replay(_series(second, ghi, step_second, settings, scenario), scale, scenario.slots, start)
    bin_second = math.inf
    if settings.law == "time-of-day":
        bin_second = max(step_second, _MIN_BIN_SECOND, scenario.energy.slot_second)
    return _binned_law(second, ghi, bin_second, scale, settings, scenario)


def _refuse(field: str, expected: str, actual: object) -> NoReturn:
    raise ScenarioError(f"harvest.{field}", f"expected {expected}, actual {actual}") from None


def _check(settings: Settings) -> None:
    for data, fields in _NEEDED.items():
        for field in fields:
            given = getattr(settings, field) is not None
            if given != (data == settings.data):
                actual = f"data {settings.data!r}" if given else "value missing"
                _refuse(field, f"a value with data {data!r} and only there", actual)
    if settings.first_day and settings.last_day and settings.first_day > settings.last_day:
        _refuse("last_day", f"{settings.first_day} or later", f"value {settings.last_day}")
    if not 0 <= settings.hours[0] < settings.hours[1] <= 24:
        _refuse("hours", "0 ≤ first < end ≤ 24", f"value {list(settings.hours)}")
    if settings.start != "random" and settings.law != "trace":
        _refuse("start", f"'random' with law {settings.law!r}", f"value {settings.start}")
    if max(per_device(settings.efficiency, 1)) > 1:
        _refuse("efficiency", "at most 1", f"value {settings.efficiency}")
    wanted, found = len(settings.cloudiness_values), len(settings.cloudiness_prob)
    if wanted != found:
        _refuse("cloudiness_prob", f"{wanted} values", f"number of values {found}")
    check_law("harvest.cloudiness_prob", settings.cloudiness_prob)


def _irradiance(settings: Settings) -> "pd.Series[float]":
    """All irradiance of the chosen data by local standard time."""
    if settings.data == "midc-file":
        return _midc_file(str(settings.file))
    if settings.data == "midc-site":
        return _midc_site(settings)
    return _clear_sky(settings) if settings.data == "clear-sky" else _tmy3()


def _tmy3() -> "pd.Series[float]":
    """Typical year of Greensboro NC; its file labels an hour by the end, we by the beginning."""
    import pvlib

    file = Path(pvlib.__file__).parent / "data" / "723170TYA.CSV"
    ghi: pd.Series[float] = pvlib.iotools.read_tmy3(str(file), map_variables=True)[0]["ghi"]
    return ghi.shift(freq="-1h")


def _clear_sky(settings: Settings) -> "pd.Series[float]":
    """Haurwitz model at the middle of every quarter of an hour, in the nearest whole-hour time zone."""
    import pandas as pd
    import pvlib

    latitude, longitude = float(settings.latitude or 0), float(settings.longitude or 0)
    time = pd.date_range("2023-01-01", "2024-01-01", freq="15min", inclusive="left")
    time = time[time.month == settings.month]
    to_utc = pd.Timedelta(minutes=7.5) - pd.Timedelta(hours=round(longitude / 15))
    sun = pvlib.solarposition.get_solarposition((time + to_utc).tz_localize("UTC"), latitude, longitude)
    ghi: pd.Series[float] = pvlib.clearsky.haurwitz(sun["apparent_zenith"])["ghi"]
    return ghi.set_axis(time)


def _midc_site(settings: Settings) -> "pd.Series[float]":
    """Measurements of an MIDC station, fetched online."""
    import pandas as pd
    import pvlib

    try:
        frame = pvlib.iotools.read_midc_raw_data_from_nrel(settings.site, settings.first_day, settings.last_day)
    except Exception as error:  # no connection, or a reply that is no data, on which pvlib may raise anything
        instead = "download the station's text file and use data = 'midc-file' instead"
        actual = f"{type(error).__name__}: {' '.join(str(error).split())[:80]}; {instead}"
        _refuse("site", f"data of MIDC site {settings.site!r} from its server", actual)
    column = frame.iloc[:, _global_column("site", list(frame.columns))]
    return _measured("site", pd.to_numeric(column, errors="coerce"))


def _midc_file(file: str) -> "pd.Series[float]":
    """Measurements of an MIDC text file: first column date, second time, and a 'Global' one."""
    import pandas as pd

    try:
        lines = csv.reader(read_text("harvest.file", file).splitlines())
        rows = {number: row for number, row in enumerate(lines, 1) if any(cell.strip() for cell in row)}
    except csv.Error as error:
        _refuse("file", "a readable text file", f"error: {error}")
    if not rows:
        _refuse("file", "a header and samples", f"file {file!r} is empty")
    column = _global_column("file", rows.pop(min(rows)))
    clock = pd.Series({line: " ".join(row[:2]) for line, row in rows.items()}, dtype=object)
    text = pd.Series({line: "".join(row[column : column + 1]).strip() for line, row in rows.items()}, dtype=object)
    time = pd.to_datetime(clock, format="%m/%d/%Y %H:%M", errors="coerce")
    ghi = pd.to_numeric(text, errors="coerce")
    _refuse_first("a date and time such as 6/1/2023 00:00", clock[time.isna()])
    _refuse_first("a number of W/m²", text[ghi.isna() & ~text.str.lower().isin(["", "nan"])])
    return _measured("file", ghi.set_axis(pd.DatetimeIndex(time)))


def _refuse_first(expected: str, wrong: "pd.Series[str]") -> None:
    for line, value in wrong.items():
        _refuse("file", f"{expected} in line {line}", f"value {value[:40]!r}")


def _global_column(field: str, names: list[str]) -> int:
    """Position of the first column of global irradiance in W/m²."""
    for position, name in enumerate(names):
        if name.strip().startswith("Global") and "[W/m^2]" in name:
            return position
    _refuse(field, "a column 'Global ... [W/m^2]'", f"columns {', '.join(names)[:80]!r}")


def _measured(field: str, ghi: "pd.Series[float]") -> "pd.Series[float]":
    """Samples less the missing ones, and with a sensor's small negative values at night set to 0."""
    low, high = _GHI_RANGE
    valid = ghi[ghi.between(low, high)]
    if valid.empty:
        _refuse(field, f"samples within {low:g} to {high:g} W/m²", f"number of such samples 0 of {len(ghi)}")
    return valid.clip(lower=0)


def _window(samples: "pd.Series[float]", settings: Settings) -> tuple[Array, Array, float]:
    """Time [s] and irradiance [W/m²] of the month and daily hours, in order, and the step of the data [s]."""
    import pandas as pd

    samples = samples.set_axis(pd.DatetimeIndex(samples.index).tz_localize(None)).sort_index(kind="stable")
    months = pd.DatetimeIndex(samples.index).month
    samples = samples[months == settings.month]
    second = samples.index.to_numpy(dtype="datetime64[s]").astype(np.float64)
    steps = np.diff(second)
    if not steps.any():
        known = sorted(months.unique().tolist())
        expected = f"a month with samples at two times or more; the data have months {known}"
        _refuse("month", expected, f"value {settings.month}")
    step_second = float(np.median(steps[steps > 0]))
    hour = (second % 86400 + _TINY) / 3600
    inside = (settings.hours[0] <= hour) & (hour < settings.hours[1])
    if not inside.any():
        expected = f"a window with samples of the data, which come every {step_second / 60:g} minutes"
        _refuse("hours", expected, f"value {list(settings.hours)}")
    return second[inside], np.asarray(samples, dtype=np.float64)[inside], step_second


def _clouds(settings: Settings) -> tuple[Array, Array]:
    """Factors on the irradiance and their probabilities; measurements have their clouds already."""
    if settings.data != "clear-sky":
        return np.ones(1), np.ones(1)
    return np.array(settings.cloudiness_values), np.array(settings.cloudiness_prob)


def _slots_per_day(settings: Settings, scenario: Scenario) -> int:
    """Number of slots that begin in the daily window; one at least, however long it is."""
    return max(1, math.ceil((settings.hours[1] - settings.hours[0]) * 3600 / scenario.energy.slot_second - _TINY))


def _series(second: Array, ghi: Array, step_second: float, settings: Settings, scenario: Scenario) -> Array:
    """J/m² of every slot of every day, from the sample that holds when the slot begins; gaps are left out."""
    per_day, slot_second = _slots_per_day(settings, scenario), scenario.energy.slot_second
    days = np.unique(second // 86400)
    if len(days) * per_day > _MAX_TRACE:
        expected = f"expected slots so long that the trace has at most {_MAX_TRACE} values"
        raise ScenarioError("energy.slot_second", f"{expected}, actual number {len(days) * per_day}")
    values, prob = _clouds(settings)
    ghi = ghi * stream(scenario.seed, "harvest").choice(values, size=len(ghi), p=prob)
    slot_begin = days[:, None] * 86400 + settings.hours[0] * 3600 + np.arange(per_day) * slot_second
    holding = np.searchsorted(second, slot_begin + _TINY, side="right") - 1
    covered = (holding >= 0) & (slot_begin - second[holding] < step_second - _TINY)
    if not covered.any():
        _refuse("hours", f"a window where slots of {slot_second:g} s meet samples", f"value {settings.hours}")
    series: Array = ghi[holding[covered]] * slot_second
    return series


def _binned_law(
    second: Array, ghi: Array, bin_second: float, scale: list[float], settings: Settings, scenario: Scenario
) -> HarvestLaw:
    """Law of each slot from the samples in its clock bin; an empty bin takes those of the bin before."""
    slot_second = scenario.energy.slot_second
    sample_bin = (second % 86400 - settings.hours[0] * 3600 + _TINY) // bin_second
    filled = np.unique(sample_bin)
    slot_of_day = np.arange(scenario.slots) % _slots_per_day(settings, scenario)
    slot_bin = (slot_of_day * slot_second + _TINY) // bin_second
    held = np.maximum(np.searchsorted(filled, slot_bin, side="right") - 1, 0)
    phases, phase_of_slot = np.unique(held, return_inverse=True)
    laws = [marginal_atoms(ghi[sample_bin == filled[phase]] * slot_second) for phase in phases]
    factors, share = _clouds(settings)
    joule, prob = np.zeros((2, len(laws), len(factors), max(len(atoms) for atoms, _ in laws)))
    for phase, (atoms, atom_prob) in enumerate(laws):
        joule[phase, :, : len(atoms)] = np.outer(factors, atoms)
        prob[phase, :, : len(atoms)] = np.outer(share, atom_prob)
    flat = (len(laws), -1)
    return memoryless(joule.reshape(flat), prob.reshape(flat), scale, phase_of_slot.astype(np.int64))
