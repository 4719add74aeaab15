"""Plan for learning, and speak little: every slot each device broadcasts one bid and one grant, a few dozen bytes.

Devices value training and packets as `contributions` does, and energy by V_i(t, b) from practice
(`simulation/practice.py`). Instead of rounds of messages there are two: what a device has to give, and which
neighbour's packet a receiver wants (`slot/bids.py`). A neighbour whose bid is lost does not count in the slot, and a
grant that is lost is worth nothing; a device that got none decides alone.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from heliomesh.common.memory_limit import check_fits
from heliomesh.model.overhead import Overhead, Talk, broadcast_talk, control_joule
from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import Noticed, Observation, Plan
from heliomesh.model.problem import Problem
from heliomesh.scenario.errors import refuse
from heliomesh.simulation import practice
from heliomesh.slot import energy_table
from heliomesh.slot.bids import (
    NOBODY,
    ONE,
    PROGRESS_STEPS,
    Account,
    Bid,
    Grant,
    Listener,
    Own,
    Terms,
    arrival_at,
    as_share,
    averaged,
    bid,
    choose,
    grant,
    harm_table,
    lean_step,
    message_bytes,
    price,
    spending,
    trained,
    training_gain,
)
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
            network.power_of_action,
            self.problem.actions.trained,
            harm_table(network.power_watt, link.waterfall),
            self._bias_bits,
            self.model.keeps,
            link.half_duplex,
        )

    @cached_property
    def own(self) -> Own:
        """What each device alone knows; tensors begin with a device axis."""
        problem, table, actions = self.problem, self.table, self.problem.actions
        points = energy_table.point_bits(problem)
        bits = torch.zeros_like(points) if self.values is None else energy_table.entry_bits(self.values)
        return Own(
            (self.model.directions / self._lean_step).round().long(),
            energy_table.spent_units(problem, actions.spent_joule),
            energy_table.spent_units(problem, actions.needed_joule),
            points,
            bits,
            as_share(self.model.network.own_weight),
            table.of_edges(as_share(self.model.network.edge_weight)) * table.present,
            table.of_edges(as_share(self.model.lone_share)),
            table.of_edges(self._arrival.movedim(0, -1)).movedim((0, 1), (-2, -1)),
            table.own_place,
        )

    @cached_property
    def table(self) -> NeighbourTable:
        """Edges by device and neighbour."""
        return NeighbourTable(self.problem.topology, self.problem.device)

    @cached_property
    def _lean_step(self) -> float:
        return lean_step(self.model.directions)

    @property
    def _most_bias_weight(self) -> float:
        """Largest weight of a squared step of lean, in the unit of values."""
        return max(self.bias_weight) * self._lean_step**2 * ONE

    @cached_property
    def _bias_bits(self) -> int:
        """The finest unit of 16-bit weights of bias."""
        return min(30, max(1, 16 - math.frexp(self._most_bias_weight)[1]))

    def bias_weight_in(self, slot: int) -> int:
        """λ_t of squared steps of lean, with `Terms.bias_bits` after the point of values."""
        weight = self.bias_weight[slot] * self._lean_step**2 * ONE
        return min(round(weight * (1 << self._bias_bits)), 2**16 - 1)

    @cached_property
    def entries(self) -> Tensor | None:
        """Tables of values; (slot, device, weather, point)."""
        return None if self.values is None else self.values >> self.own.entry_bits.reshape(-1, 1, 1)

    @cached_property
    def _arrival(self) -> Tensor:
        """Probability that packets arrive, of neighbours that send alone; (edge, level, power)."""
        problem = self.problem
        gain = problem.link.path_gain.unsqueeze(-1) * problem.channel.gain
        noise = problem.link.noise_watt[self.model.network.receiver].reshape(-1, 1, 1)
        return as_share(1 - problem.link.packet_error(gain.unsqueeze(-1) * self.model.network.power_watt, noise))

    def held(self, values: Tensor) -> Tensor:
        """Values of energy as integers on a coarse grid; (slot, device, weather, point)."""
        return energy_table.held(self.problem, values)

    def contributions(self, memory: tuple[Tensor, ...]) -> Contributions:
        """Accounts as real numbers."""
        progress, lean = memory
        return Contributions(progress.double() / PROGRESS_STEPS, lean.double() * self._lean_step)

    def recall(self, seen: Observation) -> tuple[Tensor, ...]:
        """Accounts after the training and the models of the slot before."""
        if not seen.memory:
            lean = self.own.direction.new_zeros(len(seen.battery_joule), *self.own.direction.shape)
            seen = replace(seen, memory=(lean.new_zeros(lean.shape[:2]), lean))
        if seen.noticed is None:
            return seen.memory
        pieces = [self._recalled(one.memory, one.noticed) for one in seen.pieces(self._batch) if one.noticed]
        return tuple(map(torch.cat, zip(*pieces, strict=True)))

    def _recalled(self, memory: tuple[Tensor, ...], noticed: Noticed) -> tuple[Tensor, ...]:
        now = trained(Account(*memory), self.own.direction, noticed.trained)
        told = Account(*map(self.table.of_neighbours, now))
        return averaged(self.terms, self.own, now, told, self.table.of_edges(noticed.arrived))

    def training_gain(self, slot: int, seen: Observation) -> Tensor:
        """What actions gain by training, in slots of it; (batch, device, action)."""
        return self._gain(slot, seen).double().unsqueeze(-1) * self.problem.actions.trained / ONE

    def _gain(self, slot: int, seen: Observation) -> Tensor:
        return training_gain(self.terms, Account(*seen.memory), self.own.direction, self.bias_weight_in(slot))

    def price(self, slot: int, seen: Observation) -> Tensor:
        """What actions cost through their energy, less what training gains; (batch, device, action) integers."""
        battery, problem = energy_table.battery_units(self.problem, seen.battery_joule), self.problem
        if self.entries is None:
            cost = (ONE * self._spending(slot, seen)).round().long()
        else:
            device = torch.arange(problem.num_devices, device=problem.device)
            cost = spending(self.own, self.entries[slot][device, seen.weather].long(), battery)
        return price(self.terms, self.own, cost, battery, self._gain(slot, seen))

    def settled(self, slot: int, seen: Observation) -> Tensor:
        """What every device chooses."""
        return self._chosen(slot, seen)[0]

    def practised(self, slot: int, seen: Observation) -> tuple[Tensor, Tensor]:
        """The same, and what the grants that it got make every action gain, in slots of training."""
        chosen, gains = self._chosen(slot, seen)
        return chosen, gains.double() / ONE

    def _chosen(self, slot: int, seen: Observation) -> tuple[Tensor, Tensor]:
        terms, own, table, now = self.terms, self.own, self.table, Account(*seen.memory)
        prices = self.price(slot, seen)
        bids, trains = bid(terms, now, own.direction, prices)
        level = table.of_edges(seen.channel_level[:, self.problem.channel.site_of_edge])
        listener = Listener(now.progress, now.lean, trains, own.share, own.weight, arrival_at(own, level))
        first, second = self._heard(seen)
        bids_heard = Bid(*map(table.of_neighbours, bids))
        granted = grant(terms, listener, bids_heard, first, self.bias_weight_in(slot))
        grants = Grant(*map(table.of_neighbours, granted))
        return choose(terms, prices, granted, grants, second, own.place)

    def _heard(self, seen: Observation) -> tuple[Tensor, Tensor]:
        """Which neighbours' bids and grants a device hears; (batch, device, neighbour) each."""
        awake = ~self.problem.battery.dark(seen.battery_joule)
        between = self.table.present & self.table.of_neighbours(awake) & awake.unsqueeze(-1)
        if seen.heard is None:
            return between, between
        bids, grants = (between & self.table.of_edges(told) for told in seen.heard.unbind(-1))
        return bids, grants

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
    held += (
        24 * problem.slots * problem.num_devices * problem.harvest.law.num_weather * energy_table.num_points(problem)
    )
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
