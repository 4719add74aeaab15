"""All planners on one scenario, with common random numbers, and the models they lead to."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np

from heliomesh.bounds.dual import is_quick
from heliomesh.common.arguments import NOT_EMPTY, Count, Index, Probability, checked
from heliomesh.common.catalog import CodeOrName
from heliomesh.common.memory_limit import TooLargeError
from heliomesh.common.mistakes import MistakeError
from heliomesh.jobs.job import Job
from heliomesh.jobs.scheme import Scheme, scheme_of
from heliomesh.jobs.steps import job_of, planned
from heliomesh.jobs.store import Store, opened
from heliomesh.jobs.training import split_settings
from heliomesh.learning.preflight import check_trainable
from heliomesh.learning.run import Run
from heliomesh.learning.settings import TrainSettings
from heliomesh.learning.trainer import ALONE, Execution
from heliomesh.model.policy import Plan, Track
from heliomesh.model.problem import Problem, built_like
from heliomesh.planning import find_planner, lower_bound, planner_names
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.simulation.diagnostics import Interval, Summary, columns, interval, summarise
from heliomesh.simulation.trace import Trace, simulate
from heliomesh.studies.episodes import write_episodes
from heliomesh.studies.gap_ledger import GapLedger, joined, ledgers_in
from heliomesh.studies.line import by_episode
from heliomesh.studies.results import Scores, scores

if TYPE_CHECKING:
    import pandas as pd

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Row:
    """One planner's result; ``refusal`` instead of results where it did not fit, ``failure`` where it failed."""

    planner: str  # with what tells its variants apart
    scheme: Scheme  # as it was asked
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

    @property
    def is_bounded(self) -> bool:
        """Whether a bound for the problem holds for it: it picks the problem's actions, in the problem's world."""
        return self.plan is not None and self.plan.picks_actions and self.scheme.keeps_bound


@dataclass(frozen=True)
class Comparison:
    """Rows in the order planned, and what their gaps are measured against."""

    rows: tuple[Row, ...]
    reference: str
    lower_bound: float | None = None  # certified, for the process that is simulated
    store: Store | None = None  # of plans, traces and runs, where they were kept

    @checked
    def table(self, target: Probability | None = None, against: str | None = None) -> "pd.DataFrame":
        """One line per planner: cost and gap with 95 % half-widths, shares, seconds and, if trained, scores.

        Scores are those of `results.py`, with differences paired by seed from the row ``against``, by default the
        first that was trained. With a ``target`` accuracy: also slots and joules until it is reached.
        """
        import pandas as pd

        trained = {row.planner: scores(row.runs, target) for row in self.rows if row.runs}
        known = ", ".join(trained)
        refuse(against is not None and against not in trained, "against", f"one of {known}", f"value {against!r}")
        base = trained.get(against or next(iter(trained), ""), {})
        return pd.DataFrame([_line(row, trained.get(row.planner, {}), base) for row in self.rows])

    def curves(self) -> "pd.DataFrame":
        """One line per planner, seed and evaluated slot, with the columns of `Run.metrics`."""
        import pandas as pd

        found = [
            pd.DataFrame({"planner": row.planner, "seed": seed, **run.metrics})
            for row in self.rows
            for seed, run in enumerate(row.runs)
        ]
        return pd.concat(found, ignore_index=True) if found else pd.DataFrame({"planner": [], "seed": []})

    def failures(self) -> dict[str, str]:
        """Why planners failed, by planner."""
        return {row.planner: row.failure for row in self.rows if row.failure}

    def absences(self) -> list[str]:
        """Why planners have no results, or no trained models, each in words."""
        refused = [f"{row.planner} refused. {row.refusal}" for row in self.rows if row.refusal]
        return refused + [f"{planner} failed. {reason}" for planner, reason in self.failures().items()]

    def save_runs(self, folder: str | Path) -> list[Path]:
        """Copy every trained run with its plan and trace to a folder of its own, as `heliomesh run` leaves them."""
        found = []
        for row, job in [(one, job) for one in self.rows for job in one.jobs]:
            name = re.sub(r"[^\w.=+-]+", "-", row.planner)
            found.append(self._kept().view(job, Path(folder) / f"{name}-{job.episode}"))
            if row.cost is not None and row.summary is not None:
                write_episodes(found[-1], job, row.cost, row.summary, self.lower_bound if row.is_bounded else None)
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


