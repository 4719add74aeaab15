"""`heliomesh plan` and `heliomesh simulate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from heliomesh.bounds.dual import is_quick
from heliomesh.commands import options as shared
from heliomesh.commands.facts import build_noted, print_facts
from heliomesh.commands.options import flattened, option
from heliomesh.jobs.steps import network_facts, plan_facts
from heliomesh.model.policy import Plan
from heliomesh.model.problem import Problem
from heliomesh.planning import make_plan
from heliomesh.simulation.diagnostics import summarise
from heliomesh.simulation.ledger import energy_facts
from heliomesh.simulation.trace import simulate


@dataclass(frozen=True)
class PlanningOptions(shared.OutputOptions, shared.SpreadOptions, shared.PlannerSettings):
    """What is planned, where, and what is printed of it."""

    device: shared.DeviceOption = "cpu"
    dtype: shared.TypeOption = "float64"

    def made(self, scenario: str, planner: str, out: Path | None) -> tuple[Problem, Plan, dict[str, Any]]:
        """The problem, its plan, and what is known about both."""
        shared.check_target(out)
        problem = build_noted(self.scenario(scenario), self.device, self.dtype)
        spread = self.maps().get("parallel_map", map)
        bound = is_quick(problem)
        plan = make_plan(problem, planner, self.of_planner, bound=bound, parallel_map=spread, track=self.track)
        return problem, plan, network_facts(problem) | plan_facts(plan)


@flattened
def plan_command(
    scenario: shared.ScenarioArgument,
    planner: shared.PlannerArgument,
    *,
    out: Annotated[Path | None, option("Save the plan to this .safetensors file.")] = None,
    planning: PlanningOptions,
) -> None:
    """Make one plan and say what is known about it."""
    _, plan, facts = planning.made(scenario, planner, out)
    if out is not None:
        plan.save(out)
        facts["plan"] = str(out)
    print_facts(facts, planning.as_json)


@flattened
def simulate_command(
    scenario: shared.ScenarioArgument,
    planner: shared.PlannerArgument,
    *,
    sampling: shared.SamplingOptions,
    out: Annotated[Path | None, option("Save the trace to this .npz file.")] = None,
    planning: PlanningOptions,
) -> None:
    """Plan, then simulate with continuous batteries."""
    problem, plan, facts = planning.made(scenario, planner, out)
    trace = simulate(problem, plan, sampling.episodes, sampling.seed, track=planning.track)
    facts |= summarise(trace).facts() | energy_facts(trace)
    if out is not None:
        trace.save(out)
        facts["trace"] = str(out)
    print_facts(facts, planning.as_json)
