"""Places in a scenario, and files of them: where devices stand, and what they are called.

    .csv               columns x_metre and y_metre, or latitude and longitude, and perhaps name; others are ignored
    .geojson, .json    a FeatureCollection of Points, with the property name where a place has one

Degrees become metres on a plane that touches the earth at the places' mean (equirectangular projection):

    x = R cos(φ₀) (λ − λ₀),    y = R (φ − φ₀),    R = 6371.0088 km

Within 10 km of the mean and up to 70° of latitude, distances are within one per cent of those on the ellipsoid.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from heliomesh.common.delimited import TableError, table_rows
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.files import read_text

_EARTH_METRE = 6_371_008.8  # mean radius of the earth, (2a + b) / 3 of WGS 84
_METRES, _DEGREES = ("x_metre", "y_metre"), ("latitude", "longitude")
_LARGEST = {"x_metre": 1e9, "y_metre": 1e9, "latitude": 90.0, "longitude": 180.0}

OF_GRAPH = ("topology", "devices", "edges", "positions_metre", "names", "links")  # what new places replace

Pair = tuple[float, float]


def placed(network: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a network with the content of its file of places, and with what positions imply."""
    given, field = dict(network), "network.places_file"
    if isinstance(file := given.get("places_file"), str):
        try:
            read = read_places(read_text(field, file), Path(file).suffix)
        except TableError as error:
            raise ScenarioError(field, str(error)) from None
        for name, value in asdict(read).items():
            twice = value is not None and given.get(name) is not None
            refuse(twice, f"network.{name}", f"a value here or in {field}, not in both", "number 2")
            given |= {} if value is None else {name: value}
        del given["places_file"]
    positions = given.get("positions_metre")
    if isinstance(positions, list | tuple) and positions:
        return {"topology": "places", "devices": len(positions), **given}
    return given


@dataclass(frozen=True)
class Places:
    """Where devices stand, in the order of the file."""

    positions_metre: tuple[Pair, ...]  # x to the east and y to the north
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class _Row:
    """One place as a file has it."""

    where: str  # "line 3"
    values: Mapping[str, object]
    name: object = None


def read_places(text: str, suffix: str) -> Places:
    """The places that the text of a file describes; ``suffix`` is the end of its name. Raises TableError."""
    match suffix.lower():
        case ".csv":
            return _places(*_table(text))
        case ".geojson" | ".json":
            return _places(_features(text), _DEGREES)
    raise TableError(f"expected a name that ends in .csv, .geojson or .json, actual ending {suffix!r}")


def _places(rows: Sequence[_Row], columns: tuple[str, str]) -> Places:
    """Rows checked, in metres."""
    if not rows:
        raise TableError("expected at least one place, actual number 0")
    pairs = [(_number(row, columns[0]), _number(row, columns[1])) for row in rows]
    _check_distinct(pairs, [row.where for row in rows])
    # JSON may escape halves of characters, which no file of ours could hold
    names = tuple("" if row.name is None else str(row.name).encode(errors="replace").decode() for row in rows)
    return Places(tuple(_metres(pairs) if columns == _DEGREES else pairs), names if any(names) else None)


def _number(row: _Row, column: str) -> float:
    value, largest = row.values.get(column), _LARGEST[column]
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        actual = "missing" if value is None else f"{value!r:.60}"
        raise TableError(f"expected a number for {column} in {row.where}, actual value {actual}")
    if abs(number) > largest:
        swapped = "; are latitude and longitude swapped?" if column == "latitude" and abs(number) <= 180 else ""
        raise TableError(
            f"expected a number from {-largest:g} to {largest:g} for {column} in {row.where}, "
            f"actual value {number:g}{swapped}"
        )
    return number


def _check_distinct(pairs: Sequence[Pair], where: Sequence[str]) -> None:
    first: dict[Pair, int] = {}
    for index, pair in enumerate(pairs):
        if first.setdefault(pair, index) != index:
            kind, one = where[first[pair]].split(" ", 1)
            other = where[index].split(" ", 1)[1]
            raise TableError(f"expected places that differ, actual: {kind}s {one} and {other} are the same")


def _metres(degrees: Sequence[Pair]) -> list[Pair]:
    """(latitude, longitude) [°] → (x, y) [m] around their mean; the date line does not tear places apart."""
    anchor = degrees[0][1]
    ahead = [(longitude - anchor + 180) % 360 - 180 for _, longitude in degrees]
    middle = math.fsum(latitude for latitude, _ in degrees) / len(degrees)
    middle_ahead = math.fsum(ahead) / len(ahead)
    per_degree = math.radians(_EARTH_METRE)
    narrowed = per_degree * math.cos(math.radians(middle))
    return [
        (narrowed * (east - middle_ahead), per_degree * (latitude - middle))
        for (latitude, _), east in zip(degrees, ahead, strict=True)
    ]


def _columns(known: Sequence[str]) -> tuple[str, str]:
    """The two columns that say where places are."""
    there = [pair for pair in (_METRES, _DEGREES) if set(pair) <= set(known)]
    if len(there) != 1:
        only = "not both, " if there else ""
        raise TableError(
            f"expected columns x_metre and y_metre, or latitude and longitude, {only}"
            f"actual columns {', '.join(known)[:80] or 'none'}"
        )
    return there[0]


def _table(text: str) -> tuple[list[_Row], tuple[str, str]]:
    """Rows of a table, and which columns say where they are."""
    lines = list(table_rows(text).items())
    if not lines:
        return [], _METRES
    heading = [cell.strip() for cell in lines[0][1]]
    if len(set(heading)) < len(heading):
        raise TableError(f"expected every column once, actual columns {', '.join(heading)[:80]}")
    named = [(number, dict(zip(heading, cells, strict=False))) for number, cells in lines[1:]]
    return [_Row(f"line {line}", values, values.get("name")) for line, values in named], _columns(heading)


def _features(text: str) -> list[_Row]:
    """Points of a GeoJSON FeatureCollection; a position is longitude, latitude and perhaps height."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TableError(f"expected GeoJSON, actual: {error}") from None
    if not isinstance(data, dict) or data.get("type") != "FeatureCollection":
        raise TableError(f"expected a FeatureCollection, actual {_kind(data)}")
    features = data.get("features")
    if not isinstance(features, list):
        actual = "missing" if features is None else f"{features!r:.60}"
        raise TableError(f"expected a list of features, actual value {actual}")
    return [_feature(index, feature) for index, feature in enumerate(features)]


def _feature(index: int, feature: object) -> _Row:
    where = f"feature {index}"
    geometry = feature.get("geometry") if isinstance(feature, dict) else feature
    if not isinstance(feature, dict) or not isinstance(geometry, dict) or geometry.get("type") != "Point":
        raise TableError(f"expected a Point in {where}, actual {_kind(geometry)}")
    position = geometry.get("coordinates")
    if not isinstance(position, list) or len(position) < 2:
        raise TableError(f"expected longitude and latitude in {where}, actual value {position!r:.60}")
    properties = feature.get("properties")
    name = properties.get("name") if isinstance(properties, dict) else None
    return _Row(where, {"longitude": position[0], "latitude": position[1]}, name)


def _kind(data: object) -> str:
    if isinstance(data, dict):
        return f"type {data.get('type')!r:.60}"
    return "value missing" if data is None else f"value {data!r:.60}"
