"""Devices that keep account of their models in integers (`slot/bids.py`), for many episodes at a time."""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from heliomesh.model.policy import Noticed, Observation
from heliomesh.model.problem import Problem
from heliomesh.simulation import practice
from heliomesh.slot import bids, energy_table
from heliomesh.slot.learning_model import Contributions
from heliomesh.slot.neighbour_table import NeighbourTable


@dataclass(frozen=True, kw_only=True)
class Accountants(practice.Learners):
    """What the forms of `bids` share: the numbers of every device, its account and its prices."""

    most_lead: float = math.inf  # by which a neighbour's progress is believed to be ahead [slots]

    def taught_by(self, practised: practice.Practice) -> Self:
        """What neighbours claim is believed up to twice the largest lead in practice."""
        return replace(self, most_lead=2 * practised.lead)

    @cached_property
    def terms(self) -> bids.Terms:
        """What all devices know."""
        network, link = self.model.network, self.problem.link
        return bids.Terms(
            network.power_of_action,
            self.problem.actions.trained,
            bids.harm_table(network.power_watt, link.waterfall),
            self._bias_bits,
            self.model.keeps,
            link.half_duplex,
            math.ceil(min(bids.PROGRESS_STEPS * self.most_lead, bids.MOST_LEAD)),
        )

    @cached_property
    def own(self) -> bids.Own:
        """What each device alone knows; tensors begin with a device axis."""
        problem, table, actions = self.problem, self.table, self.problem.actions
        points = energy_table.point_bits(problem)
        bits = torch.zeros_like(points) if self.values is None else energy_table.entry_bits(self.values)
        return bids.Own(
            (self.model.directions / self._lean_step).round().long(),
            energy_table.spent_units(problem, actions.spent_joule),
            energy_table.spent_units(problem, actions.needed_joule),
            points,
            bits,
            bids.as_share(self.model.network.own_weight),
            table.of_edges(bids.as_share(self.model.network.edge_weight)) * table.present,
            table.of_edges(bids.as_share(self.model.lone_share)),
            table.of_edges(self.arrival.movedim(0, -1)).movedim((0, 1), (-2, -1)),
            table.own_place,
            table.hears.long(),
        )

    def part_of(self, device: int) -> dict[str, Tensor]:
        """What a device alone knows, of its neighbours only."""
        degree = len(self.problem.topology.neighbours[device])
        part = {name: known[device] for name, known in self.own._asdict().items()}
        part["hears"] = part["hears"][:, :degree]
        return part | {name: part[name][:degree] for name in ("weight", "share", "arrival", "place", "hears")}

    @cached_property
    def table(self) -> NeighbourTable:
        """Edges by device and neighbour."""
        return NeighbourTable(self.problem.topology, self.problem.device)

    @cached_property
    def _lean_step(self) -> float:
        return bids.lean_step(self.model.directions)

    @property
    def _most_bias_weight(self) -> float:
        """Largest weight of a squared step of lean, in the unit of values."""
        return max(self.bias_weight) * self._lean_step**2 * bids.ONE

    @cached_property
    def _bias_bits(self) -> int:
        """The finest unit of 16-bit weights of bias."""
        return min(30, max(1, 16 - math.frexp(self._most_bias_weight)[1]))

    def bias_weight_in(self, slot: int) -> int:
        """λ_t of squared steps of lean, with `Terms.bias_bits` after the point of values."""
        weight = self.bias_weight[slot] * self._lean_step**2 * bids.ONE
        return min(round(weight * (1 << self._bias_bits)), 2**16 - 1)

    @cached_property
    def entries(self) -> Tensor | None:
        """Tables of values; (slot, device, weather, point)."""
        return None if self.values is None else self.values >> self.own.entry_bits.reshape(-1, 1, 1)

    @cached_property
    def arrival(self) -> Tensor:
        """Probability that packets arrive, of neighbours that send alone; (edge, level, power)."""
        problem = self.problem
        gain = problem.link.path_gain.unsqueeze(-1) * problem.channel.gain
        noise = problem.link.noise_watt[self.model.network.receiver].reshape(-1, 1, 1)
        return bids.as_share(1 - problem.link.packet_error(gain.unsqueeze(-1) * self.model.network.power_watt, noise))

    def held(self, values: Tensor) -> Tensor:
        """Values of energy as integers on a coarse grid; (slot, device, weather, point)."""
        return energy_table.held(self.problem, values)

    def contributions(self, memory: tuple[Tensor, ...]) -> Contributions:
        """Accounts as real numbers."""
        progress, lean = memory[:2]
        return Contributions(progress.double() / bids.PROGRESS_STEPS, lean.double() * self._lean_step)

    def recall(self, seen: Observation) -> tuple[Tensor, ...]:
        """Accounts after the training and the models of the slot before."""
        if not seen.memory:
            seen = replace(seen, memory=self._first(len(seen.battery_joule)))
        if seen.noticed is None:
            return seen.memory
        pieces = [self._recalled(one.memory, one.noticed) for one in seen.pieces(self._batch) if one.noticed]
        return tuple(map(torch.cat, zip(*pieces, strict=True)))

    def _first(self, batch: int) -> tuple[Tensor, ...]:
        """The memory of devices that have not trained."""
        lean = self.own.direction.new_zeros(batch, *self.own.direction.shape)
        return lean.new_zeros(lean.shape[:2]), lean

    def _recalled(self, memory: tuple[Tensor, ...], noticed: Noticed) -> tuple[Tensor, ...]:
        """The memory after a slot."""
        return self._after(memory, noticed)[2]

    def _after(self, memory: tuple[Tensor, ...], noticed: Noticed) -> tuple[bids.Account, bids.Account, bids.Account]:
        """Accounts after training, neighbours', which come along with models, and after averaging."""
        now = bids.trained(bids.Account(*memory[:2]), self.own.direction, noticed.trained)
        told = bids.Account(*map(self.table.of_neighbours, now))
        return now, told, bids.averaged(self.terms, self.own, now, told, self.table.of_edges(noticed.arrived))

    def training_gain(self, slot: int, seen: Observation) -> Tensor:
        """What actions gain by training, in slots of it; (batch, device, action)."""
        return self._gain(slot, seen).double().unsqueeze(-1) * self.problem.actions.trained / bids.ONE

    def _gain(self, slot: int, seen: Observation) -> Tensor:
        return bids.training_gain(
            self.terms, bids.Account(*seen.memory[:2]), self.own.direction, self.bias_weight_in(slot)
        )

    def price(self, slot: int, seen: Observation) -> Tensor:
        """What actions cost through their energy, less what training gains; (batch, device, action) integers."""
        battery, problem = energy_table.battery_units(self.problem, seen.battery_joule), self.problem
        if self.entries is None:
            cost = (bids.ONE * self._spending(slot, seen)).round().long()
        else:
            device = torch.arange(problem.num_devices, device=problem.device)
            cost = bids.spending(self.own, self.entries[slot][device, seen.weather].long(), battery)
        return bids.price(self.terms, self.own, cost, battery, self._gain(slot, seen))

    def settled(self, slot: int, seen: Observation) -> Tensor:
        """What every device chooses."""
        return self._chosen(slot, seen)[0]

    def practised(self, slot: int, seen: Observation) -> tuple[Tensor, Tensor]:
        """The same, and what the grants that it got make every action gain, in slots of training."""
        chosen, gains = self._chosen(slot, seen)
        return chosen, gains.double() / bids.ONE

    @abstractmethod
    def _chosen(self, slot: int, seen: Observation) -> tuple[Tensor, Tensor]:
        """Actions (batch, device), and what packets make every action gain (batch, device, action)."""

    @property
    def _batch(self) -> int:
        return max(1, practice.HELD_ENTRIES // held_entries(self.problem, self.model.directions.shape[1]))


def held_entries(problem: Problem, num_directions: int) -> int:
    """Numbers that a slot of an episode holds of all neighbours."""
    widest = max(map(len, problem.topology.neighbours), default=0)
    return max(1, problem.num_devices * widest * (4 * num_directions + 8 * len(problem.actions) + 8 * widest))
