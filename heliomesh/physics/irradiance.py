"""Irradiance files: what a station, a satellite or a typical year says of the sun.

TMY3, PVGIS, NSRDB and MIDC raw files are read by pvlib's readers, plain tables and MIDC's daily files here. A file
says which zone's clock its times read, and by its format whether a time is the begin, the middle or the end of a
sample. `irradiance_file` brings all samples to local standard time and to the begin of what they stand for.
"""

from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from heliomesh.common.delimited import TableError, table_rows
from heliomesh.physics.daylight import FileFormat, TimeLabel
from heliomesh.physics.solar_time import Ghi, check_noon, from_begin, in_one_year, on_local_clock
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.files import read_text

_GHI_RANGE = (-100.0, 2000.0)  # W/m²; loggers mark missing values by numbers far outside, e.g. -99999
_LEAST_PEAK = 20.0  # W/m², a very dark day's noon: data with less are probably in another unit
_HOURS_WEST = {"AST": 4, "EST": 5, "CST": 6, "MST": 7, "PST": 8, "AKST": 9, "HST": 10, "UTC": 0, "GMT": 0}
_ZONED = r":\d\d(?:\.\d+)?\s*(?:Z|[+-]\d\d(?::?\d\d)?)$"  # the end of a time that names its zone


@dataclass(frozen=True)
class Recording:
    """Samples of irradiance as a file has them."""

    ghi: Ghi  # by times with a zone or without
    label: TimeLabel  # what a time is of its sample
    longitude: float | None = None  # ° east


def irradiance_file(
    file: str, file_format: FileFormat, timezone: str | None, label: TimeLabel | None, longitude: float | None
) -> tuple[Ghi, list[str]]:
    """Irradiance [W/m²] of a file by local standard time, at the begin of every sample; raises ScenarioError.

    ``timezone``, ``label`` and ``longitude`` replace what the file says of its times and its place. Beside it are
    remarks on what may not be meant.
    """
    text = read_text("harvest.file", file)
    recording = _recording(_recognised(text) if file_format == "auto" else file_format, file, text)
    place = recording.longitude if longitude is None else longitude
    ghi, east_hour = on_local_clock(_measured("harvest.file", recording.ghi), timezone, place)
    ghi = in_one_year(from_begin(ghi, label or recording.label))
    middle, highest, doubts = check_noon(ghi, east_hour, place), float(ghi.max()), []
    if east_hour is None:
        days = "" if middle is None else f"; the middle of their days is {middle}"
        doubts.append(f"harvest.timezone: the file's times name no zone and count as local standard time{days}")
    if highest < _LEAST_PEAK:
        measured = f"harvest.file: the largest irradiance is {highest:g} W/m²"
        doubts.append(f"{measured}, and a clear noon has 1000; the file may be in kW/m²")
    return ghi, doubts


def _recognised(text: str) -> str:
    """The format of a file by its first lines; a plain table where no other fits."""
    first, second = [*(line.strip() for line in text.split("\n", 2)[:2]), ""][:2]
    if first.startswith("{") or first.startswith("Latitude (decimal degrees)"):
        return "pvgis"
    if second.startswith("Date (MM/DD/YYYY),Time (HH:MM)"):
        return "tmy3"
    if first.startswith("Source,Location ID"):
        return "nsrdb"
    return "midc" if first.startswith("DATE (MM/DD/YYYY)") or ",Year,DOY," in f",{first}" else "csv"


@cache  # reading takes longer than the rest of a small problem
def greensboro() -> Ghi:
    """Typical year of Greensboro NC, hourly, which comes with pvlib."""
    import pvlib

    year = _recording("tmy3", str(Path(pvlib.__file__).parent / "data" / "723170TYA.CSV"), "")
    return in_one_year(from_begin(year.ghi, year.label))


