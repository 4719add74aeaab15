"""Whether a folder holds the run that is asked for and, if not, the first thing in which the two differ.

A run is named by facts (``wanted``, ``stored``), in which a scenario stands by its hash. The hash decides, since it
knows files by their content; its TOML text, under the same name with ``_toml``, only says which value is another.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TEXT = "_toml"
_ABSENT = object()


def check_same(place: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any], error: type[Exception]) -> None:
    """Raise ``error`` with the first fact, or value of a scenario, that is not stored as it is wanted."""
    for name, actual in wanted.items():
        expected = stored.get(name, _ABSENT)
        if expected == actual or name.endswith(_TEXT):
            continue
        field, expected, actual = _first_difference(
            name, _values(stored.get(name + _TEXT)), _values(wanted.get(name + _TEXT))
        ) or (name, expected, actual)
        raise error(
            f"{place}: {field}: expected {_short(expected)} (as in the folder), actual {_short(actual)}; "
            "another run needs an empty folder"
        )


def _values(toml: object) -> dict[str, Any] | None:
    """A scenario's values but for its name; None where there is no text, as in checkpoints of early versions."""
    if not isinstance(toml, str):
        return None
    try:
        values = tomllib.loads(toml)
    except (ValueError, RecursionError):  # edited by hand: the hashes differ all the same
        return None
    return {name: value for name, value in values.items() if name != "name"}


def _first_difference(path: str, one: object, other: object) -> tuple[str, object, object] | None:
    """Dotted path and both values of the first difference of nested data; None where nothing or all is unknown."""
    if one is None or other is None or one == other:
        return None
    ones, others = _parts(one), _parts(other)
    if ones is None or others is None:
        return path, one, other
    for name in [*ones, *(name for name in others if name not in ones)]:
        found = _first_difference(f"{path}.{name}", ones.get(name, _ABSENT), others.get(name, _ABSENT))
        if found:
            return found
    return None


def _parts(value: object) -> Mapping[object, object] | None:
    if isinstance(value, Mapping):
        return value
    return dict(enumerate(value)) if isinstance(value, list) else None


def _short(value: object) -> str:
    return "nothing" if value is _ABSENT else f"{value!r:.40}"
