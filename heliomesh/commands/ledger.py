"""The gap ledger as commands print it."""

import math
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from heliomesh.commands.facts import number_table
from heliomesh.pages.tables import interval_text
from heliomesh.simulation.diagnostics import Interval
from heliomesh.studies.gap_ledger import GapLedger


def ledger_table(ledgers: Mapping[str, GapLedger]) -> Table:
    """A line per planner: the gap and its parts in percentage points."""
    first = next(iter(ledgers.values()))
    title = "accuracy lost against the lossless ideal, percentage points"
    title += ", 95 % intervals" if len(first.gap) > 1 else ""
    table = number_table(title, "planner", *first.intervals())
    for planner, ledger in ledgers.items():
        table.add_row(planner, *map(_points, ledger.intervals().values()))
    return table


def _points(value: Interval) -> str:
    return f"{value.mean:+.2f}" if math.isnan(value.half_width) else interval_text(value, "+.2f")


def ledger_facts(ledger: GapLedger) -> dict[str, Any]:
    """The ideal's accuracy, and the gap and its parts in percentage points, by seed."""
    ideal = {"accuracy of the ideal": ledger.ideal.tolist()}
    return ideal | {name: points.tolist() for name, points in ledger.points().items()}
