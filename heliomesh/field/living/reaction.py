"""How devices react to changes of the world, and what that costs them.

- *stale*: not at all; the plan of the first slot holds to the end.
- *re-planned*: they watch what they notice, and plan anew after an alarm.
- *fresh*: they are told the truth, and follow a plan for it from the very slot of each change on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from heliomesh.field.living.change import Era
from heliomesh.field.living.conditional_plan import Answering, ConditionalPlan, Switching
from heliomesh.field.living.conditions import Conditions, present, world_under
from heliomesh.field.living.detector import Watch
from heliomesh.field.living.replanning import Replanning
from heliomesh.model.policy import Plan, Policy, Track, untracked
from heliomesh.model.problem import Problem
from heliomesh.scenario.errors import ScenarioError
from heliomesh.simulation.slot_loop import run_slots

Reaction = Literal["stale", "re-planned", "fresh"]
REACTIONS: tuple[Reaction, ...] = get_args(Reaction)
_EPISODES_AT_ONCE = 256


def first_answer(answering: Answering, truth: Sequence[Era], plan: Plan) -> ConditionalPlan:
    """The answer to the first slot's truth, of which ``plan`` is one where that is the scenario as it is."""
    conditions = truth[0].conditions
    return answering.with_plan(conditions, plan) if conditions == Conditions() else answering.answer_to(conditions)


def reacting(
    answering: Answering, truth: Sequence[Era], first: ConditionalPlan, reaction: str, watch: Watch
) -> Switching | Replanning:
    """A policy that reacts to a truth in one of the three ways."""
    match reaction:
        case "stale":
            return Switching(answering.problem, ((0, first),))
        case "re-planned":
            return Replanning(answering, first, watch)
        case "fresh":
            told = ((era.first_slot, answering.answer_to(era.conditions, first.plan)) for era in truth[1:])
            return Switching(answering.problem, ((0, first), *told))
    raise ScenarioError("reaction", f"one of {', '.join(REACTIONS)}", f"value {reaction!r}")


@dataclass(frozen=True)
class Sampling:
    """The episodes of a trial, the same for all policies."""

    episodes: int = 64
    seed: int = 0
    track: Track = untracked


def costs_by_slot(
    problem: Problem, truth: Sequence[Era], policy: Policy, sampling: Sampling, what: str = ""
) -> npt.NDArray[np.float64]:
    """Σ_j x_j over the devices that are there; (episode, slot)."""
    worlds = {era.first_slot: world_under(problem, era.conditions) for era in truth}
    counted = torch.ones(problem.num_devices, dtype=torch.bool, device=problem.device)
    # a policy that watches keeps the alarms and beliefs of one batch
    at_once = sampling.episodes if isinstance(policy, Replanning) else _EPISODES_AT_ONCE
    parts = []
    for start in range(0, sampling.episodes, at_once):
        numbers = list(range(start, min(start + at_once, sampling.episodes)))
        rows = []
        steps = run_slots(problem, policy, numbers, sampling.seed, worlds)
        members = {era.first_slot: present(problem, era.conditions) for era in truth}
        for number, slot in enumerate(sampling.track(steps, f"simulate {what}", problem.slots)):
            counted = members.get(number, counted)
            rows.append(slot.update_loss[:, counted].sum(-1))
        parts.append(torch.stack(rows, 1))
    return torch.cat(parts).cpu().numpy()
