"""What commands print: facts and tables for people, JSON for programs; every rounding and unit stands here."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from heliomesh.commands.terminal import console, note, say
from heliomesh.common.durable import without_nan
from heliomesh.model.doubts import doubts
from heliomesh.model.problem import Problem, build
from heliomesh.pages.intervals import cell, seeds_title
from heliomesh.scenario.scenario import Scenario

if TYPE_CHECKING:
    from heliomesh.studies.gap_ledger import GapLedger

# How numbers are written, by how their column's title begins: bytes by B, shares that are shown in percent by %.
_TITLES = {
    "B": ("offline", "online/slot", "size"),
    ".0f": ("joule", "slots"),
    ".1%": ("arrived %", "trains %"),
    ".2f": ("accuracy %", "at the end", "since the change"),
    ".2%": ("average model %", "least device %", "mean device %"),
    ".3f": ("cost",),
    ".4f": ("cost per slot", "against the stale plan"),
    ".4%": ("% per joule",),
    "+.0f": ("more ",),
    "+.2f": ("disagreement", "gap to", "optimiser", "over ", "steps not trained"),
    "+.2%": ("against ", "gap %"),
}
_FORMS = {title: form for form, titles in _TITLES.items() for title in titles}


def show(as_json: bool, facts: object, *parts: Table | str | None, width: int = 0) -> None:
    """Print the facts as JSON; or tables, in so many columns at least, and sentences."""
    if as_json:
        say(json.dumps(without_nan(facts), indent=2), lines=True)
        return
    for part in parts:
        if isinstance(part, Table):
            console(width=max(width, console().width)).print(part)
        elif part is not None:
            say(part, lines=True)


def print_facts(facts: Mapping[str, Any], as_json: bool) -> None:
    """Print facts in two columns, or as JSON."""
    show(as_json, facts, facts_table(facts))


def facts_table(facts: Mapping[str, Any]) -> Table:
    """Two columns: names and values."""
    listed = Table(show_header=False, box=None)
    for name, value in facts.items():
        listed.add_row(name, text_of(value))
    return listed


def table(
    rows: Sequence[Mapping[str, Any]], title: str | None = None, *, fold: str = "", caption: str | None = None
) -> Table:
    """A line per row with its values by column: numbers to the right; only the column ``fold`` may take more lines.

    An array has the values of seeds, an `Interval` its mean and half-width, and None is left empty.
    """
    made = Table(title=title, caption=caption, box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for name in rows[0] if rows else ():
        is_text = all(isinstance(row[name], str | bool | None) for row in rows)
        justify, overflow = ("left" if is_text else "right"), ("fold" if name == fold else "ellipsis")
        made.add_column(name, justify=justify, overflow=overflow, no_wrap=name != fold)  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*(_cell(value, name) for name, value in row.items()))
    return made


def _cell(value: Any, title: str) -> str:
    form = _FORMS.get(max((start for start in _FORMS if title.startswith(start)), key=len, default=""), "")
    if isinstance(value, bool):
        return "yes" if value else "no"
    return cell(value, form) if form or value is None else text_of(value)


def text_of(value: object) -> str:
    """A value without a form of its own."""
    if value is None:
        return "unknown"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return " ".join(map(text_of, value))
    return str(value)


def gap_table(ledgers: Mapping[str, "GapLedger"]) -> Table:
    """A line per planner: the gap and its parts in percentage points."""
    seeds = len(next(iter(ledgers.values())).gap)
    title = seeds_title("accuracy lost against the lossless ideal, percentage points", seeds)
    return table([{"planner": planner, **ledger.points()} for planner, ledger in ledgers.items()], title)


def build_noted(scenario: Scenario, device: str = "cpu", dtype: str = "float64") -> Problem:
    """The problem; what is probably not meant is noted on standard error."""
    problem = build(scenario, device, dtype)
    for sentence in doubts(problem):
        note(sentence)
    return problem