def _line(row: Row, own: Scores, base: Scores) -> dict[str, Any]:
    line: dict[str, Any] = {"planner": row.planner, "refusal": row.refusal or None, "failure": row.failure or None}
    if row.plan is not None and row.summary is not None:
        line |= columns(cost=row.summary.cost, gap=row.gap)
        line |= {"participation": row.summary.participation, "delivery": row.summary.delivery}
        line |= {"seconds": row.plan.seconds, "lower_bound": row.plan.lower_bound}
    for name, by_seed in own.items():
        line |= columns(**{name: interval(by_seed), f"{name}_difference": interval(by_seed - base[name])})
    return line


@checked
def compare(
    problem: Problem,
    names: Annotated[Sequence[CodeOrName | Scheme], NOT_EMPTY] | None = None,
    episodes: Count = 64,
    seed: Index = 0,
    *,
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
        Names, functions or modules of planners, or schemes such as ``"receiver+agree=6"``, see `jobs/scheme.py`; by
        default every planner of updates.
    episodes
        Episodes of each plan.
    seed
        Draws the episodes.
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
    by_default = [name for name in planner_names() if find_planner(name).objective == "update-loss"]
    schemes = in_variants(by_default if names is None else names)
    for scenario in [scheme.scenario(problem.scenario) for scheme in schemes] if train else []:
        check_trainable(scenario, training, seed)
    with opened(store) as kept, kept.alone():
        asked = Asked(problem, episodes, seed, work, kept if store else None, train)
        begun = asked.every_row(schemes)
        bound = lower_bound(problem, work.track) if certify or (certify is None and is_quick(problem)) else None
        rows = list(begun)
        if all(row.failure for row in rows):
            raise rows[0].error or ScenarioError(rows[0].planner, rows[0].failure)
        result = _with_gaps(rows, bound, problem)
        if train:
            result = replace(result, rows=asked.trained(result.rows, train, training, kept))
        return replace(result, store=kept) if store else result


def in_variants(given: Iterable[CodeOrName | Scheme]) -> list[Scheme]:
    """Schemes as they are; what is named without options with each option set that the planner's file lists."""
    found = []
    for one in given:
        scheme = scheme_of(one)
        planner = find_planner(scheme.planner)
        options = [scheme.options] if scheme is one or scheme.options else planner.variants
        variants = [replace(scheme, options=own) for own in options]
        plain = len(variants) == 1 or scheme.label == planner.name  # which plans tell apart by themselves
        found += variants if plain else [variant.named() for variant in variants]
    return found


@dataclass(frozen=True)
class Asked:
    """What all planners are asked, under the same episodes."""

    problem: Problem
    episodes: int
    seed: int
    work: Execution
    store: Store | None = None  # of plans, where they are kept
    kept: int = 0  # first episodes whose traces are kept, to train under them

    def trained(self, rows: Sequence[Row], train: int, training: TrainSettings, store: Store) -> tuple[Row, ...]:
        """Rows with runs under the first episodes, or with why one failed: others of its planner would not serve.

        Episode e is trained with seed + e: with common random numbers, data and first weights.
        """
        jobs: list[list[Job]] = []
        for row in rows:
            base = replace(self._job(row.scheme), seed=self.seed, training=training)
            jobs.append([] if row.plan is None else by_episode(base, train))
            if row.plan is not None:
                store.put_plan(base, row.plan)
            for job, trace in zip(jobs[-1], row.traces, strict=False):  # later episodes were not simulated
                if job.key("plan") == base.key("plan"):  # a planner that reads labels plans anew for other data
                    store.put_trace(job, trace)
        failed = store.train([job for own in jobs for job in own], self.work)
        found = []
        for row, own in zip(rows, jobs, strict=True):
            errors = [failed[job.key()] for job in own if job.key() in failed]
            done = {"failure": str(errors[0])} if errors else {"jobs": tuple(own), "runs": tuple(store.runs(own))}
            found.append(replace(row, traces=(), **done))
        return tuple(found)

    def every_row(self, todo: Sequence[Scheme]) -> Iterator[Row]:
        """The rows of all schemes, in order; others begin at once where the work spreads."""
        spread = self.work.parallel_map
        if spread is map or len(todo) == 1:  # the planner itself may work in parallel, and show how far it is
            return (row for one in todo for row in self.tried(one))
        absent = [one for one in todo if not self._has(self._job(one))]
        if self.store is not None:
            self.store.tell_changed([self._job(one) for one in absent], "plan", self.work)
        elsewhere = spread(partial(_rows_elsewhere, replace(self, work=ALONE, store=None)), absent)
        tracked = iter(self.work.track(elsewhere, "plan and simulate", len(absent)))
        found = (self.tried(one) if self._has(self._job(one)) else next(tracked) for one in todo)
        return (self._kept(row) for rows in found for row in rows)

    def _kept(self, row: Row) -> Row:
        """The row of another process, with its plan in the store."""
        if self.store is not None and row.plan is not None:
            self.store.put_plan(self._job(row.scheme), row.plan)
        return row

    def _has(self, job: Job) -> bool:
        """Whether the plan is stored."""
        return self.store is not None and self.store.has(job, "plan")

    def _job(self, scheme: Scheme) -> Job:
        """What is planned, as the problem is computed."""
        return scheme.job(job_of(self.problem, scheme.planner, scheme.options))

    def tried(self, scheme: Scheme) -> list[Row]:
        """The scheme's rows, the last of which says how it failed; what ``track`` raises to cancel is raised."""
        cancelled: list[Exception] = []
        work = replace(self.work, track=partial(_noting, self.work.track, cancelled))
        found: list[Row] = []
        try:
            found.extend(replace(self, work=work).rows(scheme))
        except Exception as error:
            if error in cancelled:
                raise
            found.append(Row(_label(scheme), scheme, failure=_sentence(error), error=error))
        return found

    def rows(self, scheme: Scheme) -> Iterator[Row]:
        """The scheme's row; where it does not fit, its refusal and then the next smaller variant it offers."""
        own, job = scheme.scenario(self.problem.scenario), self._job(scheme)
        problem = built_like(self.problem, own) if scheme.changes else self.problem
        try:
            made = (planned if self.store is None else self.store.plan)(job, self.work, problem)
        except TooLargeError as error:
            yield Row(_label(scheme), scheme, refusal=str(error))
            smaller = find_planner(scheme.planner).smaller(dict(scheme.options))
            if smaller is not None:
                yield from self.rows(replace(scheme, options=smaller))
            return
        trace = simulate(problem, made, self.episodes, self.seed, track=self.work.track)
        kept = tuple(trace.episode(number) for number in range(min(self.kept, self.episodes)))
        label = made.planner if scheme.label == find_planner(scheme.planner).name else scheme.label
        yield Row(label, scheme, made, summarise(trace), trace.cost, traces=kept)


def _rows_elsewhere(asked: Asked, one: Scheme) -> list[Row]:
    """A scheme's rows, made by another process; not every error can be sent from there."""
    return [replace(row, error=None) for row in asked.tried(one)]


def _label(scheme: Scheme) -> str:
    if scheme.label != find_planner(scheme.planner).name:
        return scheme.label
    return " ".join([scheme.label, *(str(value) for value in scheme.options.values())])


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

    Where batteries never leave the grid, the exact optimum is a bound too. Schemes with an action set or a world of
    their own have no gap.
    """
    if bound is not None and problem.grid_is_exact:
        optima = (row.plan for row in rows if row.planner == "centralized" and row.is_bounded)
        bound = max([bound, *(one.expected_cost for one in optima if one and one.expected_cost is not None)])
    costs = [(row.planner, row.cost) for row in rows if row.cost is not None and row.scheme.keeps_bound]
    if not costs:
        return Comparison(tuple(rows), "nothing: no planner fits the problem as it is", bound)
    if bound is not None:
        reference, base = "the certified bound", np.full_like(costs[0][1], bound)
    else:
        planner, base = min(costs, key=lambda entry: float(np.mean(entry[1])))
        reference = f"the best planner ({planner})"
    per_slot = abs(float(base.mean())) or 1.0
    with_gap = list(rows)
    for number, row in enumerate(rows):
        if row.cost is not None and row.scheme.keeps_bound and (bound is None or row.is_bounded):
            with_gap[number] = replace(row, gap=interval((row.cost - base) / per_slot))
    return Comparison(tuple(with_gap), reference, bound)
