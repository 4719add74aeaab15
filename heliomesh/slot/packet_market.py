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

from heliomesh.model.problem import Problem, coloured
from heliomesh.physics.link import error_prob
from heliomesh.slot.colour_rounds import Doing, PacketMoves, PacketTurn, by_colour, packet_turn
from heliomesh.slot.preference import sending_powers
from heliomesh.slot.ties import first_least, tie


@dataclass(frozen=True)
class EdgeTensors:
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
    def turns(self) -> list[PacketTurn]:
        """Devices of each colour, which neither hear each other nor share a receiver."""
        problem = self.problem
        crowds = ((device, *heard) for device, heard in enumerate(problem.topology.neighbours))
        turns = by_colour(coloured(problem.num_devices, crowds), problem.device)
        return [packet_turn(self.receiver, self.sender, movers, problem.num_devices) for movers in turns]


def scarcity_price(problem: Problem, battery_joule: Tensor, price: float) -> Tensor:
    """A price of energy without a plan, which rises as the battery empties; (batch, device, action).

    price (1 − b_j / capacity_j) e_j / e_0, with e_0 the energy of a slot's training, or of a packet at the least
    power where that is more: units of energy cancel.
    """
    powers = sending_powers(problem)
    least = powers[:1] if len(powers) else powers.new_zeros(1)  # [W]
    packet_joule = problem.consumption.drawn_joule(least, torch.zeros_like(least, dtype=torch.bool))
    unit = torch.maximum(problem.compute_joule, packet_joule).clamp_min(_LEAST_JOULE).unsqueeze(1)
    scarcity = 1 - battery_joule / problem.battery.capacity_joule
    return price * scarcity.unsqueeze(-1) * (problem.actions.spent_joule / unit)


_LEAST_JOULE = 1e-300  # where no action spends anything


