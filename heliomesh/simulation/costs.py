"""Costs of large networks: the slot loop without a trace, so memory does not grow with the horizon."""

import numpy as np
import numpy.typing as npt
import torch

from heliomesh.problem.policy import Plan, Policy, Track, as_plan, untracked
from heliomesh.problem.problem import Problem
from heliomesh.simulation.slot_loop import run_slots


def simulate_costs(
    problem: Problem,
    plan: Plan | Policy,
    episodes: int = 64,
    seed: int = 0,
    *,
    at_once: int = 64,
    track: Track = untracked,
) -> npt.NDArray[np.float64]:
    """Normalised mean cost per slot of each episode, the same numbers as ``simulate(...).cost``; (episode,)."""
    plan = as_plan(plan)
    costs = []
    for first in range(0, episodes, at_once):
        numbers = list(range(first, min(first + at_once, episodes)))
        total = torch.zeros(len(numbers), dtype=torch.float64, device=problem.device)
        steps = run_slots(problem, plan.policy, numbers, seed)
        for slot in track(steps, f"simulate {plan.planner}", problem.slots):
            total += slot.update_loss.sum(-1)
        costs.append(total.cpu().numpy() / problem.slots)
    return np.concatenate(costs)
