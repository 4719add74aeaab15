"""A frame of slots in which devices may send without having agreed: who does, and how likely nobody else interferes.

A receiver gets a packet of one sender at most. With A_i(t) the neighbours of receiver i that may send in slot t of
the frame, each with a chance s, and age_ij the slots since i last heard j, in the mean, a slot's senders are to

    max  Σ_i Σ_{j ∈ A_i} age_ij · s (1 − s)^(|A_i| − 1) · (1 − s if i may send itself, under half duplex),

by best single moves from silence, all devices of a colour at once, since they share no receiver. Sets that share no
receiver at all, the turns of a colouring, come too seldom on dense graphs: a device with many neighbours in range
may send in a tenth of the slots and then wastes energy that it cannot use. Here sets overlap where it pays.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heliomesh.model.problem import Problem
from heliomesh.slot.colour_rounds import by_colour

FRAME_SLOTS = 32  # a device keeps its slots as the bits of a word
_SWEEPS = 3
_LEAST_GAIN = 1e-9  # of a move; less is rounding

Array = npt.NDArray[Any]
Chosen = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Frame:
    """The slots of every device."""

    may_send: Chosen  # (slot, device)
    clear: Array  # (slot, edge) chance that nobody else sends to, or is, the edge's receiver


def frame_of(problem: Problem, chance: float) -> Frame:
    """The frame of devices that use a slot in which they may send with a chance s."""
    search = _Search(problem, chance)
    may_send = np.zeros((FRAME_SLOTS, problem.num_devices), dtype=np.bool_)
    clear = np.zeros((FRAME_SLOTS, problem.topology.num_edges))
    age = np.ones(problem.topology.num_edges)
    for slot in range(FRAME_SLOTS):
        may_send[slot] = search.senders(age)
        clear[slot] = search.clear(may_send[slot])
        heard = clear[slot] * chance * may_send[slot][search.sender]
        age = (age + 1) * (1 - heard) + heard
    return Frame(may_send, clear)


class _Search:
    """Best single moves for the senders of a slot."""

    def __init__(self, problem: Problem, chance: float) -> None:
        self.receiver, self.sender = problem.topology.edge_receiver, problem.topology.edge_sender
        self.devices, self.chance = problem.num_devices, chance
        self.half_duplex = problem.link.half_duplex
        self.movers = [turn.cpu().numpy() for turn in by_colour(problem.colour, problem.device)]

    def senders(self, age: Array) -> Chosen:
        """Who may send; (device,)."""
        chosen = np.zeros(self.devices, dtype=np.bool_)
        for _ in range(_SWEEPS):
            before = chosen.copy()
            for movers in self.movers:
                gain = np.zeros(self.devices)
                gain[movers] = self._gain(chosen, movers, age)
                chosen = chosen ^ (gain > _LEAST_GAIN)
            if (chosen == before).all():
                break
        return chosen

    def clear(self, chosen: Chosen) -> Array:
        """Chance that no rival of each edge's sender sends; (edge,)."""
        quiet = (1 - self.chance) ** (self._count(chosen)[self.receiver] - chosen[self.sender])
        return quiet * self._listens(chosen)[self.receiver]

    def _gain(self, chosen: Chosen, movers: npt.NDArray[np.int64], age: Array) -> Array:
        """What it brings that movers, who share no receiver, do otherwise; (mover,)."""
        moved = chosen.copy()
        moved[movers] = ~moved[movers]
        change = self._worth(moved, age) - self._worth(chosen, age)  # by receiver
        moves = np.zeros(self.devices, dtype=np.bool_)
        moves[movers] = True
        links = moves[self.sender]
        at_receivers = np.bincount(self.sender[links], change[self.receiver[links]], self.devices)
        return at_receivers[movers] + (change[movers] if self.half_duplex else 0.0)

    def _worth(self, chosen: Chosen, age: Array) -> Array:
        """The objective's term of every receiver; (device,)."""
        active = chosen[self.sender]
        count, aged = self._count(chosen), np.bincount(self.receiver, active * age, self.devices)
        worth: Array = aged * self.chance * (1 - self.chance) ** np.maximum(count - 1, 0) * self._listens(chosen)
        return worth

    def _count(self, chosen: Chosen) -> Array:
        """|A_r|; (device,)."""
        return np.bincount(self.receiver, chosen[self.sender].astype(np.float64), self.devices)

    def _listens(self, chosen: Chosen) -> Array:
        """Chance that a receiver does not send itself; (device,)."""
        return 1 - self.chance * (chosen & self.half_duplex)
