"""Measure a planner on a scenario of the benchmark: plan, simulate, train; bound its gaps; and verify its costs."""

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import Any

from pydantic import Field

from heliomesh.bounds.sampled_bound import sampled_bound
from heliomesh.common.catalog import check_trusted
from heliomesh.common.durable import Sealed, json_sha256, make_folder
from heliomesh.common.mistakes import MistakeError
from heliomesh.jobs.job import RESULTS_VERSION, VERSIONS, Job
from heliomesh.jobs.store import opened
from heliomesh.learning.run import TrainingError, machine, versions
from heliomesh.learning.settings import TrainSettings
from heliomesh.learning.trainer import ALONE, Execution
from heliomesh.model.problem import Problem, build
from heliomesh.planning import lower_bound
from heliomesh.scenario.section import Section, validated
from heliomesh.studies.bench.line import BenchError, BenchLine, Entry
from heliomesh.studies.bench.scenarios import Bench, BenchScenario
from heliomesh.studies.compare import Asked, Row

PLANNING_SECONDS = 300.0  # of processors, to plan and to simulate all episodes
# Nobody looks at the curves. The plain loop is the strategy whose rounding will not change.
_TRAINING = TrainSettings(evaluate_every=1000, strategy="loop")


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
            *_, row = asked.rows(line.planner, line.options)
    except TooSlowError as refusal:
        return Entry(**known, refused_for="time", refusal=str(refusal))
    except MistakeError as refusal:
        return Entry(**known, refused_for="scenario", refusal=str(refusal))
    if row.plan is None:
        return Entry(**known, refused_for="memory", refusal=row.refusal)
    used = {name: value for name, value in row.options.items() if line.options.get(name) != value}
    if one.seeds:
        with opened(None) as store:
            lean = replace(asked, work=replace(work, keep_weights=False))
            (row,) = lean.trained([row], one.seeds, _TRAINING, store)
        TrainingError.when(row.failure, row.failure, "")
    return Entry(**known, **_numbers(row), fell_back_to=used)


def _numbers(row: Row) -> dict[str, Any]:
    if row.plan is None or row.summary is None or row.cost is None:
        return {}
    return {
        "converged": row.plan.converged,
        "picks_actions": row.plan.picks_actions,
        "cost": tuple(row.cost.tolist()),
        "spent_joule": tuple(row.summary.spent_joule.tolist()),
        "accuracy": tuple(run.final["accuracy_mean"] for run in row.runs),
        "process_seconds": row.plan.process_seconds,
        "offline_bytes": row.plan.overhead.offline_bytes,
        "online_bytes_per_slot": float(row.plan.overhead.online_bytes_per_slot),
    }


class Bound(Section):
    """No policy that picks the scenario's actions is expected to cost less."""

    scenario_sha256: str = Field(description="of the scenario and of how it is measured")
    per_slot: float = Field(description="updates lost per slot; of a sampled bound the lower end of its interval")
    paths: int = Field(0, ge=0, description="sampled paths, confidence 97.5 %; 0: certified")


_BOUNDS = Sealed("bounds of the benchmark", 1, (("bench", int), ("bounds", dict)))


def bound_of(one: BenchScenario, problem: Problem, work: Execution) -> Bound | None:
    """The bound that the benchmark measures gaps by; None where the scenario has none."""
    known: dict[str, Any] = {"scenario_sha256": one.sha256, "paths": one.paths}
    if one.paths:
        return Bound(**known, per_slot=sampled_bound(problem, paths=one.paths, track=work.track).lower)
    found = lower_bound(problem, work.track)
    return None if found is None else Bound(**known, per_slot=found)


def _place(folder: Path, bench: Bench) -> Path:
    """Not among the lines, one of which may have any name."""
    return folder / f"bounds-{bench.version}.json"


def read_bounds(folder: Path, bench: Bench) -> dict[str, Bound]:
    """Bounds by scenario, as far as they are there and of these scenarios; raises BenchError for a damaged file."""
    place = _place(folder, bench)
    if not place.exists():
        return {}
    content = _BOUNDS.read(place, BenchError)
    found = {name: validated(Bound, bound, f"{place}: {name}") for name, bound in content["bounds"].items()}
    current = {one.name: one.sha256 for one in bench.scenarios}
    return {name: bound for name, bound in found.items() if current.get(name) == bound.scenario_sha256}


def write_bounds(folder: Path, bench: Bench, bounds: Mapping[str, Bound]) -> None:
    """Write all bounds whole."""
    place = _place(folder, bench)
    make_folder(place.parent)
    content = {name: bound.model_dump(mode="json") for name, bound in bounds.items()}
    _BOUNDS.write(place, {"bench": bench.version, "bounds": content})


TOLERANCE = 1e-3  # of the mean cost: another processor rounds differently, and may settle a tie differently


@dataclass(frozen=True)
class CostCheck:
    """A stored cost beside the one found now, both per slot and over the same few episodes."""

    label: str
    scenario: str
    stored: float
    found: float

    @property
    def agrees(self) -> bool:
        """Whether the two differ by rounding only."""
        return abs(self.found - self.stored) <= TOLERANCE * abs(self.stored)


def verify(
    lines: Sequence[BenchLine],
    bench: Bench,
    only: Sequence[str] | None = None,
    episodes: int = 4,
    work: Execution = ALONE,
) -> Iterator[CostCheck]:
    """Every entry with a cost; raises MistakeError where a planner is not installed or refuses now."""
    for one in bench.named(only):
        claimed = [line for line in lines if one.name in line.entries and not line.entries[one.name].refusal]
        if claimed:
            problem = build(one.scenario)
            yield from (_verdict(one, problem, line, min(episodes, one.episodes), work) for line in claimed)


def _verdict(one: BenchScenario, problem: Problem, line: BenchLine, episodes: int, work: Execution) -> CostCheck:
    check_trusted(line.planner)
    *_, row = Asked(problem, episodes, line.seed, work).rows(line.planner, line.options)
    if row.cost is None:
        raise BenchError(line.label, f"a plan for {one.name}", f": refused. {row.refusal}")
    stored = fmean(line.entries[one.name].cost[:episodes])
    return CostCheck(line.label, one.name, stored, float(row.cost.mean()))
