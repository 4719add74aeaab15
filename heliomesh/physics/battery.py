"""The battery: continuous in the simulator, a grid for planning.

``b ← min(λ (b − e − D)⁺ + η_in u, b_max)``; an ideal battery loses nothing: λ = η_in = 1, D = 0 (`storage.py`). On a
grid, what follows a slot is split between the two nearest points so that its mean is kept.
Spending goes one of two ways. Rounded *up* it costs whole steps: integers serve as tables' indices, and a
plan is always affordable. Rounded to the *mean* the left energy is split like harvest: a value there is interpolated
between its two neighbours. Either grid only approximates the continuous battery: rounding up costs energy, and a
split is a lottery. `bounds/minorant.py` turns a grid into a bound.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.common.tensors import with_tensors
from heliomesh.physics.harvesting import HarvestLaw
from heliomesh.physics.storage import Losses
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.section import per_device

Joules = TypeVar("Joules", Tensor, npt.NDArray[np.float64])

# Rounding is forgiven as a share of the energies compared. A share of a step or of a capacity would pay for whole
# actions where batteries are large.
TOLERANCE = 1e-9  # of stored energy, which is summed over slots
_SPENDING_TOLERANCE = 1e-12  # of an action's energy, a sum such as 0.1 + 0.2
PAID = (1 - _SPENDING_TOLERANCE) / (1 + TOLERANCE)  # share of what is needed that a battery must hold


def pays(battery_joule: Tensor, needed_joule: Tensor) -> Tensor:
    """Whether stored energies pay for what is needed [J], up to rounding; shapes that broadcast."""
    return needed_joule * PAID <= battery_joule


@dataclass(frozen=True)
class Battery:
    """Capacities and planning grids of all devices."""

    capacity_joule: Tensor  # (device,)
    losses: Losses  # of every device's storage
    levels: int
    rounding: Literal["up", "mean"] = "up"  # of spending
    chosen_step_joule: Tensor | None = None  # (device,) such that the topmost level is below a full battery

    @property
    def present(self) -> Tensor:
        """Whether a device has a battery; one that is away has none; (device,)."""
        return self.capacity_joule > 0

    @property
    def drains(self) -> bool:
        """Whether some device draws energy in every slot, so that an empty battery leaves it dark."""
        return bool((self.losses.drain_joule > 0).any())

    def of(self, devices: Tensor) -> "Battery":
        """The batteries of some devices, by their numbers."""
        step = None if self.chosen_step_joule is None else self.chosen_step_joule[devices]
        losses = with_tensors(self.losses, lambda numbers: numbers[devices])
        return Battery(self.capacity_joule[devices], losses, self.levels, self.rounding, step)

    def on_grid(self, levels: int, rounding: Literal["up", "mean"], step_joule: Tensor | None = None) -> "Battery":
        """The same batteries on another grid."""
        return replace(self, levels=levels, rounding=rounding, chosen_step_joule=step_joule)

    @cached_property
    def step_joule(self) -> Tensor:
        """Distance of grid points; shape (device,). A grid of one level has the point 0 only."""
        if self.chosen_step_joule is not None:
            return self.chosen_step_joule
        return self.capacity_joule / max(self.levels - 1, 1)

    def level(self, battery_joule: Tensor) -> Tensor:
        """Grid level at or below the stored energy; (..., device) → (..., device)."""
        raw = torch.floor(battery_joule / self.step_joule * (1 + TOLERANCE))
        return raw.clamp(0, self.levels - 1).long()

    def place(self, battery_joule: Tensor) -> tuple[Tensor, Tensor]:
        """Grid level below the stored energy and the share of the next one up; (..., device) each.

        The share is in [0, 1]; a full battery is the topmost level by a share of one.
        """
        exact = (battery_joule / self.step_joule).clamp(0, self.levels - 1)
        low = torch.floor(exact + TOLERANCE).clamp(max=max(self.levels - 2, 0))
        return low.long(), (exact - low).clamp(0, 1)

    def steps_up(self, spent_joule: Tensor) -> Tensor:
        """Spending in grid steps, rounded up; (device, action) → (device, action)."""
        # what no battery can pay for costs one step more than the grid has
        unpaid = spent_joule * (1 - _SPENDING_TOLERANCE) > self.capacity_joule.unsqueeze(-1)
        steps = _whole_steps(spent_joule, self.step_joule.unsqueeze(-1)).masked_fill(unpaid, self.levels)
        return steps.clamp(0, self.levels).long()

    def overshoot(self, spent_joule: Tensor) -> Tensor:
        """What `steps_up` takes too much, in grid steps, zero where it stays spent; (device, action), in [0, 1]."""
        exact = spent_joule / self.step_joule.unsqueeze(-1)
        over = _whole_steps(spent_joule, self.step_joule.unsqueeze(-1)) - exact
        kept = (over > TOLERANCE) & (spent_joule <= self.capacity_joule.unsqueeze(-1)) & (self.rounding == "mean")
        return torch.where(kept, over, 0.0)

    def aligned(self, joule: Tensor) -> bool:
        """Whether energies (device, ...) are whole numbers of grid steps, as `steps_up` and `kernel` count them."""
        steps = joule / self.step_joule.reshape(-1, *(1,) * (joule.ndim - 1))
        return bool(((steps - steps.round()).abs() <= TOLERANCE * steps).all())

    def affordable(self, battery_joule: Tensor, spent_joule: Tensor) -> Tensor:
        """Whether stored energy (..., device) pays for spending (device, action) → (..., device, action)."""
        return pays(battery_joule.unsqueeze(-1), spent_joule)

    def lacking(self, battery_joule: Tensor) -> Tensor:
        """What batteries lack to be full [J]; (..., device)."""
        return self.capacity_joule - battery_joule

    def dark(self, battery_joule: Tensor) -> Tensor:
        """Whether stored energy does not pay for the drain: nothing else is then affordable; (..., device)."""
        return ~pays(battery_joule, self.losses.drain_joule)

    def step(
        self, battery_joule: Joules, drawn_joule: Joules, harvested_joule: Joules, told_joule: Joules | None = None
    ) -> tuple[Joules, Joules, Joules]:
        """What is spent, the next stored energy, and the harvest that overflows [J]; shapes (..., device).

        e + D is drawn as far as the battery holds it, after what was paid for messages. Tensors or arrays: NumPy
        begins sooner, which tells where devices are few.
        """
        few = isinstance(battery_joule, np.ndarray)
        capacity, losses = self._numbers if few else (self.capacity_joule, self.losses)
        if told_joule is None:
            spent = drawn_joule.clip(max=battery_joule)
        else:
            spent = drawn_joule.clip(max=(battery_joule - told_joule).clip(min=0)) + told_joule
        left = (battery_joule - spent).clip(min=0)
        filled = losses.kept_share(left) * left + losses.charge_efficiency * harvested_joule
        stored = filled.clip(max=capacity)
        return spent, stored, (filled - stored) / losses.charge_efficiency

    @cached_property
    def _numbers(self) -> tuple[npt.NDArray[np.float64], Losses]:
        """Capacity and losses as arrays."""
        capacity: Any
        capacity, losses = with_tensors((self.capacity_joule, self.losses), lambda tensor: tensor.numpy(force=True))
        return capacity, losses

    def kept_steps(self) -> tuple[Tensor, Tensor]:
        """What drain and leakage leave of every level, λ (l − D)⁺: whole grid steps and the rest; (device, level)."""
        losses, step = self.losses, self.step_joule
        level = torch.arange(self.levels, dtype=step.dtype, device=step.device).unsqueeze(1)
        left = (level - losses.drain_joule / step).clamp_min(0)
        kept = (losses.kept_share(left * step) * left).T
        whole = torch.floor(kept + TOLERANCE)
        return whole.long(), (kept - whole).clamp(0, 1)

    def gained_steps(self, law: HarvestLaw, phase: int) -> Tensor:
        """Stored harvest η_in u of every atom in grid steps; (device, weather, atom)."""
        joule = law.joule[phase] * law.scale.reshape(-1, 1, 1) * self.losses.charge_efficiency.reshape(-1, 1, 1)
        return joule / self.step_joule.reshape(-1, 1, 1)

    def kernel(self, law: HarvestLaw, phase: int) -> Tensor:
        """Law of the next level given the level left after spending: (device, weather, left, next).

        Exact for the grid; the mean of what is stored is kept wherever the battery neither overflows nor is empty.
        """
        gained, (whole, rest) = self.gained_steps(law, phase), self.kept_steps()
        shape = (*gained.shape[:2], self.levels)  # (device, weather, left)
        kernel = gained.new_zeros(*shape, self.levels + 1)  # beyond the top, clipped
        prob = law.prob[phase].expand_as(gained)
        at_once = max(1, _ENTRIES_AT_ONCE // kernel[..., 0].numel())
        for upper in (0, 1):
            for some, chance in zip(torch.split(gained, at_once, -1), torch.split(prob, at_once, -1), strict=True):
                exact = some.unsqueeze(2) + rest.reshape(len(rest), 1, -1, 1)  # (device, weather, left, atom)
                low = torch.floor(exact + TOLERANCE)
                above = (exact - low).clamp(0, 1)
                reached = whole.reshape(len(whole), 1, -1, 1) + low.clamp(max=self.levels).long() + upper
                weight = chance.unsqueeze(2) * (above if upper else 1 - above)
                kernel.scatter_add_(-1, reached.clamp(max=self.levels), weight)
        kernel = kernel[..., :-1].contiguous()
        kernel[..., -1] = 1 - kernel[..., :-1].sum(-1)  # everything above the top stays at the top
        return kernel.clamp_min(0)


_ENTRIES_AT_ONCE = 1 << 20  # of a kernel's levels left and atoms


def build_battery(scenario: Scenario, spent_joule: Tensor, losses: Losses) -> Battery:
    """Capacities, and the grid of planners that choose no other; spending (device, action)."""
    energy = scenario.energy
    capacity = torch.tensor(per_device(energy.capacity_joule, scenario.network.devices), dtype=torch.float64)
    plain = Battery(capacity, losses, energy.battery_levels or _DEFAULT_LEVELS)
    return plain if energy.battery_levels is not None else aligned_battery(plain, spent_joule, plain.levels)


_DEFAULT_LEVELS = 9
_STEPS_TRIED = 64


def aligned_battery(battery: Battery, spent_joule: Tensor, most_levels: int, fewest_levels: int = 2) -> Battery:
    """The batteries on the grid of so many levels that rounds spending (device, action) up least.

    Of grids that do not round at all, else of nearly as good ones, it is the coarsest: tables grow steeply with the
    levels. With L of them a step lies between capacity / L and capacity / (L − 1): less than one step is left above
    the topmost level, which plans do not see. The topmost level pays for all that a full battery pays for.
    """
    if most_levels < 2:
        return battery.on_grid(most_levels, "up")
    tried = {levels: _aligned_step(battery, spent_joule, levels) for levels in range(fewest_levels, most_levels + 1)}
    least = min(excess for excess, _ in tried.values())
    most = least + _NEARLY if least else 0.0
    levels = next(levels for levels, (excess, _) in tried.items() if excess <= most)
    return battery.on_grid(levels, "up", tried[levels][1])


_NEARLY = 0.02  # of the dearest action's energy


def _aligned_step(battery: Battery, spent_joule: Tensor, levels: int) -> tuple[float, Tensor]:
    """By how much of the dearest action a grid rounds spending up at most, and its steps [J] (device,)."""
    capacity, drain = battery.capacity_joule.unsqueeze(1), battery.losses.drain_joule.unsqueeze(1)
    needed = spent_joule + drain * (spent_joule > 0)
    paid = needed * (1 - _SPENDING_TOLERANCE) <= capacity
    dear = spent_joule.masked_fill(~paid, 0).amax(1, keepdim=True).clamp_min(1e-300)
    tried = torch.linspace(levels - 1, levels, _STEPS_TRIED + 1, dtype=torch.float64)[:-1].to(capacity)
    dividing = _whole_steps(dear, capacity / (levels - 1)).clamp_min(1) * capacity / dear  # the dearest's energy
    parts = torch.cat([tried.expand(len(capacity), -1), dividing], 1)  # steps in a capacity; (device, step)
    step = (capacity / parts).unsqueeze(2)
    rounded = _whole_steps(spent_joule.unsqueeze(1), step) * step
    excess = ((rounded - spent_joule.unsqueeze(1)) / dear.unsqueeze(2)).masked_fill(~paid.unsqueeze(1), 0).amax(2)
    excess = torch.where(excess <= TOLERANCE, 0.0, excess)
    unpaid = ((_whole_steps(needed.unsqueeze(1), step) > levels - 1) & paid.unsqueeze(1)).any(2)
    unpaid[:, -1:] |= (excess[:, -1:] > 0) | (dividing >= levels)  # it serves where it divides all energies
    least, best = excess.masked_fill(unpaid, torch.inf).min(1)
    return float(least.max()), step.squeeze(2).gather(1, best.unsqueeze(1)).squeeze(1)


def _whole_steps(joule: Tensor, step_joule: Tensor) -> Tensor:
    """Energies in steps, rounded up."""
    return torch.ceil(joule / step_joule * (1 - _SPENDING_TOLERANCE))


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
