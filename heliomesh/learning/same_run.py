"""Whether a folder holds the job that is asked for and, if not, the first thing in which the two differ."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ABSENT = object()


def check_same(place: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any], error: type[Exception]) -> None:
    """Raise ``error`` with the first part of an identity that is not stored as it is wanted."""
    found = told_difference(stored, wanted)
    if found is not None:
        field, expected, actual = found
        problem = f"expected {expected} (as in the folder), actual {actual}; another run needs an empty folder"
        raise error(f"{place}: {field}: {problem}")


def told_difference(stored: object, wanted: object, path: str = "") -> tuple[str, str, str] | None:
    """Dotted path of the first difference of nested data, and both values in words; None where nothing differs."""
    if stored == wanted:
        return None
    ones, others = _parts(stored, wanted), _parts(wanted, stored)
    if ones is not None and others is not None:
        for name in dict.fromkeys((*ones, *others)):
            inner = f"{path}.{name}".removeprefix(".")
            found = told_difference(ones.get(name, _ABSENT), others.get(name, _ABSENT), inner)
            if found is not None:
                return found
    return path, _short(path, stored), _short(path, wanted)


def _parts(value: object, beside: object) -> Mapping[object, object] | None:
    if value is _ABSENT and isinstance(beside, Mapping):
        return {}  # a section of defaults
    return dict(enumerate(value)) if isinstance(value, list) else value if isinstance(value, Mapping) else None


_SHORTENED = ("scenario.", "learning.", "options.")  # parts of an identity in which defaults are left out


def _short(field: str, value: object) -> str:
    if value is _ABSENT:
        return "the default" if field.startswith(_SHORTENED) else "nothing"
    return f"{value!r:.40}"
