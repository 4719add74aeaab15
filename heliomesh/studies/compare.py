"""All planners on one scenario, with common random numbers, and the models they lead to."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np

from heliomesh.bounds.dual import is_quick
from heliomesh.common.arguments import Count, Index, NotEmpty, checked
from heliomesh.common.catalog import CodeOrName
from heliomesh.common.memory_limit import TooLargeError
from heliomesh.common.mistakes import MistakeError
from heliomesh.jobs.job import Job
from heliomesh.jobs.steps import job_of
from heliomesh.jobs.store import Store, opened
from heliomesh.jobs.training import split_settings
from heliomesh.learning.preflight import check_trainable
from heliomesh.learning.run import Run
from heliomesh.learning.settings import TrainSettings
from heliomesh.learning.trainer import ALONE, Execution
from heliomesh.model.policy import Plan, Track
from heliomesh.model.problem import Problem
from heliomesh.planning import find_planner, lower_bound, make_plan, planner_names
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.simulation.diagnostics import Interval, Summary, columns, interval, summarise
from heliomesh.simulation.trace import Trace, simulate
from heliomesh.studies.episodes import write_episodes
from heliomesh.studies.gap_ledger import GapLedger, joined, ledgers_in
from heliomesh.studies.line import by_episode

if TYPE_CHECKING:
    import pandas as pd

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Row:
    """One planner's result; ``refusal`` instead of results where it did not fit, ``failure`` where it failed."""

    planner: str  # with what tells its variants apart
    name: object  # the planner itself: its name, function or module
    options: Mapping[str, Any]  # with which it was asked
    plan: Plan | None = None
    summary: Summary | None = None
    cost: np.ndarray[tuple[int], np.dtype[np.float64]] | None = None  # (episode,)
    refusal: str = ""
    failure: str = ""  # of planning, simulating or training, in one sentence
    error: Exception | None = field(default=None, repr=False, compare=False)  # the same, where it happened here
    gap: Interval | None = None  # relative to the reference, paired by episode; None where that does not bound it
    traces: tuple[Trace, ...] = ()  # of the first episodes, until they are trained
    jobs: tuple[Job, ...] = ()  # trained under the first episodes
    runs: tuple[Run, ...] = ()  # what they gave


@dataclass(frozen=True)
class Comparison:
    """Rows in the order planned, and what their gaps are measured against."""

    rows: tuple[Row, ...]
    reference: str
    lower_bound: float | None = None  # certified, for the process that is simulated
    store: Store | None = None  # of plans, traces and runs, where they were kept

    def table(self) -> "pd.DataFrame":
        """One line per planner: cost and gap with 95 % half-widths, shares, seconds and, if trained, accuracies."""
        import pandas as pd

        return pd.DataFrame([_line(row) for row in self.rows])

    def refusals(self) -> dict[str, str]:
        """Why planners did not fit, by planner."""
        return {row.planner: row.refusal for row in self.rows if row.refusal}

    def failures(self) -> dict[str, str]:
        """Why planners failed, by planner."""
        return {row.planner: row.failure for row in self.rows if row.failure}

    def absences(self) -> list[str]:
        """Why planners have no results, or no trained models, each in words."""
        refused = [f"{planner} refused. {reason}" for planner, reason in self.refusals().items()]
        return refused + [f"{planner} failed. {reason}" for planner, reason in self.failures().items()]

    def save_runs(self, folder: str | Path) -> list[Path]:
        """Copy every trained run with its plan and trace to a folder of its own, as `heliomesh run` leaves them."""
        found = []
        for row, job in [(one, job) for one in self.rows for job in one.jobs]:
            path = self._kept().view(job, Path(folder) / f"{row.planner.replace(' ', '-')}-{job.episode}")
            if row.plan is not None and row.cost is not None and row.summary is not None:
                bound = self.lower_bound if row.plan.picks_actions else None
                write_episodes(path, job, row.cost, row.summary, bound)
            found.append(path)
        return found

    def gap_ledgers(self, **work: Any) -> dict[str, GapLedger]:
        """What every trained planner loses against the lossless ideal, and through what, over common seeds.

        Counterfactuals train in one stack and stay in the store: the same call again repeats none. ``work`` has
        fields of `Execution`.
        """
        store = self._kept()
        trained = [row for row in self.rows if row.jobs]
        refuse(not trained, "train", "at least 1 trained episode per plan", "number of runs 0")
        with store.alone():
            found = iter(ledgers_in(store, [job for row in trained for job in row.jobs], Execution(**work)))
        return {row.planner: joined([next(found) for _ in row.jobs]) for row in trained}

    def _kept(self) -> Store:
        if self.store is None:
            raise ScenarioError("store", "a store given to compare", "value None")
        return self.store


