"""Approximate values of a receiver that hears too many devices for a table.

The value of receiver i's own term over its channel h and the energies e_k of the devices it hears is fitted by

    V(h, e) ≈ Σ_k u_k(h, e_k) + Σ_r θ_r(h) Π_k φ_r(e_k),     φ_r(e) = exp(−s_r · level / top level)

a free function of each device alone, and symmetric products that fall with every neighbour's charge: they say how
many others could step in. Transitions are independent, so the expectation of both kinds of terms after spending is
exact: each factor is averaged by its own kernel. What is approximated is only the least-squares fit, on states drawn
uniformly, of the exact minimum over joint actions, slot by slot from the horizon on. It takes d·|h|·|e| numbers
instead of |h|·|e|^d. Receiver channels and full duplex only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from heliomesh.problem.problem import Problem
from heliomesh.streams import stream

_SLOPES = (1.0, 3.0)  # s_r
_SAMPLES_PER_COEFFICIENT = 8
_RIDGE = 1e-6  # the functions u_k share a constant: the smallest of equal solutions
_CHUNK_ENTRIES = 1 << 22  # states × joint actions minimised at a time


@dataclass(frozen=True)
class FittedFutures:
    """Post-decision values W of one receiver, by slots from the horizon; the first is the last slot's, zero."""

    single: Tensor  # (stored slot, heard, channel level, energy)
    product: Tensor  # (stored slot, slope, channel level): E θ
    charge: Tensor  # (stored slot, slope, heard, energy): E φ

    def joint(self, slots_left: int, level: Tensor, left: Tensor) -> Tensor:
        """W for all joint actions; level (batch,), left (batch, heard, action) → (batch, joint action)."""
        index = min(slots_left, len(self.single) - 1)
        return _joint_future(self.single[index], self.product[index], self.charge[index], level, left)


def fit_futures(
    problem: Problem, receiver: int, actors: Sequence[int], cost: Tensor, own: Tensor, tolerance: float
) -> FittedFutures:
    """Fitted value iteration; cost f_i (channel level, joint action), own (heard, action): what each action books."""
    level, energy = _drawn_states(problem, receiver, len(actors))
    design = [_features(problem, energy[level == h]) for h in range(problem.channel.levels)]
    solvers = [_least_squares(x) for x in design]
    devices = torch.tensor(actors, device=problem.device)
    place = torch.arange(len(actors), device=problem.device)
    left = problem.energy_left[devices][place, energy]  # (state, heard, action)
    price = own.masked_fill(~problem.feasible[devices][place, energy], torch.inf)  # (state, heard, action)
    single = torch.zeros(len(actors), problem.channel.levels, problem.num_energy, dtype=problem.dtype).to(cost)
    product = torch.zeros(len(_SLOPES), problem.channel.levels, dtype=problem.dtype).to(cost)
    stored, previous = [], None
    kernel = problem.channel.kernel.to(problem.dtype)
    charge = _charge(problem)
    for slot in range(problem.slots - 1, -1, -1):
        moved = problem.energy_kernels(slot)[devices]  # (heard, energy, energy)
        later = slot < problem.slots - 1
        future = (
            torch.einsum("hg,kef,kgf->khe", kernel, moved, single) if later else torch.zeros_like(single),
            product @ kernel.T,
            torch.einsum("kef,rf->rke", moved, charge),
        )
        stored.append(future)
        value = _least(level, left, price, cost, future)
        single, product = _fitted(problem, len(actors), [s @ value[level == h] for h, s in enumerate(solvers)])
        if previous is not None and len(problem.harvest.law.joule) == 1:
            rise = value - previous
            if float(rise.max() - rise.min()) <= tolerance:
                break
        previous = value
    parts = [torch.stack(part) for part in zip(*stored, strict=True)]
    return FittedFutures(*parts)


def _drawn_states(problem: Problem, receiver: int, heard: int) -> tuple[Tensor, Tensor]:
    """Channel levels (state,) and energies (state, heard), equally many states per level."""
    coefficients = heard * problem.num_energy + len(_SLOPES)
    count = _SAMPLES_PER_COEFFICIENT * coefficients
    rng = stream(problem.scenario.seed, "policy", receiver)
    energy = rng.integers(problem.num_energy, size=(problem.channel.levels * count, heard))
    level = np.repeat(np.arange(problem.channel.levels), count)
    return torch.from_numpy(level).to(problem.device), torch.from_numpy(energy).to(problem.device)


def _charge(problem: Problem) -> Tensor:
    """φ_r by energy state; (slope, energy)."""
    levels = problem.battery.levels
    share = (torch.arange(problem.num_energy, device=problem.device) % levels) / max(levels - 1, 1)
    slopes = torch.tensor(_SLOPES, dtype=problem.dtype, device=problem.device)
    return torch.exp(-slopes.unsqueeze(1) * share.to(problem.dtype))


def _features(problem: Problem, energy: Tensor) -> Tensor:
    """One indicator per device and energy, then the products; (state, heard) → (state, coefficient)."""
    single = torch.nn.functional.one_hot(energy, problem.num_energy).flatten(1).to(problem.dtype)
    product = _charge(problem)[:, energy].prod(-1).T  # (state, slope)
    return torch.cat([single, product], 1)


def _least_squares(features: Tensor) -> Tensor:
    """Matrix that maps values at the states to coefficients; (coefficient, state)."""
    gram = features.T @ features + _RIDGE * torch.eye(features.shape[1]).to(features)
    solver: Tensor = torch.linalg.solve(gram, features.T)
    return solver


def _fitted(problem: Problem, heard: int, found: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Coefficients by channel level as u (heard, level, energy) and θ (slope, level)."""
    stacked = torch.stack(found)  # (level, coefficient)
    single = stacked[:, : heard * problem.num_energy].reshape(-1, heard, problem.num_energy)
    return single.transpose(0, 1), stacked[:, heard * problem.num_energy :].T


def _least(level: Tensor, left: Tensor, price: Tensor, cost: Tensor, future: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Least cost now plus future over all feasible joint actions; (state,)."""
    values = []
    chunk = max(1, _CHUNK_ENTRIES // cost.shape[1])
    for part in torch.split(torch.arange(len(level), device=level.device), chunk):
        total = cost[level[part]] + _joint_sum(price[part])
        values.append((total + _joint_future(*future, level[part], left[part])).amin(1))
    return torch.cat(values)


def _joint_future(single: Tensor, product: Tensor, charge: Tensor, level: Tensor, left: Tensor) -> Tensor:
    """Σ_k u_k + Σ_r θ_r Π_k φ_r after spending, for all joint actions; (batch, joint action)."""
    place = torch.arange(left.shape[1], device=left.device).reshape(1, -1, 1)
    total = _joint_sum(single[place, level.reshape(-1, 1, 1), left])
    for theta, phi in zip(product, charge, strict=True):
        total = total + theta[level].unsqueeze(1) * _joint_product(phi[place, left])
    return total


def _joint_sum(terms: Tensor) -> Tensor:
    """Sums over all joint actions, the first device most significant; (batch, heard, action) → (batch, joint)."""
    total = terms[:, 0]
    for k in range(1, terms.shape[1]):
        total = (total.unsqueeze(2) + terms[:, k].unsqueeze(1)).flatten(1)
    return total


def _joint_product(terms: Tensor) -> Tensor:
    """Products over all joint actions, likewise."""
    total = terms[:, 0]
    for k in range(1, terms.shape[1]):
        total = (total.unsqueeze(2) * terms[:, k].unsqueeze(1)).flatten(1)
    return total
