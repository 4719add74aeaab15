"""What `left.py` finds, by NumPy: for networks so small that an operation takes longer to begin than to do.

NumPy begins sooner than torch, and what depends on no state is prepared once. The bits are the same. Interpolation
stays with torch: its `lerp` rounds once where NumPy rounds twice.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.physics.battery import TOLERANCE
from heliomesh.problem.problem import Problem
from heliomesh.problem.threads import is_small

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]


_MOST_DEVICES = 1 << 10  # of all episodes together


def is_few(problem: Problem, episodes: int) -> bool:
    """Whether the devices of so many episodes are few, on a grid that interpolates."""
    few = is_small(problem) and episodes * problem.num_devices <= _MOST_DEVICES
    return few and problem.battery.rounding == "mean"


class Place(NamedTuple):
    """Where energies lie on a grid; (batch, device × action) each."""

    low: Ints  # energy state at or below
    share: Floats  # of the next one up


@dataclass(frozen=True)
class FewLeft:
    """Energies left after spending, on a grid that interpolates."""

    problem: Problem

    def price(self, cost: Floats, battery_joule: Floats) -> Floats:
        """Costs (device, action), infinite where stored energy does not pay; (batch, device, action)."""
        needed, dust, *_ = self._numbers
        return np.where(needed <= (battery_joule + dust)[..., None], cost, cost.dtype.type(np.inf))

    def place(self, battery_joule: Floats, first_energy: Ints) -> Place:
        """What every action leaves of batteries (batch, device); `first_energies` gives the other."""
        _, _, spent, step = self._numbers
        levels = self.problem.battery.levels
        exact = np.minimum(np.maximum(battery_joule[..., None] - spent, 0) / step, levels - 1)
        low = np.minimum(np.floor(exact + TOLERANCE), max(levels - 2, 0))
        share = np.maximum(exact - low, 0).astype(self._dtype, copy=False)
        state = first_energy + low.astype(np.int64)
        return Place(state.reshape(len(state), -1), share.reshape(len(share), -1))

    def first_energies(self, weather: Tensor) -> Ints:
        """Energy state of an empty battery, by weather (..., device); (..., device, 1)."""
        found: Ints = (weather * self.problem.battery.levels).unsqueeze(-1).numpy()
        return found

    def values(self, future: Floats, place: Place) -> Floats:
        """A table (device, energy) at what is left; (batch, device, action)."""
        entry = place.low + self._first_energy
        found = _lerp(future.take(entry), future.take(entry + 1, mode="clip"), place.share)
        return found.reshape(len(found), len(future), -1)

    @cached_property
    def _numbers(self) -> tuple[Floats, Floats, Floats, Floats]:
        """What actions need [J] (device, action), forgiven dust [J] (device,), what they spend, steps of the grid."""
        step, actions = self.problem.battery.step_joule.numpy(), self.problem.actions
        return actions.needed_joule.numpy(), TOLERANCE * step, actions.spent_joule.numpy(), step[:, None]

    @cached_property
    def _dtype(self) -> np.dtype[Any]:
        return self.problem.idle_costs.numpy().dtype

    @cached_property
    def _first_energy(self) -> Ints:
        """Where a device's row begins in a table (device, energy); (device × action,)."""
        return np.repeat(np.arange(self.problem.num_devices), len(self.problem.actions)) * self.problem.num_energy


@dataclass(frozen=True)
class JointTable:
    """Values over the joint energies that receivers hear, all of them equally many."""

    values: Tensor  # (row, joint energy)
    actors: Tensor  # (receiver, heard)
    energies: int  # of a device
    actions: int  # of a device

    def at(self, row: Ints, place: Place) -> Floats:
        """Values at what joint actions leave; row (batch, receiver, 1) → (batch, receiver, joint action).

        Only the grid points around every joint action are read, two per device heard.
        """
        entry = row * self.values.shape[1]
        for stride, own in zip(self._strides, self._own, strict=True):
            entry = entry + (place.low * stride).take(own, 1)
        # above the topmost energy there is none; what is read in its place has no weight
        value: Floats = self._flat.take(entry + self._corners, mode="clip")
        for own in self._own:
            half = len(value) // 2
            value = _lerp(value[:half], value[half:], place.share.take(own, 1))
        found: Floats = value[0]
        return found

    @cached_property
    def _flat(self) -> Floats:
        found: Floats = self.values.numpy().ravel()
        return found

    @cached_property
    def _strides(self) -> list[int]:
        """Distance in the table between two energies of a device heard, by device."""
        heard = self.actors.shape[1]
        return [self.energies**k for k in range(heard - 1, -1, -1)]

    @cached_property
    def _own(self) -> list[Ints]:
        """By device heard: where its part of a joint action is among (device × action); (receiver, joint action)."""
        joint = np.indices((self.actions,) * len(self._strides)).reshape(len(self._strides), 1, -1)
        return list(self.actors.numpy().T[..., None] * self.actions + joint)

    @cached_property
    def _corners(self) -> Ints:
        """Distance in the table to the points around one, the first device's upper one last; (point, 1, 1, 1)."""
        above = np.indices((2,) * len(self._strides)).reshape(len(self._strides), -1)
        found: Ints = (np.array(self._strides) @ above).reshape(-1, 1, 1, 1)
        return found


def _lerp(low: Floats, high: Floats, share: Floats) -> Floats:
    """Values between two others."""
    found: Floats = torch.lerp(torch.from_numpy(low), torch.from_numpy(high), torch.from_numpy(share)).numpy()
    return found


def last_of(allowed: npt.NDArray[np.bool_]) -> Ints:
    """Last allowed action, as `Actions.last_of` finds it; (..., action) → (...)."""
    found: Ints = allowed.shape[-1] - 1 - allowed[..., ::-1].argmax(-1)
    return found
