"""What commands print: facts by name, as a table for people or as JSON for programs."""

import json
import math
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from heliomesh.commands.terminal import console, say, tell
from heliomesh.durable import without_nan
from heliomesh.problem.doubts import doubts
from heliomesh.problem.problem import Problem, build
from heliomesh.scenario import Scenario
from heliomesh.simulation.diagnostics import Summary
from heliomesh.simulation.ledger import dark_slots, energy_ledger
from heliomesh.simulation.trace import Trace


def network_facts(problem: Problem) -> dict[str, Any]:
    """What a scenario amounts to."""
    scarcity = problem.scarcity()
    facts = {
        "scenario": problem.scenario.name,
        "hash": problem.scenario.content_hash[:12],
        "devices": problem.num_devices,
        "diameter": problem.topology.diameter,
        "scarcity": float(scarcity.mean()),
    }
    if problem.scenario.energy.battery_levels is None:  # planners choose their own grids
        return facts
    return facts | {"spending rounded up by at most": f"{max(problem.rounding_excess(), 0.0):.0%}"}


def summary_facts(summary: Summary) -> dict[str, Any]:
    """What a simulation showed."""
    return {
        "cost": summary.cost.mean,
        **({} if math.isnan(summary.cost.half_width) else {"cost, 95 % half-width": summary.cost.half_width}),
        "participation": summary.participation,
        "sending": summary.sending,
        "delivery": summary.delivery,
        "update loss per device": [float(x) for x in summary.update_loss],
        "update loss spread": summary.update_loss_spread,
        "overflow share": summary.overflow_share,
        "mean battery [J]": summary.mean_battery_joule,
    }


def ledger_facts(trace: Trace) -> dict[str, Any]:
    """Where the energy went, per episode, if anything was lost; and what the books fail to explain."""
    ledger = energy_ledger(trace)
    facts: dict[str, Any] = {}
    if not ledger.is_ideal:
        totals = {where: getattr(ledger, f"{part}_joule").sum(1) for part, where in _WHERE.items()}
        facts = {f"{where} [J]": float(joule.mean()) for where, joule in totals.items()}
        facts["dark share"] = float(dark_slots(trace).mean())
    return facts | {"energy ledger imbalance [J], largest": float(abs(ledger.imbalance_joule).max())}


_WHERE = {
    "training": "spent on training",
    "sending": "spent on sending",
    "standby": "spent on standing by",
    "converter": "lost in the converter",
    "charging": "lost in charging",
    "leaked": "leaked",
}


def print_facts(facts: dict[str, Any], as_json: bool) -> None:
    """Print facts in two columns, or as JSON."""
    if as_json:
        print_json(facts)
        return
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(name, text_of(value))
    console().print(table)


def text_of(value: object) -> str:
    """A value in a table."""
    if value is None:
        return "unknown"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return " ".join(map(text_of, value))
    return str(value)


def number_table(title: str, first: str, *headings: str) -> Table:
    """An empty table with a column of names and columns of numbers."""
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def print_json(value: object) -> None:
    """Print one JSON value."""
    say(json.dumps(without_nan(value), indent=2), lines=True)


def build_noted(scenario: Scenario, device: str = "cpu", dtype: str = "float64") -> Problem:
    """The problem; what is probably not meant is noted on standard error."""
    problem = build(scenario, device, dtype)
    for sentence in doubts(problem):
        tell(f"note: {sentence}")
    return problem


def remarks(problem: Problem) -> list[str]:
    """What is valid but probably not meant, or worth knowing of the grid and the data."""
    found = doubts(problem)
    if problem.scenario.energy.battery_levels is not None and problem.rounding_excess() > _COARSE:
        found.append(
            f"energy.battery_levels rounds spending up by as much as {problem.rounding_excess():.0%} where "
            "planners do not interpolate; leave it out, and every planner chooses its own grid"
        )
    return [*found, *problem.harvest.law.remarks]


_COARSE = 0.35  # rounding beyond which plans visibly suffer
