"""The form of `bids` that is silent: devices know of each other only what came along with models.

A device keeps its neighbours' accounts as it last heard them, reckons what they would grant it (`slot/bids.py`), and
sends in its slots of a common frame (`slot/frame.py`). Between two packets it believes that a neighbour's progress
stays as far ahead of its own as it was, that its training, with a chance τ in a slot, leads it the opposite way,
x_j ← x_j − τ ε (d_i + x_j), and that each model it sent moved the neighbour as far as such models do in
the mean: with a chance c that it arrived and was alone, and the share α of a lone packet,

    S_j − S_i ← (1 − c α) (S_j − S_i),    x_j ← x_j + c α (x_i − x_j).

Before a first packet it believes that the neighbour's data lead the opposite way, x_j = −d_i: so it has something to
tell, and its own packets make it believe so less and less.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from heliomesh.model.policy import Noticed, Observation
from heliomesh.planners.bids.accounts import Accountants
from heliomesh.slot.bids import (
    BARRED,
    NOBODY,
    SHARE_BITS,
    Account,
    Bid,
    Grant,
    Listener,
    as_share,
    bid,
    choose,
    grant,
    rounded,
)
from heliomesh.slot.frame import FRAME_SLOTS, Frame, frame_of
from heliomesh.slot.learning_model import PULL_BITS

CHANCE = 0.5  # that a device uses a slot in which it may send
_TRAINS = 0.6  # chance that a neighbour trains in a slot
_DRIFT = round(_TRAINS * (1 << SHARE_BITS - PULL_BITS))  # share of its way to where its data lead, in the mean


@dataclass(frozen=True, kw_only=True)
class Silent(Accountants):
    """Devices that decide by what packets told them; neighbours' progress is kept less a device's own, by edge."""

    memory_axes: ClassVar[tuple[str, ...]] = ("device", "device", "edge", "edge")
    # with nobody heard nothing is learned of averaging, and a bias that never fades would forbid to train
    most_kept: ClassVar[float] = 0.9

    @cached_property
    def frame(self) -> Frame:
        """Who may send when."""
        return frame_of(self.problem, CHANCE)

    @cached_property
    def _may_send(self) -> Tensor:
        return torch.from_numpy(self.frame.may_send).to(self.problem.device)

    @cached_property
    def _back(self) -> Tensor:
        """The edge from a device to its neighbour, by the edge into the device; (edge,)."""
        return torch.from_numpy(self.problem.topology.reverse_edge).to(self.problem.device)

    @cached_property
    def _lands(self) -> Tensor:
        """Chance that a device's packet arrives, by the edge to the neighbour; (slot of the frame, edge, power)."""
        clear = torch.from_numpy(self.frame.clear).to(self.problem.device).unsqueeze(-1)
        stationary = self.problem.channel.stationary.reshape(-1, 1)
        return rounded(as_share(clear) * (self.arrival * as_share(stationary)).sum(1), 2 * SHARE_BITS)

    @cached_property
    def _landed(self) -> Tensor:
        """The same in the mean over the slots in which the device may send; (edge, power)."""
        slots = self._may_send[:, self.model.network.sender].unsqueeze(-1)
        return (self._lands * slots).sum(0) // slots.sum(0).clamp_min(1)

    @cached_property
    def _share(self) -> Tensor:
        """Weight of a packet that arrives alone; (edge,)."""
        return as_share(self.model.lone_share)

    @cached_property
    def _training_weight(self) -> Tensor:
        """Weight by which a receiver's own training in the slot counts, in the mean; (edge,)."""
        return as_share(_TRAINS * self.model.network.edge_weight)

    def _first(self, batch: int) -> tuple[Tensor, ...]:
        ahead = self.own.direction.new_zeros(batch, self.problem.topology.num_edges)
        opposite = -self.own.direction[self.model.network.receiver]
        return *super()._first(batch), ahead, opposite.expand(*ahead.shape, -1)

    def _recalled(self, memory: tuple[Tensor, ...], noticed: Noticed) -> tuple[Tensor, ...]:
        """Accounts, and what is believed of neighbours, after a slot."""
        (now, after), (ahead, believed), network = self._after(memory, noticed), memory[2:], self.model.network
        moved = self._moved(noticed)
        ahead = ahead - rounded(ahead * moved, SHARE_BITS)
        apart = now.lean[:, network.receiver] - believed
        believed = believed + rounded(apart * moved.unsqueeze(-1), SHARE_BITS)
        opposite = -self.own.direction[network.receiver] - believed
        believed = believed + rounded(opposite * _DRIFT, SHARE_BITS)
        heard = now.progress[:, network.sender] - after.progress[:, network.receiver]
        ahead = torch.where(noticed.arrived, heard, ahead)
        believed = torch.where(noticed.arrived.unsqueeze(-1), now.lean[:, network.sender], believed)
        return after.progress, after.lean, ahead, believed

    def _moved(self, noticed: Noticed) -> Tensor:
        """Share by which a device's model moved each neighbour's, in the mean; (batch, edge into the device)."""
        network = self.model.network
        power = torch.searchsorted(network.power_watt, noticed.power_watt.contiguous())[:, network.sender]
        landed = self._landed.expand(len(power), -1, -1).gather(-1, power.unsqueeze(-1)).squeeze(-1)
        return rounded(landed * self._share, SHARE_BITS)[:, self._back]

    def _chosen(self, slot: int, seen: Observation) -> tuple[Tensor, Tensor]:
        terms, own, table, now = self.terms, self.own, self.table, Account(*seen.memory[:2])
        prices, may_send = self.price(slot, seen), self._may_send[slot % FRAME_SLOTS]
        barred = ~may_send.unsqueeze(-1) & (terms.action_power > 0)  # (device, action)
        prices = torch.where(barred, BARRED, prices)
        said, _ = bid(terms, now, own.direction, prices)
        granted = self._reckoned(slot, seen, said)
        nobody = Grant(
            torch.full_like(said.power, NOBODY), granted.worth.new_zeros(*said.power.shape, len(terms.harm))
        )
        chosen, gains = choose(terms, prices, nobody, granted, table.present, torch.zeros_like(granted.place))
        return chosen, torch.where(barred, 0, gains)

    def _reckoned(self, slot: int, seen: Observation, said: Bid) -> Grant:
        """What every neighbour would grant, if it heard the device's bid alone; (batch, device, neighbour)."""
        table = self.table
        ahead, believed = table.of_edges(seen.memory[2]), seen.memory[3][:, table.edge]
        lands = self._lands[slot % FRAME_SLOTS][self._back][table.edge]  # (device, neighbour, power)
        listener = Listener(
            seen.memory[0].unsqueeze(-1) + ahead,
            believed,
            table.present.expand_as(ahead),
            table.of_edges(self._share[self._back]).unsqueeze(-1),
            table.of_edges(self._training_weight[self._back]).unsqueeze(-1),
            lands.unsqueeze(-2),
            torch.zeros_like(lands[..., :1, None]),  # what others gain, they say themselves
        )
        alone = Bid(*(part.unsqueeze(2).unsqueeze(2) for part in said))
        heard = table.present.expand_as(ahead).unsqueeze(-1)
        alone = Bid(*(part.expand(*heard.shape, *part.shape[4:]) for part in alone))
        return grant(self.terms, listener, alone, heard, self.bias_weight_in(slot))
