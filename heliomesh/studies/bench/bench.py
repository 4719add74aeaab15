"""Run the benchmark: every planner on every scenario, kept as it is finished and never measured twice.

To measure is to plan, simulate and train; gaps are to a bound for all policies.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import Any

from heliomesh.bounds.sampled_bound import sampled_bound
from heliomesh.common.arguments import checked
from heliomesh.common.durable import alone_in, json_sha256
from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB, readable
from heliomesh.common.mistakes import MistakeError
from heliomesh.jobs.job import RESULTS_VERSION, VERSIONS, Job
from heliomesh.jobs.scheme import Scheme
from heliomesh.jobs.store import opened
from heliomesh.learning.run import TrainingError, machine, versions
from heliomesh.learning.settings import TrainSettings
from heliomesh.learning.trainer import Execution
from heliomesh.model.problem import Problem, build
from heliomesh.planning import chosen_options, lower_bound, planner_names
from heliomesh.simulation.trace import estimate_bytes
from heliomesh.studies.bench.board import Leaderboard
from heliomesh.studies.bench.line import (
    BenchLine,
    Bound,
    Entry,
    known_line,
    label_of,
    new_line,
    read_bounds,
    read_line,
    write_bounds,
    write_line,
)
from heliomesh.studies.bench.scenarios import BENCH, Bench, BenchScenario
from heliomesh.studies.compare import Asked, in_variants
from heliomesh.studies.results import finals

PLANNING_SECONDS = 300.0  # of processors, to plan and to simulate all episodes
# Nobody looks at the curves. The plain loop is the strategy whose rounding will not change.
_TRAINING = TrainSettings(evaluate_every=1000, strategy="loop")

Report = Callable[[str], None]
Planner = tuple[str, Mapping[str, Any]]  # its name and options


@checked
def bench(
    folder: str | Path = "results/bench",
    only: Sequence[str] | None = None,
    planners: Sequence[Planner | str] | None = None,
    *,
    again: bool = False,
    version: Bench = BENCH,
    report: Report = lambda _: None,
    **work: Any,
) -> Leaderboard:
    """Measure planners on the scenarios of the benchmark; what the folder holds is not repeated.

    Parameters
    ----------
    folder
        Of results; lines that others measured are part of the leaderboard.
    only
        Names of scenarios; by default all.
    planners
        Names, or names with options; by default every installed planner in all its variants.
    again
        Whether to measure again what is there.
    version
        Of the benchmark.
    report
        Is told every finished measurement in one sentence.
    **work
        Fields of `Execution`, such as ``track``.

    Returns
    -------
    Leaderboard
        All lines of the folder; ``table()`` gives them as a pandas table.
    """
    place, chosen = Path(folder), version.named(only)
    given: list[Planner] = []
    for one in planner_names() if planners is None else planners:
        given += [(one, scheme.options) for scheme in in_variants([one])] if isinstance(one, str) else [one]
    asked = [(name, chosen_options(name, options)) for name, options in given]  # refuses wrong ones before any work
    how = Execution(**work)
    with alone_in(place):
        for scenario in chosen:  # from small to large
            absent = [planner for planner in asked if again or not _has(place, version, scenario, planner)]
            _measure(place, version, scenario, absent, how, report)
    return leaderboard(place, version)


def leaderboard(folder: str | Path, version: Bench = BENCH) -> Leaderboard:
    """What a folder holds; raises BenchError for a file that is no result of this version."""
    lines = [read_line(place, version) for place in sorted((Path(folder) / str(version.version)).glob("*.json"))]
    return Leaderboard(version, tuple(sorted(lines, key=lambda one: one.label)), read_bounds(Path(folder), version))


def _has(folder: Path, version: Bench, one: BenchScenario, planner: Planner) -> bool:
    """Whether an entry is there that was measured as it would be now."""
    line = known_line(folder, version, label_of(*planner))
    entry = None if line is None else line.entries.get(one.name)
    return entry is not None and entry.key == key_of(version, one, *planner)


def _measure(
    folder: Path, version: Bench, one: BenchScenario, planners: Sequence[Planner], work: Execution, report: Report
) -> None:
    """The bound of a scenario, then an entry in each planner's line, with where its code comes from now."""
    bounds = read_bounds(folder, version)
    if not planners and one.name in bounds:
        return
    problem = build(one.scenario)
    trace = readable(estimate_bytes(problem, one.episodes))
    report(f"{one.name}: {len(planners)} to measure; traces take {trace}, a plan at most {DEFAULT_LIMIT_GIB:g} GiB")
    found = None if one.name in bounds else bound_of(one, problem, work)
    if found is not None:
        write_bounds(folder, version, bounds | {one.name: found})
        report(f"{one.name}: no policy on its powers costs less than {found.per_slot:.4f} per slot")
    for planner in planners:
        line = new_line(version, *planner)
        known = known_line(folder, version, line.label)
        if known is not None and one.name in known.entries and not _has(folder, version, one, planner):
            why = f"results version was {known.entries[one.name].results_version}, now {RESULTS_VERSION}"
            why = why if known.planner_source == line.planner_source else "its code has changed"
            work.notify(f"{one.name}: {line.label}: measured again: {why}")
        entry = measured(version, one, problem, line, work)
        line = line.model_copy(update={"entries": {one.name: entry}})
        write_line(folder, version, line.beside(known))
        said = f"refused. {entry.refusal}"
        if not entry.refusal:
            learned = f", accuracy {100 * fmean(entry.accuracy):.2f} %" if entry.accuracy else ""
            said = f"cost {fmean(entry.cost):.4f} per slot{learned}, planned in {entry.process_seconds:.1f} s"
        report(f"{one.name}: {line.label}: {said}")


