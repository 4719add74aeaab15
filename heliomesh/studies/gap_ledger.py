"""The gap ledger: how much accuracy a run loses against the lossless ideal, and through what.

Two counterfactual trainings tell. Both have the run's data, first weights, minibatches, slots and rule of averaging:

- the *ideal*, 0: everyone trains in every slot, and every packet arrives;
- *all arrive*, 1: the devices train when the run's own did, and every packet arrives.

With A the mean accuracy of the devices at the end and Ā that of the average model, the parts of the gap are

    gap                 A₀ − A
    steps not trained   A₀ − A₁
    disagreement        (Ā − A) − (Ā₁ − A₁)     devices behind their average, beyond what lossless averaging leaves
    optimiser           Ā₁ − Ā                  late averaging led the average model elsewhere

and the three sum to the gap. A part below zero is a gain.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heliomesh.common.arguments import checked
from heliomesh.common.durable import Sealed, make_folder
from heliomesh.jobs.job import IDEAL, Job
from heliomesh.jobs.store import Store, opened
from heliomesh.learning.preflight import check_trainable
from heliomesh.learning.replay import Replay
from heliomesh.learning.run import Run, TrainingError
from heliomesh.learning.trainer import ALONE, Execution
from heliomesh.simulation.diagnostics import Interval, interval
from heliomesh.simulation.trace import Trace
from heliomesh.studies.line import grouped_runs

LEDGER = "gap_ledger.json"  # beside a run's manifest
COUNTERFACTUALS = "counterfactuals"  # folder within a run's folder, until its ledger is written
_LEDGER_FILE = Sealed("the gap ledger of a run", 1, (("key", str), ("accuracies", dict)))

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GapLedger:
    """Accuracies at the end, as shares by seed, and the parts of the gap, in percentage points by seed."""

    ideal: Floats  # (seed,) A₀
    all_arrive: Floats  # (seed,) A₁
    all_arrive_average: Floats  # (seed,) Ā₁
    average: Floats  # (seed,) Ā
    accuracy: Floats  # (seed,) A

    @property
    def gap(self) -> Floats:
        """To the lossless ideal; (seed,)."""
        return 100 * (self.ideal - self.accuracy)

    @property
    def untrained(self) -> Floats:
        """Lost through steps not trained; (seed,)."""
        return 100 * (self.ideal - self.all_arrive)

    @property
    def disagreement(self) -> Floats:
        """Lost because devices are further behind their average than under lossless averaging; (seed,)."""
        return 100 * ((self.average - self.accuracy) - (self.all_arrive_average - self.all_arrive))

    @property
    def drift(self) -> Floats:
        """Lost by the average model, which devices that average late lead elsewhere; (seed,)."""
        return 100 * (self.all_arrive_average - self.average)

    def points(self) -> dict[str, Floats]:
        """The gap and then its parts, by the names that tables give them; (seed,) each."""
        return {
            "gap to the ideal": self.gap,
            "steps not trained": self.untrained,
            "disagreement": self.disagreement,
            "optimiser": self.drift,
        }

    def intervals(self) -> dict[str, Interval]:
        """The same as means with 95 % intervals over seeds."""
        return {name: interval(points) for name, points in self.points().items()}

    def facts(self) -> dict[str, Any]:
        """The ideal's accuracy, and the gap and its parts in percentage points, by seed."""
        ideal = {"accuracy of the ideal": self.ideal.tolist()}
        return ideal | {name: points.tolist() for name, points in self.points().items()}


def joined(ledgers: Sequence[GapLedger]) -> GapLedger:
    """One ledger of the seeds of several."""
    columns = {name: [getattr(one, name) for one in ledgers] for name in _ACCURACIES}
    return GapLedger(**{name: np.concatenate(values) for name, values in columns.items()})


_ACCURACIES = tuple(part.name for part in fields(GapLedger))


