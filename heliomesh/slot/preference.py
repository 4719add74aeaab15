"""Preferences of devices that look at their own batteries: the first action of a list that the battery pays for.

A list holds action indices, best first. It ends with idle (0), which every battery pays for.
"""

import torch
from torch import Tensor

from heliomesh.model.problem import Problem
from heliomesh.scenario.errors import ScenarioError


def first_affordable(problem: Problem, battery_joule: Tensor, preferred: Tensor) -> Tensor:
    """The first preferred action that the battery pays for.

    battery_joule (batch, device), preferred (device, rank) → (batch, device)
    """
    affordable = problem.affordable(battery_joule)  # (batch, device, action)
    ranked = preferred.expand(len(battery_joule), -1, -1)
    first = affordable.gather(-1, ranked).int().argmax(-1, keepdim=True)
    return ranked.gather(-1, first).squeeze(-1)


def by_power(problem: Problem, allowed: Tensor) -> Tensor:
    """Allowed actions by falling power, training first among equal powers, then idle; (..., action) → (..., rank)."""
    power_rank = torch.unique(problem.actions.power_watt, return_inverse=True)[1]
    score = 2 * power_rank + problem.actions.trained
    order = torch.where(allowed, score, -1).argsort(dim=-1, descending=True, stable=True)
    return torch.where(allowed.gather(-1, order), order, 0)


def sending_actions(problem: Problem, most_watt: Tensor) -> tuple[Tensor, Tensor]:
    """Actions that send with at most the largest power [W] (device,), and those that only train; (device, action)."""
    power, trained = problem.actions.power_watt, problem.actions.trained
    sends = (power > 0) & (power <= most_watt.unsqueeze(1))
    return sends, (trained & (power == 0)).expand_as(sends)


def sending_powers(problem: Problem) -> Tensor:
    """The scenario's powers but zero, rising [W]; (power,)."""
    powers: Tensor = torch.unique(problem.actions.power_watt)
    return powers[powers > 0]


def chosen_power(problem: Problem, power_watt: float | None, planner: str) -> float:
    """A power of the scenario [W], by default the largest; raises ScenarioError for another."""
    powers = sending_powers(problem).tolist()
    if power_watt is None:
        return max(powers, default=0.0)
    if power_watt not in powers:
        known = ", ".join(f"{power:g}" for power in powers)
        raise ScenarioError(f"{planner} option.power_watt", f"expected one of {known}, actual value {power_watt:g}")
    return power_watt
