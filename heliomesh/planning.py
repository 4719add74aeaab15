"""Plan by name: find the planner's file, check its options, time it."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heliomesh import catalog
from heliomesh.problem.policy import ParallelMap, Plan, Track, untracked
from heliomesh.problem.problem import Problem
from heliomesh.scenario import ScenarioError, validated
from heliomesh.streams import stream

PLANNER_CATALOG = "heliomesh.planners"


def planner_names() -> list[str]:
    """Names of all planners."""
    return catalog.names(PLANNER_CATALOG)


def plan(problem: Problem, planner: str, **options: Any) -> Plan:
    """Make a plan; options are those of the planner's file, checked before any work is done."""
    return make_plan(problem, planner, options)


def make_plan(
    problem: Problem,
    planner: str,
    options: Mapping[str, Any],
    *,
    parallel_map: ParallelMap = map,
    track: Track = untracked,
) -> Plan:
    """Like `plan`, with a way to work in parallel and a progress display."""
    try:
        module = catalog.find(PLANNER_CATALOG, planner)
    except catalog.UnknownVariantError as error:
        raise ScenarioError("planner", str(error)) from None
    settings = validated(module.Options, options, f"{planner} option")
    started = time.perf_counter()
    rng = stream(problem.scenario.seed, "policy")
    made: Plan = module.plan(problem, settings, rng, parallel_map=parallel_map, track=track)
    return replace(made, seconds=time.perf_counter() - started)