@checked
def gap_ledger(jobs: Job | Sequence[Job], store: Store | str | Path | None = None, **work: Any) -> GapLedger:
    """Through what a run's accuracy is lost against the lossless ideal; trains what is not there.

    Parameters
    ----------
    jobs
        A job, or several that differ by their seeds.
    store
        Where runs, counterfactuals and ledgers are kept; the same call again goes on or returns them.
    **work
        Fields of `Execution`.

    Returns
    -------
    GapLedger
        Points of accuracy by cause.

    Raises
    ------
    ScenarioError, TrainingError, TooLargeError
        As `run` does.
    """
    several, how = [jobs] if isinstance(jobs, Job) else list(jobs), Execution(**work)
    TrainingError.when(not several, "jobs", "at least one", "number 0")
    first = several[0]
    with opened(store) as kept, kept.alone():
        if first.dataset is None and not kept.has(first):
            check_trainable(first.scenario, first.training, first.training_seed, here=how.make_stack is Replay)
        return joined(ledgers_in(kept, several, how))


def ledgers_in(store: Store, jobs: Sequence[Job], work: Execution = ALONE) -> list[GapLedger]:
    """One ledger per job, from a store that this process has for itself; absent trainings go in one stack."""
    runs = [store.run(job, work) for job in jobs] if store.single else store.runs(jobs, work)
    places = [store.place(job, "run") / LEDGER for job in jobs]
    absent = [number for number, place in enumerate(places) if not place.exists()]
    pairs = _counterfactual_runs(store, [jobs[number] for number in absent], work)
    for number, (ideal, arrived) in zip(absent, pairs, strict=True):
        run, place = runs[number], places[number]
        accuracies = {
            "ideal": ideal.final["accuracy_mean"],
            "all_arrive": arrived.final["accuracy_mean"],
            "all_arrive_average": arrived.final["average_accuracy"],
            "average": run.final["average_accuracy"],
            "accuracy": run.final["accuracy_mean"],
        }
        make_folder(place.parent)
        _LEDGER_FILE.write(place, {"key": jobs[number].key(), "accuracies": accuracies})
        shutil.rmtree(place.parent / COUNTERFACTUALS, ignore_errors=True)
    return [read_ledger(place, job.key()) for place, job in zip(places, jobs, strict=True)]


def _counterfactual_runs(store: Store, jobs: Sequence[Job], work: Execution) -> list[tuple[Run, Run]]:
    """The ideal and *all arrive* of every job; those of a run's folder have checkpoints and go when they are done."""
    arrived = [all_arrive_job(job, trace) for job, trace in zip(jobs, store.traces(jobs, work), strict=True)]
    pairs = list(zip(map(ideal_job, jobs), arrived, strict=True))
    if not store.single:
        return [(ideal, other) for ideal, other in grouped_runs(store, pairs, work)]
    own, work = Store(store.folder / COUNTERFACTUALS), replace(work, keep_weights=False)
    return [(own.run(ideal, work), own.run(other, work)) for ideal, other in pairs]


def ideal_job(job: Job) -> Job:
    """The job's training with no step and no packet lost: one for all planners, since only its seed counts."""
    lossless = replace(job, planner=IDEAL, options={}, seed=0, episode=0, changes=(), reaction=None, trace=None)
    return replace(lossless, plan_device="cpu", plan_dtype="float64")


def all_arrive_job(job: Job, trace: Trace) -> Job:
    """The job's training under its own schedule, with no packet lost."""
    own = trace if job.trace is None else trace.episode(job.episode)
    return replace(job, options={}, episode=0, changes=(), reaction=None, trace=all_arrive(own))


def all_arrive(trace: Trace) -> Trace:
    """The same devices train in the same slots; then everyone's weights reach all neighbours."""
    return replace(
        trace,
        planner=f"{trace.planner}, all arrive",
        delivered=np.ones_like(trace.delivered),
        error_prob=np.zeros_like(trace.error_prob),
        update_loss=np.where(trace.scheduled, 0.0, trace.update_loss),
    )


def read_ledger(place: Path, key: str) -> GapLedger:
    """The ledger of one run by its key; raises TrainingError where the file is damaged or another run's."""
    content = _LEDGER_FILE.read(place, TrainingError)
    TrainingError.when(content["key"] != key, place, f"the gap ledger of run {key}", f"{content['key']}")
    accuracies = {name: content["accuracies"].get(name) for name in _ACCURACIES}
    for name, value in accuracies.items():
        is_share = isinstance(value, int | float) and 0 <= value <= 1
        TrainingError.when(not is_share, place, f"{name} from 0 to 1", f"value {value!r:.40}")
    return GapLedger(**{name: np.array([float(value)]) for name, value in accuracies.items()})
