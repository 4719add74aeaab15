"""The reference page of scenario files: every field with its values, default, unit and meaning."""

import json
import re
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from heliomesh.scenario.scenario import Scenario, sections

_UNITS = {  # by the end of a field's name; longer ends first
    "bit_per_second": "bit/s",
    "flop_per_second": "FLOP/s",
    "per_day": "1/day",
    "_joule": "J",
    "_watt": "W",
    "_second": "s",
    "_minute": "min",
    "_metre": "m",
    "_cm2": "cm²",
    "_hz": "Hz",
    "_db": "dB",
    "_bits": "bit",
    "_flop": "FLOP",
}
_WORDS = {float: "number", int: "whole number", str: "text", bool: "true or false"}


def page() -> str:
    """Markdown of the page."""
    tables = {name: field for name, field in Scenario.model_fields.items() if field.description}
    parts = [
        "# Scenario fields\n",
        "A scenario is one TOML file. This page lists every field that it may have; `heliomesh scenario schema` "
        "prints the same as a JSON schema for editors. Every field has a default unless its default is *required*. "
        "*Number or list* means one number for all devices, or a list with one number per device.\n",
        "Set a field in the file, by `--set table.field=value` on the command line, or by `Scenario.override`.\n",
        "## Outside the tables\n",
        _table(tables),
    ]
    for heading, settings in sections().items():
        about = (settings.__doc__ or "").strip().splitlines()[0]
        parts += [f"## `[{heading.split(',')[0]}]`{_after_comma(heading)}\n", f"{about}\n"]
        parts.append(_table(settings.model_fields))
    return "\n".join(parts)


def _after_comma(heading: str) -> str:
    _, comma, source = heading.partition(", ")
    return f" with `{source}`" if comma else ""


def _table(fields: dict[str, FieldInfo]) -> str:
    rows = ["| field | values | default | unit | meaning |", "|---|---|---|---|---|"]
    for name, field in fields.items():
        cells = (
            f"`{name}`",
            values_of(field),
            default_of(field),
            unit_of(name, field),
            _plain(str(field.description)),
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _plain(text: str) -> str:
    """Text whose square brackets are no links."""
    return text.replace("[", "\\[")


def unit_of(name: str, field: FieldInfo) -> str:
    """The unit that the field's name or its description says; a dash where there is none."""
    said = re.search(r"\[(J|W|s|m|dB|Hz|min)\]", str(field.description))
    by_name = next((unit for end, unit in _UNITS.items() if name.endswith(end) or name == end.strip("_")), "–")
    return said[1] if said and by_name == "–" else by_name


def default_of(field: FieldInfo) -> str:
    """The default as TOML writes it; a dash where the meaning says what holds without a value."""
    if field.is_required():
        return "*required*"
    return "–" if field.default is None else f"`{json.dumps(field.default, ensure_ascii=False)}`"


def values_of(field: FieldInfo) -> str:
    """What the field may be, in a few words."""
    return " or ".join(dict.fromkeys(_words(field.annotation, _bounds(field.metadata))))


def _words(kind: Any, bounds: str = "") -> list[str]:
    if get_origin(kind) is Annotated:
        inner, *notes = get_args(kind)
        return _words(inner, _bounds(notes) or bounds)
    if get_origin(kind) in (Union, UnionType):
        return [word for part in get_args(kind) if part is not type(None) for word in _words(part, bounds)]
    if get_origin(kind) is Literal:
        return [f"`{json.dumps(value)}`" for value in get_args(kind)]
    if get_origin(kind) is tuple:
        return ["list"]
    return [f"{_WORDS.get(kind, getattr(kind, '__name__', str(kind)))}{bounds}"]


def _bounds(notes: Any) -> str:
    """Bounds of a number in words, from pydantic's notes on a type."""
    said = []
    for note in (inner for one in notes for inner in (getattr(one, "metadata", None) or [one])):
        for name, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤")):
            if (limit := getattr(note, name, None)) is not None and limit < 10_000_000:
                said.append(f"{sign} {limit:g}")
    return f" {', '.join(said)}" if said else ""
