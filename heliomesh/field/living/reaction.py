"""How devices react to changes of the world, and what that costs them.

- *stale*: not at all; the plan of the first slot holds to the end.
- *re-planned*: they watch what they notice, and plan anew after an alarm.
- *fresh*: they are told the truth, and follow a plan for it from the very slot of each change on.
"""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from heliomesh.field.living.change import Truth
from heliomesh.field.living.conditional_plan import Answering, ConditionalPlan, Switching
from heliomesh.field.living.conditions import Conditions, present, world_under
from heliomesh.field.living.detector import Watch
from heliomesh.field.living.replanning import Replanning
from heliomesh.model.policy import Plan, Policy, Track, untracked
from heliomesh.model.problem import Problem
from heliomesh.simulation.slot_loop import run_slots

Reaction = Literal["stale", "re-planned", "fresh"]
REACTIONS: tuple[Reaction, ...] = get_args(Reaction)
_EPISODES_AT_ONCE = 256


def first_answer(answering: Answering, truth: Truth, plan: Plan) -> ConditionalPlan:
    """The answer to the first slot's truth, of which ``plan`` is one where that is the scenario as it is."""
    return answering.answer_to(truth[0]) if truth[0] != Conditions() else answering.with_plan(truth[0], plan)


def reacting(
    answering: Answering, truth: Truth, first: ConditionalPlan, reaction: Reaction, watch: Watch
) -> Switching | Replanning:
    """A policy that reacts to a truth in one of the three ways."""
    if reaction == "re-planned":
        return Replanning(answering, first, watch)
    told = [(slot, now) for slot, now in truth.items() if slot and reaction == "fresh"]
    later = ((slot, answering.answer_to(now, first.plan)) for slot, now in told)
    return Switching(answering.problem, ((0, first), *later))


def costs_by_slot(
    problem: Problem,
    truth: Truth,
    policy: Policy,
    episodes: int = 64,
    seed: int = 0,
    track: Track = untracked,
    what: str = "",
) -> npt.NDArray[np.float64]:
    """Σ_j x_j over the devices that are there; (episode, slot)."""
    worlds = {slot: world_under(problem, now) for slot, now in truth.items()}
    members = {slot: present(problem, now) for slot, now in truth.items()}
    # a policy that watches keeps the alarms and beliefs of one batch
    at_once = episodes if isinstance(policy, Replanning) else _EPISODES_AT_ONCE
    parts = []
    for start in range(0, episodes, at_once):
        steps = run_slots(problem, policy, list(range(start, min(start + at_once, episodes))), seed, worlds)
        rows, counted = [], members[0]
        for number, slot in enumerate(track(steps, f"simulate {what}", problem.slots)):
            counted = members.get(number, counted)
            rows.append(slot.update_loss[:, counted].sum(-1))
        parts.append(torch.stack(rows, 1))
    return torch.cat(parts).cpu().numpy()
