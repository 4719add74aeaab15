"""What is left after an action, and what tables say of it: one family for planners, bounds and policies.

    b' = step(b − e(a), harvest),    Q(b, a) = price(a) + W(b − e(a)),    W(x) = E[V(b') | x left after spending]

W is a table over energy states, a weather and a battery level each. It is read at b − e(a), linearly interpolated:

    W(x) = (1 − share) · W[low] + share · W[low + 1].

- By grid index: `Spending` of devices in any state, `spread_actions` and `narrowed` on axes of a joint table. The
  grid tells how far what is left lies above an energy state, `Actions.overshoot`; nowhere on a grid that rounds up.
- At true batteries, which lie anywhere: `EnergyAfterAction`, own tables and joint ones. `NumpyEnergyLookup` and
  `JointTable` find the same, to the bit, for networks whose operations take longer to begin than to do: NumPy begins
  sooner than torch, and what depends on no state is prepared once. Interpolation stays with torch: its `lerp` rounds
  once where NumPy rounds twice.
- By a soft minimum over actions (`bounds/soft_programs.py`), along sampled paths too: as a matrix, `Spending.shares`.
  Bounds for continuous batteries lower W by its bends (`bounds/minorant.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.model.policy import Observation
from heliomesh.model.problem import Problem
from heliomesh.model.threads import is_small
from heliomesh.physics.battery import PAID, TOLERANCE

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]

_MOST_DEVICES = 1 << 10  # of all episodes together, which are few


def values_left(table: Tensor, low: Tensor, high: Tensor, share: Tensor | None, axis: int = -1) -> Tensor:
    """A table at energies between two states of an axis; no share where all energies are states."""
    found = table.gather(axis, low)
    return found if share is None else torch.lerp(found, table.gather(axis, high), share)


def next_up(problem: Problem, low: Tensor) -> Tensor:
    """Energy states above others; the topmost one itself, which then has no share."""
    return (low + 1).clamp(max=problem.num_energy - 1)


@dataclass(frozen=True)
class Spending:
    """What actions leave of every energy state of some devices."""

    problem: Problem
    devices: Tensor  # (device,) numbers

    @cached_property
    def barred(self) -> Tensor:
        """+∞ where a state does not pay for an action, else 0; (device, energy, action)."""
        feasible = self.problem.feasible[self.devices]
        nothing = torch.zeros(feasible.shape, dtype=self.problem.dtype, device=feasible.device)
        return nothing.masked_fill_(~feasible, torch.inf)

    @cached_property
    def lower(self) -> Tensor:
        """State that an action leaves, at or below; (device, energy × action)."""
        return self.problem.energy_left[self.devices].flatten(1)

    @cached_property
    def upper(self) -> Tensor:
        """The next state up; (device, energy × action)."""
        return next_up(self.problem, self.lower)

    @cached_property
    def share(self) -> Tensor | None:
        """By which share what is left lies above `lower`; None where it never does. (device, energy × action)."""
        overshoot = self.problem.actions.overshoot
        if not bool(overshoot.any()):
            return None
        return overshoot[self.devices].to(self.problem.dtype).repeat(1, self.problem.num_energy)

    @cached_property
    def shares(self) -> Tensor:
        """Shares by which an action leaves a state's energy on either grid point; (device, energy × action, left)."""
        one = torch.ones(*self.lower.shape, 1, dtype=self.problem.dtype, device=self.lower.device)
        above = 0 * one if self.share is None else self.share.unsqueeze(-1)
        shares = one.new_zeros(*self.lower.shape, self.problem.num_energy)
        shares.scatter_(2, self.lower.unsqueeze(-1), one - above)
        return shares.scatter_add_(2, self.upper.unsqueeze(-1), above)

    def read(self, future: Tensor) -> Tensor:
        """A table (..., device, energy) at what actions leave; one more axis (..., action)."""
        rows = future.shape[:-1]
        found = values_left(future, self.lower.expand(*rows, -1), self.upper.expand(*rows, -1), self.share)
        return found.view(*rows, *self.barred.shape[1:])

    def reached(self, future: Tensor) -> Tensor:
        """The same of a table (device, row, energy), +∞ where a state does not pay for an action."""
        return self.read(future.transpose(0, 1)).transpose(0, 1) + self.barred.unsqueeze(1)


