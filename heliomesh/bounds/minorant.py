"""Lower bounds on a device's own dynamic program with a continuous battery, from values on a grid.

The true value v_t(b) of a program that pays prices is no table: batteries are continuous. Here the grid holds numbers
whose piecewise linear interpolation lies below v_t everywhere. Each step keeps that:

- *Drain, leakage, harvest.* Let f interpolate the numbers. E f(λ (b − D)⁺ + u) is piecewise linear, with bends off
  the grid: the bend of a point is met a share θ within some cell, and there it is λ times as strong. Interpolating
  again lies above it, by at most Σ p λ θ (1 − θ) · bend within a cell. That is taken off both ends of the cell. It is
  of second order in the grid's step. Since λ ≤ 1 a cell meets at most one point's bend of each harvest. The drain
  itself bends at b = D. Where it drains, f is first lowered until it falls with b; then that bend is downward, and
  interpolating lies below it.
- *Spending.* f(b − e) has its bends off the grid likewise. It exists from b = e + D on; where that lies within a
  cell, the cell's lower end gets the line's extension, so that the line over the cell is right.
- *Choice.* The interpolation of a minimum lies below the minimum of interpolations.

The operator of the true problem is monotone and adds constants through. So a step that raised every number by at
least l stands for every earlier slot with the same prices and the same law: each adds at least l.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from heliomesh.model.problem import Problem, interpolated, with_levels
from heliomesh.physics.battery import Battery
from heliomesh.physics.harvesting import HarvestLaw

_TOLERANCE = 1e-9  # of shares of a step, as in `Battery`
_LEVELS = 201
UNPAID = 1e6  # stands for an infinite cost: differences of it are zero
_KERNEL_ENTRIES = 40_000_000  # of all phases together


@dataclass(frozen=True)
class DeviceClass:
    """Devices with equal batteries, panels and actions, on a fine grid; its tensors have one device."""

    devices: Tensor  # (device,) which ones
    battery: Battery
    law: HarvestLaw
    spent_joule: Tensor  # (1, action)
    needed_joule: Tensor  # (1, action)

    @property
    def num_energy(self) -> int:
        """Energy states: weather levels × battery levels."""
        return self.law.num_weather * self.battery.levels

    @cached_property
    def fill(self) -> list[Tensor]:
        """By phase: kernel (energy left, energy next) that splits harvest between the two nearest points."""
        kernels = [self.battery.kernel(self.law, phase)[0] for phase in range(len(self.law.joule))]
        joint = [torch.einsum("wln,wv->wlvn", kernel, self.law.kernel) for kernel in kernels]
        return [kernel.reshape(self.num_energy, self.num_energy) for kernel in joint]

    @cached_property
    def bend(self) -> list[Tensor]:
        """By phase: (energy left, energy next), Σ p λ θ (1 − θ) of harvests that move a point's bend into a cell."""
        law, levels, found = self.law, self.battery.levels, []
        whole, rest = (part[0, :-1].reshape(1, -1, 1) for part in self.battery.kept_steps())
        for phase in range(len(law.joule)):
            steps = self.battery.gained_steps(law, phase)[0].unsqueeze(1) + rest  # (weather, left, atom)
            low = torch.floor(steps + _TOLERANCE)
            strength = law.prob[phase].unsqueeze(1) * self._strength((steps - low).clamp(0, 1))
            bend = torch.zeros(law.num_weather, levels, levels + 1, dtype=torch.float64, device=steps.device)
            point = (whole + low.clamp(max=levels).long() + 1).clamp(max=levels)
            bend[:, :-1].scatter_add_(2, point, strength)
            joint = torch.einsum("wln,wv->wlvn", bend[..., :-1], law.kernel)
            found.append(joint.reshape(self.num_energy, self.num_energy))
        return found

    def _strength(self, share: Tensor) -> Tensor:
        """λ θ (1 − θ) of the point above a cell's lower end; the end itself moves to a share above a point.

        What is kept grows by λ within the cell, from b = D on. With δ the part of the cell below D, the point is met
        at θ = δ + (1 − share) / λ; if that is beyond the cell, it has no strength. (weather, left, atom) likewise.
        """
        losses, retention = self.battery.losses, self.battery.losses.retention.clamp_min(1e-300)
        left = torch.arange(share.shape[1], dtype=share.dtype, device=share.device).reshape(1, -1, 1)
        below = (losses.drain_joule / self.battery.step_joule - left).clamp(0, 1)
        beyond = share - (1 - retention * (1 - below))  # λ (1 − θ)
        found = (retention * below + (1 - share)) * beyond / retention
        return torch.where(share > _TOLERANCE, found.clamp_min(0), 0.0)

    def filled(self, value: Tensor, phase: int) -> Tensor:
        """Numbers whose interpolation lies below E[value | energy left after spending]; (row, energy) likewise."""
        levels = self.battery.levels
        if self.battery.drains:
            value = value.reshape(len(value), -1, levels).cummin(-1).values.reshape(value.shape)
        gap = (_bends(value, levels, closed=True) @ self.bend[phase].T).reshape(len(value), -1, levels)
        before = torch.nn.functional.pad(gap[..., :-1], (1, 0))
        return value @ self.fill[phase].T - torch.maximum(gap, before).reshape(value.shape)

    def spent(self, future: Tensor, price: Tensor) -> Tensor:
        """Numbers whose interpolation lies below the least of price plus future at what is left.

        future (row, energy), price (row, weather or 1, action) → (row, energy).
        """
        shape = (len(future), self.law.num_weather, self.battery.levels)
        best = future.reshape(shape) + price[..., :1]  # idle spends nothing
        for action in range(1, price.shape[2]):
            after = self.after(future, action).reshape(shape) + price[..., action : action + 1]
            torch.minimum(best, after, out=best)
        return best.reshape(future.shape)

    def after(self, future: Tensor, action: int) -> Tensor:
        """Numbers below the future at what an action leaves, `UNPAID` where it may not be taken; (row, energy)."""
        levels = self.battery.levels
        (_, first, overshoot), (needed, start, _) = self._spending[action], self._need[action]
        apart = future.reshape(len(future), -1, levels)
        found = torch.full_like(apart, UNPAID)
        if needed < levels:
            left = _left(apart, _bends(future, levels, closed=False).reshape(apart.shape), overshoot)
            found[..., start:] = left[..., start - first : levels - first]
        return found.reshape(future.shape)

    @cached_property
    def _spending(self) -> list[tuple[int, int, float]]:
        return self._steps(self.spent_joule)

    @cached_property
    def _need(self) -> list[tuple[int, int, float]]:
        return self._steps(self.needed_joule)

    def _steps(self, joule: Tensor) -> list[tuple[int, int, float]]:
        """Of every action's energy (1, action): grid steps rounded up and down, and the share between."""
        steps_up, overshoot = self.battery.steps_up(joule)[0].tolist(), self.battery.overshoot(joule)[0].tolist()
        return [(up, up - (share > 0), share) for up, share in zip(steps_up, overshoot, strict=True)]


