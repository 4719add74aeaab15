"""Plan for learning: training and packets are worth what they bring to the models, energy what it can bring later.

Devices keep account of whose training is in whose model (`slot/learning_model.py`). Every slot they choose jointly,
by neighbour messages, what raises progress and lowers bias most, net of the value of the energy spent:

    max  Σ_j β_j value of training + Σ_ij (1 − q_ij) value of the packet + Σ_j V_j(t, b_j − e_j)

V_j is a dynamic program of device j alone against opportunities that it met in practice (`simulation/practice.py`).
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from heliomesh.model.overhead import Talk, coordination_talk, online_overhead
from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import Observation, Plan
from heliomesh.simulation import practice
from heliomesh.slot.learning_model import Contributions
from heliomesh.slot.packet_market import Exchange


class Options(practice.PracticeOptions):
    """Options of the planner."""

    rounds: Annotated[int, Field(ge=1, le=100_000)] = Field(6, description="most coordinate rounds per slot")


@dataclass(frozen=True, kw_only=True)
class Learners(practice.Learners):
    """Joint choices."""

    rounds: int

    @property
    def talk(self) -> Talk:
        """Its progress and lean first, then rounds."""
        first_bytes = _first_bytes(self.model.directions.shape[1])
        return coordination_talk(self.problem, first_bytes=first_bytes, messages=0, rounds=self.rounds)

    def settled(self, slot: int, seen: Observation) -> Tensor:
        """The joint choice."""
        return self.exchange(slot, seen).decide(self.rounds)

    def practised(self, slot: int, seen: Observation) -> tuple[Tensor, Tensor]:
        """The joint choice, and gains given what the others chose."""
        exchange = self.exchange(slot, seen)
        chosen = exchange.decide(self.rounds)
        return chosen, exchange.opportunities(chosen)

    def exchange(self, slot: int, seen: Observation) -> Exchange:
        """What packets are worth in a slot, and what actions cost."""
        fading = self.problem.channel.fading(seen.channel_level)
        value = self.model.packet_value(Contributions(*seen.memory), self.bias_weight[slot])
        return Exchange(self.model.network, fading, value, self.price(slot, seen))


def _first_bytes(num_directions: int) -> int:
    """Of a device's progress and its lean."""
    return 8 + 4 * num_directions


def plan(context: PlannerContext[Options]) -> Plan:
    """Practise at a guessed price of energy, then plan the values of energy, and practise again."""
    options, start = context.options, practice.prepared(context)
    first = Learners(
        problem=start.problem,
        bias_weight=start.bias_weights(),
        values=None,
        directions=start.leans.directions,
        rounds=options.rounds,
    )
    policy, note = practice.practised(context, start, first)
    overhead = online_overhead(start.problem, policy.talk, start.problem.slots * start.problem.num_energy)
    notes = (note, *start.leans.notes, *policy.model.assumptions)
    return Plan("contributions", policy, rounds=options.passes, overhead=overhead, notes=notes)


OBJECTIVE = "learning"
READS_LEARNING = ("aggregation", "partition", "alpha", "shards_per_device")
KNOBS = {"cost.unlikeness": (0.2, 0.7, 2.7)}
VERSION = 1  # longer memory, and the packet that gains most goes first
