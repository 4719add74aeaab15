"""Whoever watches the network and plans anew where its joules deviate from the plan's.

A steward hears every device's journal, and hands it to `living/replanning.py` slot by slot. After an alarm it
plans for the new belief, and sends each device its own tables, signed by the operator. Devices change over in
the same slot. A plan for fewer links numbers channels anew: none is sent.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from heliomesh.agents.deploy import plan_name
from heliomesh.agents.wire import Sender
from heliomesh.interop.export_tables import PlanTables, tabulate
from heliomesh.living.answer import Answering
from heliomesh.living.conditions import Conditions
from heliomesh.living.replanning import Replanning, Watch, replanning
from heliomesh.planning import make_plan
from heliomesh.problem.policy import Noticed, Observation
from heliomesh.problem.problem import Problem
from heliomesh.simulation.slot_loop import Slot

Send = Callable[[int, tuple[bytes, ...]], None]


@dataclass(frozen=True)
class NewPlan:
    """A plan that devices are to follow."""

    name: str
    tables: PlanTables
    belief: Conditions


@dataclass
class Steward:
    """Watches one network from its first slot on."""

    problem: Problem
    policy: Replanning
    plan: NewPlan | None = None  # the newest, where it is not the first
    _believed: Conditions = field(default_factory=Conditions)
    _before: Noticed | None = None

    @classmethod
    def of(cls, problem: Problem, planner: str, options: Mapping[str, Any], watch: Watch | None = None) -> "Steward":
        """A steward of the plan that was deployed."""
        answering = Answering(problem, planner, options)
        first = answering.with_plan(Conditions(), make_plan(problem, planner, options, bound=False))
        return cls(problem, replanning(answering, first, watch or Watch()))

    def look(self, number: int, slot: Slot) -> NewPlan | None:
        """Look at a slot of all devices; a new plan where one is called for."""
        seen = Observation(
            slot.channel_level, slot.battery_joule, slot.weather, torch.zeros_like(slot.battery_joule), self._before
        )
        self.policy.decide(number, seen)
        self._before = Noticed(slot.harvested_joule, slot.delivered, slot.scheduled)
        belief = self.policy.beliefs[0]
        if belief == self._believed or belief.links_off or belief.away:
            return None
        self._believed = belief
        tables = tabulate(self.policy.answer_in(0).plan)
        before = tabulate(self.policy.first.plan) if self.plan is None else self.plan.tables
        if tables.model_dump(include={"devices"}) == before.model_dump(include={"devices"}):
            return None  # the belief is another, and nothing else
        self.plan = NewPlan(plan_name(self.problem, tables), tables, belief)
        return self.plan


def send_plan(
    plan: NewPlan, first_slot: int, devices: Iterable[int], sender: Sender, now_second: float, send: Send
) -> None:
    """Send devices their own tables, in force from a slot on."""
    for device in devices:
        own = plan.tables.model_copy(update={"devices": (plan.tables.devices[device],)})
        content = own.model_dump_json().encode()
        send(device, sender.new_plan(device, first_slot, now_second, content))
