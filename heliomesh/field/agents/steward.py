"""Whoever watches the network and plans anew where its joules deviate from the plan's.

A steward hears every device's journal, and hands it to `living/replanning.py` slot by slot. After an alarm it
plans for the new belief, and sends each device its own tables, signed by the operator. Devices change over in
the same slot. A device whose packets stay away is planned without, until it is heard again.

It may begin in any slot. Sums of evidence start there, and are never larger than those of a longer watch: false
alarms are as rare. In slots that are left out they stand still.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from heliomesh.common.durable import json_sha256
from heliomesh.field.agents.folder import Belief, SentPlan
from heliomesh.field.agents.wire import Sender
from heliomesh.field.living.conditional_plan import Answering
from heliomesh.field.living.conditions import Conditions
from heliomesh.field.living.detector import Watch
from heliomesh.field.living.replanning import Replanning
from heliomesh.interop.export_tables import PlanTables, tabulate
from heliomesh.model.policy import Noticed, Observation
from heliomesh.model.problem import Problem
from heliomesh.planning import make_plan
from heliomesh.simulation.slot_loop import Slot

Send = Callable[[int, tuple[bytes, ...]], None]


@dataclass(frozen=True)
class NewPlan:
    """A plan that devices are to follow."""

    name: str
    tables: PlanTables
    belief: Conditions

    @classmethod
    def of(cls, problem: Problem, tables: PlanTables, belief: Conditions) -> "NewPlan":
        """Named after all that devices are told of it."""
        told = Belief.of(belief).model_dump(mode="json")
        devices = tables.model_dump(mode="json", include={"devices"})
        return cls(json_sha256([problem.scenario.content_hash, devices, told]), tables, belief)


@dataclass
class Steward:
    """Watches one network from any slot on."""

    problem: Problem
    policy: Replanning
    plan: NewPlan | None = None  # the newest, where it is not the first
    cause: str = ""  # what the last alarm spoke of
    _believed: Conditions = field(default_factory=Conditions)
    _before: tuple[int, Noticed] | None = None  # the slot that was looked at last
    _unheard: frozenset[int] = frozenset()

    @classmethod
    def of(cls, problem: Problem, planner: str, options: Mapping[str, Any], watch: Watch | None = None) -> "Steward":
        """A steward of the plan that was deployed."""
        answering = Answering(problem, planner, options)
        first = answering.with_plan(Conditions(), make_plan(problem, planner, options, bound=False))
        return cls(problem, Replanning(answering, first, replace(watch or Watch(), metered=True)))

    def look(
        self,
        number: int,
        slot: Slot,
        measured_joule: Tensor | None = None,
        unheard: frozenset[int] = frozenset(),
    ) -> NewPlan | None:
        """Look at a slot of all devices, a later one than before; a new plan where one is called for.

        ``measured_joule`` (1, device) is what meters say was spent, NaN where there are none. Of devices that are
        ``unheard`` nothing is known, but that no packet came to them.
        """
        silent = torch.zeros_like(slot.scheduled)
        silent[:, sorted(unheard)] = True
        level = slot.channel_level.clone()
        level[:, [site for device in unheard for site in self.problem.sites_into(device)]] = -1
        draws = torch.zeros_like(slot.battery_joule)
        before, noticed = self._before or (-1, None)
        told = noticed if before == number - 1 else None
        self.policy.decide(number, Observation(level, slot.battery_joule, slot.weather, draws, told))
        back = (self._unheard - unheard) & self.policy.beliefs[0].away
        if back:
            self.policy.revive(0, back, number)
            self.cause = f"life of {', '.join(map(str, sorted(back)))}"
        elif self.policy.alarms[0]:
            self.cause = self.policy.alarms[0][-1].cause
        harvested = torch.where(silent, torch.nan, slot.harvested_joule)
        ratio = self._spent_ratio(slot, measured_joule)
        self._before = number, Noticed(harvested, slot.delivered, slot.scheduled, ratio)
        self._unheard = unheard
        return self._changed()

    def _changed(self) -> NewPlan | None:
        """The plan of another belief than the one before."""
        belief = self.policy.beliefs[0]
        if belief == self._believed:
            return None
        self._believed = belief
        found = NewPlan.of(self.problem, tabulate(self.policy.answer_in(0).plan), belief)
        before = self.plan or NewPlan.of(self.problem, tabulate(self.policy.first.plan), Conditions())
        if found.name == before.name:
            return None  # the belief is another, and what devices do is the same
        self.plan = found
        return found

    def _spent_ratio(self, slot: Slot, measured_joule: Tensor | None) -> Tensor:
        """Measured over planned joules, as the scenario plans them; (1, device), NaN where there is no meter."""
        used = self.problem.consumption
        planned = used.drawn_joule(slot.power_watt, slot.scheduled) + used.drain_joule
        measured = torch.full_like(planned, torch.nan) if measured_joule is None else measured_joule
        return torch.where(planned > 0, measured / planned, torch.nan)


def send_plan(
    plan: NewPlan, first_slot: int, devices: Iterable[int], sender: Sender, now_second: float, send: Send
) -> None:
    """Send devices their own tables, in force from a slot on."""
    for device in devices:
        own = plan.tables.model_copy(update={"devices": (plan.tables.devices[device],)})
        belief = Belief.of(plan.belief).told_to(device)
        content = SentPlan(tables=own, belief=belief).model_dump_json().encode()
        send(device, sender.new_plan(device, first_slot, now_second, content))
