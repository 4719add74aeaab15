"""The form of `bids` that is silent: devices know of others what came along with models (`slot/silence.py`)."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from heliomesh.model.policy import Noticed, Observation
from heliomesh.planners.bids.accounts import Accountants
from heliomesh.slot.bids import SHARE_BITS, Account, as_share, rounded
from heliomesh.slot.frame import Frame, frame_of
from heliomesh.slot.silence import TRAINS, Belief, Reach, choose_silently, first_belief, remembered

CHANCE = 0.5  # that a device uses a slot in which it may send


@dataclass(frozen=True, kw_only=True)
class Silent(Accountants):
    """Devices that decide by what packets told them; what they believe of neighbours is kept by edge."""

    memory_axes: ClassVar[tuple[str, ...]] = ("device", "device", "edge", "edge")
    # with nobody heard nothing is learned of averaging, and a bias that never fades would forbid to train
    most_kept: ClassVar[float] = 0.9

    @cached_property
    def frame(self) -> Frame:
        """Who may send when."""
        return frame_of(self.problem, CHANCE)

    @cached_property
    def reach(self) -> Reach:
        """What each device knows of its packets; tensors begin with a device axis."""
        problem, network = self.problem, self.model.network
        back = torch.from_numpy(problem.topology.reverse_edge).to(problem.device)[self.table.edge]
        may_send = torch.from_numpy(self.frame.may_send).to(problem.device)  # (slot, device)
        clear = torch.from_numpy(self.frame.clear).to(problem.device).unsqueeze(-1)
        stationary = as_share(problem.channel.stationary.reshape(-1, 1))
        lands = rounded(as_share(clear) * (self.arrival * stationary).sum(1), 2 * SHARE_BITS)  # (slot, edge, power)
        slots = may_send[:, network.sender].unsqueeze(-1)
        return Reach(
            may_send.T,
            lands[:, back].movedim(0, 1),
            ((lands * slots).sum(0) // slots.sum(0).clamp_min(1))[back],
            as_share(self.model.lone_share)[back],
            as_share(TRAINS * network.edge_weight)[back],
        )

    def part_of(self, device: int) -> dict[str, Tensor]:
        """The same, and of its packets."""
        degree = len(self.problem.topology.neighbours[device])
        may_send, lands, *by_neighbour = (known[device] for known in self.reach)
        reach = Reach(may_send, lands[:, :degree], *(known[:degree] for known in by_neighbour))
        return super().part_of(device) | reach._asdict()

    def _first(self, batch: int) -> tuple[Tensor, ...]:
        belief = first_belief(self.own.direction, self.table.present.shape[1])
        return *super()._first(batch), *(part.expand(batch, *part.shape) for part in self._kept(belief, 0))

    def _recalled(self, memory: tuple[Tensor, ...], noticed: Noticed) -> tuple[Tensor, ...]:
        """Accounts, and what is believed of neighbours, after a slot."""
        now, told, after = self._after(memory, noticed)
        power = torch.searchsorted(self.model.network.power_watt, noticed.power_watt.contiguous())
        arrived = self.table.of_edges(noticed.arrived)
        belief, direction = self._belief(memory), self.own.direction
        belief = remembered(self.reach, belief, direction, power, now, after, told, arrived)
        return *after, *self._kept(belief, 1)

    def _belief(self, memory: tuple[Tensor, ...]) -> Belief:
        """What the memory has of neighbours, by device and neighbour."""
        return Belief(*(part[:, self.table.edge] for part in memory[2:]))

    def _kept(self, belief: Belief, axis: int) -> list[Tensor]:
        """The same by edge, which begins at an axis."""
        return [part.flatten(axis, axis + 1).index_select(axis, self._place_of_edge) for part in belief]

    @cached_property
    def _place_of_edge(self) -> Tensor:
        """Where edges are in a table by device and neighbour."""
        return self.table.present.flatten().nonzero().squeeze(-1)

    def _chosen(self, slot: int, seen: Observation) -> tuple[Tensor, Tensor]:
        now, price, weight = Account(*seen.memory[:2]), self.price(slot, seen), self.bias_weight_in(slot)
        own, there = self.own, self.table.present
        belief = self._belief(seen.memory)
        return choose_silently(self.terms, self.reach, slot, now, belief, own.direction, price, there, weight)
