"""The same small search for every scheme, on training samples that are held out and on seeds of their own.

Each knob of a scheme is turned once, in the order of its file's ``KNOBS``: all its values are tried with the others
as they stand, and the best one stays. What is best is the mean device's accuracy at the end, over validation seeds.
Schemes without a knob for it also try agreement phases. Published numbers use the test set and other seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

from heliomesh.common.arguments import NOT_EMPTY, Count, Probability, checked
from heliomesh.common.catalog import CodeOrName
from heliomesh.common.streams import VALIDATION_SEED
from heliomesh.jobs.scheme import AGREE, Scheme, scheme_of
from heliomesh.jobs.store import Store
from heliomesh.learning.run import TrainingError
from heliomesh.model.problem import Problem, built_like
from heliomesh.planning import find_planner
from heliomesh.scenario.scenario import Scenario
from heliomesh.studies.compare import compare
from heliomesh.studies.results import finals

_AGREE_SLOTS = (0, 6, 12)

Knob = tuple[str, tuple[Any, ...]]  # an option, "agree" or a path of the scenario, and the values to try


@dataclass(frozen=True)
class Tuned:
    """What the search chose for a scheme, and what it tried: mean accuracy by scheme."""

    scheme: Scheme
    tried: Mapping[str, float]


@checked
def tune(
    problem: Problem,
    schemes: Annotated[Sequence[CodeOrName | Scheme], NOT_EMPTY],
    seeds: Count = 3,
    *,
    validation: Probability = 0.1,
    store: Store | str | Path | None = None,
    **settings: Any,
) -> list[Tuned]:
    """Turn every knob of every scheme once; all schemes train together, with common random numbers.

    Parameters
    ----------
    problem
        What is planned for.
    schemes
        What is tuned, see `jobs/scheme.py`; what they say themselves is not turned.
    seeds
        Validation seeds.
    validation
        Share of the training samples that is held out and scored.
    store
        Where plans, traces and runs are kept.
    **settings
        Fields of `TrainSettings` and of `Execution`, such as ``device``, ``track`` or ``observer``.

    Returns
    -------
    list of Tuned
        One per scheme, in their order.
    """
    scenario = problem.scenario.override({"learning.validation": validation})
    held_out = built_like(problem, scenario)
    first = [scheme.named() for scheme in map(scheme_of, schemes)]
    chosen, score = list(first), dict[str, float]()
    every: list[list[Scheme]] = [[] for _ in first]
    for turned in zip_longest(*(knobs(scheme, scenario) for scheme in first)):
        options = [_candidates(scheme, knob) for scheme, knob in zip(chosen, turned, strict=True)]
        for tried, more in zip(every, options, strict=True):
            tried.extend(more)
        absent = {one.label: one for tried in options for one in tried if one.label not in score}
        if absent:
            score |= _scored(held_out, list(absent.values()), seeds, store, settings)
        chosen = [max(tried, key=lambda one: score[one.label]) for tried in options]
    return [
        Tuned(scheme, {one.label: score[one.label] for one in tried})
        for scheme, tried in zip(chosen, every, strict=True)
    ]


def knobs(scheme: Scheme, scenario: Scenario) -> list[Knob]:
    """What may be turned: the planner's knobs and an agreement phase, but for what the scheme says itself."""
    found = {}
    for name, values in find_planner(scheme.planner).knobs.items():
        if isinstance(values, str):  # those that stand at a path of the scenario, without zero
            section, _, field = values.partition(".")
            values = tuple(value for value in getattr(getattr(scenario, section), field) if value)
        found[name] = values
    if "last_slots" not in found:
        found[AGREE] = tuple(slots for slots in _AGREE_SLOTS if slots < scenario.slots)
    said = {*scheme.options, *scheme.changes, *([AGREE] if scheme.agree else [])}
    return [(name, values) for name, values in found.items() if name not in said]


def _candidates(scheme: Scheme, knob: Knob | None) -> list[Scheme]:
    """The scheme as it stands, and with every value of the knob."""
    found, (name, values) = [scheme], knob or ("", ())
    for value in values:
        turned: dict[str, Any] = {AGREE: value}
        if name != AGREE:
            part = "changes" if "." in name else "options"
            turned = {part: {**getattr(scheme, part), name: value}}
        found.append(replace(scheme, **turned).named())
    return found


def _scored(
    problem: Problem, schemes: list[Scheme], seeds: int, store: Store | str | Path | None, settings: Mapping[str, Any]
) -> dict[str, float]:
    """Mean accuracy at the end of every scheme; a scheme that fails or does not fit is worth nothing."""
    work = {"evaluate_every": problem.slots, **settings}
    found = compare(problem, schemes, seeds, VALIDATION_SEED, certify=False, train=seeds, store=store, **work)
    TrainingError.when(not any(row.runs for row in found.rows), " ".join(found.absences()), "")
    trained = [row for row in found.rows if row.runs and row.scheme in schemes]  # not what a planner fell back to
    scored = {row.scheme.label: float(finals(row.runs, "accuracy_mean").mean()) for row in trained}
    return dict.fromkeys((scheme.label for scheme in schemes), 0.0) | scored
