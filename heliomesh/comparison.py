"""All planners on one scenario, on common luck."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heliomesh import catalog
from heliomesh.planning import PLANNER_CATALOG, make_plan, planner_names
from heliomesh.problem.policy import Plan, Track, untracked
from heliomesh.problem.problem import Problem
from heliomesh.problem.size import TooLargeError
from heliomesh.simulation.diagnostics import Interval, Summary, interval, summarise
from heliomesh.simulation.trace import simulate


@dataclass(frozen=True)
class Row:
    """One planner's result; ``refusal`` instead of results where it did not fit."""

    planner: str
    plan: Plan | None
    summary: Summary | None
    cost: np.ndarray[tuple[int], np.dtype[np.float64]] | None  # (episode,)
    refusal: str = ""
    gap: Interval | None = None  # relative to the reference, paired by episode


@dataclass(frozen=True)
class Comparison:
    """Rows in the order planned, and what their gaps are measured against."""

    rows: tuple[Row, ...]
    reference: str
    lower_bound: float | None = None  # best of all planners', for the process on the planning grid


def compare(
    problem: Problem,
    names: Sequence[str] | None = None,
    episodes: int = 64,
    seed: int = 0,
    *,
    memory_gib: float | None = None,
    track: Track = untracked,
) -> Comparison:
    """Plan and simulate with every planner (or the named ones) in all their variants."""
    rows = []
    for planner in names if names is not None else planner_names():
        for options in variants(planner):
            limits = {} if memory_gib is None else {"memory_gib": memory_gib}
            for row in _rows(problem, planner, options, limits, episodes, seed, track):
                rows.append(row)
    return _with_gaps(rows, problem.grid_is_exact)


def variants(planner: str) -> tuple[dict[str, Any], ...]:
    """Option sets under which a planner is compared; its file may name several in ``VARIANTS``."""
    found: tuple[dict[str, Any], ...] = getattr(catalog.find(PLANNER_CATALOG, planner), "VARIANTS", ({},))
    return found


def _rows(
    problem: Problem,
    planner: str,
    options: dict[str, Any],
    limits: dict[str, Any],
    episodes: int,
    seed: int,
    track: Track,
) -> Iterator[Row]:
    """The planner's row; where it does not fit, its refusal and then the next smaller variant it offers."""
    module = catalog.find(PLANNER_CATALOG, planner)
    accepted = {name: value for name, value in limits.items() if name in module.Options.model_fields}
    label = " ".join([planner, *(str(value) for value in options.values())])
    try:
        made = make_plan(problem, planner, options | accepted, track=track)
    except TooLargeError as error:
        yield Row(label, None, None, None, refusal=str(error))
        smaller = getattr(module, "smaller", lambda _: None)(options)
        if smaller is not None:
            yield from _rows(problem, planner, smaller, limits, episodes, seed, track)
        return
    trace = simulate(problem, made, episodes, seed, track=track)
    yield Row(made.planner, made, summarise(trace), trace.cost)


def _with_gaps(rows: list[Row], grid_is_exact: bool) -> Comparison:
    """Relative gaps to the simulated optimum, else to the best lower bound, else to the best planner."""
    costs = [(row.planner, row.cost) for row in rows if row.cost is not None]
    if not costs:
        return Comparison(tuple(rows), "nothing: no planner fits")
    optimum = next((cost for planner, cost in costs if planner == "centralized"), None)
    bounds = [row.plan.lower_bound for row in rows if row.plan and row.plan.lower_bound is not None]
    best_bound = max(bounds, default=None)
    if optimum is not None:
        reference, base = "the optimum" if grid_is_exact else "the grid's optimum", optimum
    elif best_bound is not None:
        reference, base = "the lower bound", np.full_like(costs[0][1], best_bound)
    else:
        planner, base = min(costs, key=lambda entry: float(np.mean(entry[1])))
        reference = f"the best planner ({planner})"
    scale = float(base.mean()) or 1.0
    with_gap = [row if row.cost is None else replace(row, gap=interval((row.cost - base) / scale)) for row in rows]
    return Comparison(tuple(with_gap), reference, best_bound)
