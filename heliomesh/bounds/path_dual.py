"""The lower bound by prices along known paths of the channels and of a shared sky.

Tell everybody the path H of all channels, and of the sky where all devices share it: that can only lower the optimum.
Along a path every pair (receiver i, device j that it hears) and slot t has prices g_ij(t, a) of its own. For any
prices and any functions D_j

    B(H) = Σ_j V_j[Σ_i g_ij − D_j]  +  Σ_t Σ_i min_p ( f_i(h_t, p) − Σ_j g_ij(t, p_j) )

has a mean over paths that is at most the optimal cost. V_j[·] is device j's own dynamic program over its energy, as
in `dual.py`. It pays the prices and its idle cost, and it gets back D_j(t, b): a function of the energy left after
spending whose mean is zero given the channels up to t (`path_penalty.py`). No policy that sees the channels as they
come gains by D_j. It takes from those who know them what they gain by that, and makes B(H) alike for all paths.

A path has one channel state a slot. So a receiver's minimum needs its joint actions only, however many links it has.
These are listed a piece of slots at a time, and kept only where they are few: the gradient of a minimum by prices is
the probability of actions under a softmax, as in `soft_cells.py`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heliomesh.bounds.dual import Adam, falling
from heliomesh.bounds.minorant import DeviceClass, device_classes, first_laws
from heliomesh.bounds.paths import Paths
from heliomesh.bounds.soft_cells import joint_sums, marginals, with_slope
from heliomesh.bounds.soft_programs import log_sum
from heliomesh.grid.after_spending import Spending
from heliomesh.model.policy import Track
from heliomesh.model.problem import Problem, interpolated
from heliomesh.slot.coordination import Coordination, Group

_RATES, _TEMPERATURES = (0.05, 0.002), (0.01, 0.0007)  # first and last, where the largest weight of the cost is 1
_PIECE_ENTRIES = {"cpu": 1 << 20, "cuda": 1 << 28}  # joint actions of receivers and slots that are listed at a time
KEPT_ENTRIES = {"cpu": 1 << 23, "cuda": 1 << 27}  # that are listed once


def schedule(steps: int) -> Iterable[tuple[float, float]]:
    """Temperature of the soft minima and rate of every step of an ascent."""
    return zip(falling(*_TEMPERATURES, steps), falling(*_RATES, steps), strict=True)


def filled(problem: Problem, devices: Tensor, value: Tensor, phase: Tensor) -> Tensor:
    """E[value next | energy left] in phases (path, device) of the harvest law; (device, path, energy) likewise."""
    phases, which = torch.unique(phase[:, devices], return_inverse=True)
    kernels = [problem.phase_kernels(one)[devices] for one in phases.tolist()]
    if len(kernels) == 1:
        return value @ kernels[0].transpose(1, 2)
    number = torch.arange(len(devices), device=value.device).unsqueeze(1)
    own = torch.stack(kernels)[which.T, number]  # (device, path, energy, energy)
    return (own @ value.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class PathDual:
    """B(H) of every path as a function of prices, one tensor (path × slot, receiver, heard, action) per group."""

    paths: Paths
    levels: int  # of the battery grid on which prices are sought
    penalty: Tensor | None = None  # D_j: (slot, device, path, energy) on that grid; None: 0
    shared: Coordination | None = None  # of the problem on that grid, where paths share it

    @cached_property
    def problem(self) -> Problem:
        """On the grid on which prices are sought."""
        return interpolated(self.paths.problem, self.levels)

    @cached_property
    def coordination(self) -> Coordination:
        """Its groups of receivers."""
        return self.shared or Coordination(self.problem)

    def _listed(self, group: Group, rows: slice) -> Tensor:
        """f_i of all joint actions; (path × slot, receiver, joint action)."""
        return self.coordination.observed(group, self.paths.level.flatten(0, 1)[rows])

    @cached_property
    def _kept(self) -> dict[int, Tensor]:
        """`_listed` of all rows, by the group's offset; empty where that is too much."""
        rows = len(self.paths) * self.problem.slots
        if self.coordination.entries * rows > KEPT_ENTRIES[self.problem.device.type]:
            return {}
        return {group.offset: self._listed(group, slice(0, rows)) for group in self.coordination.groups}

    def pieces(self, group: Group) -> Iterator[tuple[slice, Tensor]]:
        """Rows (path × slot) and f_i of all joint actions in them, a piece at a time."""
        rows = len(self.paths) * self.problem.slots
        entries = len(group.receivers) * len(self.problem.actions) ** group.heard
        length = max(1, _PIECE_ENTRIES[self.problem.device.type] // entries)
        for first in range(0, rows, length):
            piece = slice(first, min(first + length, rows))
            yield piece, self._kept[group.offset][piece] if self._kept else self._listed(group, piece)

    def first_prices(self) -> list[Tensor]:
        """E[f_i | p_j = a] where all others act at random, spread so that they add up to E[f_i] once."""
        count, found = len(self.problem.actions), []
        for group in self.coordination.groups:
            others = count ** (group.heard - 1)
            given = torch.cat([marginals(cost, group.heard, count) / others for _, cost in self.pieces(group)])
            found.append(given - given.mean(-1, keepdim=True) * (1 - 1 / group.heard))
        return found

    def ascend(self, steps: int, track: Track, what: str) -> list[Tensor]:
        """Prices after so many steps of gradient ascent on soft minima of falling temperature."""
        prices = [price.requires_grad_() for price in self.first_prices()]
        if not prices:
            return prices
        adam = Adam(prices)
        for temperature, rate in track(schedule(steps), what, steps):
            gradients = torch.autograd.grad(self.value(prices, temperature).sum(), prices)
            adam.ascend(gradients, rate)
        # idling has no price: receivers' part then varies less with the path, and the bound is the same
        return [(price - price[..., :1]).detach() for price in prices]

    def value(self, prices: list[Tensor], temperature: float) -> Tensor:
        """B(H) on the grid, with soft minima at a positive temperature; (path,)."""
        return self.received(prices, temperature).sum(1) + self._programs(self.paid(prices), temperature)

    def received(self, prices: list[Tensor], temperature: float) -> Tensor:
        """Σ_i min_p (f_i − Σ_j g_ij); (path, slot)."""
        shape = (len(self.paths), self.problem.slots)
        total = torch.zeros(shape, dtype=self.problem.dtype, device=self.problem.device)
        for group, price in zip(self.coordination.groups, prices, strict=True):
            total = total + self._least(price, group, temperature).reshape(shape)
        return total

    def _least(self, price: Tensor, group: Group, temperature: float) -> Tensor:
        """Σ_i min_p (f_i − Σ_j g_ij) of a group of receivers, piece by piece; (path × slot,)."""
        with torch.no_grad():
            least, taken = price.new_empty(len(price)), torch.empty_like(price)
            for rows, cost in self.pieces(group):
                paid = joint_sums(price[rows].unbind(2))
                if temperature == 0:
                    least[rows] = (cost - paid).amin(-1).sum(1)
                    continue
                likely = (paid - cost).div_(temperature)
                least[rows] = log_sum(likely).sum(1).mul_(-temperature)
                taken[rows] = marginals(likely, group.heard, price.shape[-1])
        return with_slope(price, least, taken) if temperature else least

    def paid(self, prices: list[Tensor]) -> Tensor:
        """What devices pay; (slot, device, path, action)."""
        idle, slots = self.problem.idle_cost, self.problem.slots
        paid = idle.repeat(len(self.paths) * slots, 1, 1)
        for group, price in zip(self.coordination.groups, prices, strict=True):
            paid = paid.index_add(1, group.actors.flatten(), price.flatten(1, 2))
        return paid.reshape(-1, slots, *idle.shape).permute(1, 2, 0, 3)

    def _programs(self, paid: Tensor, temperature: float) -> Tensor:
        """Σ_j V_j on the grid; (path,)."""
        problem, every = self.problem, torch.arange(self.problem.num_devices, device=paid.device)
        spending = Spending(problem, every)
        value = paid.new_zeros(problem.num_devices, len(self.paths), problem.num_energy)
        for slot in range(problem.slots - 1, -1, -1):
            if slot < problem.slots - 1:
                value = filled(problem, every, value, self.paths.phase[:, slot])
                value = value if self.penalty is None else value - self.penalty[slot]
            choice = spending.reached(value) + paid[slot].unsqueeze(2)
            value = _soft_least(choice, temperature)
        return (value * problem.initial_energy_law.unsqueeze(1)).sum((0, 2))

    @torch.no_grad()
    def certified(self, prices: list[Tensor]) -> Tensor:
        """B(H) for continuous batteries, with hard minima; (path,)."""
        total, paid, exact = self.received(prices, 0.0).sum(1), self.paid(prices), self.paths.problem
        first = first_laws(exact)
        for alike in device_classes(exact):
            value = self._floor(alike, paid[:, alike.devices])  # (device, path, energy)
            total = total + (value * first[alike.devices].unsqueeze(1)).sum((0, 2))
        return total

    def _floor(self, alike: DeviceClass, paid: Tensor) -> Tensor:
        """Lower bounds on devices' programs; paid (slot, device, path, action) → (device, path, energy)."""
        slots, devices, paths, count = paid.shape
        value = paid.new_zeros(devices * paths, alike.num_energy)
        for slot in range(slots - 1, -1, -1):
            if slot < slots - 1:
                value = self._filled_below(alike, value, self.paths.phase[:, slot, alike.devices].T.flatten())
                value = value - self._penalty_on(alike, slot)
            value = alike.spent(value, paid[slot].reshape(-1, 1, count))
        return value.reshape(devices, paths, -1)

    @staticmethod
    def _filled_below(alike: DeviceClass, value: Tensor, phase: Tensor) -> Tensor:
        """`DeviceClass.filled` of rows (row, energy) with phases (row,) of their own."""
        if len(alike.law.joule) == 1:
            return alike.filled(value, 0)
        found = torch.empty_like(value)
        for one in torch.unique(phase).tolist():
            rows = phase == one
            found[rows] = alike.filled(value[rows], one)
        return found

    def _penalty_on(self, alike: DeviceClass, slot: int) -> Tensor | float:
        """D_j of a slot on the fine grid of a class: linear between points of the coarse one; (row, energy)."""
        if self.penalty is None:
            return 0.0
        coarse = self.penalty[slot, alike.devices].reshape(-1, alike.law.num_weather, self.levels)
        place = torch.linspace(0, self.levels - 1, alike.battery.levels, dtype=coarse.dtype, device=coarse.device)
        low = place.floor().long().clamp(max=max(self.levels - 2, 0))
        above = (low + 1).clamp(max=self.levels - 1)
        return torch.lerp(coarse[..., low], coarse[..., above], place - low).reshape(len(coarse), -1)


def _soft_least(values: Tensor, temperature: float) -> Tensor:
    """Minimum over the last axis; a soft one at a positive temperature. The values are used up."""
    if temperature == 0:
        return values.amin(-1)
    return -temperature * torch.logsumexp(values.div_(-temperature), dim=-1)
