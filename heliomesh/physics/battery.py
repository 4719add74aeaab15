"""The battery: continuous in the simulator, a grid for planning.

On the grid, harvest is split between the two nearest points so that its mean is kept, spending is rounded up and a
look-up rounds the level down: a plan is always affordable. ``b ← min(b + u − e, b_max)``, 0 ≤ e ≤ b. The grid's
optimum is no bound for the continuous battery, on either side: rounding costs energy, but a split harvest is a
lottery, which may pay for an action that its mean would not.

The *optimistic* grid rounds the other way: first level and harvest up, spending down. Along every sequence of actions
it holds at least as much as the continuous battery, so the optimum on it is a lower bound for the latter.
"""

from dataclasses import dataclass

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
    optimistic: bool = False

    @property
    def step_joule(self) -> Tensor:
        """Distance of grid points; shape (device,). A grid of one level has the point 0 only."""
        return self.capacity_joule / max(self.levels - 1, 1)

    def level(self, battery_joule: Tensor) -> Tensor:
        """Grid level at or below the stored energy; (..., device) → (..., device)."""
        raw = torch.floor(battery_joule / self.step_joule + _TOLERANCE)
        return raw.clamp(0, self.levels - 1).long()

    def quanta(self, spent_joule: Tensor) -> Tensor:
        """Spending in grid steps, rounded up (down if optimistic); (device, action) → (device, action)."""
        # what no battery can pay for costs one step more than the grid has
        exact = spent_joule / self.step_joule.unsqueeze(-1)
        steps = torch.floor(exact + _TOLERANCE) if self.optimistic else torch.ceil(exact - _TOLERANCE)
        steps = torch.where(spent_joule > self.capacity_joule.unsqueeze(-1) * (1 + _TOLERANCE), self.levels, steps)
        return steps.clamp(0, self.levels).long()

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

        Exact for the grid; the mean of the harvest is kept wherever the battery does not overflow. The optimistic
        grid rounds it up.
        """
        quanta = law.joule[phase] * law.scale.reshape(-1, 1, 1) / self.step_joule.reshape(-1, 1, 1)
        low = torch.floor(quanta + _TOLERANCE)
        upper_share = (quanta - low).clamp(0, 1)
        if self.optimistic:
            upper_share = (upper_share > _TOLERANCE).to(quanta)
        shift = quanta.new_zeros(*quanta.shape[:2], self.levels + 1)  # (device, weather, gained levels, clipped)
        prob = law.prob[phase].expand_as(quanta)
        for gained, share in ((low, 1 - upper_share), (low + 1, upper_share)):
            shift.scatter_add_(-1, gained.clamp(0, self.levels).long(), prob * share)
        left = torch.arange(self.levels, device=quanta.device).reshape(-1, 1)
        gain = left.T - left
        kernel = torch.where(gain >= 0, shift[..., gain.clamp_min(0)], 0.0)
        kernel[..., -1] = 1 - kernel[..., :-1].sum(-1)  # everything above the top stays at the top
        return kernel.clamp_min(0)


def build_battery(scenario: Scenario) -> Battery:
    """Capacities and grid of the scenario."""
    energy = scenario.energy
    capacity = torch.tensor(per_device(energy.capacity_joule, scenario.network.devices), dtype=torch.float64)
    return Battery(capacity, energy.battery_levels)


def optimistic_battery(battery: Battery, refinement: int) -> Battery:
    """The optimistic grid with ``refinement`` steps for each of the plan's."""
    return Battery(battery.capacity_joule, max(battery.levels - 1, 1) * refinement + 1, optimistic=True)


def initial_battery(scenario: Scenario, battery: Battery, uniform: Tensor) -> Tensor:
    """First stored energy [J] from uniform numbers (..., device)."""
    initial = scenario.energy.initial
    if isinstance(initial, str):
        on_grid = initial == "uniform-grid"
        return (
            torch.floor(uniform * battery.levels) * battery.step_joule
            if on_grid
            else uniform * battery.capacity_joule
        )
    joule = torch.tensor(per_device(initial, scenario.network.devices), dtype=torch.float64, device=uniform.device)
    return joule.expand_as(uniform).clone()


def initial_level_law(scenario: Scenario, battery: Battery) -> Tensor:
    """Law of the first grid level, rounded down as a look-up does (up if optimistic); shape (device, level)."""
    devices, levels = len(battery.capacity_joule), battery.levels
    initial, place = scenario.energy.initial, battery.capacity_joule.device
    law = torch.zeros(devices, levels, dtype=torch.float64, device=place)
    if initial == "uniform-grid":  # of the plan's grid, whose points the optimistic one shares
        points = scenario.energy.battery_levels
        law[:, :: max((levels - 1) // max(points - 1, 1), 1)][:, :points] = 1 / points
        return law
    if initial == "uniform":
        # exactly full has probability zero; a grid of one level knows the level 0 only
        possible = slice(None) if levels == 1 else slice(1, None) if battery.optimistic else slice(None, -1)
        law[:, possible] = 1 / max(levels - 1, 1)
        return law
    start = initial_battery(scenario, battery, torch.zeros_like(battery.capacity_joule))
    level = battery.level(start)
    if battery.optimistic:
        level = torch.ceil(start / battery.step_joule - _TOLERANCE).clamp(0, levels - 1).long()
    return law.scatter_(1, level.unsqueeze(1), 1.0)
