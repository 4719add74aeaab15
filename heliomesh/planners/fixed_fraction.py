"""Fixed fraction: spend at most a fixed share of the stored energy in every slot.

Device j with b joules stored takes the costliest action a with

    e_j(a) + D_j ≤ share_j · b

and prefers training among actions of equal energy. D_j is what a slot takes whatever the device does. The fuller the
battery, the more it spends, so that it neither runs dry nor overflows for long. By default share_j is what the
costliest action that a full battery pays for needs, over the capacity: a full battery just allows that action, a half
full one half as much. A share of one spends as much as the battery pays for.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import Observation, OwnStatePolicy, Plan
from heliomesh.model.problem import Problem
from heliomesh.scenario.section import Section
from heliomesh.slot.preference import first_affordable

_EQUAL = 1e-9  # shares of the capacity by which energies that count as equal may differ


class Options(Section):
    """The share."""

    share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="largest share of the stored energy to spend in a slot; default: the costliest affordable action "
        "over the capacity",
    )


@dataclass(frozen=True)
class FixedFraction(OwnStatePolicy):
    """The costliest action that a share of the battery pays for."""

    problem: Problem
    share: Tensor  # (device,)
    costliest_first: Tensor  # (device, rank) actions
    stationary = True

    def action(self, slot: int, seen: Observation) -> Tensor:
        """First action that the share pays for; idle costs nothing."""
        return first_affordable(self.problem, self.share * seen.battery_joule, self.costliest_first)


def plan(context: PlannerContext[Options]) -> Plan:
    """Order the actions by energy."""
    problem, share = context.problem, context.options.share
    shares = default_share(problem) if share is None else torch.full_like(problem.battery.capacity_joule, share)
    return Plan("fixed_fraction", FixedFraction(problem, shares, costliest_first(problem)))


def costliest_first(problem: Problem) -> Tensor:
    """Actions by falling energy, of equal ones those that train first; (device, rank)."""
    capacity = problem.battery.capacity_joule.unsqueeze(1)
    energy_rank = (problem.actions.spent_joule / (capacity * _EQUAL)).round()
    # actions that train have the larger indices: a stable sort that rises, read backwards, has them first
    return energy_rank.argsort(dim=-1, stable=True).flip(-1)


def default_share(problem: Problem) -> Tensor:
    """Energy of the costliest action that a full battery pays for, over the capacity; (device,)."""
    needed, capacity = problem.actions.needed_joule, problem.battery.capacity_joule
    pays = problem.battery.affordable(capacity, needed)
    return (torch.where(pays, needed, 0.0).amax(-1) / capacity).clamp_max(1.0)


KNOBS = {"share": (0.25, 0.5, 0.75, 1.0)}
