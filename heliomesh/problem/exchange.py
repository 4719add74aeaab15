"""One slot's joint decision where every packet has a value: no tables, so any degree.

Devices choose actions that minimise, by neighbour messages,

    Σ_j price_j(action_j) − Σ_ij value_ij(β_i, β_j) (1 − q_ij)

with q_ij the error rate of the packet from j to i and β whether its receiver and its sender train in this slot.
Devices of one colour neither hear each other nor share a receiver, so they move at once. A mover needs to know what
its move does to the packets that its receivers get, and to those that it gets itself.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heliomesh.physics.link import error_prob
from heliomesh.problem.problem import Problem, coloured


@dataclass(frozen=True)
class Network:
    """What does not change from slot to slot."""

    problem: Problem

    @cached_property
    def receiver(self) -> Tensor:
        """Device that hears; (edge,)."""
        return torch.from_numpy(self.problem.topology.edge_receiver).to(self.problem.device)

    @cached_property
    def sender(self) -> Tensor:
        """Device that is heard; (edge,)."""
        return torch.from_numpy(self.problem.topology.edge_sender).to(self.problem.device)

    @cached_property
    def edge_weight(self) -> Tensor:
        """Mixing weights a_ij; (edge,)."""
        return torch.from_numpy(self.problem.topology.edge_weight).to(self.problem.device)

    @cached_property
    def own_weight(self) -> Tensor:
        """Mixing weights a_ii; (device,)."""
        return torch.from_numpy(self.problem.topology.self_weight).to(self.problem.device)

    @cached_property
    def power_watt(self) -> Tensor:
        """Powers of the action set, each once; (power,)."""
        powers: Tensor = torch.unique(self.problem.actions.power_watt)
        return powers

    @cached_property
    def power_of_action(self) -> Tensor:
        """Index of every action's power; (action,)."""
        return torch.searchsorted(self.power_watt, self.problem.actions.power_watt)

    @cached_property
    def colours(self) -> list[Tensor]:
        """Devices of each colour, which neither hear each other nor share a receiver; (device,) bool."""
        neighbours = self.problem.topology.neighbours
        crowds = ((device, *heard) for device, heard in enumerate(neighbours))
        colour = torch.tensor(coloured(self.problem.num_devices, crowds), device=self.problem.device)
        return [colour == turn for turn in range(int(colour.max()) + 1)]


def scarcity_price(problem: Problem, battery_joule: Tensor, price: float) -> Tensor:
    """A price of energy without a plan, which rises as the battery empties; (batch, device, action).

    price (1 − b_j / capacity_j) e_j / e_0, with e_0 the energy of a slot's training, or of a packet at the least
    power where that is more: units of energy cancel.
    """
    spent = problem.actions.spent_joule
    unit = torch.maximum(problem.compute_joule, _packet_joule(problem)).clamp_min(_LEAST_JOULE).unsqueeze(1)
    scarcity = 1 - battery_joule / problem.battery.capacity_joule
    return price * scarcity.unsqueeze(-1) * (spent / unit)


_LEAST_JOULE = 1e-300  # where no action spends anything


def _packet_joule(problem: Problem) -> Tensor:
    """What a packet at the least power draws; (device,), zero where there is no power."""
    powers = problem.actions.power_watt
    least = powers[powers > 0].amin().reshape(1) if bool((powers > 0).any()) else powers.new_zeros(1)
    return problem.consumption.drawn_joule(least, torch.zeros_like(least, dtype=torch.bool)).expand(
        problem.num_devices
    )


