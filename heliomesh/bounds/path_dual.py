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
These are listed a piece of slots at a time, and kept only where they are few. Prices are raised on soft minima, whose
gradient is how likely devices act less how likely receivers want them to. The latter is one matrix product: a
receiver's softmax over joint actions times the matrix that tells who does what in them. Any prices give a bound, so
those of large networks are sought in float32.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heliomesh.bounds.dual import Adam, falling
from heliomesh.bounds.minorant import DeviceClass, device_classes, first_laws
from heliomesh.bounds.paths import Paths
from heliomesh.bounds.soft_cells import joint_sums, marginals
from heliomesh.bounds.soft_programs import SoftPrograms
from heliomesh.model.policy import Track
from heliomesh.model.problem import Problem, interpolated
from heliomesh.model.threads import is_small
from heliomesh.physics.harvesting import HarvestLaw
from heliomesh.slot.coordination import Coordination, Group

_RATES, _TEMPERATURES = (0.05, 0.002), (0.01, 0.0007)  # first and last, where the largest weight of the cost is 1
_PIECE_ENTRIES = {"cpu": 1 << 20, "cuda": 1 << 28}  # joint actions of receivers and slots that are listed at a time
KEPT_ENTRIES = {"cpu": 1 << 23, "cuda": 1 << 27}  # that are listed once


def is_large(problem: Problem) -> bool:
    """Whether prices along paths are better sought in float32; harvests must follow one law that all paths share."""
    harvest = problem.harvest
    return not is_small(problem) and isinstance(harvest, HarvestLaw) and harvest.sky == "independent"


def filled(problem: Problem, devices: Tensor, value: Tensor, phase: Tensor) -> Tensor:
    """E[value next | energy left] in phases (path, device) of the harvest law; (device, path, energy) likewise."""
    kernels = _kernels(problem, devices, phase)
    if kernels.shape[1] == 1:
        return value @ kernels.squeeze(1).transpose(1, 2)
    return (kernels @ value.unsqueeze(-1)).squeeze(-1)


def _kernels(problem: Problem, devices: Tensor, phase: Tensor) -> Tensor:
    """Kernels of energies in phases (path, device); (device, path or 1, energy, energy)."""
    phases, which = torch.unique(phase[:, devices], return_inverse=True)
    kernels = [problem.phase_kernels(one)[devices] for one in phases.tolist()]
    number = torch.arange(len(devices), device=phase.device).unsqueeze(1)
    return torch.stack(kernels)[which.T, number] if len(kernels) > 1 else kernels[0].unsqueeze(1)


@dataclass(frozen=True)
class PathPrograms(SoftPrograms):
    """Own programs along paths, which take the place of channel states; they get D_j back."""

    phase: Tensor  # (path, slot, device) of the harvest law
    penalty: Tensor | None  # D_j: (slot, device, path, energy)

    @cached_property
    def _is_known(self) -> bool:
        """Whether all paths have the phases of the law itself."""
        own = torch.from_numpy(self.problem.harvest.law.phase_of_slot).to(self.phase.device)
        return bool((self.phase == own.reshape(1, -1, 1)).all())

    def followed(self, value: Tensor, slot: int) -> Tensor:
        """E[value of the next slot | energy left] along the paths, less D_j."""
        if self._is_known:
            value = super().followed(value, slot)
        else:
            value = filled(self.problem, self.devices, value, self.phase[:, slot])
        return value if self.penalty is None else value - self.penalty[slot]

    def led_back(self, left: Tensor, slot: int) -> Tensor:
        """Its adjoint."""
        if self._is_known:
            return super().led_back(left, slot)
        return (left.unsqueeze(2) @ _kernels(self.problem, self.devices, self.phase[:, slot])).squeeze(2)


