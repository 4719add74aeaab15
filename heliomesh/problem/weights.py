"""Weights of the one-slot cost, constant within a phase of the horizon.

    c_t = Σ_j (cost of device j where it does not train) + v_t Σ_i f_i,   f_i = Σ_{j∈N_i} a_ij q_ij

The objective "update-loss" has one phase: v_t = 1, and a device that does not train pays idle_penalty · a_jj. The
objective "learning" has phases of slots; there such a device pays u_t.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from heliomesh.scenario import Scenario


@dataclass(frozen=True)
class PhaseWeights:
    """Weights of a slot."""

    train: float | None  # u_t, what a device pays that does not train; None: idle_penalty · a_jj
    deliver: float  # v_t, factor on the weight that receivers miss


@dataclass(frozen=True)
class CostWeights:
    """Different weights, and which of them a slot has."""

    phases: tuple[PhaseWeights, ...]
    phase_of_slot: npt.NDArray[np.int64]  # (slot,)

    def in_slot(self, slot: int) -> PhaseWeights:
        """Weights of a slot."""
        return self.phases[int(self.phase_of_slot[slot])]

    @cached_property
    def train_of_slot(self) -> npt.NDArray[np.float64] | None:
        """u_t; (slot,)."""
        by_phase = [one.train for one in self.phases if one.train is not None]
        return np.array(by_phase)[self.phase_of_slot] if by_phase else None

    @cached_property
    def deliver_of_slot(self) -> npt.NDArray[np.float64]:
        """v_t; (slot,)."""
        return np.array([one.deliver for one in self.phases], dtype=np.float64)[self.phase_of_slot]

    def only(self, phase: int) -> "CostWeights":
        """The weights of one phase in all slots."""
        return CostWeights((self.phases[phase],), np.zeros_like(self.phase_of_slot))

    @property
    def largest(self) -> float:
        """Largest weight, by absolute value, of any slot; 1 where none is above 0 or the network's own are."""
        return max(max(abs(one.train or 0.0), one.deliver) for one in self.phases) or 1.0

    @cached_property
    def borders(self) -> npt.NDArray[np.int64]:
        """Slots whose weights differ from those of the slot before, and the first; rising."""
        return np.concatenate([[0], 1 + np.flatnonzero(np.diff(self.phase_of_slot))])

    def first_alike(self, slot: int) -> int:
        """First of the slots up to this one that all have its weights."""
        return int(self.borders[np.searchsorted(self.borders, slot, side="right") - 1])


def cost_weights(scenario: Scenario) -> CostWeights:
    """The scenario's weights; phases of equal weights are one."""
    cost, slots = scenario.cost, scenario.slots
    if cost.objective == "update-loss":
        return CostWeights((PhaseWeights(None, 1.0),), np.zeros(slots, dtype=np.int64))
    phases = cost.phases or ((slots, 1.0, 1.0),)
    weights = [PhaseWeights(train, deliver) for _, train, deliver in phases]
    different = tuple(dict.fromkeys(weights))
    numbers = np.array([different.index(one) for one in weights], dtype=np.int64)
    return CostWeights(different, np.repeat(numbers, [length for length, _, _ in phases]))