def spread_actions(problem: Problem, table: Tensor, devices: Sequence[int]) -> Tensor:
    """Append action axes: result[..., e_1, e_2, ..., a_1, a_2, ...] = table[..., left_1[e_1, a_1], ...].

    The last axes of a table are energies of the devices, on a grid that rounds up.
    """
    first = table.ndim - len(devices)
    for axis, device in enumerate(devices, first):
        moved = table.movedim(axis, -1)[..., problem.energy_left[device]]  # (..., energy, action)
        table = moved.movedim(-2, axis)
    return table


def narrowed(table: Tensor, axis: int, first: int, length: int, overshoot: float) -> Tensor:
    """The table at so many levels left, from the first on, interpolated between two levels where overshoot is."""
    low = table.narrow(axis, first, length)
    return torch.lerp(low, table.narrow(axis, first + 1, length), overshoot) if overshoot else low


@dataclass(frozen=True)
class EnergyAfterAction:
    """Energies left after spending, by device and action; on a grid that rounds, levels are integers."""

    problem: Problem
    seen: Observation

    @cached_property
    def affordable(self) -> Tensor:
        """Whether the stored energy pays; (batch, device, action)."""
        problem = self.problem
        if problem.battery.rounding == "up":
            return problem.feasible[self._device, self._state]
        return problem.affordable(self.seen.battery_joule)

    @property
    def _device(self) -> Tensor:
        return torch.arange(self.problem.num_devices, device=self.problem.device)

    @cached_property
    def _state(self) -> Tensor:
        """Energy state at or below; (batch, device)."""
        return self.seen.energy_state(self.problem)

    @cached_property
    def place(self) -> tuple[Tensor, Tensor]:
        """Energy state below what is left and the share of the next one up; (batch, device, action) each."""
        battery = self.problem.battery
        if battery.rounding == "up":
            left = self.problem.energy_left[self._device, self._state]
            return left, torch.zeros(left.shape, dtype=self.problem.dtype, device=left.device)
        joule = (self.seen.battery_joule.unsqueeze(-1) - self.problem.actions.spent_joule).clamp_min(0)
        low, share = battery.place(joule.transpose(1, 2))  # its last axis is the device
        weather = self.seen.weather.unsqueeze(-1) * battery.levels
        return weather + low.transpose(1, 2), share.transpose(1, 2).to(self.problem.dtype)

    def values(self, future: Tensor) -> Tensor:
        """A table (device, energy) at what is left; (batch, device, action)."""
        low, share = self.place
        return values_left(future.expand(len(low), -1, -1), low, next_up(self.problem, low), share)

    def joint_values(self, table: Tensor, row: Tensor, actors: Tensor) -> Tensor:
        """Tables over joint energies at what joint actions leave; (batch, receiver, joint action).

        table (row, joint energy), row (batch, receiver), actors (receiver, heard).
        """
        low, share = self.place
        value = table[row].unsqueeze(2)
        for k in range(actors.shape[1]):
            at, above = low[:, actors[:, k]], share[:, actors[:, k]]  # (batch, receiver, action)
            # its energy gives way to its action; (batch, receiver, joint action so far, energy, rest)
            value = value.reshape(*value.shape[:3], self.problem.num_energy, -1)
            index = at[:, :, None, :, None].expand(-1, -1, value.shape[2], -1, value.shape[4])
            part = above[:, :, None, :, None] if bool(above.any()) else None
            value = values_left(value, index, next_up(self.problem, index), part, axis=3).flatten(2, 3)
        return value.flatten(2)


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
