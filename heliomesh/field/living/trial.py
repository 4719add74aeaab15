"""What a policy costs in a world that changes: by episode and slot, summed over the devices that are there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from heliomesh.field.living.change import Era
from heliomesh.field.living.conditions import present, world_under
from heliomesh.field.living.replanning import Replanning
from heliomesh.model.policy import Policy, Track, untracked
from heliomesh.model.problem import Problem
from heliomesh.simulation.slot_loop import run_slots

_EPISODES_AT_ONCE = 256


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
