"""Frames: devices that share a receiver never send in the same slot, and after everyone's turn all may rest."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from heliomesh.model.factor import Variable, energy
from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import ActionPolicy, Observation, Plan
from heliomesh.model.problem import Problem
from heliomesh.scenario.section import Section


class Options(Section):
    """Options of the frame."""

    rest: Annotated[int, Field(ge=0)] = Field(0, description="slots without any sender after everyone's turn")


@dataclass(frozen=True)
class Frames(ActionPolicy):
    """The colours of the graph send one after the other, at the largest power their batteries pay for."""

    problem: Problem
    colour: Tensor  # (device,) devices of one colour share no receiver
    rest: int

    def action(self, slot: int, seen: Observation) -> Tensor:
        """Last affordable action of the colour whose turn it is, idle (0) for the others; (batch, device)."""
        actions = self.problem.actions
        affordable = self.problem.battery.affordable(seen.battery_joule, actions.spent_joule)
        largest = (affordable * torch.arange(1, len(actions) + 1, device=self.problem.device)).argmax(-1)
        turn = slot % (int(self.colour.max()) + 1 + self.rest)
        return torch.where(self.colour == turn, largest, 0)

    def visible(self, device: int) -> frozenset[Variable]:
        """Its own battery only."""
        return frozenset([energy(device)])


def plan(context: PlannerContext[Options]) -> Plan:
    """Nothing to compute but the colours."""
    problem = context.problem
    colour = torch.tensor(problem.colour, device=problem.device)
    return Plan("frames", Frames(problem, colour, context.options.rest))