@dataclass(frozen=True)
class PathDual:
    """B(H) of every path as a function of prices, one tensor (path × slot, receiver, heard, action) per group."""

    paths: Paths
    levels: int  # of the battery grid on which prices are sought
    penalty: Tensor | None = None  # D_j: (slot, device, path, energy) on that grid; None: 0
    shared: Coordination | None = None  # of the problem on that grid, where paths share it

    @cached_property
    def problem(self) -> Problem:
        """On the grid on which prices are sought; its kernels are kept where paths share their law of harvests."""
        if self.shared is not None and self.shared.problem.harvest is self.paths.problem.harvest:
            return self.shared.problem
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
        prices = self.first_prices()
        adam = Adam(prices)
        schedule = zip(falling(*_TEMPERATURES, steps), falling(*_RATES, steps), strict=True)
        for temperature, rate in track(schedule, what, steps) if prices else ():
            adam.ascend(list(self._gradients(prices, temperature)), rate)
        # idling has no price: receivers' part then varies less with the path, and the bound is the same
        return [price - price[..., :1] for price in prices]

    def _gradients(self, prices: list[Tensor], temperature: float) -> Iterator[Tensor]:
        """How likely devices act less how likely receivers want them to; shaped as the prices."""
        acting = self._acting(prices, temperature)
        for group, price in zip(self.coordination.groups, prices, strict=True):
            slope = acting.index_select(1, group.actors.flatten()).view(price.shape)
            for rows, cost in self.pieces(group):
                slope[rows] -= _wanted(group, price[rows], cost, temperature)
            yield slope

    def _acting(self, prices: list[Tensor], temperature: float) -> Tensor:
        """Probability of every action in the devices' own programs; (path × slot, device, action)."""
        problem = self.problem
        paid = self.paid(prices).unsqueeze(3).requires_grad_()  # (slot, device, path, 1, action)
        nothing = paid.new_zeros(problem.num_devices, len(self.paths), problem.num_energy)
        slots = range(problem.slots - 1, -1, -1)
        value = self._programs.values(paid, nothing, range(problem.slots), slots, temperature)
        first = problem.initial_energy_law.unsqueeze(1).expand_as(value)
        (slope,) = torch.autograd.grad(value, paid, first)
        return slope.squeeze(3).permute(2, 0, 1, 3).flatten(0, 1)

    @cached_property
    def _programs(self) -> PathPrograms:
        """All devices' own programs."""
        devices = torch.arange(self.problem.num_devices, device=self.problem.device)
        return PathPrograms(self.problem, devices, 0, self.paths.phase, self.penalty)

    def received(self, prices: list[Tensor]) -> Tensor:
        """Σ_i min_p (f_i − Σ_j g_ij); (path, slot)."""
        total = self.paths.level.new_zeros(len(self.paths) * self.problem.slots, dtype=self.problem.dtype)
        for group, price in zip(self.coordination.groups, prices, strict=True):
            for rows, cost in self.pieces(group):
                total[rows] += (cost - joint_sums(price[rows].unbind(2))).amin(-1).sum(1)
        return total.reshape(len(self.paths), -1)

    def paid(self, prices: list[Tensor]) -> Tensor:
        """What devices pay; (slot, device, path, action)."""
        idle, slots = self.problem.idle_cost, self.problem.slots
        paid = idle.repeat(len(self.paths) * slots, 1, 1)
        for group, price in zip(self.coordination.groups, prices, strict=True):
            paid = paid.index_add(1, group.actors.flatten(), price.flatten(1, 2))
        return paid.reshape(-1, slots, *idle.shape).permute(1, 2, 0, 3)

    @torch.no_grad()
    def certified(self, prices: list[Tensor]) -> Tensor:
        """B(H) for continuous batteries, with hard minima; (path,)."""
        total, paid, exact = self.received(prices).sum(1), self.paid(prices), self.paths.problem
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


def _wanted(group: Group, price: Tensor, cost: Tensor, temperature: float) -> Tensor:
    """Probability of every device's action under a receiver's softmax; shaped as the price.

    cost (path × slot, receiver, joint action).
    """
    heard, actions, inverse = group.heard, price.shape[-1], 1 / temperature
    joint = torch.arange(actions**heard, device=price.device)
    stride = actions ** torch.arange(heard - 1, -1, -1, device=price.device)
    taken = joint // stride.unsqueeze(1) % actions  # (heard, joint action)
    # whether a device takes an action in a joint action, 1 or 0; (heard × action, joint action)
    does = torch.nn.functional.one_hot(taken, actions).transpose(1, 2).flatten(0, 1).to(price)
    net = torch.addmm(cost.flatten(0, 1), price.reshape(-1, len(does)), does, beta=-inverse, alpha=inverse)
    return (torch.softmax(net, 1) @ does.T).view(price.shape)
