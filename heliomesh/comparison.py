"""All planners on one scenario, on common luck."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heliomesh.planning import find_planner, make_plan, planner_names
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
    names: Sequence[object] | None = None,
    episodes: int = 64,
    seed: int = 0,
    *,
    memory_gib: float | None = None,
    track: Track = untracked,
) -> Comparison:
    """Plan and simulate with every planner (or those given by name, module or function) in all their variants."""
    rows = []
    for planner in names if names is not None else planner_names():
        for options in variants(planner):
            limits = {} if memory_gib is None else {"memory_gib": memory_gib}
            for row in _rows(problem, planner, options, limits, episodes, seed, track):
                rows.append(row)
    return _with_gaps(rows, problem.grid_is_exact)


def variants(planner: object) -> tuple[dict[str, Any], ...]:
    """Option sets under which a planner is compared; its file may name several in ``VARIANTS``."""
    return find_planner(planner).variants


def _rows(
    problem: Problem,
    planner: object,
    options: dict[str, Any],
    limits: dict[str, Any],
    episodes: int,
    seed: int,
    track: Track,
) -> Iterator[Row]:
    """The planner's row; where it does not fit, its refusal and then the next smaller variant it offers."""
    found = find_planner(planner)
    accepted = {name: value for name, value in limits.items() if name in found.options.model_fields}
    label = " ".join([found.name, *(str(value) for value in options.values())])
    try:
        made = make_plan(problem, planner, options | accepted, track=track)
    except TooLargeError as error:
        yield Row(label, None, None, None, refusal=str(error))
        smaller = found.smaller(options)
        if smaller is not None:
            yield from _rows(problem, planner, smaller, limits, episodes, seed, track)
        return
    trace = simulate(problem, made, episodes, seed, track=track)
    yield Row(made.planner, made, summarise(trace), trace.cost)


def _with_gaps(rows: list[Row], grid_is_exact: bool) -> Comparison:
    """Relative gaps to the simulated optimum, else to the best lower bound, else to the best planner."""
    done = [row for row in rows if row.cost is not None]
    if not done:
        return Comparison(tuple(rows), "nothing: no planner fits")
    optimum = next((row for row in done if row.planner == "centralized"), None)
    bounds = [row.plan.lower_bound for row in done if row.plan and row.plan.lower_bound is not None]
    best_bound = max(bounds, default=None)
    if optimum is not None:
        reference, base = "the optimum" if grid_is_exact else "the grid's optimum", optimum.cost
    elif best_bound is not None:
        reference, base = "the lower bound", np.full_like(done[0].cost, best_bound)
    else:
        best = min(done, key=lambda row: float(np.mean(row.cost)) if row.cost is not None else np.inf)
        reference, base = f"the best planner ({best.planner})", best.cost
    assert base is not None
    scale = float(base.mean()) or 1.0
    with_gap = [row if row.cost is None else replace(row, gap=interval((row.cost - base) / scale)) for row in rows]
    return Comparison(tuple(with_gap), reference, best_bound)
