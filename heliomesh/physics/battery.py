"""The battery: continuous in the simulator, a grid for planning.

``b ← min(b + u − e, b_max)``, 0 ≤ e ≤ b. On a grid, harvest is split between the two nearest points so that its mean
is kept. Spending goes one of two ways. Rounded *up* it costs whole steps: integers serve as tables' indices, and a
plan is always affordable. Rounded to the *mean* the left energy is split like harvest: a value there is interpolated
between its two neighbours. Either grid only approximates the continuous battery: rounding up costs energy, and a
split is a lottery. `problem/minorant.py` turns a grid into a bound.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from heliomesh.physics.harvesting import HarvestLaw
from heliomesh.scenario import Scenario, per_device

# Levels are compared in grid steps; a billionth of a step absorbs rounding of sums such as 0.1 + 0.2.
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Battery:
    """Capacities and planning grids of all devices."""

    capacity_joule: Tensor  # (device,)
    levels: int
    rounding: Literal["up", "mean"] = "up"  # of spending
    chosen_step_joule: Tensor | None = None  # (device,) such that the topmost level is below a full battery

    @property
    def step_joule(self) -> Tensor:
        """Distance of grid points; shape (device,). A grid of one level has the point 0 only."""
        if self.chosen_step_joule is not None:
            return self.chosen_step_joule
        return self.capacity_joule / max(self.levels - 1, 1)

    def level(self, battery_joule: Tensor) -> Tensor:
        """Grid level at or below the stored energy; (..., device) → (..., device)."""
        raw = torch.floor(battery_joule / self.step_joule + _TOLERANCE)
        return raw.clamp(0, self.levels - 1).long()

    def place(self, battery_joule: Tensor) -> tuple[Tensor, Tensor]:
        """Grid level below the stored energy and the share of the next one up; (..., device) each.

        The share is in [0, 1]; a full battery is the topmost level by a share of one.
        """
        exact = (battery_joule / self.step_joule).clamp(0, self.levels - 1)
        low = torch.floor(exact + _TOLERANCE).clamp(max=max(self.levels - 2, 0))
        return low.long(), (exact - low).clamp(0, 1)

    def quanta(self, spent_joule: Tensor) -> Tensor:
        """Spending in grid steps, rounded up; (device, action) → (device, action)."""
        # what no battery can pay for costs one step more than the grid has
        steps = torch.ceil(spent_joule / self.step_joule.unsqueeze(-1) - _TOLERANCE)
        steps = torch.where(spent_joule > self.capacity_joule.unsqueeze(-1) * (1 + _TOLERANCE), self.levels, steps)
        return steps.clamp(0, self.levels).long()

    def change(self, spent_joule: Tensor) -> Tensor:
        """What `quanta` takes too much, in grid steps, zero where it stays spent; (device, action), in [0, 1)."""
        exact = spent_joule / self.step_joule.unsqueeze(-1)
        over = torch.ceil(exact - _TOLERANCE) - exact
        kept = (over > _TOLERANCE) & (spent_joule <= self.capacity_joule.unsqueeze(-1)) & (self.rounding == "mean")
        return torch.where(kept, over, 0.0)

    def aligned(self, joule: Tensor) -> bool:
        """Whether energies (device, ...) are all whole numbers of grid steps, as `quanta` and `kernel` count them."""
        steps = joule / self.step_joule.reshape(-1, *(1,) * (joule.ndim - 1))
        return bool(((steps - steps.round()).abs() <= _TOLERANCE).all())

    def affordable(self, battery_joule: Tensor, spent_joule: Tensor) -> Tensor:
        """Whether stored energy (..., device) pays for spending (device, action) → (..., device, action)."""
        dust = _TOLERANCE * self.step_joule
        return spent_joule <= (battery_joule + dust).unsqueeze(-1)

    def step(self, battery_joule: Tensor, spent_joule: Tensor, harvested_joule: Tensor) -> tuple[Tensor, Tensor]:
        """Next stored energy and what overflows [J]; shapes (..., device)."""
        filled = (battery_joule - spent_joule).clamp_min(0) + harvested_joule
        stored = torch.minimum(filled, self.capacity_joule)
        return stored, filled - stored

    def kernel(self, law: HarvestLaw, phase: int) -> Tensor:
        """Law of the next level given the level left after spending: (device, weather, left, next).

        Exact for the grid; the mean of the harvest is kept wherever the battery does not overflow.
        """
        quanta = law.joule[phase] * law.scale.reshape(-1, 1, 1) / self.step_joule.reshape(-1, 1, 1)
        low = torch.floor(quanta + _TOLERANCE)
        upper_share = (quanta - low).clamp(0, 1)
        shift = quanta.new_zeros(*quanta.shape[:2], self.levels + 1)  # (device, weather, gained levels, clipped)
        prob = law.prob[phase].expand_as(quanta)
        for gained, share in ((low, 1 - upper_share), (low + 1, upper_share)):
            shift.scatter_add_(-1, gained.clamp(0, self.levels).long(), prob * share)
        left = torch.arange(self.levels, device=quanta.device).reshape(-1, 1)
        gain = left.T - left
        kernel = torch.where(gain >= 0, shift[..., gain.clamp_min(0)], 0.0)
        kernel[..., -1] = 1 - kernel[..., :-1].sum(-1)  # everything above the top stays at the top
        return kernel.clamp_min(0)


def build_battery(scenario: Scenario, spent_joule: Tensor) -> Battery:
    """Capacities, and the grid of planners that choose no other; spending (device, action)."""
    energy = scenario.energy
    capacity = torch.tensor(per_device(energy.capacity_joule, scenario.network.devices), dtype=torch.float64)
    if energy.battery_levels is not None:
        return Battery(capacity, energy.battery_levels)
    return aligned_battery(capacity, spent_joule, _DEFAULT_LEVELS)


_DEFAULT_LEVELS = 9
_STEPS_TRIED = 64


def aligned_battery(capacity_joule: Tensor, spent_joule: Tensor, most_levels: int, fewest_levels: int = 2) -> Battery:
    """The grid of so many levels that rounds spending (device, action) up least; of nearly as good ones the coarsest.

    Tables grow steeply with the levels. With L of them a step may lie between capacity / L and capacity / (L − 1):
    less than one step is left above the topmost level, which plans do not see.
    """
    if most_levels < 2:
        return Battery(capacity_joule, most_levels)
    tried = {
        levels: _aligned_step(capacity_joule, spent_joule, levels) for levels in range(fewest_levels, most_levels + 1)
    }
    least = min(excess for excess, _ in tried.values())
    levels = next(levels for levels, (excess, _) in tried.items() if excess <= least + _NEARLY)
    return Battery(capacity_joule, levels, "up", tried[levels][1])


_NEARLY = 0.02  # of the dearest action's energy


def _aligned_step(capacity_joule: Tensor, spent_joule: Tensor, levels: int) -> tuple[float, Tensor]:
    """By how much of the dearest action a grid rounds spending up at most, and its steps [J] (device,)."""
    parts = torch.linspace(levels - 1, levels, _STEPS_TRIED + 1, dtype=torch.float64)[:-1]
    step = (capacity_joule.unsqueeze(1) / parts.to(capacity_joule)).unsqueeze(2)  # (device, step, 1)
    spent = spent_joule.unsqueeze(1)
    paid = spent <= capacity_joule.reshape(-1, 1, 1) * (1 + _TOLERANCE)
    dear = spent.masked_fill(~paid, 0).amax(2, keepdim=True).clamp_min(1e-300)
    rounded = torch.ceil(spent / step - _TOLERANCE) * step
    excess, best = ((rounded - spent) / dear).masked_fill(~paid, 0).amax(2).min(1)
    return float(excess.max()), step.squeeze(2).gather(1, best.unsqueeze(1)).squeeze(1)


def initial_battery(scenario: Scenario, battery: Battery, uniform: Tensor) -> Tensor:
    """First stored energy [J] from uniform numbers (..., device)."""
    initial = scenario.energy.initial
    if isinstance(initial, str):
        if initial == "uniform":
            return uniform * battery.capacity_joule
        points = scenario.energy.start_points
        return torch.floor(uniform * points) * (battery.capacity_joule / max(points - 1, 1))
    joule = torch.tensor(per_device(initial, scenario.network.devices), dtype=torch.float64, device=uniform.device)
    return joule.expand_as(uniform).clone()


def initial_level_law(scenario: Scenario, battery: Battery) -> Tensor:
    """Law of the first grid level, rounded as spending is: down, or to the mean; shape (device, level)."""
    devices, levels = len(battery.capacity_joule), battery.levels
    initial, place = scenario.energy.initial, battery.capacity_joule.device
    law = torch.zeros(devices, levels, dtype=torch.float64, device=place)
    if initial == "uniform":
        # exactly full has probability zero; a grid of one level knows the level 0 only
        law[:, : max(levels - 1, 1)] = 1 / max(levels - 1, 1)
        if battery.chosen_step_joule is not None:  # the topmost level is what is left above the others
            law[:, :-1] = (battery.chosen_step_joule / battery.capacity_joule).unsqueeze(1)
            law[:, -1] = 1 - law[:, :-1].sum(1)
        return (law + law.flip(1)) / 2 if battery.rounding == "mean" else law
    points = scenario.energy.start_points if initial == "uniform-grid" else 1
    middle = (torch.arange(points, dtype=torch.float64, device=place).unsqueeze(1) + 0.5) / points
    start = initial_battery(scenario, battery, middle.expand(-1, devices))  # (point, device)
    low, share = battery.place(start)
    if battery.rounding == "up":
        low, share = battery.level(start), torch.zeros_like(share)
    law.scatter_add_(1, low.T, (1 - share).T / points)
    return law.scatter_add_(1, (low + 1).clamp(max=levels - 1).T, share.T / points)
