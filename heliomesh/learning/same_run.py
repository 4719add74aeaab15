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
        raise error(
            f"{place}: {field}: expected {expected} (as in the folder), actual {actual}; "
            "another run needs an empty folder"
        )


def told_difference(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """The first part in which two identities differ, and both values in words; None where nothing differs."""
    found = first_difference("", stored, wanted)
    if found is None:
        return None
    field, one, other = found
    return field, _short(field, one), _short(field, other)


def first_difference(path: str, one: object, other: object) -> tuple[str, object, object] | None:
    """Dotted path and both values of the first difference of nested data; None where nothing differs."""
    if one == other:
        return None
    ones, others = _parts(one, other), _parts(other, one)
    if ones is None or others is None:
        return path, one, other
    for name in [*ones, *(name for name in others if name not in ones)]:
        inner = f"{path}.{name}" if path else str(name)
        found = first_difference(inner, ones.get(name, _ABSENT), others.get(name, _ABSENT))
        if found:
            return found
    return path, one, other


def _parts(value: object, beside: object) -> Mapping[object, object] | None:
    if isinstance(value, Mapping):
        return value
    if value is _ABSENT and isinstance(beside, Mapping):
        return {}  # a section of defaults
    return dict(enumerate(value)) if isinstance(value, list) else None


_SHORTENED = ("scenario.", "learning.", "options.")  # parts of an identity in which defaults are left out


def _short(field: str, value: object) -> str:
    if value is _ABSENT:
        return "the default" if field.startswith(_SHORTENED) else "nothing"
    return f"{value!r:.40}"
