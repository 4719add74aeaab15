"""Harvest of a small solar panel from global horizontal irradiance (GHI), measured or modelled.

A device with panel area A [m²] and efficiency η harvests ``GHI · A · η · slot_second`` joules in a slot. The law's
atoms are GHI · slot_second [J/m²] and its scale is A·η [m²]. All clock times are local standard time.
"""

import csv
import math
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from heliomesh.physics.harvesting import HarvestLaw, HarvestReplay, marginal_atoms, memoryless, replay
from heliomesh.scenario import (
    Fraction,
    PerDeviceNonNegative,
    Scenario,
    ScenarioError,
    Section,
    Vector,
    check_law,
    per_device,
)
from heliomesh.streams import stream

Array = npt.NDArray[np.float64]

_GHI_RANGE = (-100.0, 2000.0)  # W/m²; loggers mark missing values by numbers far outside, e.g. -99999
_CLEAR_SKY_STEP = np.timedelta64(15, "m")
_MIN_BIN_SECOND = 900.0
_MAX_TRACE = 50_000_000  # values
_TINY_SECOND = 1e-6  # above the rounding of clock times, below any slot
_NEEDED = {  # fields that belong to one kind of data
    "midc-file": ("file",),
    "midc-site": ("site", "first_day", "last_day"),
    "clear-sky": ("latitude", "longitude"),
}


class Settings(Section):
    """Irradiance data, the part of it that counts, the panel, and the kind of law."""

    per_device: ClassVar[tuple[str, ...]] = ("panel_cm2", "efficiency")
    source: Literal["solar"] = "solar"
    data: Literal["tmy3", "midc-file", "midc-site", "clear-sky"] = Field(
        "tmy3", description="'tmy3': hourly data of Greensboro NC that come with pvlib; 'midc-site' goes online"
    )
    file: str | None = Field(None, description="midc-file: text file with columns DATE, time and 'Global ... [W/m^2]'")
    site: Annotated[str, Field(min_length=1)] | None = Field(None, description="midc-site: station code, e.g. 'EC'")
    first_day: Annotated[date, Field(strict=False)] | None = Field(None, description="midc-site: first day to fetch")
    last_day: Annotated[date, Field(strict=False)] | None = Field(None, description="midc-site: last day to fetch")
    latitude: Annotated[float, Field(ge=-90, le=90)] | None = Field(None, description="clear-sky: degrees north")
    longitude: Annotated[float, Field(ge=-180, le=180)] | None = Field(None, description="clear-sky: degrees east")
    cloudiness_values: Annotated[tuple[Fraction, ...], Field(strict=False, min_length=1)] = Field(
        (1.0, 0.5, 0.2), description="clear-sky: factors on the clear-sky irradiance"
    )
    cloudiness_prob: Vector = Field((0.6, 0.25, 0.15), description="clear-sky: probability of each factor")
    month: Annotated[int, Field(ge=1, le=12)] = 6
    hours: Annotated[tuple[float, float], Field(strict=False)] = Field(
        (6.0, 18.0), description="first hour and end of the daily window, local standard time"
    )
    law: Literal["iid", "time-of-day", "trace"] = Field(
        "iid", description="one law for every slot, one by clock time, or the recorded series itself"
    )
    start: Annotated[int, Field(ge=0)] | Literal["random"] = Field(
        "random", description="trace: each device starts anywhere, or all at this slot of the series, and plans know it"
    )
    panel_cm2: PerDeviceNonNegative = Field(25.0, description="panel area [cm²]")
    efficiency: PerDeviceNonNegative = Field(0.2, description="share of the irradiance that is stored")


@dataclass(frozen=True)
class _Samples:
    """Irradiance in time order; each value holds from its time for one step of the data."""

    time: npt.NDArray[np.datetime64]  # (sample,) local standard time
    ghi: Array  # (sample,) [W/m²]

    def kept(self, mask: npt.NDArray[np.bool_]) -> "_Samples":
        return _Samples(self.time[mask], self.ghi[mask])


def build(settings: Settings, scenario: Scenario) -> HarvestLaw | HarvestReplay:
    """Law or replay of the window's irradiance; raises ScenarioError for settings or data that do not fit."""
    _check(settings)
    samples, step_second = _windowed(_sorted(_irradiance(settings)), settings)
    devices = scenario.network.devices
    panels = zip(per_device(settings.panel_cm2, devices), per_device(settings.efficiency, devices), strict=True)
    scale = [area_cm2 * 1e-4 * efficiency for area_cm2, efficiency in panels]
    if settings.law == "trace":
        start = None if settings.start == "random" else int(settings.start)
        return replay(_series_joule(samples, step_second, settings, scenario), scale, scenario.slots, start)
    bin_second = math.inf
    if settings.law == "time-of-day":
        bin_second = max(step_second, _MIN_BIN_SECOND, scenario.energy.slot_second)
    return _binned_law(samples, bin_second, scale, settings, scenario)


