"""Plan by name: find the planner's file, check its options, time it."""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heliomesh import catalog
from heliomesh.planners import receiver
from heliomesh.problem.policy import ParallelMap, Plan, Track, untracked
from heliomesh.problem.problem import Problem, optimistic
from heliomesh.scenario import ScenarioError, validated
from heliomesh.streams import stream

PLANNER_CATALOG = "heliomesh.planners"


def planner_names() -> list[str]:
    """Names of all planners."""
    return catalog.names(PLANNER_CATALOG)


def plan(problem: Problem, planner: str, *, bound: bool | None = None, **options: Any) -> Plan:
    """Make a plan; options are those of the planner's file, checked before any work is done.

    ``bound``: whether a lower bound is added where the planner itself gives none; by default if it takes seconds. A
    policy that picks powers outside the action set gets none.
    """
    return make_plan(problem, planner, options, bound=bound)


def make_plan(
    problem: Problem,
    planner: str,
    options: Mapping[str, Any],
    *,
    bound: bool | None = None,
    previous: Plan | None = None,
    parallel_map: ParallelMap = map,
    track: Track = untracked,
) -> Plan:
    """Like `plan`, with a way to work in parallel and a progress display.

    A planner whose file has ``replan`` starts from the ``previous`` plan where one is given; others start anew.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem: expected a Problem, as heliomesh.build gives, actual value {problem!r:.80}")
    try:
        module = catalog.find(PLANNER_CATALOG, planner)
    except catalog.UnknownVariantError as error:
        raise ScenarioError("planner", str(error)) from None
    settings = validated(module.Options, options, f"{planner} option")
    started = time.perf_counter()
    made: Plan
    if previous is not None and starts_warm(planner):
        made = module.replan(problem, settings, previous, parallel_map=parallel_map, track=track)
    else:
        rng = stream(problem.scenario.seed, "policy")
        made = module.plan(problem, settings, rng, parallel_map=parallel_map, track=track)
    made = replace(made, seconds=time.perf_counter() - started)
    wanted = made.lower_bound is None and made.picks_actions and bound is not False
    if wanted and (bound or receiver.is_quick(problem)):
        made = replace(made, lower_bound=lower_bound(problem, track))
    for name, value in (("expected cost", made.expected_cost), ("lower bound", made.lower_bound)):
        if value is not None and not math.isfinite(value):
            raise ScenarioError(
                name, f"expected a finite number, actual value {value:g}; check the scenario's numbers"
            )
    return made


def starts_warm(planner: str) -> bool:
    """Whether a planner can start from an earlier plan."""
    return hasattr(catalog.find(PLANNER_CATALOG, planner), "replan")


def lower_bound(problem: Problem, track: Track = untracked) -> float:
    """Certified lower bound on the expected cost per slot of every policy on the planning grid; computed once.

    It speaks of policies that pick from the problem's action set. Why it is valid is said in
    `heliomesh/planners/receiver.py` and `heliomesh/problem/dual.py`.
    """
    known = problem.remembered.get("lower bound")
    if known is None:
        problem.remembered["lower bound"] = known = receiver.least_cost(problem, track)
    return known


def continuous_bound(problem: Problem, track: Track = untracked) -> float | None:
    """Certified lower bound on the expected cost per slot of the simulated process with its continuous batteries.

    It speaks of policies that pick from the problem's action set. Where batteries never leave the grid it is
    `lower_bound`. Elsewhere it is a bound by prices on a fine grid that rounds in the devices' favour; computed once.
    None where harvests are replayed from a random start: planners know their marginal law only.
    """
    if not problem.law_is_simulated:
        return None
    if problem.grid_is_exact:
        return lower_bound(problem, track)
    known = problem.remembered.get("continuous bound")
    if known is None:
        options = receiver.Options(largest_table=0, channel_steps=0)
        known = receiver.least_cost(optimistic(problem, _refinement(problem)), track, options)
        problem.remembered["continuous bound"] = known
    return known


def _refinement(problem: Problem) -> int:
    """Fine steps per step of the plan's grid: as many as kernels of moderate size allow."""
    law = problem.harvest.law
    for refinement in (32, 16, 8, 4, 2):
        states = law.num_weather * (max(problem.battery.levels - 1, 1) * refinement + 1)
        if len(law.joule) * problem.num_devices * float(states) ** 2 <= _KERNEL_ENTRIES:
            return refinement
    return 1


_KERNEL_ENTRIES = 4_000_000
