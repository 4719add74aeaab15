"""Prices along paths of a large network, by gradients in closed form and in float32.

`PathDual.ascend` seeks the same prices. Here the gradient of a soft minimum, the probability of every action, is one
matrix product: a receiver's softmax over joint actions times the matrix that tells who does what in them. The value
itself is not needed on the way up, and any prices give a bound, so float32 will do: `PathDual.certified` computes the
bound in float64.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from heliomesh.bounds.dual import Adam
from heliomesh.bounds.path_dual import PathDual, schedule
from heliomesh.bounds.paths import Paths
from heliomesh.bounds.soft_programs import SoftPrograms
from heliomesh.model.policy import Track
from heliomesh.model.problem import Problem, interpolated
from heliomesh.model.threads import is_small
from heliomesh.physics.harvesting import HarvestLaw
from heliomesh.slot.coordination import Coordination, Group


def is_large(problem: Problem) -> bool:
    """Whether prices along paths are better sought here; harvests must follow one law that all paths share."""
    harvest = problem.harvest
    return not is_small(problem) and isinstance(harvest, HarvestLaw) and harvest.sky == "independent"


@dataclass(frozen=True)
class PathAscent:
    """Bounds along paths without penalties for foresight; what all paths share is made once."""

    problem: Problem
    levels: int  # of the battery grid on which prices are sought

    def bounds(self, paths: Paths, steps: int, track: Track) -> Tensor:
        """B(H) of every path, over the horizon; (path,)."""
        narrow = PathDual(replace(paths, problem=self._narrow), self.levels, None, self._narrow_coordination)
        prices = self._prices(narrow, steps, track)
        dual = PathDual(paths, self.levels, None, self._coordination)
        return dual.certified([price.to(dual.problem.dtype) for price in prices])

    @cached_property
    def _narrow(self) -> Problem:
        """The problem on that grid, in float32."""
        return replace(interpolated(self.problem, self.levels), dtype=torch.float32)

    @cached_property
    def _narrow_coordination(self) -> Coordination:
        return Coordination(self._narrow)

    @cached_property
    def _coordination(self) -> Coordination:
        return Coordination(interpolated(self.problem, self.levels))

    @cached_property
    def _programs(self) -> SoftPrograms:
        """All devices' own programs; paths take the place of channel states."""
        devices = torch.arange(self._narrow.num_devices, device=self._narrow.device)
        return SoftPrograms(self._narrow, devices, 0)

    def _prices(self, dual: PathDual, steps: int, track: Track) -> list[Tensor]:
        """Prices (path × slot, receiver, heard, action) per group; idling has none, as in `PathDual.ascend`."""
        prices = dual.first_prices()
        adam = Adam(prices)
        for temperature, rate in track(schedule(steps), "paths", steps) if prices else ():
            adam.ascend(list(self._gradients(dual, prices, temperature)), rate)
        return [price - price[..., :1] for price in prices]

    def _gradients(self, dual: PathDual, prices: list[Tensor], temperature: float) -> Iterator[Tensor]:
        """How likely devices act less how likely receivers want them to; shaped as the prices."""
        acting = self._acting(dual, prices, temperature)
        for group, price in zip(dual.coordination.groups, prices, strict=True):
            slope = acting.index_select(1, group.actors.flatten()).view(price.shape)
            for rows, cost in dual.pieces(group):
                slope[rows] -= _wanted(group, price[rows], cost, temperature)
            yield slope

    def _acting(self, dual: PathDual, prices: list[Tensor], temperature: float) -> Tensor:
        """Probability of every action in the devices' own programs; (path × slot, device, action)."""
        problem, paths = self._narrow, len(dual.paths)
        paid = dual.paid(prices).unsqueeze(3).requires_grad_()  # (slot, device, path, 1, action)
        nothing = paid.new_zeros(problem.num_devices, paths, problem.num_energy)
        slots = range(problem.slots - 1, -1, -1)
        value = self._programs.values(paid, nothing, range(problem.slots), slots, temperature)
        first = problem.initial_energy_law.unsqueeze(1).expand_as(value)
        (slope,) = torch.autograd.grad(value, paid, first)
        return slope.squeeze(3).permute(2, 0, 1, 3).flatten(0, 1)


def _wanted(group: Group, price: Tensor, cost: Tensor, temperature: float) -> Tensor:
    """Probability of every device's action under a receiver's softmax; shaped as the price.

    cost (path × slot, receiver, joint action).
    """
    does, inverse = _doings(group.heard, price.shape[-1], price), 1 / temperature
    net = torch.addmm(cost.flatten(0, 1), price.reshape(-1, len(does)), does, beta=-inverse, alpha=inverse)
    return (torch.softmax(net, 1) @ does.T).view(price.shape)


def _doings(heard: int, actions: int, like: Tensor) -> Tensor:
    """Whether a device takes an action in a joint action, 1 or 0; (heard × action, joint action)."""
    joint = torch.arange(actions**heard, device=like.device)
    stride = actions ** torch.arange(heard - 1, -1, -1, device=like.device)
    taken = joint // stride.unsqueeze(1) % actions  # (heard, joint action)
    return torch.nn.functional.one_hot(taken, actions).transpose(1, 2).flatten(0, 1).to(like)