def _check(settings: Settings) -> None:
    for data, fields in _NEEDED.items():
        for field in fields:
            missing = getattr(settings, field) is None
            if missing and data == settings.data:
                raise ScenarioError(f"harvest.{field}", f"expected a value for data {data!r}, actual value missing")
            if not missing and data != settings.data:
                raise ScenarioError(
                    f"harvest.{field}", f"expected only with data {data!r}, actual data {settings.data!r}"
                )
    if settings.first_day and settings.last_day and settings.first_day > settings.last_day:
        raise ScenarioError(
            "harvest.last_day", f"expected {settings.first_day} or later, actual value {settings.last_day}"
        )
    begin, end = settings.hours
    if not 0 <= begin < end <= 24:
        raise ScenarioError("harvest.hours", f"expected 0 ≤ first < end ≤ 24, actual value {[begin, end]}")
    if settings.start != "random" and settings.law != "trace":
        raise ScenarioError("harvest.start", f"expected a slot only with law 'trace', actual law {settings.law!r}")
    highest = max(per_device(settings.efficiency, 1))
    if highest > 1:
        raise ScenarioError("harvest.efficiency", f"expected at most 1, actual value {highest:g}")
    values, prob = settings.cloudiness_values, settings.cloudiness_prob
    if len(values) != len(prob):
        raise ScenarioError(
            "harvest.cloudiness_prob", f"expected {len(values)} values, actual number of values {len(prob)}"
        )
    check_law("harvest.cloudiness_prob", prob)


def _irradiance(settings: Settings) -> _Samples:
    """All irradiance of the chosen data."""
    if settings.file is not None:
        return _midc_file(settings.file)
    if settings.site is not None:
        return _midc_site(settings)
    if settings.latitude is not None and settings.longitude is not None:
        return _clear_sky(settings.latitude, settings.longitude, settings.month)
    return _tmy3()


def _tmy3() -> _Samples:
    """Typical year of Greensboro NC; the file labels an hour by its end, a sample by its beginning."""
    import pvlib

    folder = Path(pvlib.__file__).parent / "data"
    frame, _ = pvlib.iotools.read_tmy3(str(folder / "723170TYA.CSV"), map_variables=True)
    hour_end = frame.index.tz_localize(None).to_numpy()
    return _Samples(hour_end - np.timedelta64(1, "h"), frame["ghi"].to_numpy(dtype=np.float64))


def _clear_sky(latitude: float, longitude: float, month: int) -> _Samples:
    """Haurwitz model at the middle of every step of the month, at the nearest whole-hour time zone."""
    import pandas as pd
    import pvlib

    first = np.datetime64(f"2023-{month:02d}")
    time = np.arange(first, first + 1, _CLEAR_SKY_STEP, dtype="datetime64[s]")
    zone = np.timedelta64(round(longitude / 15), "h")
    middle = pd.DatetimeIndex(time + _CLEAR_SKY_STEP / 2 - zone, tz="UTC")
    sun = pvlib.solarposition.get_solarposition(middle, latitude, longitude)
    ghi = pvlib.clearsky.haurwitz(sun["apparent_zenith"])["ghi"]
    return _Samples(time, ghi.to_numpy(dtype=np.float64))


def _midc_site(settings: Settings) -> _Samples:
    """Measurements of an MIDC station, fetched online."""
    import pvlib

    try:
        frame = pvlib.iotools.read_midc_raw_data_from_nrel(settings.site, settings.first_day, settings.last_day)
    except Exception as error:  # a refused connection, or a reply that is no data: pvlib raises anything
        raise ScenarioError(
            "harvest.site",
            f"expected data of MIDC site {settings.site!r} from its server, actual: {type(error).__name__} "
            f"({str(error)[:80]}); download the station's text file yourself and use data = 'midc-file'",
        ) from None
    column = _global_column("harvest.site", [str(name) for name in frame.columns])
    return _measured("harvest.site", frame.index.tz_localize(None).to_numpy(), frame.iloc[:, column], 1)


def _midc_file(file: str) -> _Samples:
    """Measurements from an MIDC text file: date and time in the first columns, irradiance in a 'Global' one."""
    import pandas as pd

    try:
        rows = list(csv.reader(Path(file).read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ScenarioError("harvest.file", f"expected a readable text file, actual: {error}") from None
    if not rows:
        raise ScenarioError("harvest.file", f"expected a header and samples, actual file {file!r} is empty")
    column = _global_column("harvest.file", rows[0])
    cells = [(row[0] + " " + row[1], row[column]) if len(row) > column else (" ".join(row), "") for row in rows[1:]]
    clock = pd.Series([when.strip() for when, _ in cells], dtype=object)
    time = pd.to_datetime(clock, format="%m/%d/%Y %H:%M", errors="coerce")
    _refuse_first("harvest.file", "a date and time like 6/1/2023,00:00", time.isna() & (clock != ""), clock, 2)
    return _measured("harvest.file", time.to_numpy(), pd.Series([value for _, value in cells], dtype=object), 2)