def _line(row: Row) -> dict[str, Any]:
    line: dict[str, Any] = {"planner": row.planner, "refusal": row.refusal or None, "failure": row.failure or None}
    if row.plan is not None and row.summary is not None:
        line |= columns(cost=row.summary.cost, gap=row.gap)
        line |= {"participation": row.summary.participation, "delivery": row.summary.delivery}
        line |= {"seconds": row.plan.seconds, "lower_bound": row.plan.lower_bound}
    if row.runs:
        line |= columns(accuracy=interval(np.array([run.final["accuracy_mean"] for run in row.runs])))
    return line


@checked
def compare(
    problem: Problem,
    names: Annotated[Sequence[CodeOrName], NotEmpty()] | None = None,
    episodes: Count = 64,
    seed: Index = 0,
    *,
    memory_gib: float | None = None,
    certify: bool | None = None,
    train: Index = 0,
    store: Store | str | Path | None = None,
    **settings: Any,
) -> Comparison:
    """Plan and simulate with several planners, with common random numbers.

    Parameters
    ----------
    problem
        What is planned for.
    names
        Names, functions or modules of planners; by default every planner of updates.
    episodes
        Episodes of each plan.
    seed
        Draws the episodes.
    memory_gib
        Memory of each plan [GiB]; by default the planner's own limit.
    certify
        Whether `lower_bound` is computed; by default if it takes seconds.
    train
        Also train under so many episodes of each plan.
    store
        Where plans, traces and runs are kept, so that the same call again does not repeat them.
    **settings
        Fields of `TrainSettings` and of `Execution`, such as ``device``, ``track`` or ``observer``.

    Returns
    -------
    Comparison
        One row per planner; ``table()`` gives it as a pandas table. The row of a planner that fails says why.

    Raises
    ------
    Exception
        What the first planner raised, where all of them fail.
    """
    training, work = split_settings({"evaluate_every": 5, **settings})
    if train:
        check_trainable(problem.scenario, training, seed)
    with opened(store) as kept, kept.alone():
        asked = Asked(problem, episodes, seed, work, kept if store else None, memory_gib, train)
        by_default = [name for name in planner_names() if find_planner(name).objective == "update-loss"]
        planners = by_default if names is None else names
        begun = asked.every_row(in_variants(planners))
        bound = lower_bound(problem, work.track) if certify or (certify is None and is_quick(problem)) else None
        rows = list(begun)
        if all(row.failure for row in rows):
            raise rows[0].error or ScenarioError(rows[0].planner, rows[0].failure)
        result = _with_gaps(rows, bound, problem)
        if train:
            result = replace(result, rows=asked.trained(result.rows, train, training, kept))
        return replace(result, store=kept) if store else result


def in_variants(planners: Iterable[_Item]) -> list[tuple[_Item, dict[str, Any]]]:
    """Every planner with each of its option sets; its file may name several in ``VARIANTS``."""
    return [(planner, options) for planner in planners for options in find_planner(planner).variants]


