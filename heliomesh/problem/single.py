"""Dynamic programs of single devices against given action prices: all devices at once.

v_t(b) = min over feasible a of  price_t(a) + E[v_{t+1} | b − e(a)]
"""

import torch
from torch import Tensor

from heliomesh.problem.problem import Problem
from heliomesh.problem.settling import settle_laws, settle_values


def future_values(problem: Problem, slot: int, value: Tensor) -> Tensor:
    """E[value next | state after spending]; (device, energy) → (device, energy)."""
    return (problem.energy_kernels(slot) @ value.unsqueeze(-1)).squeeze(-1)


def action_values(problem: Problem, price: Tensor, future: Tensor) -> Tensor:
    """Price plus future at the state left, +∞ where infeasible; (device, action) → (device, energy, action)."""
    reached = reached_values(problem, future)
    return (price.unsqueeze(1) + reached).masked_fill(~problem.feasible, torch.inf)


def reached_values(problem: Problem, future: Tensor) -> Tensor:
    """Values of what every action leaves, interpolated; (device, energy) → (device, energy, action)."""
    left, change = problem.energy_left, problem.actions.change
    wide = future.unsqueeze(-1).expand(-1, -1, left.shape[-1])
    reached = wide.gather(1, left)
    if bool(change.any()):
        above = wide.gather(1, (left + 1).clamp(max=problem.num_energy - 1))
        reached = torch.lerp(reached, above, change.unsqueeze(1).to(reached))
    return reached


def best_responses(problem: Problem, price: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Optimal actions and post-decision values of every device; price (slot, device, action).

    Returns actions (slot, device, energy), futures (slot, device, energy): E[v_{t+1} | state after spending], and
    whether these are exact: around a cycle they are but for a constant, once they have settled.
    """
    slots, devices = price.shape[:2]
    nothing = torch.zeros(devices, problem.num_energy, dtype=problem.dtype, device=problem.device)
    actions = torch.empty(slots, devices, problem.num_energy, dtype=problem.actions.index_type, device=problem.device)
    futures = torch.empty(slots, devices, problem.num_energy, dtype=problem.dtype, device=problem.device)

    def before(value: Tensor) -> Tensor:
        """Values before the first slot of those after the last."""
        for slot in range(slots - 1, -1, -1):
            ends = slot == slots - 1 and not problem.endless
            future = value if ends else future_values(problem, slot, value)
            value, best = action_values(problem, price[slot], future).min(-1)
            actions[slot], futures[slot] = best, future
        return value

    if problem.endless:
        return actions, futures, settle_values(before, nothing, slots)
    before(nothing)
    return actions, futures, True


def opportunity_values(problem: Problem, price: Tensor) -> Tensor:
    """Post-decision values of every device whose prices of actions are drawn anew in every slot.

        v_t(b) = mean over opportunities of  min over feasible a of  price(a) + E[v_{t+1} | b − e(a)]

    price (slot, opportunity, device, action), equally likely → (slot, device, energy).
    """
    slots, _, devices, _ = price.shape
    value = torch.zeros(devices, problem.num_energy, dtype=problem.dtype, device=problem.device)
    futures = torch.empty(slots, devices, problem.num_energy, dtype=problem.dtype, device=problem.device)
    for slot in range(slots - 1, -1, -1):
        futures[slot] = value if slot == slots - 1 else future_values(problem, slot, value)
        reached = reached_values(problem, futures[slot]).masked_fill(~problem.feasible, torch.inf)
        value = torch.stack([(now.unsqueeze(1) + reached).amin(-1) for now in price[slot].to(reached)]).mean(0)
    return futures


def least_totals(problem: Problem, price: Tensor, futures: Tensor) -> Tensor:
    """Expected total of each device's optimal plan from the first slot on; (device,)."""
    value = action_values(problem, price[0], futures[0]).amin(-1)
    return (value * problem.initial_energy_law).sum(1)


def action_laws(problem: Problem, actions: Tensor) -> Tensor:
    """Law of every device's action in every slot; actions (slot, device, energy) → (slot, device, action).

    Around a cycle these are the laws in the long run.
    """
    slots, devices = actions.shape[:2]
    laws = torch.empty(slots, devices, len(problem.actions), dtype=problem.dtype, device=problem.device)

    def after(law: Tensor) -> Tensor:
        """Laws of the energies after the last slot of those before the first."""
        for slot in range(slots):
            chosen = actions[slot].long()
            laws[slot] = torch.zeros_like(laws[slot]).scatter_add_(1, chosen, law)
            left = problem.energy_left.gather(2, chosen.unsqueeze(-1)).squeeze(-1)
            above = law * problem.actions.change.to(law).gather(1, chosen)
            stored = torch.zeros_like(law).scatter_add_(1, left, law - above)
            stored.scatter_add_(1, (left + 1).clamp(max=problem.num_energy - 1), above)
            law = (stored.unsqueeze(1) @ problem.energy_kernels(slot)).squeeze(1)
        return law

    if problem.endless:
        settle_laws(after, problem.initial_energy_law, slots)
    else:
        after(problem.initial_energy_law)
    return laws
