"""Plan by name: find the planner's file, check its options, time it."""

import time
from dataclasses import replace
from typing import Any

from heliomesh import catalog
from heliomesh.problem.policy import ParallelMap, Plan, Track, untracked
from heliomesh.problem.problem import Problem
from heliomesh.scenario import ScenarioError, validated
from heliomesh.streams import stream

PLANNER_CATALOG = "heliomesh.planners"


def planners() -> list[str]:
    """Names of all planners."""
    return catalog.names(PLANNER_CATALOG)


def plan(
    problem: Problem,
    planner: str,
    *,
    parallel_map: ParallelMap = map,
    track: Track = untracked,
    **options: Any,
) -> Plan:
    """Make a plan; options are those of the planner's file, checked before any work is done."""
    try:
        module = catalog.find(PLANNER_CATALOG, planner)
    except catalog.UnknownVariantError as error:
        raise ScenarioError("planner", str(error)) from None
    settings = validated(module.Options, options, f"{planner} option")
    started = time.perf_counter()
    rng = stream(problem.scenario.seed, "policy")
    made: Plan = module.plan(problem, settings, rng, parallel_map=parallel_map, track=track)
    return replace(made, seconds=time.perf_counter() - started)
