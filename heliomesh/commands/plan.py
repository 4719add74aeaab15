"""`heliomesh plan` and `heliomesh simulate`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from heliomesh.commands.facts import build_noted, ledger_facts, network_facts, print_facts, summary_facts
from heliomesh.commands.options import (
    AddressOption,
    DeviceOption,
    Engine,
    EngineOption,
    OutputOptions,
    PlannerArgument,
    PlannerOptions,
    SamplingOptions,
    ScenarioArgument,
    SetOption,
    Settings,
    TypeOption,
    check_target,
    engine_maps,
    flattened,
)
from heliomesh.jobs.steps import plan_facts
from heliomesh.planning import make_plan
from heliomesh.problem.dual import is_quick
from heliomesh.problem.policy import Plan, Track
from heliomesh.problem.problem import Problem
from heliomesh.simulation.diagnostics import summarise
from heliomesh.simulation.trace import simulate


@dataclass(frozen=True)
class PlanningOptions:
    """What is planned, and where."""

    overrides: SetOption = field(default_factory=list)
    options: PlannerOptions = field(default_factory=list)
    device: DeviceOption = "cpu"
    dtype: TypeOption = "float64"
    engine: EngineOption = Engine.local
    address: AddressOption = None
    endless: Annotated[bool, typer.Option("--endless", help="Plan for ever: the same as --option endless=true.")] = (
        False
    )

    def made(self, scenario: str, planner: str, track: Track) -> tuple[Problem, Plan]:
        """The problem and its plan."""
        settings = Settings(self.overrides, self.options)
        problem = build_noted(settings.scenario(scenario), self.device, self.dtype)
        spread = engine_maps(self.engine, self.address).get("parallel_map", map)
        options, quick = settings.of_planner, is_quick(problem)
        if self.endless:
            options["endless"] = True
        return problem, make_plan(problem, planner, options, bound=quick, parallel_map=spread, track=track)


@flattened
def plan_command(
    scenario: ScenarioArgument,
    planner: PlannerArgument,
    *,
    out: Annotated[Path | None, typer.Option("--out", help="Save the plan to this .safetensors file.")] = None,
    planning: PlanningOptions,
    output: OutputOptions,
) -> None:
    """Make one plan and say what is known about it."""
    check_target(out, "--out")
    problem, made = planning.made(scenario, planner, output.track)
    facts = network_facts(problem) | plan_facts(made)
    if out is not None:
        made.save(out)
        facts["plan"] = str(out)
    print_facts(facts, output.as_json)


@flattened
def simulate_command(
    scenario: ScenarioArgument,
    planner: PlannerArgument,
    *,
    sampling: SamplingOptions,
    out: Annotated[Path | None, typer.Option("--out", help="Save the trace to this .npz file.")] = None,
    planning: PlanningOptions,
    output: OutputOptions,
) -> None:
    """Plan, then simulate with continuous batteries."""
    check_target(out, "--out")
    problem, made = planning.made(scenario, planner, output.track)
    trace = simulate(problem, made, sampling.episodes, sampling.seed, track=output.track)
    facts = network_facts(problem) | plan_facts(made) | summary_facts(summarise(trace))
    facts |= ledger_facts(trace)
    if out is not None:
        trace.save(out)
        facts["trace"] = str(out)
    print_facts(facts, output.as_json)
