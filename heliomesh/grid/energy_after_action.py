"""What an action leaves of a battery, on a plan's grid or between its points, and tables there.

    value = (1 − share) · table[low] + share · table[high]

Between two energy states a table is interpolated. Programs on a grid read it at what an action leaves of a state, and
policies at what it leaves of the batteries that they see.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heliomesh.model.policy import Observation
from heliomesh.model.problem import Problem


def values_left(table: Tensor, low: Tensor, high: Tensor, share: Tensor | None, axis: int = -1) -> Tensor:
    """A table at energies between two states of an axis; no share where all energies are states."""
    found = table.gather(axis, low)
    return found if share is None else torch.lerp(found, table.gather(axis, high), share)


def next_up(problem: Problem, low: Tensor) -> Tensor:
    """Energy states above others; the topmost one itself, which then has no share."""
    return (low + 1).clamp(max=problem.num_energy - 1)


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
