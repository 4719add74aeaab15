"""What each action would leave of the batteries that are seen, on a plan's grid or between its points."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heliomesh.model.policy import Observation
from heliomesh.model.problem import Problem


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
        device = self._device.unsqueeze(-1)
        above = (low + 1).clamp(max=self.problem.num_energy - 1)  # of no weight where it is beyond the top
        return torch.lerp(future[device, low], future[device, above], share)

    def joint_values(self, table: Tensor, row: Tensor, actors: Tensor) -> Tensor:
        """Tables over joint energies at what joint actions leave; (batch, receiver, joint action).

        table (row, joint energy), row (batch, receiver), actors (receiver, heard).
        """
        low, share = self.place
        value = table[row].unsqueeze(2)
        for k in range(actors.shape[1]):
            at, above = low[:, actors[:, k]], share[:, actors[:, k]]  # (batch, receiver, action)
            value = _spent(value.reshape(*value.shape[:3], self.problem.num_energy, -1), at, above)
        return value.flatten(2)


def _spent(value: Tensor, low: Tensor, share: Tensor) -> Tensor:
    """Replace a device's energy by its action: values at what is left, interpolated.

    value (batch, receiver, joint action, energy, rest), low and share (batch, receiver, action) → (batch, receiver,
    joint action × action, rest).
    """
    batch, receivers, joint, top, rest = value.shape
    index = low.reshape(batch, receivers, 1, -1, 1).expand(-1, -1, joint, -1, rest)
    found = value.gather(3, index)
    if bool(share.any()):
        above = value.gather(3, (index + 1).clamp(max=top - 1))
        found = torch.lerp(found, above, share.reshape(batch, receivers, 1, -1, 1))
    return found.reshape(batch, receivers, -1, rest)