@dataclass(frozen=True)
class Exchange:
    """One slot of a batch of episodes."""

    network: Network
    fading: Tensor  # (batch, edge)
    value: Tensor  # (batch, edge, receiver trains, sender trains), or of length one where that does not matter
    price: Tensor  # (batch, device, action), infinite where a battery does not pay

    @property
    def _trains(self) -> Tensor:
        return self.network.problem.actions.trained

    def _arrival(self, power_watt: Tensor) -> Tensor:
        """1 − q of all edges; (batch, device) → (batch, edge)."""
        problem = self.network.problem
        return 1 - error_prob(problem.link, problem.topology, power_watt, self.fading)

    @cached_property
    def _values(self) -> tuple[Tensor, ...]:
        """Values of packets by who trains: nobody, the sender, the receiver, both; (batch, edge) each."""
        return self.value.expand(*self.value.shape[:2], 2, 2).flatten(2).unbind(-1)

    def _sent(self, receiver_trains: Tensor) -> tuple[Tensor, Tensor]:
        """Packets' values where their sender does not train, and where it does; (batch, edge) each."""
        nobody, sender, receiver, both = self._values
        return torch.where(receiver_trains, receiver, nobody), torch.where(receiver_trains, both, sender)

    def _got(self, sender_trains: Tensor) -> tuple[Tensor, Tensor]:
        """Packets' values where their receiver does not train, and where it does; (batch, edge) each."""
        nobody, sender, receiver, both = self._values
        return torch.where(sender_trains, sender, nobody), torch.where(sender_trains, both, receiver)

    def gains(self, chosen: Tensor, movers: Tensor) -> Tensor:
        """What each action of every mover gains, all others as chosen, up to a constant; (batch, device, action)."""
        network, (receiver, sender) = self.network, (self.network.receiver, self.network.sender)
        power, trains = network.problem.actions.power_watt[chosen], self._trains[chosen]
        levels = network.power_watt.reshape(-1, 1, 1)
        arrival = self._arrival(torch.where(movers, levels, power))  # (power, batch, edge)
        sent, got = self._sent(trains[:, receiver]), self._got(trains[:, sender])
        kept = arrival * (~movers)[sender]  # movers' own packets are counted apart
        zero = torch.zeros(len(levels), *power.shape, dtype=arrival.dtype, device=arrival.device)
        heard = zero.index_add(2, receiver, kept * torch.where(trains[:, sender], sent[1], sent[0]))
        disturbed = zero.index_add(2, sender, heard[:, :, receiver])
        by_training = [
            disturbed.index_add(2, sender, arrival * sent[own]).index_add(2, receiver, kept * got[own])
            for own in (0, 1)
        ]
        gain = torch.stack(by_training)[self._trains.long(), network.power_of_action]  # (action, batch, device)
        return gain.permute(1, 2, 0)

    def _round(self, chosen: Tensor) -> Tensor:
        """Best single moves, colour by colour."""
        for movers in self.network.colours:
            best = (self.price - self.gains(chosen, movers)).argmin(-1)
            chosen = torch.where(movers, best, chosen)
        return chosen

    def _rounds(self, chosen: Tensor, rounds: int) -> Tensor:
        """Rounds of best single moves until nobody moves; episodes in which nobody does are done."""
        exchange, left = self, torch.arange(len(chosen), device=chosen.device)
        for _ in range(rounds):
            before = chosen[left]
            after = exchange._round(before)
            chosen = chosen.index_copy(0, left, after)
            moved = (after != before).any(1)
            if not moved.any():
                break
            left, exchange = left[moved], exchange._of(moved)
        return chosen

    def _of(self, episodes: Tensor) -> "Exchange":
        """Some episodes of the batch, (batch,) bool."""
        parts = (self.fading, self.value, self.price)
        return self if episodes.all() else Exchange(self.network, *(part[episodes] for part in parts))

    def total(self, chosen: Tensor) -> Tensor:
        """The objective; (batch,)."""
        network, trains = self.network, self._trains[chosen]
        paid = self.price.gather(2, chosen.unsqueeze(-1)).squeeze(-1).sum(1)
        silent, training = self._sent(trains[:, network.receiver])
        worth = torch.where(trains[:, network.sender], training, silent)
        return paid - (self._arrival(network.problem.actions.power_watt[chosen]) * worth).sum(1)

    def _twice(self) -> "Exchange":
        """Every episode two times."""
        twice = [torch.cat([part, part]) for part in (self.fading, self.value, self.price)]
        return Exchange(self.network, *twice)

    def decide(self, rounds: int) -> Tensor:
        """The better result of rounds from silence and from the largest affordable actions; (batch, device)."""
        order = torch.arange(self.price.shape[-1], device=self.price.device)
        largest = torch.where(self.price.isinf(), -1, order).argmax(-1)
        both = self._twice()
        ends = both._rounds(torch.cat([torch.zeros_like(largest), largest]), rounds)
        silent, loud = ends.chunk(2)
        cost = both.total(ends).unsqueeze(1)
        return torch.where(cost[len(silent) :] < cost[: len(silent)], loud, silent)

    def opportunities(self, chosen: Tensor) -> Tensor:
        """What each action would have gained over idling, the others as chosen; (batch, device, action)."""
        gain = torch.zeros_like(self.price)
        for movers in self.network.colours:
            gain = torch.where(movers.unsqueeze(-1), self.gains(chosen, movers), gain)
        return gain - gain[..., :1]
