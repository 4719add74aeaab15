"""Values of energy as devices hold them: integers, at few points of the battery, and alike in slots that are near.

A row says what a battery's level will have cost by the end, over a full battery's. A battery counts in units, as a
board measures it: microjoules where 32 bits hold them. Points are 2^k units apart, so that shifts find a place
between two of them. Entries have 16 bits.

A slot takes the row of the slot after it where no entry differs by more than a tolerance: 2⁻⁹ slots of training, or
as many fourth roots of two more as it takes for a device's rows to fit `TABLE_BYTES`. By no more does a slot's row
differ from its values at the points.
"""

from itertools import count

import torch
from torch import Tensor

from heliomesh.model.problem import Problem
from heliomesh.physics.battery import TOLERANCE
from heliomesh.slot.bids import VALUE_BITS

TABLE_BYTES = 6144  # of a device
_MOST_POINTS = 64
_ENTRY_BITS, _MOST_BITS = 16, 28
_TOLERANCES = torch.tensor([round(2 ** (7 + step / 4)) for step in range(90)])  # 2⁻⁹ slots of training and more
_FINEST_EXPONENT, _MOST_UNITS = -6, 2**32 - 1


def unit_of(problem: Problem, device: int, also_joule: float = 0.0) -> tuple[int, float]:
    """Exponent of ten of the unit [J] in which a full battery, and another energy, fit 32 bits; that battery [J]."""
    full = float(problem.battery.capacity_joule[device])
    return _exponent(max(full, also_joule)), full


def _exponent(joule: float) -> int:
    """Of the finest unit, from microjoules by thousands."""
    return next(one for one in count(_FINEST_EXPONENT, 3) if joule * 10.0**-one < _MOST_UNITS)


def in_units(problem: Problem, joule: Tensor) -> Tensor:
    """Energies as real numbers of each device's unit; (..., device) or (..., device, 1)."""
    capacity = problem.battery.capacity_joule.tolist()
    scale = {one: 10.0 ** -_exponent(one) for one in set(capacity)}
    return joule * torch.tensor([scale[one] for one in capacity], dtype=torch.float64, device=joule.device)


def battery_units(problem: Problem, joule: Tensor) -> Tensor:
    """Stored energies in whole units, rounded down, of which a full battery has most; (..., device)."""
    most = in_units(problem, problem.battery.capacity_joule).ceil()
    return torch.minimum((in_units(problem, joule) * (1 + TOLERANCE)).floor(), most).long()


def spent_units(problem: Problem, joule: Tensor) -> Tensor:
    """What actions draw in whole units, rounded up, and at most what no battery holds; (device, action)."""
    units = (in_units(problem, joule.T).T * (1 - _SPENDING_TOLERANCE)).ceil()
    return units.clamp(max=_MOST_UNITS).long()


_SPENDING_TOLERANCE = 1e-12


def point_bits(problem: Problem) -> Tensor:
    """k, log₂ of the distance of two points; (device,)."""
    most = battery_units(problem, problem.battery.capacity_joule).clamp_min(1)
    return (most // _MOST_POINTS).double().frexp().exponent.long()


def num_points(problem: Problem) -> int:
    """Points of every table: one above a full battery is the last."""
    most = battery_units(problem, problem.battery.capacity_joule)
    return int((most >> point_bits(problem)).max()) + 2


def held(problem: Problem, values: Tensor) -> Tensor:
    """Least costs to come (slot, device, energy) as a table in 2⁻¹⁶ slots; (slot, device, weather, point)."""
    at = _at_points(problem, values.double())
    cost = ((at - at.amin(-1, keepdim=True)) * (1 << VALUE_BITS)).round().long().clamp(max=(1 << _MOST_BITS) - 1)
    bits = entry_bits(cost).reshape(-1, 1, 1)
    cost = (cost >> bits) << bits
    tolerances = _TOLERANCES.to(cost.device)
    least, most = (torch.full_like(cost[0, :, 0, 0], number) for number in (0, len(_TOLERANCES) - 1))
    while bool((least < most).any()):
        middle = (least + most) // 2
        _, rows = _merged(cost, tolerances[middle])
        fits = (rows == 1) | (2 * rows * cost[0, 0].numel() <= TABLE_BYTES)
        least, most = torch.where(fits, least, middle + 1), torch.where(fits, middle, most)
    return _merged(cost, tolerances[most])[0].int()


def entry_bits(cost: Tensor) -> Tensor:
    """By how many bits the costs of a device (slot, device, weather, point) exceed an entry's; (device,)."""
    return (cost.amax((0, 2, 3)).double().frexp().exponent - _ENTRY_BITS).clamp_min(0).long()


def _at_points(problem: Problem, values: Tensor) -> Tensor:
    """Values on the plan's grid of energies at the table's points, the slope going on beyond the last one."""
    battery, points = problem.battery, num_points(problem)
    joule = (torch.arange(points, device=values.device).unsqueeze(-1) << point_bits(problem)).double()
    exact = (joule / in_units(problem, battery.step_joule.clamp_min(1e-300))).T  # (device, point)
    low = exact.clamp(0, max(battery.levels - 2, 0)).long()
    share = (exact - low).clamp(max=battery.levels)
    grid = values.reshape(*values.shape[:2], -1, battery.levels)
    index = low.unsqueeze(1).expand(*grid.shape[:3], -1)
    above = grid.gather(-1, (index + 1).clamp(max=battery.levels - 1))
    return torch.lerp(grid.gather(-1, index), above, share.unsqueeze(1))


def _merged(cost: Tensor, tolerance: Tensor) -> tuple[Tensor, Tensor]:
    """Costs with the rows of later slots where these are near, and how many a device has left; (device,)."""
    found, rows = cost.clone(), torch.ones_like(tolerance)
    for slot in range(len(cost) - 2, -1, -1):
        apart = (cost[slot] - found[slot + 1]).abs().amax((-2, -1)) > tolerance
        found[slot] = torch.where(apart[:, None, None], cost[slot], found[slot + 1])
        rows += apart
    return found, rows