def key_of(bench: Bench, one: BenchScenario, planner: str, options: Mapping[str, Any], seed: int = 0) -> str:
    """The sha256 of all that decides an entry: another one means that it has to be measured again."""
    job = Job(one.scenario, planner, options, seed=seed, training=_TRAINING)
    said = job.identity("run" if one.seeds else "trace")
    decides = {name: part for name, part in said.items() if name != VERSIONS}  # an entry says what it was made with
    return json_sha256({"bench": bench.version, "scenario": one.sha256, "job": decides})


class TooSlowError(MistakeError):
    """A planner took more processor time than it is allowed."""


@contextmanager
def processor_limit(seconds: float) -> Iterator[None]:
    """Raise TooSlowError once the block has used so much processor time [s], all threads of this process together.

    The operating system's timer does it, which Windows lacks, and which reaches the main thread only: elsewhere there
    is no limit.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise TooSlowError("time", f"at most {seconds:g} s of processors to plan and simulate", ": more")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def measured(bench: Bench, one: BenchScenario, problem: Problem, line: BenchLine, work: Execution) -> Entry:
    """Plan, simulate all episodes and train under the first of them; a refusal is an entry too."""
    asked = Asked(problem, one.episodes, line.seed, work)
    known: dict[str, Any] = {
        "scenario_sha256": one.sha256,
        "key": key_of(bench, one, line.planner, line.options, line.seed),
        "results_version": RESULTS_VERSION,
        "made_with": versions() | machine("cpu"),
    }
    try:
        with processor_limit(PLANNING_SECONDS):
            *_, row = asked.rows(Scheme(line.planner, line.planner, line.options))
    except MistakeError as refusal:
        known["refused_for"] = "time" if isinstance(refusal, TooSlowError) else "scenario"
        return Entry(**known, refusal=str(refusal))
    if row.plan is None or row.summary is None or row.cost is None:
        return Entry(**known, refused_for="memory", refusal=row.refusal)
    used = {name: value for name, value in row.scheme.options.items() if line.options.get(name) != value}
    plan, summary, cost = row.plan, row.summary, row.cost
    accuracy: tuple[float, ...] = ()
    if one.seeds:
        with opened(None) as store:
            lean = replace(asked, work=replace(work, keep_weights=False))
            (row,) = lean.trained([row], one.seeds, _TRAINING, store)
        TrainingError.when(row.failure, row.failure, "")
        accuracy = tuple(finals(row.runs, "accuracy_mean").tolist())
    return Entry(
        **known,
        fell_back_to=used,
        converged=plan.converged,
        picks_actions=plan.picks_actions,
        cost=tuple(cost.tolist()),
        spent_joule=tuple(summary.spent_joule.tolist()),
        accuracy=accuracy,
        process_seconds=plan.process_seconds,
        offline_bytes=plan.overhead.offline_bytes,
        online_bytes_per_slot=float(plan.overhead.online_bytes_per_slot),
    )


def bound_of(one: BenchScenario, problem: Problem, work: Execution) -> Bound | None:
    """The bound that the benchmark measures gaps by; None where the scenario has none."""
    known: dict[str, Any] = {"scenario_sha256": one.sha256, "paths": one.paths}
    if one.paths:
        return Bound(**known, per_slot=sampled_bound(problem, paths=one.paths, track=work.track).lower)
    found = lower_bound(problem, work.track)
    return None if found is None else Bound(**known, per_slot=found)
