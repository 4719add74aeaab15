"""Logit and best responses to expected costs, for many devices at once."""

import torch
from torch import Tensor

from heliomesh.model.factor import Factor, Variable, action, energy
from heliomesh.model.problem import Problem
from heliomesh.slot.ties import tied


def response(expected: Tensor, blocked: Tensor, gamma: float) -> Tensor:
    """Policies of least expected cost or, where γ is finite, ∝ exp(−γ E[Q]); (device, action, state) each.

    Of equally good actions the first is taken; ``blocked`` ones never are.
    """
    if gamma < torch.inf:
        score = (-gamma * expected).masked_fill_(blocked, -torch.inf)
        weight = (score - score.amax(1, keepdim=True)).exp_()  # torch.softmax wakes threads for the smallest table
        return weight / weight.sum(1, keepdim=True)
    least = tied(expected.masked_fill(blocked, torch.inf), 1)  # an argmax along an outer axis is ten times as slow
    return (least & (least.cumsum(1) == 1)).to(expected.dtype)


def infeasible(problem: Problem, device: int, order: tuple[Variable, ...]) -> Tensor:
    """What the device's energy does not pay for, by its action and the states of ``order``; (action, state)."""
    blocked = Factor((energy(device), action(device)), ~problem.feasible[device]).aligned(order)
    return blocked.expand(problem.sizes(order)).reshape(len(problem.actions), -1)
