"""A lower bound on the cost of every policy on the scenario's powers: the sum of the receivers' own optima.

The cost is a sum of terms, one per receiver: the weight f_i that it misses and a share of the idle cost of each
device it hears. Let V_i be the optimum of term i alone, as if all devices it hears acted for it alone. The minimum of
a sum is at least the sum of the minima, so Σ_i V_i bounds every policy's cost. V_i is a dynamic program over the
channels into i and the energies of the devices heard: given any history, these move by themselves and by the heard
devices' actions only, so knowing the rest of the network helps nothing. With continuous batteries it is bounded from
below axis by axis as in `minorant.py`: numbers on a grid whose multilinear interpolation lies below V_i. Few devices
heard have small tables.
"""

import math
from collections.abc import Callable
from functools import partial, reduce
from itertools import product

import torch
from torch import Tensor

from heliomesh.bounds.minorant import DeviceClass, device_classes, dividing_levels, first_laws
from heliomesh.bounds.receiver_classes import receiver_terms, surroundings
from heliomesh.grid.contraction import contract_axis
from heliomesh.grid.cycle_fixed_point import settle_values
from heliomesh.model.factor import action, site, total
from heliomesh.model.problem import Part, Problem
from heliomesh.slot.coordination import Coordination

_WORK = 4_000_000  # states × joint actions of all tables
_FEWEST_LEVELS, _MOST_LEVELS = 15, 51  # below, the bound is too loose to be worth it
_TOLERANCE = 1e-3  # a slot's rise may vary by so much when it stands for earlier ones
_CYCLE_TOLERANCE = 1e-4  # the same of a cycle that stands for all time


def receiver_floor(problem: Problem) -> float | None:
    """Certified bound on the total cost over the horizon, or on the mean one of a cycle.

    None where tables would be large or coarse.

    Also None where devices share their weather: their energies do not move independently then.
    """
    if problem.harvest.law.sky != "independent":
        return None
    clusters, kind_of = surroundings(problem, Coordination(problem))
    lonely = any(not neighbours for neighbours in problem.topology.neighbours)
    levels = _levels(problem, clusters)
    if lonely or not clusters or levels is None:
        return None
    numbers = torch.cat(list(kind_of.values()))
    sizes = torch.bincount(numbers, minlength=len(clusters)).tolist()
    known = {int(device): one for one in device_classes(problem, levels) for device in one.devices}
    first = first_laws(problem, levels)
    least = (_least(problem, cluster, known, first) for cluster in clusters)
    return math.fsum(size * one for size, one in zip(sizes, least, strict=True))


def _levels(problem: Problem, clusters: list[Part]) -> int | None:
    """Grid levels that keep the work small; the problem's own where batteries never leave them."""
    law, actions = problem.harvest.law, len(problem.actions)

    def work(levels: int) -> float:
        channel, device = float(problem.channel.levels), float(law.num_weather * levels * actions)
        return sum(channel ** len(cluster.sites) * device ** len(cluster.devices) for cluster in clusters)

    if problem.grid_is_exact:
        return problem.battery.levels if work(problem.battery.levels) <= _WORK else None
    most = next((levels for levels in range(_MOST_LEVELS, _FEWEST_LEVELS - 1, -1) if work(levels) <= _WORK), None)
    return None if most is None else dividing_levels(problem, most)


def _least(problem: Problem, cluster: Part, known: dict[int, DeviceClass], first: Tensor) -> float:
    """Bound on one receiver's term over the horizon, or in a cycle on average: the best least rise."""
    classes, cost, slots = [known[device] for device in cluster.devices], _costs(problem, cluster), problem.slots
    energies = tuple(one.num_energy for one in classes)
    shape = (problem.channel.levels,) * len(cluster.sites) + energies
    value = torch.zeros(shape, dtype=torch.float64, device=problem.device)

    def before(value: Tensor, slot: int) -> Tensor:
        """Numbers below a slot's values."""
        if problem.endless or slot < slots - 1:
            value = _filled(problem, cluster, classes, value, slot)
        return _chosen(classes, value.reshape(-1, *energies), cost).reshape(shape)

    def around(row: Tensor) -> Tensor:
        """Numbers below a cycle's values."""
        return reduce(before, range(slots - 1, -1, -1), row.reshape(shape)).flatten()

    if problem.endless:
        return float(settle_values(around, value.flatten(), slots, _CYCLE_TOLERANCE)[1])
    slot = slots - 1
    while slot >= 0:
        after = before(value, slot)
        rise = after - value
        value, slot = after, slot - 1
        if problem.is_steady and float(rise.max() - rise.min()) <= _TOLERANCE:
            value, slot = value + (slot + 1) * float(rise.min()), -1
    for law in [problem.channel.stationary for _ in cluster.sites] + [first[device] for device in cluster.devices]:
        value = torch.tensordot(law, value, dims=([0], [0]))
    return float(value)


def _costs(problem: Problem, cluster: Part) -> Tensor:
    """The receiver's term: (channel state, action of each device heard)."""
    scope = (*map(site, cluster.sites), *map(action, cluster.devices))
    table = total(receiver_terms(problem, cluster)).aligned(scope).expand(problem.sizes(scope))
    return table.reshape(-1, *table.shape[len(cluster.sites) :])


def _filled(problem: Problem, cluster: Part, classes: list[DeviceClass], value: Tensor, slot: int) -> Tensor:
    """E[value | channels now, energies left], from below."""
    sites, phase = len(cluster.sites), int(problem.harvest.law.phase_of_slot[slot])
    for axis in range(sites):
        value = contract_axis(value, axis, problem.channel.kernel)
    for position, one in enumerate(classes):
        value = _on_axis(value, sites + position, partial(one.filled, phase=phase))
    return value


def _on_axis(value: Tensor, axis: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    """A table in which rows along an axis, (row, energy), are changed."""
    moved = value.movedim(axis, -1)
    return change(moved.reshape(-1, moved.shape[-1])).reshape(moved.shape).movedim(-1, axis)


def _chosen(classes: list[DeviceClass], future: Tensor, cost: Tensor) -> Tensor:
    """Least of cost and future over joint actions; (channel state, energies...) likewise."""
    best = torch.full_like(future, torch.inf)
    for key in product(range(cost.shape[1]), repeat=len(classes)):
        table = future
        for axis, (one, choice) in enumerate(zip(classes, key, strict=True), 1):
            table = _on_axis(table, axis, partial(one.after, action=choice))
        now = cost.permute(*range(1, cost.ndim), 0)[key].reshape(-1, *(1,) * len(classes))
        torch.minimum(best, table + now, out=best)
    return best