def clear_sky(latitude: float, longitude: float, months: tuple[int, ...]) -> Ghi:
    """Haurwitz model at the middle of every quarter of an hour, in the nearest whole-hour time zone."""
    import pvlib

    time = pd.date_range("2023-01-01", "2024-01-01", freq="15min", inclusive="left")
    time = time[time.month.isin(months)]
    to_utc = pd.Timedelta(minutes=7.5) - pd.Timedelta(hours=round(longitude / 15))
    sun = pvlib.solarposition.get_solarposition((time + to_utc).tz_localize("UTC"), latitude, longitude)
    ghi: Ghi = pvlib.clearsky.haurwitz(sun["apparent_zenith"])["ghi"]
    return ghi.set_axis(time)


def midc_site(site: str, first_day: date, last_day: date) -> Ghi:
    """Measurements of an MIDC station, fetched online."""
    import pvlib

    try:
        frame = pvlib.iotools.read_midc_raw_data_from_nrel(site, first_day, last_day)
    except Exception as error:  # no connection, or a reply that is no data, on which pvlib may raise anything
        instead = "download the station's text file and use data = 'midc-file' instead"
        actual = f"{type(error).__name__}: {' '.join(str(error).split())[:80]}; {instead}"
        raise ScenarioError("harvest.site", f"data of MIDC site {site!r} from its server", actual) from None
    column = frame.iloc[:, _global_column("harvest.site", list(frame.columns))]
    return _measured("harvest.site", pd.to_numeric(column, errors="coerce"))


def midc_file(file: str) -> Ghi:
    """Measurements of an MIDC daily text file as they are, by its own clock."""
    return _measured("harvest.file", _midc_table(file, read_text("harvest.file", file)))


def _recording(file_format: str, file: str, text: str) -> Recording:
    """What a file of a format holds; pvlib may raise anything on a file that is none of its kind."""
    names = text.split("\n", 1)[0].split(",")
    if file_format == "csv":
        return _csv(file, text)
    if file_format == "midc" and "DOY" not in names:  # the daily text file
        ghi, zone = _midc_table(file, text), names[1].strip() if len(names) > 1 else ""
        return Recording(ghi.tz_localize(f"Etc/GMT{_HOURS_WEST[zone]:+d}") if zone in _HOURS_WEST else ghi, "begin")
    from pvlib import iotools  # slow to import, and plain tables do without it

    try:
        match file_format:
            case "pvgis":
                return _pvgis(iotools, file, text)
            case "midc":
                frame = iotools.read_midc(file, raw_data=True, usecols=range(len(names)))
                column = _global_column("harvest.file", list(frame.columns))
                return Recording(frame.iloc[:, column].astype(float), "begin")
            case "nsrdb":  # of the National Solar Radiation Database, PSM 3 or 4
                frame, about = iotools.read_nsrdb_psm4(file, map_variables=True)
                return Recording(_column(frame, "ghi"), "middle", float(about["longitude"]))
        frame, about = iotools.read_tmy3(file, map_variables=True)
        return Recording(_column(frame, "ghi"), "end", float(about["longitude"]))
    except ScenarioError:
        raise
    except Exception as error:
        title = "MIDC raw" if file_format == "midc" else file_format.upper()
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"
        raise ScenarioError("harvest.file", f"a file of the format {title} (harvest.format)", reason) from None


def _pvgis(iotools: Any, file: str, text: str) -> Recording:
    """Hourly or typical data of PVGIS in UTC, as CSV or JSON; the panel's own plane where the file has one."""
    is_json = text.lstrip().startswith("{")
    is_typical = '"tmy_hourly"' in text if is_json else "time(UTC)" in text
    reader = iotools.read_pvgis_tmy if is_typical else iotools.read_pvgis_hourly
    frame, about = reader(file, pvgis_format="json" if is_json else "csv", map_variables=True)
    parts = [name for name in ("poa_direct", "poa_sky_diffuse", "poa_ground_diffuse") if name in frame]
    if parts and "poa_global" not in frame:
        frame = frame.assign(poa_global=frame[parts].sum(axis=1))
    place = about["inputs"].get("location", about["inputs"])  # JSON has its place one level deeper
    return Recording(_column(frame, "poa_global", "ghi"), "middle", float(place["longitude"]))