def _left(future: Tensor, bends: Tensor, overshoot: float) -> Tensor:
    """Numbers below ``future`` (row, weather, level) at points a share ``overshoot`` above a level, from −1 on."""
    if not overshoot:
        return future
    below = torch.cat([2 * future[..., :1] - future[..., 1:2], future], 2)
    near = torch.nn.functional.pad(bends, (1, 0))
    lowered = overshoot * (1 - overshoot) * torch.maximum(near[..., :-1], near[..., 1:])
    return torch.lerp(below[..., :-1], below[..., 1:], overshoot) - lowered


def _bends(value: Tensor, levels: int, closed: bool) -> Tensor:
    """Upward bends of an interpolation at its points; (row, energy) → (row, energy).

    ``closed``: above the topmost point the value stays as it is, since a full battery takes no more.
    """
    apart = value.reshape(len(value), -1, levels)
    wide = torch.cat([apart, apart[..., -1:]], 2) if closed else apart
    bends = torch.zeros_like(apart)
    inner = (wide[..., :-2] - 2 * wide[..., 1:-1] + wide[..., 2:]).clamp_min(0)
    bends[..., 1 : 1 + inner.shape[2]] = inner
    return bends.reshape(value.shape)


def device_classes(problem: Problem, levels: int | None = None) -> Iterator[DeviceClass]:
    """Devices by their class, each on the finest grid that memory allows, or on one of so many levels."""
    law = problem.harvest.law
    battery = replace(problem.battery, losses=problem.battery.losses.linear)
    spent, needed, losses = problem.actions.spent_joule, problem.actions.needed_joule, battery.losses
    own = (battery.capacity_joule, law.scale, losses.retention, losses.charge_efficiency, losses.drain_joule)
    looks = torch.cat([torch.stack(own, 1), spent], 1)
    different, number = torch.unique(looks, dim=0, return_inverse=True)
    levels = levels or fine_levels(problem)
    for which in range(len(different)):
        devices = (number == which).nonzero().squeeze(1)
        one = devices[:1]
        grid = battery.of(one).on_grid(levels, "mean")
        yield DeviceClass(devices, grid, replace(law, scale=law.scale[one]), spent[one], needed[one])


def first_laws(problem: Problem, levels: int | None = None) -> Tensor:
    """Law of every device's first energy on the fine grid, or on one of so many levels; (device, energy)."""
    return interpolated(problem.wide, levels or fine_levels(problem)).initial_energy_law


def fine_levels(problem: Problem) -> int:
    """Grid levels: the problem's own where batteries never leave them, else as many as kernels allow."""
    if problem.grid_is_exact:
        return problem.battery.levels
    law = problem.harvest.law
    most = int((_KERNEL_ENTRIES / len(law.joule)) ** 0.5 / law.num_weather)
    return dividing_levels(problem, max(min(most, _LEVELS), 3))


def dividing_levels(problem: Problem, most: int) -> int:
    """At most ``most`` levels, and more than half of them, whose steps divide what actions spend best."""
    spent, capacity = problem.actions.spent_joule, problem.battery.capacity_joule.unsqueeze(1)
    share = (spent / capacity)[(spent > 0) & (spent <= capacity)]

    def off(levels: int) -> float:
        steps = share * (levels - 1)
        return round(float((steps - steps.round()).abs().max()), 6) if len(share) else 0.0

    return min(range(most, most // 2, -1), key=off)


def plan_grid(problem: Problem, levels: int | None, interpolate: bool, most: int) -> Problem:
    """The problem on a plan's grid: of ``levels``, or the scenario's, or at most ``most`` that divide spending best.

    Without interpolation spending is rounded up.
    """
    if not interpolate:
        return with_levels(problem, levels)
    named = levels or problem.scenario.energy.battery_levels
    return interpolated(problem, named or dividing_levels(problem, most))
