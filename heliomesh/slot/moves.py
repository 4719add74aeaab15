"""What moves of one turn do to the packets of a slot.

Episodes are the last axis, so that rows of edges are contiguous: that is many times faster than edges last, and so is
``index_select`` than indexing. What does not change from round to round is gathered once. Sums have the order of the
network's edges.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from heliomesh.physics.link import Radio
from heliomesh.slot.turns import Turn


@dataclass(frozen=True)
class Doing:
    """What all devices do in a slot."""

    power_watt: Tensor  # (device, batch)
    trains: Tensor  # (device, batch) bool


class Moves:
    """Gains of all powers of a turn's movers, with and without training."""

    def __init__(self, link: Radio, turn: Turn, power_watt: Tensor, fading: Tensor, value: Tensor) -> None:
        """Powers (power,); fading (edge, batch); value (receiver trains, sender trains, edge, batch)."""
        self._link, self._turn = link, turn
        self._own_watt = power_watt.reshape(-1, 1, 1).expand(-1, len(turn.mover), fading.shape[1])
        self._fading = fading.index_select(0, turn.concerned.number)
        self._path_gain = link.path_gain[turn.concerned.number].unsqueeze(-1)
        self._noise_watt = link.noise_watt[turn.concerned.receiver].unsqueeze(-1)
        groups = (turn.near, turn.out, turn.into)
        self._near_value, self._out_value, self._into_value = (value.index_select(2, g.number) for g in groups)

    def gains(self, doing: Doing) -> Tensor:
        """What movers gain, all others doing as they do, up to a constant; (mover trains, power, mover, batch)."""
        turn, arrival = self._turn, self._arrival(doing)
        near, into = arrival[:, : len(turn.near.number)], arrival[:, len(turn.near.number) :]
        sent = near.index_select(1, turn.out_near)
        kept = near.index_fill(1, turn.out_near, 0.0) * self._worth_near(doing)  # movers' packets are counted apart
        heard = torch.zeros_like(sent).index_add_(1, turn.near.place, kept)
        gain = heard.new_zeros(2, *self._own_watt.shape)
        gain.index_add_(2, turn.out.place, heard.expand(2, -1, -1, -1))
        receiver_trains = doing.trains.index_select(0, turn.out.receiver)
        worth = torch.where(receiver_trains, self._out_value[1], self._out_value[0])  # (mover trains, out, batch)
        gain.index_add_(2, turn.out.place, sent * worth.unsqueeze(1))
        sender_trains = doing.trains.index_select(0, turn.into.sender)
        worth = torch.where(
            sender_trains, self._into_value[:, 1], self._into_value[:, 0]
        )  # (mover trains, in, batch)
        return gain.index_add_(2, turn.into.place, into * worth.unsqueeze(1))

    def _arrival(self, doing: Doing) -> Tensor:
        """1 − q of all concerned edges, by the power of their mover; (power, edge, batch)."""
        edges, levels = self._turn.concerned, len(self._own_watt)
        power_watt = doing.power_watt.repeat(levels, 1, 1).index_copy_(1, self._turn.mover, self._own_watt)
        signal_watt = power_watt.index_select(1, edges.sender).mul_(self._fading).mul_(self._path_gain)
        total_watt = torch.zeros_like(power_watt).index_add_(1, edges.receiver, signal_watt)
        disturbance_watt = total_watt.index_select(1, edges.receiver).sub_(signal_watt).clamp_min_(0)
        arrival = 1 - self._link.packet_error(signal_watt, disturbance_watt.add_(self._noise_watt))
        if self._link.half_duplex:
            arrival *= (power_watt == 0).index_select(1, edges.receiver)
        return arrival

    def _worth_near(self, doing: Doing) -> Tensor:
        """Values of packets into receivers of movers; (near, batch)."""
        edges, value = self._turn.near, self._near_value
        sender_trains = doing.trains.index_select(0, edges.sender)
        by_receiver = torch.where(sender_trains, value[:, 1], value[:, 0])
        return torch.where(doing.trains.index_select(0, edges.receiver), by_receiver[1], by_receiver[0])
