"""How much of a change's loss does re-planning recover? Paired episodes of three policies in one changing world.

    stale       the plan of the first slot, to the end
    re-planned  the same plan, with a detector and new plans after alarms
    fresh       a plan made for the new truth, from the very slot of the change on

recovered share = (stale − re-planned) / (stale − fresh), costs per slot from the first change on, summed over the
devices that are there. Its interval is that of a ratio of means (delta method), paired by episode.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from heliomesh.living.change import Era
from heliomesh.living.conditions import Conditions, present, world_under
from heliomesh.living.replanning import Alarm, Replanning, Switching, answer_to, replanning
from heliomesh.problem.policy import Policy, Track, untracked
from heliomesh.problem.problem import Problem
from heliomesh.simulation.diagnostics import Interval
from heliomesh.simulation.slot_loop import run_slots

Array = npt.NDArray[np.float64]
_EPISODES_AT_ONCE = 256


@dataclass(frozen=True)
class Trial:
    """Costs per slot after the first change, by episode, and what the detector did."""

    change_slot: int
    stale: Array  # (episode,)
    replanned: Array  # (episode,)
    fresh: Array  # (episode,)
    alarms: tuple[tuple[Alarm, ...], ...]  # by episode
    beliefs: tuple[Conditions, ...]  # by episode, at the end

    @property
    def recovered(self) -> Interval:
        """Share of the loss between stale and fresh plan that re-planning avoids."""
        return ratio_interval(self.stale - self.replanned, self.stale - self.fresh)

    @property
    def false_alarm_share(self) -> float:
        """Share of episodes with an alarm before the change; its last slot is noticed in the slot after."""
        return float(np.mean([bool(a) and a[0].slot < self.change_slot for a in self.alarms]))

    @property
    def delays(self) -> Array:
        """Slots from the change to the first alarm after it, of the episodes that raised one."""
        found = [next((a.slot for a in alarms if a.slot >= self.change_slot), None) for alarms in self.alarms]
        return np.array([slot - self.change_slot + 1 for slot in found if slot is not None], dtype=np.float64)

    @property
    def detected_share(self) -> float:
        """Share of episodes with an alarm after the change."""
        return len(self.delays) / len(self.alarms)


def ratio_interval(numerator: Array, denominator: Array) -> Interval:
    """Ratio of means of paired samples with its 95 % half-width."""
    count, base = len(numerator), float(denominator.mean())
    ratio = float(numerator.mean()) / base if base else math.nan
    if count < 2 or not math.isfinite(ratio):
        return Interval(ratio, math.nan)
    spread = float((numerator - ratio * denominator).std(ddof=1)) / (abs(base) * math.sqrt(count))
    return Interval(ratio, float(stats.t.ppf(0.975, count - 1)) * spread)


def trial(
    problem: Problem,
    truth: Sequence[Era],
    planner: str,
    options: Mapping[str, Any],
    *,
    episodes: int = 64,
    seed: int = 0,
    false_alarm_prob: float = 0.05,
    track: Track = untracked,
) -> Trial:
    """Run the three policies through the truth with common random numbers."""
    if len(truth) < 2:
        raise ValueError(f"truth: expected at least 2 eras, since a trial needs a change, actual value {len(truth)}")
    first = answer_to(problem, truth[0].conditions, planner, options)
    told = [(0, first)]
    for era in truth[1:]:
        told.append((era.first_slot, answer_to(problem, era.conditions, planner, options, previous=first.plan)))
    watching = replanning(problem, first, planner, options, false_alarm_prob=false_alarm_prob, seed=seed)
    stale, fresh = Switching(problem, told[:1]), Switching(problem, told)
    change = truth[1].first_slot
    replanned, alarms, beliefs = _watched(problem, truth, watching, episodes, seed, track)
    return Trial(
        change_slot=change,
        stale=costs_by_slot(problem, truth, stale, episodes, seed, "stale", track)[:, change:].mean(1),
        replanned=replanned[:, change:].mean(1),
        fresh=costs_by_slot(problem, truth, fresh, episodes, seed, "fresh", track)[:, change:].mean(1),
        alarms=tuple(tuple(a) for a in alarms),
        beliefs=tuple(beliefs),
    )


def _watched(
    problem: Problem, truth: Sequence[Era], policy: Replanning, episodes: int, seed: int, track: Track
) -> tuple[Array, list[list[Alarm]], list[Conditions]]:
    """Costs of the re-planning policy, with its alarms and last beliefs; all episodes in one batch."""
    costs = costs_by_slot(problem, truth, policy, episodes, seed, "re-planned", track, at_once=episodes)
    return costs, policy.alarms, policy.beliefs


def costs_by_slot(
    problem: Problem,
    truth: Sequence[Era],
    policy: Policy,
    episodes: int,
    seed: int,
    what: str = "",
    track: Track = untracked,
    at_once: int = _EPISODES_AT_ONCE,
) -> Array:
    """Σ_j x_j over the devices that are there; (episode, slot)."""
    worlds = {era.first_slot: world_under(problem, era.conditions) for era in truth}
    counted = torch.ones(problem.num_devices, dtype=torch.bool, device=problem.device)
    parts = []
    for start in range(0, episodes, at_once):
        numbers = list(range(start, min(start + at_once, episodes)))
        rows = []
        steps = run_slots(problem, policy, numbers, seed, worlds)
        members = {era.first_slot: present(problem, era.conditions) for era in truth}
        for number, slot in enumerate(track(steps, f"simulate {what}", problem.slots)):
            counted = members.get(number, counted)
            rows.append(slot.update_loss[:, counted].sum(-1))
        parts.append(torch.stack(rows, 1))
    return torch.cat(parts).cpu().numpy()
