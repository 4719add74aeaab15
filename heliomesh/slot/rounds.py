"""Coordinate rounds: devices of one colour move at once, each to what is best for it, until nobody moves.

Episodes are the last axis, so that rows of devices and receivers are contiguous, which makes look-ups many times
faster. Nearly all moves happen in the first rounds. Later rounds ask only devices near which something has changed:
all others would answer as they did before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heliomesh.slot.ties import first_least

_FEW_CHANGED = 1 / 32  # share of tables below which only devices near them are asked


@dataclass(frozen=True)
class Movers:
    """Devices of one colour, and the tables that hear them: each table hears one of them at most.

    A device that nobody hears has no pair: only its own price decides.
    """

    devices: Tensor  # (mover,)
    table: Tensor  # (pair,) receiver of every pair (receiver, mover), by receiver
    place: Tensor  # (pair,) the mover, as its place among the devices
    stride: Tensor  # (pair,) of the mover's action in the receiver's table
    pairs: Tensor  # (mover, heard by) each mover's pairs in the same order, 0 beyond them
    heard: Tensor  # (mover, heard by) bool: whether there is such a pair


def movers_of(devices: Tensor, table: Tensor, place: Tensor, stride: Tensor) -> Movers:
    """Movers with their pairs listed."""
    counts = torch.bincount(place, minlength=len(devices))
    order = torch.argsort(place, stable=True)
    column = torch.arange(len(place), device=place.device) - (torch.cumsum(counts, 0) - counts)[place[order]]
    pairs = place.new_zeros(len(devices), int(counts.max()) if len(counts) else 0)
    pairs[place[order], column] = order
    heard = torch.arange(pairs.shape[1], device=place.device) < counts.unsqueeze(1)
    return Movers(devices, table, place, stride, pairs, heard)


@dataclass
class Rounds:
    """Rounds under way in a batch of episodes."""

    entries: Tensor  # (entry,) of all tables
    price: Tensor  # (device, action, batch); infeasible actions carry an infinite price
    chosen: Tensor  # (device, batch) actions
    position: Tensor  # (receiver, batch) of the joint actions in the entries
    exact: bool  # whether costs are whole multiples of a unit, whose ties need no tolerance

    def run(self, turns: Sequence[Movers], rounds: int) -> Tensor:
        """Actions (device, batch) after so many rounds, or once nobody moves."""
        near: Tensor | None = None  # tables (receiver, batch) that changed in the round before, where these are few
        for _ in range(rounds):
            if near is None:
                before = self.position.clone()
                for turn in turns:
                    self._move_all(turn)
                changed = self.position != before
            else:
                changed = torch.zeros_like(near)
                for turn in turns:
                    self._move_near(turn, near, changed)
            count = int(changed.sum())
            if count == 0:
                break
            near = changed if count <= _FEW_CHANGED * changed.numel() else None
        return self.chosen

    def _move_all(self, turn: Movers) -> None:
        """Let all devices of a colour move."""
        now = self.chosen.index_select(0, turn.devices)
        stride = turn.stride.unsqueeze(1)
        # where the tables stand with the movers at action 0, then at each of their actions
        base = self.position.index_select(0, turn.table).sub_(now.index_select(0, turn.place).mul_(stride))
        cost = self.price.index_select(0, turn.devices)
        value = self._values(base.unsqueeze(1), stride.unsqueeze(2), axis=1)
        best = self._first_least(cost.index_add_(0, turn.place, value), 1)
        self.chosen.index_copy_(0, turn.devices, best)
        self.position.index_copy_(0, turn.table, base.add_(best.index_select(0, turn.place).mul_(stride)))

    def _move_near(self, turn: Movers, near: Tensor, changed: Tensor) -> None:
        """Let those devices of a colour move that are heard near tables which changed since their last turn.

        ``near`` (receiver, batch): changed in the round before; ``changed``, in which moves are noted: in this one.
        """
        stale = (near.index_select(0, turn.table) | changed.index_select(0, turn.table)).int()
        asked = stale.new_zeros(len(turn.devices), stale.shape[1]).index_add_(0, turn.place, stale)
        mover, episode = asked.nonzero(as_tuple=True)
        device, pair = turn.devices[mover], turn.pairs[mover]  # (asked,), (asked, heard by)
        table, heard = turn.table[pair], turn.heard[mover]
        now, stride = self.chosen[device, episode], turn.stride[pair] * heard
        base = self.position[table, episode.unsqueeze(1)] - now.unsqueeze(1) * stride
        value = self._values(base.unsqueeze(2), stride.unsqueeze(2), axis=2)  # (asked, heard by, action)
        cost = self.price[device, :, episode]
        for one, present in zip(value.unbind(1), heard.unbind(1), strict=True):  # in the order of `_move_all`
            cost += torch.where(present.unsqueeze(1), one, 0.0)
        best = self._first_least(cost, 1)
        moved = (heard & (best != now).unsqueeze(1)).nonzero(as_tuple=True)
        self.chosen[device, episode] = best
        place = table[moved], episode[moved[0]]
        self.position[place] = base[moved] + best[moved[0]] * stride[moved]
        changed[place] = True

    def _values(self, base: Tensor, stride: Tensor, axis: int) -> Tensor:
        """Entries at each of the movers' actions, which are the axis named."""
        shape = [1] * base.ndim
        shape[axis] = self.price.shape[1]
        index = base + stride * torch.arange(shape[axis], device=base.device).reshape(shape)
        return self.entries.index_select(0, index.view(-1)).view(index.shape)

    def _first_least(self, costs: Tensor, dim: int) -> Tensor:
        return costs.argmin(dim) if self.exact else first_least(costs, dim)
