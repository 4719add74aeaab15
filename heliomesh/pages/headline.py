"""A scheme's numbers, as plain data: accuracies, costs, shares, joules, control overhead and the gap ledger.

Costs and shares of slots are those of all episodes that a comparison simulated, where it noted them; otherwise, and
for all else, those of the trained episodes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from heliomesh.bounds.dual import is_quick
from heliomesh.model.actions import action_set
from heliomesh.model.problem import build
from heliomesh.pages.colours import scheme_colour
from heliomesh.pages.run_folder import RunFolder
from heliomesh.pages.schemes import SchemeRuns, scenario_hash
from heliomesh.planning import lower_bound
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.diagnostics import interval, summarise
from heliomesh.simulation.ledger import energy_ledger
from heliomesh.simulation.trace import Trace
from heliomesh.studies.episodes import EpisodeCosts
from heliomesh.studies.gap_ledger import GapLedger, joined

Facts = dict[str, Any]
_JOULES = ("spent_joule", "harvested_joule", "overflow_joule")
_SHARES = ("participation", "sending", "delivery")  # the last one NaN where nothing was sent


def scheme_facts(
    scheme: SchemeRuns, runs: Sequence[RunFolder], bounds: Mapping[str, float], schemes: Sequence[SchemeRuns]
) -> Facts:
    """All that tables and pictures say of a scheme."""
    own = [runs[index] for index in scheme.runs]
    planner, episodes = own[0].planner, shared_episodes(own)
    namesakes = [other for other in schemes if runs[other.runs[0]].planner == planner]
    rows = [_headline(run, bounds) for run in own]
    headline = {name: _interval([row[name] for row in rows]) for name in rows[0]}
    return {
        "label": scheme.label,
        "planner": planner,
        "colour": scheme_colour(planner)._asdict(),
        "dash": namesakes.index(scheme),  # schemes of one planner share its colour
        "runs": list(scheme.runs),
        "finished": own[0].finished,
        "episodes": None if episodes is None else len(episodes.cost),  # over which costs and shares are taken
        "headline": headline if episodes is None else headline | _of_episodes(episodes),
        "ledger": _mean_ledger(own),
        "plan": _plan_facts([run.plan for run in own if run.plan]),
        "gap_ledger": _gap_ledger([run.gap_ledger for run in own]),
    }


def shared_episodes(runs: Sequence[RunFolder]) -> EpisodeCosts | None:
    """The episodes that a comparison simulated, if all runs were noted beside the same ones."""
    found = {run.episodes for run in runs}
    return found.pop() if len(found) == 1 else None


def _of_episodes(episodes: EpisodeCosts) -> dict[str, Facts | None]:
    """Headline numbers of all episodes, as `heliomesh compare` prints them."""
    bound = episodes.lower_bound
    gap = None if bound is None or bound <= 0 else _interval((np.array(episodes.cost) / bound - 1).tolist())
    shares = {name: getattr(episodes, name) for name in _SHARES}
    alone = {name: _interval([value]) for name, value in (shares | {"bound": bound}).items()}
    return {"cost": _interval(episodes.cost), "gap": gap, **alone}


def _plan_facts(plans: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Numbers of a scheme's plans, averaged where runs have plans of their own; None where none is known."""
    if not plans:
        return None
    numbers = {
        name: _interval(list({plan.get(name) for plan in plans}))  # a plan that runs share counts once
        for name, value in plans[0].items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    converged = [bool(plan["converged"]) for plan in plans if plan.get("converged") is not None]
    return numbers | {"converged": {"yes": sum(converged), "of": len(converged)}}


def _mean_ledger(runs: Sequence[RunFolder]) -> Facts | None:
    """Joules by use, over the runs that have a trace."""
    ledgers = [ledger_totals(run.trace.episode(run.episode), run.scenario) for run in runs if run.trace is not None]
    if not ledgers:
        return None
    means: Facts = {name: _interval([ledger[name] for ledger in ledgers]) for name in ledgers[0] if name != "ideal"}
    return means | {"ideal": all(ledger["ideal"] for ledger in ledgers)}


def ledger_totals(trace: Trace, scenario: Scenario) -> dict[str, float]:
    """Joules of all devices together: initial + harvested = spent + charging + leaked + overflow + stored."""
    ledger = energy_ledger(trace, scenario)
    names = [field.name.removesuffix("_joule") for field in fields(ledger)]
    totals = {name: float(getattr(ledger, f"{name}_joule").sum()) for name in (*names, "imbalance")}
    return totals | {"ideal": ledger.is_ideal}


def _gap_ledger(ledgers: Sequence[GapLedger | None]) -> Facts | None:
    """The gap to the lossless ideal and its parts in points; None where some run has no ledger."""
    known = [ledger for ledger in ledgers if ledger is not None]
    if len(known) < len(ledgers):
        return None
    return {name: mean_and_half(points) for name, points in joined(known).points().items()}


def _interval(values: Sequence[float | None]) -> Facts | None:
    """Mean, 95 % half-width and range over runs; None where some run does not know."""
    known = np.array([value for value in values if value is not None and math.isfinite(value)])
    if len(known) < len(values):
        return None
    return {**mean_and_half(known), "low": float(known.min()), "high": float(known.max())}


def mean_and_half(values: npt.NDArray[np.float64]) -> dict[str, float]:
    """Mean and 95 % half-width of independent values, as pages carry them."""
    found = interval(values)
    return {"mean": found.mean, "half": found.half_width}


def certified_bounds(runs: Sequence[RunFolder]) -> dict[str, float]:
    """A certified bound on every planner that picks the scenario's actions, by scenario, where it takes seconds."""
    # a comparison has noted its own bound, and the horizon of a network that is watched grows with every slot
    asked = [run for run in runs if run.episodes is None and run.live is None]
    found = {scenario_hash(run): _certified(run.scenario.to_toml()) for run in asked}
    return {name: bound for name, bound in found.items() if bound is not None}


@cache
def _certified(scenario: str) -> float | None:
    problem = build(Scenario.from_toml(scenario))
    return lower_bound(problem) if is_quick(problem) else None


def _headline(run: RunFolder, bounds: Mapping[str, float]) -> dict[str, float | None]:
    rows = len(run.curves.metrics["slot"])
    names = ("accuracy_mean", "accuracy_min", "accuracy_max", "average_accuracy", "consensus_distance")
    facts: dict[str, float | None] = {name: float(run.curves.metrics[name][-1]) if rows else None for name in names}
    facts |= dict.fromkeys(("cost", *_JOULES, *_SHARES))
    if run.trace is not None:
        told = summarise(run.trace.episode(run.episode))
        facts |= {"cost": told.cost.mean} | {name: getattr(told, name) for name in _SHARES}
        facts |= {name: float(getattr(run.trace, name)[run.episode].sum()) for name in _JOULES}
    bound, cost = bounds.get(scenario_hash(run)) if _picks_actions(run) else None, facts["cost"]
    facts["bound"] = bound
    facts["gap"] = cost / bound - 1 if cost is not None and bound is not None and bound > 0 else None
    return facts


def _picks_actions(run: RunFolder) -> bool:
    """Whether all powers seen, with and without training, are the scenario's: a bound speaks of no others."""
    if run.trace is None:
        return True
    powers, trained = action_set(run.scenario)
    seen, scheduled = run.trace.power_watt[run.episode], run.trace.scheduled[run.episode]
    known = [np.isin(seen, powers[trained == with_training].numpy()) for with_training in (False, True)]
    return bool(np.where(scheduled, known[1], known[0]).all())
