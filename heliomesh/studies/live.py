"""A world that changes: what re-planning saves, and what failures and re-planning do to the models.

Three policies meet the same changes in the same episodes (`living/reaction.py`): the *stale* plan, one that is
*re-planned* after alarms, and a *fresh* one that is told. Costs are per slot from the first change on, summed over
the devices that are there, and

    recovered share = (stale − re-planned) / (stale − fresh),

whose interval is that of a ratio of means (delta method), paired by episode.

Models are trained under the first episodes of all three, and under the first plan in a world that does not change:
*unchanged*. These four runs of a seed have common random numbers, data and first weights, so they are the same until
the first change. Accuracy is the mean over the devices that are there at the end, in all four. A device that is gone
neither trains nor sends nor hears, so its model stays as it was: it serves nobody, and no plan can do anything about
it. It counts in no mean, not even in the unchanged run, so that all runs are judged by the same devices.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from heliomesh.common.arguments import Count, Index, Probability, checked
from heliomesh.common.catalog import CodeOrName
from heliomesh.field.living.change import Truth, eras
from heliomesh.field.living.conditional_plan import Answering
from heliomesh.field.living.conditions import Conditions
from heliomesh.field.living.detector import USUAL_FALSE_ALARM_PROB, Watch
from heliomesh.field.living.reaction import REACTIONS, costs_by_slot, first_answer, reacting
from heliomesh.field.living.replanning import Alarm, Replanning
from heliomesh.jobs.steps import job_of, planned
from heliomesh.jobs.store import opened
from heliomesh.jobs.training import split_settings
from heliomesh.learning.preflight import check_trainable
from heliomesh.learning.run import Run
from heliomesh.model.problem import Problem
from heliomesh.scenario.errors import refuse
from heliomesh.simulation.diagnostics import Interval, columns, interval, ratio_interval
from heliomesh.studies.line import by_episode, grouped_runs

if TYPE_CHECKING:
    import pandas as pd

Array = npt.NDArray[np.float64]


UNCHANGED = "unchanged"


@dataclass(frozen=True)
class Survivors:
    """Runs by plan and seed: unchanged, stale, re-planned, fresh."""

    devices: tuple[int, ...]  # that are there at the end
    change_slot: int
    runs: Mapping[str, Sequence[Run]]  # by plan, one per seed

    def accuracy(self, plan: str) -> Array:
        """Mean over the devices that are left, in percent; (seed, evaluated slot)."""
        return np.stack([100 * run.accuracy[:, self.devices].mean(1) for run in self.runs[plan]])

    def final(self, plan: str) -> Array:
        """The same at the end; (seed,)."""
        return np.asarray(self.accuracy(plan)[:, -1])

    def since_change(self, plan: str) -> Array:
        """Mean over the evaluations after the first change; (seed,)."""
        return np.asarray(self.accuracy(plan)[:, self.slots > self.change_slot].mean(1))

    def facts(self) -> dict[str, Any]:
        """Who is left, and their accuracies by plan and seed, as commands print them."""
        return {
            "devices at the end": list(self.devices),
            "accuracy": {plan: self.final(plan).tolist() for plan in self.runs},
            "accuracy since the change": {plan: self.since_change(plan).tolist() for plan in self.runs},
        }

    @property
    def slots(self) -> Array:
        """Slots done at each evaluation; (evaluated slot,)."""
        return next(iter(self.runs.values()))[0].metrics["slot"]

    def table(self) -> "pd.DataFrame":
        """One line per plan: accuracies in percent, and differences in points, paired by seed; 95 % half-widths."""
        import pandas as pd

        lines = []
        for plan in self.runs:
            own = {"accuracy": self.final(plan), "since_change": self.since_change(plan)}
            own |= {f"against_{other}": self.final(plan) - self.final(other) for other in (UNCHANGED, "stale")}
            lines.append({"plan": plan, **columns(**{name: interval(values) for name, values in own.items()})})
        return pd.DataFrame(lines)


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
    **settings: Any,
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
    truth = eras(problem, changes)
    refuse(len(truth) < 2, "changes", "a change after slot 0", f"value {', '.join(changes)!r}")
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
        change = sorted(truth)[1]
        watching = Replanning(answering, first, watch)
        stale, fresh = (reacting(answering, truth, first, name, watch) for name in ("stale", "fresh"))
        replanned_cost, stale_cost, fresh_cost = (
            costs_by_slot(problem, truth, policy, episodes, seed, work.track, name)[:, change:].mean(1)
            for name, policy in (("re-planned", watching), ("stale", stale), ("fresh", fresh))
        )
        alarms = tuple(tuple(raised) for raised in watching.alarms)
        trial = Trial(change, stale_cost, replanned_cost, fresh_cost, alarms, tuple(watching.beliefs))
        if not train:
            return trial
        changing = replace(asked, changes=tuple(changes), false_alarm_prob=false_alarm_prob)
        jobs = {UNCHANGED: asked} | {reaction: replace(changing, reaction=reaction) for reaction in REACTIONS}
        runs = grouped_runs(store, [by_episode(job, train) for job in jobs.values()], work)
        return replace(trial, models=Survivors(there, change, dict(zip(jobs, runs, strict=True))))


def there_at_the_end(problem: Problem, truth: Truth) -> tuple[int, ...]:
    """Devices that are there after the last change; raises ScenarioError where nobody is."""
    away = truth[max(truth)].away
    there = tuple(device for device in range(problem.num_devices) if device not in away)
    refuse(not there, "changes", "at least one device alive at the end", "number 0")
    return there
