"""A rule without planning: who has news speaks, and energy costs more the emptier the battery is.

The *news* n_ij of a link counts the sender's training slots that its receiver has not heard. Every slot devices
choose jointly, by neighbour messages,

    min  Σ_j (1 − β_j) + θ Σ_j (1 − b_j / capacity) e_j / e_0 − v Σ_ij a_ij (n_ij + β_j) (1 − q_ij),

with e_0 the energy of a slot's training. In the last slots training is worth nothing, and slots since the last packet
take the place of news.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from heliomesh.model.overhead import Talk, coordination_talk, online_overhead
from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import ActionPolicy, Observation, Plan
from heliomesh.model.problem import Problem
from heliomesh.scenario.section import NonNegative, Rounds, Section
from heliomesh.slot.packet_market import EdgeTensors, Exchange, scarcity_price


class Options(Section):
    """Options of the rule."""

    news_value: NonNegative = Field(1.0, description="v, worth of hearing one slot of training, in slots of training")
    energy_price: NonNegative = Field(
        1.8, description="θ, price of a slot's training from an empty battery, in such slots"
    )
    last_slots: Annotated[int, Field(ge=0)] = Field(10, description="slots at the end in which devices only send")
    rounds: Rounds = Field(6, description="most coordinate rounds per slot")


@dataclass(frozen=True)
class Rule(ActionPolicy):
    """The rule; its memory has news and age of every link, (batch, edge) each."""

    memory_axes: ClassVar[tuple[str, ...]] = ("edge", "edge")
    problem: Problem
    options: Options

    @cached_property
    def _network(self) -> EdgeTensors:
        return EdgeTensors(self.problem)

    @property
    def talk(self) -> Talk:
        """The rounds."""
        return coordination_talk(self.problem, first_bytes=2, messages=0, rounds=self.options.rounds)

    def recall(self, seen: Observation) -> tuple[Tensor, ...]:
        """Count on what was trained, and forget what arrived."""
        edges = len(self._network.sender)
        none = torch.zeros(len(seen.battery_joule), edges, dtype=torch.float64, device=self.problem.device)
        news, age = seen.memory or (none, none)
        if seen.noticed is None:
            return news, age
        silent = ~seen.noticed.arrived
        return (news + seen.noticed.trained[:, self._network.sender]) * silent, (age + 1) * silent

    def action(self, slot: int, seen: Observation) -> Tensor:
        """The joint choice."""
        problem, options, network = self.problem, self.options, self._network
        news, age = seen.memory
        last = slot >= problem.slots - options.last_slots
        fresh = torch.stack([age + 1, age + 1] if last else [news, news + 1], -1)  # by the sender's training
        value = options.news_value * network.edge_weight.reshape(-1, 1) * fresh
        idle = 0.0 if last else (~problem.actions.trained).to(torch.float64)
        price = scarcity_price(problem, seen.battery_joule, options.energy_price) + idle
        price = price.masked_fill(~problem.affordable(seen.battery_joule), torch.inf)
        fading = problem.channel.fading(seen.channel_level)
        return Exchange(network, fading, value.unsqueeze(2), price).decide(options.rounds)


def plan(context: PlannerContext[Options]) -> Plan:
    """Nothing to compute."""
    rule = Rule(context.problem, context.options)
    return Plan("news", rule, overhead=online_overhead(context.problem, rule.talk, 0))


OBJECTIVE = "learning"
KNOBS = {"news_value": (0.5, 1.0, 3.0), "energy_price": (1.0, 1.8, 3.0), "last_slots": (5, 10, 20)}
VERSION = 1  # the packet that gains most goes first
