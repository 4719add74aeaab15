"""Expectations over the next joint state, under any sky.

Under an independent sky every state variable moves on its own, and the expectation is one product per axis. Under a
mixed sky energies are independent given the weather that all share; under a common one they are so given the weather
and the atom k that all harvest. Tables keep one weather per device; where all share it, only states with equal
weathers occur, and the others repeat the first device's.
"""

import numpy as np
import torch
from torch import Tensor

from heliomesh.grid.contraction import contract_axis, expectation
from heliomesh.model.factor import Variable
from heliomesh.model.problem import Problem
from heliomesh.physics.battery import initial_level_law
from heliomesh.physics.harvesting import HarvestLaw


def expected_next(problem: Problem, states: tuple[Variable, ...], value: Tensor, slot: int) -> Tensor:
    """E[value of the next slot | state after spending]; axes: sites, energies."""
    law = problem.harvest.law
    if law.sky == "independent":
        return expectation(value, [problem.kernel(variable, slot) for variable in states])
    sites = [variable for variable in states if variable.kind == "site"]
    devices = [variable.owner for variable in states if variable.kind == "energy"]
    for axis, variable in enumerate(sites):
        value = contract_axis(value, axis, problem.kernel(variable, slot))
    if not devices:
        return value
    together = _diagonal(problem, value, len(sites), len(devices))  # (weather, sites, batteries)
    moved = contract_axis(together, 0, law.kernel.to(value))
    phase = int(law.phase_of_slot[slot])
    filled = [_filled(problem, (phase, weather), devices, moved[weather]) for weather in range(law.num_weather)]
    return _spread(problem, torch.stack(filled), len(sites), len(devices))


def _filled(problem: Problem, when: tuple[int, int], devices: list[int], value: Tensor) -> Tensor:
    """E[value after harvest] in a phase and weather; value (sites, batteries)."""
    law, (phase, weather) = problem.harvest.law, when
    if law.sky == "mixed":
        return _charged(problem.battery.kernel(law, phase)[:, weather], devices, value)
    total = torch.zeros_like(value)
    for atom, prob in enumerate(law.prob[phase, weather].tolist()):
        if prob > 0:
            kernels = problem.battery.kernel(certain(law, law.joule[phase, weather, atom].reshape(1)), 0)[:, 0]
            total += prob * _charged(kernels, devices, value)
    return total


def _charged(kernels: Tensor, devices: list[int], value: Tensor) -> Tensor:
    """Every battery by its own kernel (device, left, next); the last axes of value are the batteries."""
    first = value.ndim - len(devices)
    for position, device in enumerate(devices):
        value = contract_axis(value, first + position, kernels[device].to(value))
    return value


def certain(law: HarvestLaw, joule: Tensor) -> HarvestLaw:
    """A law with a phase for every certain harvest (phase,), before scaling."""
    table = joule.reshape(-1, 1, 1)
    first = np.zeros_like(law.phase_of_slot)
    return HarvestLaw(table, torch.ones_like(table), law.scale, torch.ones_like(table[0]), first, law.sky)


def _diagonal(problem: Problem, value: Tensor, sites: int, devices: int) -> Tensor:
    """States in which all weathers are equal: (sites, energies) → (weather, sites, batteries)."""
    weathers, levels = problem.harvest.law.num_weather, problem.battery.levels
    apart = value.reshape(*value.shape[:sites], *(weathers, levels) * devices)
    parts = []
    for weather in range(weathers):
        part = apart
        for device in range(devices):
            part = part.select(sites + device, weather)  # earlier weather axes are gone
        parts.append(part)
    return torch.stack(parts)


def _spread(problem: Problem, value: Tensor, sites: int, devices: int) -> Tensor:
    """The way back; states that cannot occur have the first device's weather."""
    weathers, levels = problem.harvest.law.num_weather, problem.battery.levels
    value = value.movedim(0, sites)  # (sites, weather, batteries)
    for device in range(1, devices):
        value = value.unsqueeze(sites + 2 * device)
    shape = (*value.shape[:sites], *(weathers, levels) * devices)
    return value.expand(shape).reshape(*shape[:sites], *(weathers * levels,) * devices)


def shared_first(problem: Problem, states: tuple[Variable, ...], value: Tensor) -> Tensor:
    """Mean of a table over the law of the first state, where all devices share their weather."""
    sites = [variable for variable in states if variable.kind == "site"]
    devices = [variable.owner for variable in states if variable.kind == "energy"]
    for variable in sites:
        value = torch.tensordot(problem.initial_law(variable), value, dims=([0], [0]))
    if not devices:
        return torch.as_tensor(value)
    together = _diagonal(problem, value, 0, len(devices))
    mean = torch.tensordot(problem.harvest.law.stationary.to(value), together, dims=([0], [0]))
    levels = initial_level_law(problem.scenario, problem.battery).to(value)
    for device in devices:
        mean = torch.tensordot(levels[device], mean, dims=([0], [0]))
    return torch.as_tensor(mean)
