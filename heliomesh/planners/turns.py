"""Turns: a device trains when its battery pays, and sends in its turn of a fixed cycle.

The turns are a two-hop colouring of the graph: devices of one colour share no receiver, so no packet meets another.
Turn c of C comes in the slots t with t mod C = c.

- In its turn a device sends first. It takes the largest power that its battery pays for, up to its own, and trains
  too if both are paid for. A battery that cannot pay for sending trains if it can.
- Out of its turn it trains if the battery pays.
- In the last ``last_slots`` slots it only sends, in its turn: the models agree before the end.

Coupled actions train and send together, so a device does both in its turn, also in the last slots. Out of its turn it
idles, or trains with ``energy.train_only = true``.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import Observation, OwnStatePolicy, Plan
from heliomesh.model.problem import Problem
from heliomesh.scenario.section import Positive, Section
from heliomesh.slot.preference import by_power, chosen_power, first_affordable, sending_actions


class Options(Section):
    """Options of the turns."""

    power_watt: Positive | None = Field(
        None, description="power of sending [W], one of energy.powers_watt; default: the largest"
    )
    last_slots: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        0, description="slots at the end in which devices only send, in their turns"
    )


@dataclass(frozen=True)
class Turns(OwnStatePolicy):
    """What devices prefer in their turns and out of them."""

    problem: Problem
    turn: Tensor  # (device,)
    num_turns: int
    last_slots: int
    prefers: Tensor  # (before or in the last slots, out of turn or in turn, device, rank) actions, best first

    def action(self, slot: int, seen: Observation) -> Tensor:
        """First affordable preference of every device."""
        late = int(slot >= self.problem.slots - self.last_slots)
        out, own = (first_affordable(self.problem, seen.battery_joule, listed) for listed in self.prefers[late])
        return torch.where(self.turn == slot % self.num_turns, own, out)


def plan(context: PlannerContext[Options]) -> Plan:
    """The colours are the turns."""
    problem = context.problem
    turn = torch.tensor(problem.colour, device=problem.device)
    return Plan("turns", turns_of(problem, context.options, turn, max(problem.colour) + 1))


def turns_of(problem: Problem, options: Options, turn: Tensor, num_turns: int) -> Turns:
    """The policy of devices whose turns (device,) are known."""
    most_watt = torch.full_like(problem.compute_joule, chosen_power(problem, options.power_watt, "turns"))
    return Turns(problem, turn, num_turns, options.last_slots, preferences(problem, most_watt))


def preferences(problem: Problem, most_watt: Tensor) -> Tensor:
    """Lists under the largest power [W] (device,); (before or in the last slots, out of or in turn, device, rank)."""
    sends, trains = sending_actions(problem, most_watt)
    only_sends = sends & ~problem.actions.trained if problem.actions.apart else sends
    nothing = torch.zeros_like(sends)
    phases = [[trains, sends | trains], [nothing, only_sends]]
    return by_power(problem, torch.stack([torch.stack(phase) for phase in phases]))


KNOBS = {"power_watt": "energy.powers_watt", "last_slots": (0, 6, 12, 20)}
