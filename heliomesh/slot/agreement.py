"""Agreement before a deadline: whatever a plan does, in the last slots devices only send, in turns.

The average of the models is better than the models (the devices disagree), and a device that trains up to the last
slot disagrees most. So in the last A slots before each deadline nobody trains. Device j sends in the slots t with
t mod C = c_j, where c is a two-hop colouring with C colours: no two packets meet at a receiver. It sends at the
largest power that its battery pays for. Before these slots the plan decides as it would alone.

Sending without training is an action of its own, also where the plan's actions are coupled; no bound speaks of it.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from heliomesh.model.overhead import Talk
from heliomesh.model.policy import Decision, Observation, Plan, Policy, Remembers, decided
from heliomesh.model.problem import Problem
from heliomesh.physics.battery import pays
from heliomesh.scenario.errors import refuse
from heliomesh.slot.learning_model import slots_to_deadline
from heliomesh.slot.preference import sending_powers


@dataclass(frozen=True)
class Agreeing:
    """A policy that wears the wrapper."""

    problem: Problem
    worn_by: Policy
    slots: int  # A

    def decide(self, slot: int, seen: Observation) -> Decision:
        """The policy's own decision, but in the last slots."""
        if slot not in self.quiet:
            return decided(self.problem, self.worn_by, slot, seen)
        paid = pays(seen.battery_joule.unsqueeze(-1), self._needed_joule)  # (batch, device, power), cheapest first
        watt = torch.cat([self._powers.new_zeros(1), self._powers])[paid.sum(-1)]
        in_turn = self._turn == slot % (int(self._turn.max()) + 1)
        return Decision(watt * in_turn, torch.zeros_like(paid[..., 0]))

    @property
    def talk(self) -> Talk | None:
        """Messages of the policy, before the last slots."""
        return getattr(self.worn_by, "talk", None)

    @cached_property
    def quiet(self) -> frozenset[int]:
        """The last slots before deadlines: turns need no messages."""
        return frozenset(np.flatnonzero(slots_to_deadline(self.problem) < self.slots).tolist())

    @cached_property
    def _turn(self) -> Tensor:
        """c; (device,)."""
        return torch.tensor(self.problem.colour, device=self.problem.device)

    @cached_property
    def _powers(self) -> Tensor:
        """Those of the scenario but 0, rising [W]; (power,)."""
        return sending_powers(self.problem)

    @cached_property
    def _needed_joule(self) -> Tensor:
        """What a battery must hold to send and do nothing else [J]; (device, power)."""
        watt = self._powers.expand(self.problem.num_devices, -1).T
        return self.problem.consumption.slot_joule(watt, torch.zeros_like(watt, dtype=torch.bool)).T


@dataclass(frozen=True)
class AgreeingWithMemory(Agreeing):
    """The same around a policy that remembers earlier slots."""

    @property
    def memory_axes(self) -> tuple[str, ...]:
        """Second axes of the policy's memory."""
        return tuple(getattr(self.worn_by, "memory_axes", ()))

    def recall(self, seen: Observation) -> tuple[Tensor, ...]:
        """The policy's memory."""
        return self.worn_by.recall(seen) if isinstance(self.worn_by, Remembers) else ()


def agreed(problem: Problem, plan: Plan, slots: int) -> Plan:
    """The plan with an agreement phase of so many slots before each deadline; 0: the plan as it is.

    What is known of the plan's cost and bound does not hold for it. Raises ScenarioError where it is too long.
    """
    if slots == 0:
        return plan
    refuse(not 0 < slots <= problem.slots, "agree", f"0 to {problem.slots} slots", f"value {slots}")
    expected = "fewer slots than lie between deadlines, so that somebody trains"
    refuse((slots_to_deadline(problem) < slots).all(), "agree", expected, f"value {slots}")
    kind = AgreeingWithMemory if isinstance(plan.policy, Remembers) else Agreeing
    policy, name = kind(problem, plan.policy, slots), f"{plan.planner}+agree={slots}"
    return replace(plan, planner=name, policy=policy, lower_bound=None, expected_cost=None)
