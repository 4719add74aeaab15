"""What `energy_after_action.py` finds, by NumPy: for networks whose operations take longer to begin than to do.

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

from heliomesh.model.problem import Problem
from heliomesh.model.threads import is_small
from heliomesh.physics.battery import PAID, TOLERANCE

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]

_MOST_DEVICES = 1 << 10  # of all episodes together


def is_few(problem: Problem, episodes: int) -> bool:
    """Whether the devices of so many episodes are few, on a grid that interpolates."""
    few = is_small(problem) and episodes * problem.num_devices <= _MOST_DEVICES
    return few and problem.battery.rounding == "mean"


class Place(NamedTuple):
    """Where energies lie on a grid; (batch, device × action) each."""

    low: Ints  # grid level below
    share: Floats  # of the next one up


@dataclass(frozen=True)
class NumpyEnergyLookup:
    """Energies left after spending, on a grid that interpolates."""

    problem: Problem

    @property
    def idle_cost(self) -> Floats:
        """`Problem.idle_cost`; (device, action)."""
        return _array(self.problem.idle_cost)

    def affordable(self, battery_joule: Floats) -> npt.NDArray[np.bool_]:
        """Whether stored energy (batch, device) pays; (batch, device, action)."""
        return _array(self.problem.actions.needed_joule) * PAID <= battery_joule[..., None]

    def place(self, battery_joule: Floats) -> Place:
        """What every action leaves of batteries (batch, device)."""
        top, step_joule = self.problem.battery.levels - 1, _array(self.problem.battery.step_joule)[:, None]
        left = np.maximum(battery_joule[..., None] - _array(self.problem.actions.spent_joule), 0)
        exact = np.minimum(left / step_joule, top)
        low = np.minimum(np.floor(exact + TOLERANCE), max(top - 1, 0))
        share = np.maximum(exact - low, 0).astype(self.idle_cost.dtype, copy=False)
        batch = len(battery_joule)
        return Place(low.astype(np.int64).reshape(batch, -1), share.reshape(batch, -1))

    def first_entries(self, weather: Tensor) -> Ints:
        """Where tables (device, energy) begin for a weather (..., device); (..., device × action)."""
        problem = self.problem
        begin = torch.arange(problem.num_devices) * problem.num_energy + weather * problem.battery.levels
        return _array(begin.repeat_interleave(len(problem.actions), -1))

    def values(self, future: Floats, first_entry: Ints, place: Place) -> Floats:
        """A table (device, energy) at what is left; (batch, device, action)."""
        entry = first_entry + place.low
        # above the topmost energy there is none; what is read in its place has no weight
        found = _lerp(future.take(entry), future.take(entry + 1, mode="clip"), place.share)
        return found.reshape(len(found), len(future), -1)


@dataclass(frozen=True)
class JointTable:
    """Values over the joint energies that receivers hear, all of them equally many."""

    values: Tensor  # (row, joint energy)
    actors: Tensor  # (receiver, heard)
    energies: int  # of a device
    actions: int  # of a device

    def first_entries(self, row: Tensor, empty: Tensor) -> Ints:
        """Where values of rows (slot, batch, receiver) begin; (slot, point, batch, receiver, 1).

        Energy states of empty batteries are (slot, batch, device). Points are those around one on the grid, two per
        device heard, with the first device's upper one last.
        """
        entry = row * self.values.shape[1]
        for stride, device in zip(self._strides, self.actors.T, strict=True):
            entry = entry + empty[..., device] * stride
        above = np.indices((2,) * len(self._strides)).reshape(len(self._strides), -1)
        return _array(entry)[:, None, ..., None] + (np.array(self._strides) @ above).reshape(-1, 1, 1, 1)

    def at(self, first_entry: Ints, place: Place) -> Floats:
        """Values at what joint actions leave; (point, batch, receiver, 1) → (batch, receiver, joint action)."""
        entry = first_entry
        for stride, own in zip(self._strides, self._own, strict=True):
            entry = entry + (place.low if stride == 1 else place.low * stride).take(own, 1)
        value: Floats = self._flat.take(entry, mode="clip")  # as in `NumpyEnergyLookup.values`
        for own in self._own:
            half = len(value) // 2
            value = _lerp(value[:half], value[half:], place.share.take(own, 1))
        found: Floats = value[0]
        return found

    @cached_property
    def _flat(self) -> Floats:
        """All values; (row × joint energy,)."""
        return _array(self.values).ravel()

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


def _lerp(low: Floats, high: Floats, share: Floats) -> Floats:
    """Values between two others."""
    return _array(torch.lerp(torch.from_numpy(low), torch.from_numpy(high), torch.from_numpy(share)))


def _array(values: Tensor) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = values.numpy()
    return found


def last_of(allowed: npt.NDArray[np.bool_]) -> Ints:
    """Last allowed action, as `Actions.last_of` finds it; (..., action) → (...)."""
    found: Ints = allowed.shape[-1] - 1 - allowed[..., ::-1].argmax(-1)
    return found
