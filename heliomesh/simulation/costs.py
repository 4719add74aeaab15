"""Costs of large networks: the slot loop without a trace, so memory does not grow with the horizon."""

import numpy as np
import numpy.typing as npt
import torch

from heliomesh.problem.policy import Plan, Track, untracked
from heliomesh.problem.problem import Problem
from heliomesh.simulation.slot_loop import run_slots
from heliomesh.simulation.trace import check_finite


def simulate_costs(
    problem: Problem, plan: Plan, episodes: int = 64, seed: int = 0, *, at_once: int = 64, track: Track = untracked
) -> npt.NDArray[np.float64]:
    """Normalised mean cost per slot of each episode, the same numbers as ``simulate(...).cost``; (episode,)."""
    costs = []
    for first in range(0, episodes, at_once):
        numbers = list(range(first, min(first + at_once, episodes)))
        total = torch.zeros(len(numbers), dtype=torch.float64, device=problem.device)
        steps = run_slots(problem, plan.policy, numbers, seed)
        for slot in track(steps, f"simulate {plan.planner}", problem.slots):
            total += slot.update_loss.sum(-1)
        costs.append(total.cpu().numpy() / problem.slots)
        check_finite(costs[-1])
    return np.concatenate(costs)
