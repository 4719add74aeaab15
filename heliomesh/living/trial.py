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
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from heliomesh.living.change import Era, eras
from heliomesh.living.conditions import Conditions, present, world_under
from heliomesh.living.replanning import Alarm, Replanning, Switching, Watch, answer_to, replanning
from heliomesh.problem.policy import Policy, Track, untracked
from heliomesh.problem.problem import Problem
from heliomesh.scenario import ScenarioError
from heliomesh.simulation.diagnostics import Interval, interval
from heliomesh.simulation.slot_loop import run_slots

if TYPE_CHECKING:
    import pandas as pd

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
    def costs(self) -> dict[str, Array]:
        """Costs by policy, (episode,) each."""
        return {"stale": self.stale, "re-planned": self.replanned, "fresh": self.fresh}

    def table(self) -> "pd.DataFrame":
        """One line per policy: cost per slot after the change, and its difference from the stale plan's, paired."""
        import pandas as pd

        lines = []
        for name, cost in self.costs.items():
            own, against = interval(cost), interval(cost - self.stale)
            line = {"plan": name, "cost": own.mean, "cost_half_width": own.half_width}
            lines.append(line | {"difference": against.mean, "difference_half_width": against.half_width})
        return pd.DataFrame(lines)

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


@dataclass(frozen=True)
class Sampling:
    """The episodes of a trial, the same for all policies."""

    episodes: int = 64
    seed: int = 0
    track: Track = untracked


def live(
    problem: Problem,
    changes: Sequence[str],
    planner: str = "prices",
    *,
    options: Mapping[str, Any] | None = None,
    false_alarm_prob: float = 0.05,
    **sampling: Any,
) -> Trial:
    """Compare a stale plan, one that notices changes of the world and plans anew, and one that was told.

    ``changes`` are texts such as ``"harvest=0.5@50"``. ``false_alarm_prob`` is that of an alarm over the horizon if
    nothing changes. ``sampling`` has fields of `Sampling`: ``episodes``, ``seed``, ``track``. Raises ScenarioError.
    """
    if not 0 < false_alarm_prob < 1:
        raise ScenarioError(
            "false_alarm_prob", f"expected a number between 0 and 1, actual value {false_alarm_prob:g}"
        )
    truth, options = eras(problem, changes), options or {}
    if len(truth) < 2:
        raise ScenarioError("changes", f"expected a change after slot 0, actual value {', '.join(changes)!r}")
    under, change = Sampling(**sampling), truth[1].first_slot
    first = answer_to(problem, truth[0].conditions, planner, options)
    told = [(0, first)]
    for era in truth[1:]:
        told.append((era.first_slot, answer_to(problem, era.conditions, planner, options, previous=first.plan)))
    watching = replanning(problem, first, planner, options, Watch(false_alarm_prob, seed=under.seed))
    policies: tuple[Policy, ...] = (watching, Switching(problem, told[:1]), Switching(problem, told))
    replanned, stale, fresh = (
        costs_by_slot(problem, truth, policy, under, name)[:, change:].mean(1)
        for name, policy in zip(("re-planned", "stale", "fresh"), policies, strict=True)
    )
    alarms = tuple(tuple(raised) for raised in watching.alarms)
    return Trial(change, stale, replanned, fresh, alarms, tuple(watching.beliefs))


def costs_by_slot(
    problem: Problem, truth: Sequence[Era], policy: Policy, sampling: Sampling, what: str = ""
) -> Array:
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