@dataclass(frozen=True)
class Asked:
    """What all planners are asked, under the same episodes."""

    problem: Problem
    episodes: int
    seed: int
    work: Execution
    store: Store | None = None  # of plans, where they are kept
    memory_gib: float | None = None  # of each plan; default: the planner's own limit
    kept: int = 0  # first episodes whose traces are kept, to train under them

    def trained(self, rows: Sequence[Row], train: int, training: TrainSettings, store: Store) -> tuple[Row, ...]:
        """Rows with runs under the first episodes, or with why one failed: others of its planner would not serve.

        Episode e is trained with seed + e: with common random numbers, data and first weights.
        """
        jobs: list[list[Job]] = []
        for row in rows:
            base = replace(job_of(self.problem, row.name, row.options), seed=self.seed, training=training)
            jobs.append([] if row.plan is None else by_episode(base, train))
            if row.plan is not None and not store.has(base, "plan"):
                store.put_plan(base, row.plan)
            for job, trace in zip(jobs[-1], row.traces, strict=False):  # later episodes were not simulated
                if not store.has(job, "trace"):
                    store.put_trace(job, trace)
        failed = store.train([job for own in jobs for job in own], self.work)
        found = []
        for row, own in zip(rows, jobs, strict=True):
            errors = [failed[job.key()] for job in own if job.key() in failed]
            done = {"failure": str(errors[0])} if errors else {"jobs": tuple(own), "runs": tuple(store.runs(own))}
            found.append(replace(row, traces=(), **done))
        return tuple(found)

    def every_row(self, todo: Sequence[tuple[object, Mapping[str, Any]]]) -> Iterator[Row]:
        """The rows of all planners, each with its options, in order; others begin at once where the work spreads."""
        spread = self.work.parallel_map
        if spread is map or len(todo) == 1:  # the planner itself may work in parallel, and show how far it is
            return (self._kept(row) for one in todo for row in self.tried(*one))
        absent = [one for one in todo if not self._has(self._job(*one))]
        if self.store is not None:
            self.store.tell_changed([self._job(*one) for one in absent], "plan", self.work)
        elsewhere = spread(partial(_rows_elsewhere, replace(self, work=ALONE, store=None)), absent)
        tracked = iter(self.work.track(elsewhere, "plan and simulate", len(absent)))
        found = (self.tried(*one) if self._has(self._job(*one)) else next(tracked) for one in todo)
        return (self._kept(row) for rows in found for row in rows)

    def _kept(self, row: Row) -> Row:
        """The row, with its plan in the store."""
        if self.store is not None and row.plan is not None:
            self.store.put_plan(self._job(row.name, row.options), row.plan)
        return row

    def _has(self, job: Job) -> bool:
        """Whether the plan is stored."""
        return self.store is not None and self.store.has(job, "plan")

    def _job(self, planner: object, options: Mapping[str, Any]) -> Job:
        """What is planned, with the limit of memory where there is one and the planner takes it."""
        known = self.memory_gib is not None and "memory_gib" in find_planner(planner).options.model_fields
        own = {**options, "memory_gib": self.memory_gib} if known else options
        return job_of(self.problem, planner, own)

    def tried(self, planner: object, options: Mapping[str, Any]) -> list[Row]:
        """The planner's rows, the last of which says how it failed; what ``track`` raises to cancel is raised."""
        cancelled: list[Exception] = []
        work = replace(self.work, track=partial(_noting, self.work.track, cancelled))
        found: list[Row] = []
        try:
            found.extend(replace(self, work=work).rows(planner, options))
        except Exception as error:
            if error in cancelled:
                raise
            label, said = _label(planner, options), _sentence(error)
            found.append(Row(label, planner, options, failure=said, error=error))
        return found

    def rows(self, planner: object, options: Mapping[str, Any]) -> Iterator[Row]:
        """The planner's row; where it does not fit, its refusal and then the next smaller variant it offers."""
        job = self._job(planner, options)
        try:
            made = self._plan(job)
        except TooLargeError as error:
            yield Row(_label(planner, options), planner, job.options, refusal=str(error))
            smaller = find_planner(planner).smaller(dict(options))
            if smaller is not None:
                yield from self.rows(planner, smaller)
            return
        trace = simulate(self.problem, made, self.episodes, self.seed, track=self.work.track)
        kept = tuple(trace.episode(number) for number in range(min(self.kept, self.episodes)))
        yield Row(made.planner, planner, job.options, made, summarise(trace), trace.cost, traces=kept)

    def _plan(self, job: Job) -> Plan:
        if self.store is not None:
            if self.store.has(job, "plan"):
                return self.store.plan(job, self.work)
            self.store.tell_changed([job], "plan", self.work)
        spread, track = self.work.parallel_map, self.work.track
        return make_plan(self.problem, job.planner, job.options, bound=False, parallel_map=spread, track=track)


def _rows_elsewhere(asked: Asked, one: tuple[object, Mapping[str, Any]]) -> list[Row]:
    """A planner's rows, made by another process; not every error can be sent from there."""
    return [replace(row, error=None) for row in asked.tried(*one)]


def _label(planner: object, options: Mapping[str, Any]) -> str:
    return " ".join([find_planner(planner).name, *(str(value) for value in options.values())])


def _sentence(error: Exception) -> str:
    """What a planner raised: a mistake's own sentence, or what it was and where."""
    if isinstance(error, MistakeError):
        return str(error)
    said = str(error).partition("\n")[0]
    place = extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {said} ({Path(place.filename).name}, line {place.lineno})"


def _noting(
    track: Track, raised: list[Exception], items: Iterable[_Item], description: str, total: int
) -> Iterator[_Item]:
    """A progress callback that notes what it raises itself; what the items raise is not its own."""
    of_items: list[Exception] = []

    def source() -> Iterator[_Item]:
        try:
            yield from items
        except Exception as error:
            of_items.append(error)
            raise

    try:
        yield from track(source(), description, total)
    except Exception as error:
        if error not in of_items:
            raised.append(error)
        raise


def _with_gaps(rows: list[Row], bound: float | None, problem: Problem) -> Comparison:
    """Relative gaps to the certified bound, else to the best planner.

    Where batteries never leave the grid, the exact optimum is a bound too. The bound speaks of the problem's action
    set, so plans with other powers have no gap to it.
    """
    if bound is not None and problem.grid_is_exact:
        exact = [row.plan.expected_cost for row in rows if row.plan is not None and row.planner == "centralized"]
        bound = max([bound, *(cost for cost in exact if cost is not None)])
    costs = [(row.planner, row.cost) for row in rows if row.cost is not None]
    if not costs:
        return Comparison(tuple(rows), "nothing: no planner fits", bound)
    if bound is not None:
        reference, base = "the certified bound", np.full_like(costs[0][1], bound)
    else:
        planner, base = min(costs, key=lambda entry: float(np.mean(entry[1])))
        reference = f"the best planner ({planner})"
    bounded = [row.plan is not None and (bound is None or row.plan.picks_actions) for row in rows]
    per_slot = abs(float(base.mean())) or 1.0
    with_gap = [
        replace(row, gap=interval((row.cost - base) / per_slot)) if whether and row.cost is not None else row
        for row, whether in zip(rows, bounded, strict=True)
    ]
    return Comparison(tuple(with_gap), reference, bound)
