"""A world that changes: what re-planning saves, and what failures and re-planning do to the models.

Three policies meet the same changes in the same episodes (`living/reaction.py`): the *stale* plan, one that is
*re-planned* after alarms, and a *fresh* one that is told. Costs are per slot from the first change on, summed over
the devices that are there, and

    recovered share = (stale − re-planned) / (stale − fresh),

whose interval is that of a ratio of means (delta method), paired by episode. Models are trained under the first
episodes of all three, and under the first plan in a world that does not change (`studies/survivors.py`).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from heliomesh.common.arguments import Count, Index, Probability, checked
from heliomesh.common.catalog import CodeOrName
from heliomesh.field.living.change import Era, eras
from heliomesh.field.living.conditional_plan import Answering, ConditionalPlan
from heliomesh.field.living.conditions import Conditions
from heliomesh.field.living.detector import USUAL_FALSE_ALARM_PROB, Watch
from heliomesh.field.living.reaction import Sampling, costs_by_slot, first_answer, reacting
from heliomesh.field.living.replanning import Alarm, Replanning
from heliomesh.jobs.steps import job_of, planned
from heliomesh.jobs.store import opened
from heliomesh.jobs.training import Settings, split_settings
from heliomesh.learning.preflight import check_trainable
from heliomesh.model.problem import Problem
from heliomesh.scenario.errors import refuse
from heliomesh.simulation.diagnostics import Interval, columns, interval, ratio_interval
from heliomesh.studies.survivors import Survivors, survivors, there_at_the_end

if TYPE_CHECKING:
    import pandas as pd

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trial:
    """Costs per slot after the first change, by episode, what the detector did, and the models, if trained."""

    change_slot: int
    stale: Array  # (episode,)
    replanned: Array  # (episode,)
    fresh: Array  # (episode,)
    alarms: tuple[tuple[Alarm, ...], ...]  # by episode
    beliefs: tuple[Conditions, ...]  # by episode, at the end
    models: Survivors | None = None  # None: nothing was trained

    @property
    def costs(self) -> dict[str, Array]:
        """Costs by policy, (episode,) each."""
        return {"stale": self.stale, "re-planned": self.replanned, "fresh": self.fresh}

    def table(self) -> "pd.DataFrame":
        """One line per policy: cost per slot after the change, and its difference from the stale plan's, paired."""
        import pandas as pd

        return pd.DataFrame(
            {"plan": name, **columns(cost=interval(cost), difference=interval(cost - self.stale))}
            for name, cost in self.costs.items()
        )

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

    def facts(self) -> dict[str, Any]:
        """Costs, what the detector did and what the models came to, by name, as commands print them."""
        delays = self.delays
        facts: dict[str, Any] = {}
        for name in ("stale", "replanned", "fresh"):
            facts |= interval(getattr(self, name)).facts(f"cost, {name}")
        return facts | {
            **self.recovered.facts("recovered share"),
            "detected share": self.detected_share,
            "slots to detect, mean": float(delays.mean()) if len(delays) else math.nan,
            "slots to detect, 90 % of episodes": float(np.percentile(delays, 90)) if len(delays) else math.nan,
            "false alarms before the change": self.false_alarm_share,
            "alarms by cause": dict(Counter(alarm.cause for alarms in self.alarms for alarm in alarms)),
            **({} if self.models is None else self.models.facts()),
        }


@checked
def live(
    problem: Problem,
    changes: Sequence[str],
    planner: CodeOrName = "prices",
    *,
    options: Mapping[str, Any] | None = None,
    false_alarm_prob: Probability = USUAL_FALSE_ALARM_PROB,
    episodes: Count = 64,
    seed: Index = 0,
    train: Index = 5,
    folder: str | Path | None = None,
    **settings: Unpack[Settings],
) -> Trial:
    """Compare a stale plan, one that notices changes of the world and plans anew, and one that was told.

    Parameters
    ----------
    problem
        The world as it was planned for.
    changes
        What changes, such as ``"harvest=0.5@50"``.
    planner
        A name, function or module of a planner.
    options
        Options of the planner.
    false_alarm_prob
        Probability of an alarm over the horizon if nothing changes.
    episodes
        Episodes of each plan.
    seed
        Draws the episodes.
    train
        Train under so many of them, and in a world without changes too.
    folder
        Where plans, traces and runs are kept; none is computed twice.
    **settings
        Fields of `TrainSettings` and of `Execution`, such as ``device``, ``track`` or ``observer``.

    Returns
    -------
    Trial
        One arm per plan; ``table()`` gives it as a pandas table.

    Raises
    ------
    ScenarioError
        Where a change is wrong; else as `run` does.
    """
    truth = _truth(problem, changes)
    training, work = split_settings({"keep_weights": False, **settings})
    there = there_at_the_end(problem, truth)
    if train:
        check_trainable(problem.scenario, training, seed)
    asked = replace(job_of(problem, planner, options or {}), seed=seed, training=training)
    with opened(folder) as store, store.alone():
        plan = store.plan(asked, work) if train else planned(asked, work)
        answering = Answering(problem, planner, asked.options)
        first = first_answer(answering, truth, plan)
        watch = Watch(false_alarm_prob, seed=seed)
        trial = _costs(answering, truth, first, Sampling(episodes, seed, work.track), watch)
        if not train:
            return trial
        changing = replace(asked, changes=tuple(changes), false_alarm_prob=false_alarm_prob)
        return replace(trial, models=survivors(store, changing, train, there, trial.change_slot, work))


def _truth(problem: Problem, changes: Sequence[str]) -> tuple[Era, ...]:
    """The truth over time, after a check of what was asked."""
    truth = eras(problem, changes)
    refuse(len(truth) < 2, "changes", "a change after slot 0", f"value {', '.join(changes)!r}")
    return truth


def _costs(
    answering: Answering, truth: Sequence[Era], first: ConditionalPlan, under: Sampling, watch: Watch
) -> Trial:
    """The trial without models."""
    change, watching = truth[1].first_slot, Replanning(answering, first, watch)
    stale, fresh = (reacting(answering, truth, first, name, watch) for name in ("stale", "fresh"))
    named = (("re-planned", watching), ("stale", stale), ("fresh", fresh))
    after = {
        name: costs_by_slot(answering.problem, truth, policy, under, name)[:, change:].mean(1)
        for name, policy in named
    }
    alarms = tuple(tuple(raised) for raised in watching.alarms)
    return Trial(change, after["stale"], after["re-planned"], after["fresh"], alarms, tuple(watching.beliefs))