def _midc_table(file: str, text: str) -> Ghi:
    """Rows of an MIDC text file by its clock: first column date, second time, and a 'Global' one."""
    rows = _rows(file, text)
    column = _global_column("harvest.file", rows.pop(min(rows)))
    clock = pd.Series({line: " ".join(row[:2]) for line, row in rows.items()}, dtype=object)
    time = pd.to_datetime(clock, format="%m/%d/%Y %H:%M", errors="coerce")
    _refuse_first("a date and time such as 6/1/2023 00:00", clock[time.isna()])
    return _numbers(rows, column).set_axis(pd.DatetimeIndex(time))


def _csv(file: str, text: str) -> Recording:
    """A table of times, as 2023-06-01T12:00 with or without a zone, and W/m²; a first line may name the columns."""
    rows = _rows(file, text)
    first = rows[min(rows)]
    column = 1
    if pd.isna(pd.to_datetime(first[0].strip(), format="ISO8601", errors="coerce")):
        names = [name.lower() for name in rows.pop(min(rows))]
        column = next((n for n, name in enumerate(names) if n and ("ghi" in name or "w/m" in name)), 1)
    elif len(first) > 2:  # the third may be the decimals of the second
        expected = "two columns, or a first line that names them"
        raise ScenarioError("harvest.file", expected, f"number of columns {len(first)}")
    clock = pd.Series({line: row[0].strip() for line, row in rows.items()}, dtype=object)
    zoned = clock.str.contains(_ZONED).astype(bool)
    if zoned.any():
        _refuse_first("a zone, which other times have,", clock[~zoned])
    time = pd.to_datetime(clock, format="ISO8601", errors="coerce", utc=bool(zoned.any()))
    _refuse_first("a time such as 2023-06-01T12:00", clock[time.isna()])
    ghi = _numbers(rows, column).set_axis(pd.DatetimeIndex(time))
    # the first line says which clock is local
    return Recording(ghi.tz_convert(pd.Timestamp(clock.iloc[0]).tz) if zoned.any() else ghi, "begin")


def _column(frame: pd.DataFrame, *names: str) -> Ghi:
    for name in names:
        if name in frame:
            column: pd.Series[float] = frame[name].astype(float)
            return column
    columns = ", ".join(map(str, frame.columns))
    raise ScenarioError("harvest.file", f"a column {' or '.join(names)}", f"columns {columns[:80]!r}")


def _rows(file: str, text: str) -> dict[int, list[str]]:
    """Cells of all lines that have any, by the line's number."""
    try:
        rows = table_rows(text)
    except TableError as error:
        raise ScenarioError("harvest.file", str(error)) from None
    refuse(not rows, "harvest.file", "a header and samples", f"file {file!r} is empty")
    return rows


def _numbers(rows: dict[int, list[str]], column: int) -> Ghi:
    """W/m² of a column; an empty cell is a missing sample."""
    text = pd.Series({line: "".join(row[column : column + 1]).strip() for line, row in rows.items()}, dtype=object)
    ghi = pd.to_numeric(text, errors="coerce")
    _refuse_first("a number of W/m²", text[ghi.isna() & ~text.str.lower().isin(["", "nan"])])
    return ghi


def _refuse_first(expected: str, bad: "pd.Series[str]") -> None:
    for line, value in bad.items():
        raise ScenarioError("harvest.file", f"{expected} in line {line}", f"value {value[:40]!r}")


def _global_column(field: str, names: list[str]) -> int:
    """Position of the first column of global irradiance in W/m²."""
    for position, name in enumerate(names):
        if name.strip().startswith("Global") and "[W/m^2]" in name:
            return position
    raise ScenarioError(field, "a column 'Global ... [W/m^2]'", f"columns {', '.join(names)[:80]!r}")


def _measured(field: str, ghi: Ghi) -> Ghi:
    """Samples less the missing ones, and with a sensor's small negative values at night set to 0."""
    low, high = _GHI_RANGE
    valid = ghi[ghi.between(low, high)]
    refuse(valid.empty, field, f"samples within {low:g} to {high:g} W/m²", f"number of such samples 0 of {len(ghi)}")
    return valid.clip(lower=0)
