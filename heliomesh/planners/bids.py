"""Plan for learning, and speak little: every slot each device broadcasts one bid and one grant, a few dozen bytes.

Devices value training and packets as `contributions` does, and energy by V_i(t, b) from practice
(`simulation/practice.py`). Instead of rounds of messages there are two: what a device has to give, and which
neighbour's packet a receiver wants (`slot/bids.py`). A neighbour whose bid is lost does not count in the slot, and a
grant that is lost is worth nothing; a device that got none decides alone.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import Field
from torch import Tensor

from heliomesh.common.memory_limit import check_fits
from heliomesh.model.overhead import Overhead, Talk, broadcast_talk, control_joule
from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import Observation, Plan
from heliomesh.model.problem import Problem
from heliomesh.scenario.errors import refuse
from heliomesh.simulation import practice
from heliomesh.slot.bids import NOBODY, Bid, Grant, Listener, Terms, bid, choose, grant, lean_step, message_bytes
from heliomesh.slot.learning_model import Contributions
from heliomesh.slot.neighbour_table import NeighbourTable


class Options(practice.PracticeOptions):
    """Options of the planner."""

    leans: Literal["devices", "labels"] = Field(
        "labels", description="directions in which training moves models: one per device, or its label shares"
    )


@dataclass(frozen=True, kw_only=True)
class Bidders(practice.Learners):
    """Devices that bid, grant and choose."""

    @property
    def talk(self) -> Talk:
        """A bid and a grant, told to all neighbours."""
        sizes = message_bytes(self.model.directions.shape[1], len(self.model.network.power_watt))
        return broadcast_talk(self.problem, sum(sizes), len(sizes))

    @cached_property
    def terms(self) -> Terms:
        """What all devices know."""
        network, link = self.model.network, self.problem.link
        return Terms(
            network.power_watt,
            network.power_of_action,
            self.problem.actions.trained,
            lean_step(self.model.directions),
            link.waterfall,
            link.half_duplex,
        )

    @cached_property
    def _table(self) -> NeighbourTable:
        return NeighbourTable(self.problem.topology, self.problem.device)

    def settled(self, slot: int, seen: Observation) -> Tensor:
        """What every device chooses."""
        return self.practised(slot, seen)[0]

    def practised(self, slot: int, seen: Observation) -> tuple[Tensor, Tensor]:
        """The same, and what the grants that it got make every action gain."""
        terms, table, price = self.terms, self._table, self.price(slot, seen)
        now = Contributions(*seen.memory)
        bids, trains = bid(terms, now.progress, now.lean, self.model.lean_after_training(now), price)
        own = Listener(
            now.progress,
            now.lean,
            trains,
            table.of_edges(self.model.lone_share),
            table.of_edges(self.model.network.edge_weight),
            self.arrival(seen),
        )
        first, second = self._heard(seen)
        granted = grant(terms, own, Bid(*map(table.of_neighbours, bids)), first, self.bias_weight[slot])
        grants = Grant(*map(table.of_neighbours, granted))
        return choose(terms, price, granted, grants, second, table.own_place)

    def _heard(self, seen: Observation) -> tuple[Tensor, Tensor]:
        """Which neighbours' bids and grants a device hears; (batch, device, neighbour) each."""
        awake = ~self.problem.battery.dark(seen.battery_joule)
        between = self._table.present & self._table.of_neighbours(awake) & awake.unsqueeze(-1)
        if seen.heard is None:
            return between, between
        bids, grants = (between & self._table.of_edges(told) for told in seen.heard.unbind(-1))
        return bids, grants

    def arrival(self, seen: Observation) -> Tensor:
        """Probability that packets arrive, of neighbours that send alone; (batch, device, neighbour, power)."""
        problem, table = self.problem, self._table
        gain = table.of_edges(problem.channel.fading(seen.channel_level) * problem.link.path_gain)
        noise = problem.link.noise_watt.reshape(-1, 1, 1)
        return 1 - problem.link.packet_error(gain.unsqueeze(-1) * self.terms.power_watt, noise)

    @property
    def _batch(self) -> int:
        return max(1, practice.HELD_ENTRIES // _entries(self.problem, self.model.directions.shape[1]))


def _entries(problem: Problem, num_directions: int) -> int:
    """Numbers that a slot of an episode holds of all neighbours."""
    widest = max(map(len, problem.topology.neighbours), default=0)
    return max(1, problem.num_devices * widest * (4 * num_directions + 8 * len(problem.actions)))


def plan(context: PlannerContext[Options]) -> Plan:
    """Practise at a guessed price of energy, then plan the values of energy, and practise again."""
    start = practice.prepared(context)
    problem, options = start.problem, context.options
    first = Bidders(problem=problem, bias_weight=start.bias_weights(), values=None, directions=start.leans.directions)
    num_directions, num_powers = first.model.directions.shape[1], len(first.model.network.power_watt)
    _check_bytes(problem, num_powers)
    held = 8 * options.practice * _entries(problem, num_directions)
    check_fits("bids and grants", held, options.memory_gib, "lower practice, or use the planner 'news'")
    policy, note = practice.practised(context, start, first)
    bid_bytes, grant_bytes = message_bytes(num_directions, num_powers)
    online = problem.num_devices * (bid_bytes + grant_bytes)
    overhead = Overhead(
        table_entries=problem.slots * problem.num_energy,
        online_bytes_per_slot=online,
        online_joule_per_slot=control_joule(problem, online),
    )
    told = f"a bid has {bid_bytes} bytes and a grant {grant_bytes}"
    notes = (told, note, *start.leans.notes, *policy.model.assumptions)
    return Plan("bids", policy, rounds=options.passes, overhead=overhead, notes=notes)


def _check_bytes(problem: Problem, num_powers: int) -> None:
    """Refuse what a byte does not count."""
    degree = max(map(len, problem.topology.neighbours), default=0)
    refuse(degree > NOBODY, "network", f"at most {NOBODY} neighbours, which a byte counts", f"degree {degree}")
    refuse(num_powers > _BYTE, "energy.powers_watt", f"at most {_BYTE}, which a byte counts", f"number {num_powers}")


_BYTE = 256

OBJECTIVE = "learning"
READS_LEARNING = ("aggregation", "partition", "alpha", "shards_per_device")