@dataclass(frozen=True)
class Exchange:
    """One slot of a batch of episodes."""

    network: EdgeTensors
    fading: Tensor  # (batch, edge)
    value: Tensor  # (batch, edge, receiver trains, sender trains), or of length one where that does not matter
    price: Tensor  # (batch, device, action), infinite where a battery does not pay

    def total(self, chosen: Tensor) -> Tensor:
        """The objective; (batch, device) → (batch,)."""
        network, actions = self.network, self.network.problem.actions
        trains = actions.trained[chosen]
        paid = self.price.gather(2, chosen.unsqueeze(-1)).squeeze(-1).sum(1)
        nobody, sender, receiver, both = self.value.expand(*self.value.shape[:2], 2, 2).flatten(2).unbind(-1)
        alone = torch.where(trains[:, network.sender], sender, nobody)
        training = torch.where(trains[:, network.sender], both, receiver)
        worth = torch.where(trains[:, network.receiver], training, alone)
        problem = network.problem
        arrival = 1 - error_prob(problem.link, problem.topology, actions.power_watt[chosen], self.fading)
        return paid - (arrival * worth).sum(1)

    def decide(self, rounds: int) -> Tensor:
        """The better result of rounds from the foremost senders and from the largest affordable actions.

        (batch, device)
        """
        order = torch.arange(self.price.shape[-1], device=self.price.device)
        largest = torch.where(self.price.isinf(), -1, order).argmax(-1)
        both = self._of(torch.arange(len(largest), device=largest.device).repeat(2))
        ends = both._rounds(torch.cat([self.foremost(), largest]), rounds)
        few, loud = ends.chunk(2)
        louder = first_least(both.total(ends).reshape(2, -1), 0)
        return torch.where(louder.bool().unsqueeze(1), loud, few)

    def foremost(self) -> Tensor:
        """Best actions alone, of devices whose packet gains more than any that it meets; the others are silent.

        Single moves cannot pass the word from a device to another, which takes two: who speaks first keeps it. So
        whoever would gain most speaks first: i with w_i = max of w over the crowds (a receiver and all it hears) of
        its receivers and of itself, w the gain of sending where nobody else does. (batch, device)
        """
        network, actions = self.network, self.network.problem.actions
        silent = first_least(self.price.masked_fill(actions.power_watt > 0, torch.inf))
        cost = self.price - self.opportunities(silent)
        best = first_least(cost)
        gain = (cost.gather(-1, silent.unsqueeze(-1)) - cost.gather(-1, best.unsqueeze(-1))).squeeze(-1)
        ends = network.receiver.expand(len(gain), -1), network.sender.expand(len(gain), -1)
        crowd = gain.scatter_reduce(1, ends[0], gain[:, network.sender], "amax")
        met = crowd.scatter_reduce(1, ends[1], crowd[:, network.receiver], "amax")
        return torch.where(gain >= met - tie(met), best, silent)

    def opportunities(self, chosen: Tensor) -> Tensor:
        """What each action would have gained over idling, the others as chosen; (batch, device, action)."""
        gain, doing = torch.zeros_like(self.price), self._doing(chosen)
        for turn, moves in zip(self.network.turns, self._moves, strict=True):
            gain[:, turn.mover] = self._by_action(moves.gains(doing)).permute(2, 1, 0)
        return gain - gain[..., :1]

    def _doing(self, chosen: Tensor) -> Doing:
        """What actions (batch, device) mean."""
        actions, rows = self.network.problem.actions, chosen.T.contiguous()
        return Doing(actions.power_watt[rows], actions.trained[rows])

    def _by_action(self, gain: Tensor) -> Tensor:
        """(mover trains, power, mover, batch) → (action, mover, batch)."""
        return gain[self.network.problem.actions.trained.long(), self.network.power_of_action]

    @cached_property
    def _moves(self) -> list[PacketMoves]:
        """What moves do, turn by turn."""
        network, fading = self.network, self.fading.T.contiguous()
        value = self.value.expand(*self.value.shape[:2], 2, 2).permute(2, 3, 1, 0).contiguous()
        link = network.problem.link
        return [PacketMoves(link, turn, network.power_watt, fading, value) for turn in network.turns]

    @cached_property
    def _mover_prices(self) -> list[Tensor]:
        """Prices of movers, turn by turn; (action, mover, batch) each."""
        price = self.price.permute(2, 1, 0).contiguous()
        return [price[:, turn.mover] for turn in self.network.turns]

    def _of(self, episodes: Tensor) -> "Exchange":
        """Some episodes of the batch; their positions (chosen,)."""
        return Exchange(self.network, *(part[episodes] for part in (self.fading, self.value, self.price)))

    def _rounds(self, chosen: Tensor, rounds: int) -> Tensor:
        """Rounds of best single moves until nobody moves; episodes in which nobody does are done."""
        exchange, left = self, torch.arange(len(chosen), device=chosen.device)
        for _ in range(rounds):
            before = chosen[left]
            after = exchange._round(before)
            chosen = chosen.index_copy(0, left, after)
            moved = (after != before).any(1).nonzero().squeeze(1)
            if not len(moved):
                break
            if len(moved) <= _WORTH_DROPPING * len(left):  # else they go along, and stay as they are
                left, exchange = left[moved], exchange._of(moved)
        return chosen

    def _round(self, chosen: Tensor) -> Tensor:
        """Best single moves, turn by turn; (batch, device)."""
        actions, doing = self.network.problem.actions, self._doing(chosen)
        rows = chosen.T.clone(memory_format=torch.contiguous_format)  # a copy even of a single episode
        for turn, moves, price in zip(self.network.turns, self._moves, self._mover_prices, strict=True):
            cost = price - self._by_action(moves.gains(doing))
            best = first_least(cost.permute(1, 2, 0).contiguous())  # along the first axis it is many times slower
            rows[turn.mover] = best
            doing.power_watt[turn.mover], doing.trains[turn.mover] = actions.power_watt[best], actions.trained[best]
        return rows.T.contiguous()


_WORTH_DROPPING = 0.8  # share of episodes still moving below which the others are left out
