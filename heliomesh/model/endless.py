"""Plans without an end: decisions for one cycle of slots, repeated for ever.

A *cycle* is the shortest stretch of slots after which harvest laws and weights of the cost come again: one slot, a
day, the length of a replayed series, the horizon with its phases, or what has several of these. A planner is given
the problem of one cycle whose first slot follows its last (`Problem.endless`) and closes its recursions around it.
Devices that do not see each other can take turns by the clock; so a planner may ask for several short cycles in one.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pydantic import Field
from torch import Tensor

from heliomesh.model.factor import Variable
from heliomesh.model.overhead import Talk
from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import ActionPolicy, Ahead, Observation, Plan, Policy, Remembers
from heliomesh.model.problem import Problem, around_cycle, with_battery
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.section import Section

TURN_SLOTS = 12  # fewest slots of a cycle in which devices take turns by the clock; more brought nothing
_MOST_CYCLE = 20_000  # slots


class EndlessOptions(Section):
    """The option of planners that can plan without an end."""

    endless: bool = Field(
        False,
        description="plan for ever: least average cost, decisions repeat after a cycle (a day, or a few slots); "
        "false: for the scenario's slots, after which energy is worth nothing",
    )


_OptionsT = TypeVar("_OptionsT", bound=EndlessOptions)


@dataclass(frozen=True)
class Endless(ActionPolicy):
    """The policy of one cycle, repeated."""

    problem: Problem  # the one that was planned for, of any number of slots, on the plan's grid
    cycle: ActionPolicy  # for a problem of the cycle's slots

    @property
    def period(self) -> int:
        """Slots after which decisions repeat."""
        return self.cycle.problem.slots

    @property
    def looks_back(self) -> bool:  # type: ignore[override]
        """Whether the cycle's policy does."""
        return self.cycle.looks_back

    @property
    def talk(self) -> Talk | None:
        """Messages of the cycle's policy."""
        return self.cycle.talk

    @property
    def stationary(self) -> bool:
        """Whether the slot number does not matter."""
        return self.period == 1

    def action(self, slot: int, seen: Observation) -> Tensor:
        """What the cycle's policy does in this slot of the cycle."""
        return self.cycle.action(slot % self.period, seen)

    def ahead(self, slots: Sequence[int], channel_level: Tensor, weather: Tensor) -> Ahead | None:
        """What the cycle's policy prepares for these slots of the cycle."""
        return self.cycle.prepared([slot % self.period for slot in slots], channel_level, weather)

    def action_prob(self, slot: int, seen: Observation) -> Tensor:
        """Its law of actions."""
        return self.cycle.action_prob(slot % self.period, seen)

    def visible(self, device: int) -> Collection[Variable] | None:
        """What the cycle's policy looks at."""
        return self.cycle.visible(device)


class EndlessWithMemory(Endless):
    """The same of a policy that remembers earlier slots."""

    @property
    def memory_axes(self) -> tuple[str, ...]:
        """Second axes of the cycle's policy's memory."""
        return tuple(getattr(self.cycle, "memory_axes", ()))

    def recall(self, seen: Observation) -> tuple[Tensor, ...]:
        """The cycle's policy's memory."""
        return self.cycle.recall(seen) if isinstance(self.cycle, Remembers) else ()


def natural_cycle(problem: Problem) -> int:
    """Slots after which laws and weights come again; raises ScenarioError where that is unknown or far away."""
    law = problem.harvest.law
    if len(law.joule) > 1 and law.period is None:
        expected = "a law with a known period for an endless plan"
        raise ScenarioError("harvest", expected, ": harvest.cloudy_known, or a source without HarvestLaw.period")
    slots = law.period or 1
    expected = f"a cycle of harvests of at most {_MOST_CYCLE} slots for an endless plan"
    refuse(slots > _MOST_CYCLE, "slots", expected, f"value {slots}")
    return slots


def cycle_of(problem: Problem, least_slots: int = 1) -> Problem:
    """The problem of one cycle, or of as many as have ``least_slots``, whose first slot follows its last."""
    natural = natural_cycle(problem)
    return around_cycle(problem, natural * -(-least_slots // natural))


def endless_plan(
    context: PlannerContext[_OptionsT], plan: Callable[[PlannerContext[_OptionsT]], Plan], least_slots: int = 1
) -> Plan:
    """What a planner makes of a cycle, repeated."""
    return repeated(context.problem, plan(replace(context, problem=cycle_of(context.problem, least_slots))))


def repeated(problem: Problem, made: Plan) -> Plan:
    """A plan for a cycle as one without an end for the problem; costs are averages over all time."""
    cycle = made.policy
    if not isinstance(cycle, ActionPolicy):
        raise TypeError(f"policy: expected one that picks actions, actual type {type(cycle).__name__}")
    kind = EndlessWithMemory if isinstance(cycle, Remembers) else Endless
    policy = kind(with_battery(problem, cycle.problem.battery), cycle)
    repeats = "every slot is alike" if policy.period == 1 else f"it repeats after {policy.period} slots"
    return replace(made, policy=policy, notes=(*made.notes, f"no end: {repeats}"))


def one_cycle(policy: Policy) -> Policy:
    """An endless policy's own for one cycle; any other as it is."""
    return policy.cycle if isinstance(policy, Endless) else policy


def check_size(problem: Problem, policy: Policy) -> None:
    """Refuse a policy that was planned for a problem of another size."""
    planned = getattr(policy, "problem", problem)
    slots = problem.slots if isinstance(policy, Endless) else planned.slots  # a plan without an end fits any number
    pairs = ((planned, slots), (problem, problem.slots))
    shapes = [(one.num_devices, count, one.harvest.law.num_weather, len(one.actions)) for one, count in pairs]
    names = "devices, slots, weather levels and actions"
    refuse(shapes[0] != shapes[1], "plan", f"one for {shapes[1]} {names}", f"value {shapes[0]}")
