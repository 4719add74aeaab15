"""Results by key: plans, traces and runs, computed once, whole or not there at all.

    plans/ab/abcd…/     plan.json, plan.safetensors
    traces/ab/abcd…/    trace.json, trace.npz
    costs/ab/abcd….json of episodes whose trace nobody needs
    runs/ab/abcd…/      manifest.json, metrics.parquet, weights.safetensors, checkpoints/ until it is finished
    packs/NAME.*        many finished runs in two files, see `pack.py`

The JSON file of a result is written last. It is sealed, says what decided the result and has the sha256 of the files
beside it: what has one is complete, and whether it still is, the sums tell. A run's folder (``heliomesh run --out``)
is a store of one job, whose files lie side by side.
"""

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from heliomesh.common.arguments import checked
from heliomesh.common.catalog import spelled
from heliomesh.common.durable import Sealed, alone_in, file_sha256, make_folder, only_writer, write_text
from heliomesh.jobs.job import IDEAL, STEPS, Job, Step, request
from heliomesh.jobs.pack import Packs
from heliomesh.jobs.stacks import train_stacks
from heliomesh.jobs.steps import plan_facts, planned, simulated, simulated_means
from heliomesh.learning.checkpoint import Checkpoints
from heliomesh.learning.run import CHECKPOINTS, MANIFEST, Run, TrainingError, check_sum, read_manifest
from heliomesh.learning.same_run import check_same, told_difference
from heliomesh.learning.trainer import ALONE, Execution
from heliomesh.model.plan_file import PlanError, load_plan, save_plan
from heliomesh.model.policy import Plan
from heliomesh.model.problem import Problem
from heliomesh.scenario.errors import ScenarioError
from heliomesh.simulation.costs import EpisodeMeans
from heliomesh.simulation.trace import Trace

PLAN, PLAN_TABLES, SCENARIO = "plan.json", "plan.safetensors", "scenario.toml"
TRACE, TRACE_ARRAYS = "trace.json", "trace.npz"
BEFORE_TRAINING = (PLAN, PLAN_TABLES, TRACE, TRACE_ARRAYS, SCENARIO)
LAST_FILE: dict[Step, str] = {"plan": PLAN, "trace": TRACE, "run": MANIFEST}
RESULT: dict[Step, Sealed] = {
    step: Sealed(f"the {step} of a job", 1, (("key", str), ("identity", dict), ("sha256", dict), ("facts", dict)))
    for step in ("plan", "trace")
}
COST = Sealed("the cost of an episode", 1, (("key", str), ("cost", float)))
PACKS = "packs"


@dataclass(frozen=True, init=False)
class Store:
    """A folder of results, each computed once.

    Attributes
    ----------
    folder
        Where it is.
    single
        Whether it is a run's folder, of one job.
    scratch
        Whether it goes with the process: then runs have no checkpoints.
    """

    folder: Path
    single: bool = False
    scratch: bool = False

    @checked
    def __init__(self, folder: str | Path, single: bool = False, scratch: bool = False) -> None:
        for name, value in (("folder", Path(folder)), ("single", single), ("scratch", scratch)):
            object.__setattr__(self, name, value)

    @checked
    def place(self, job: Job, step: Step) -> Path:
        """The folder of a result."""
        key = job.key(step)
        return self.folder if self.single else self.folder / f"{step}s" / key[:2] / key

    @checked
    def has(self, job: Job, step: Step = "run") -> bool:
        """Whether a result is complete."""
        is_loose = (self.place(job, step) / LAST_FILE[step]).exists()
        return is_loose or (step == "run" and self.packs.key_of(job.identity()) is not None)

    @cached_property
    def packs(self) -> Packs:
        """Runs that were packed, many to a file."""
        return Packs(self.folder / PACKS)

    @checked
    def plan(self, job: Job, work: Execution = ALONE, problem: Problem | None = None) -> Plan:
        """The job's plan, made if it is not there, for its problem where that is built already."""
        made = self._stored_plan(job)
        if made is None:
            self.tell_changed([job], "plan", work)
            made = planned(job, work, problem)
            self.put_plan(job, made)
        return made

    def _stored_plan(self, job: Job) -> Plan | None:
        tables = self.place(job, "plan") / PLAN_TABLES
        if not self.has(job, "plan") or not tables.exists():
            return None
        self.facts(job, "plan")
        return load_plan(tables, planner=spelled(job.planner))

    def put_plan(self, job: Job, made: Plan) -> None:
        """Keep a plan, unless one is there."""
        with self._written_once(job, "plan") as place:
            if place is None:
                return
            write_text(place / SCENARIO, job.scenario.to_toml())
            try:
                save_plan(made, place / PLAN_TABLES, planner=spelled(job.planner))
            except PlanError:  # a user's own policy need not be one that can be read
                (place / PLAN_TABLES).unlink(missing_ok=True)
            self._seal(job, "plan", [SCENARIO, PLAN_TABLES], plan_facts(made))

    @checked
    def trace(self, job: Job, work: Execution = ALONE) -> Trace:
        """The trace of the job's episode, planned and simulated if it is not there."""
        return self.traces([job], work)[0]

    @checked
    def traces(self, jobs: Sequence[Job], work: Execution = ALONE) -> list[Trace]:
        """The traces of several jobs; those that only differ by their episodes are simulated together."""
        groups = _batches([job for job in jobs if job.trace is None and not self.has(job, "trace")])
        self.tell_changed([job for group in groups for job in group], "trace", work)
        todo = ((group, self._stored_plan(group[0])) for group in groups)
        # a planner that is alone may itself work in parallel, and show how far it is
        done: Iterable[Any] = (_prepared(one, work) for one in todo)
        if len(groups) > 1:
            done = work.track(work.parallel_map(_prepared, todo), "plan and simulate", len(groups))
        for group, plan, traces in done:
            if plan is not None and not self.has(group[0], "plan"):
                self.put_plan(group[0], plan)
            for job, trace in zip(group, traces, strict=True):
                self.put_trace(job, trace)
        return [self.read_trace(job) for job in jobs]

    def put_trace(self, job: Job, trace: Trace) -> None:
        """Keep the trace of an episode, unless one is there."""
        with self._written_once(job, "trace") as place:
            if place is not None:
                trace.save(place / TRACE_ARRAYS)
                self._seal(job, "trace", [TRACE_ARRAYS], {"planner": trace.planner, "cost": float(trace.cost[0])})

    def read_trace(self, job: Job) -> Trace:
        """The trace of the job's episode, which is there."""
        if job.trace is not None:
            return job.trace
        self.facts(job, "trace")
        return Trace.load(self.place(job, "trace") / TRACE_ARRAYS)

    @checked
    def run(self, job: Job, work: Execution = ALONE) -> Run:
        """The trained run, which goes on from its last checkpoint if there is one."""
        return self.runs([job], work)[0]

    @checked
    def runs(self, jobs: Sequence[Job], work: Execution = ALONE) -> list[Run]:
        """The runs of several jobs; raises TrainingError, once all others are trained, where one diverges."""
        for error in self.train(jobs, work).values():
            raise error
        return [self._read_run(job) for job in jobs]

    def train(self, jobs: Sequence[Job], work: Execution = ALONE) -> dict[str, TrainingError]:
        """Train what is not there, those of one dataset and model in stacks; returns why runs failed, by key."""
        if self.single:
            for job in jobs:
                self.check_same(job)
        absent = _distinct([job for job in jobs if not self.has(job)], "run")
        self.tell_changed(absent, "run", work)
        self.traces(absent, work)
        return train_stacks(absent, self, work) if absent else {}

    def checkpoints(self, jobs: Sequence[Job]) -> list[Checkpoints]:
        """Of the jobs' runs; none where the store itself will go."""
        kept = () if self.scratch else jobs
        return [Checkpoints(self.place(job, "run") / CHECKPOINTS, job.identity()) for job in kept]

    def put_run(self, job: Job, run: Run, work: Execution = ALONE) -> None:
        """Keep a trained run in place of its checkpoints, unless one is there."""
        with self._written_once(job, "run") as place:
            if place is not None:
                run.save(place, weights=work.keep_weights)
        for checkpoints in self.checkpoints([job]):
            checkpoints.clear()

    def _read_run(self, job: Job) -> Run:
        place = self.place(job, "run")
        if not (place / MANIFEST).exists() and (packed := self.packs.key_of(job.identity())) is not None:
            return self.packs.run(packed)
        check_same(place, identity_of(place, "run"), job.identity(), TrainingError)
        return Run.load(place)

    @checked
    def means(self, jobs: Sequence[Job], work: Execution = ALONE) -> EpisodeMeans:
        """Cost and darkness of each job's episode, (job,) each; traces are not kept where nothing else needs them."""
        keys = [job.key("trace") for job in jobs]
        stored = {key: read_cost(place) for key in keys if (place := self._cost_file(key)).exists()}
        # costs of versions that noted no darkness do not count
        found = {key: (known["cost"], known["dark"]) for key, known in stored.items() if "dark" in known}
        for group in _batches([job for job, key in zip(jobs, keys, strict=True) if key not in found]):
            measured = np.transpose(simulated_means(group, self.plan(group[0], work), work)).tolist()
            for job, (cost, dark) in zip(group, measured, strict=True):
                key = job.key("trace")
                make_folder(self._cost_file(key).parent)
                COST.write(self._cost_file(key), {"key": key, "cost": cost, "dark": dark})
                found[key] = cost, dark
        return EpisodeMeans(*np.reshape([found[key] for key in keys], (-1, 2)).T)

    def _cost_file(self, key: str) -> Path:
        return self.folder / "costs" / key[:2] / f"{key}.json"

    @checked
    def pack(self, name: str, jobs: Sequence[Job]) -> None:
        """Move finished runs into a new pack, those that another one holds left out.

        A pack that is there is never written again: it may be all that is left of its runs.
        """
        loose = [job for job in _distinct(jobs, "run") if (self.place(job, "run") / MANIFEST).exists()]
        new = [self._read_run(job) for job in loose if self.packs.key_of(job.identity()) is None]
        if new:
            self.packs.write(name, new)
            del self.__dict__["packs"]  # it is read anew
        for job in loose:
            place = self.place(job, "run")
            shutil.rmtree(place)
            with suppress(OSError):  # another run is beside it
                place.parent.rmdir()

    def tell_changed(self, absent: Sequence[Job], step: Step, work: Execution) -> None:
        """Say in one line which part changed of results that were stored for the same requests; each part once."""
        pairs = [(self._earlier[step].get(request(job.identity(step))), job.identity(step)) for job in absent]
        found = Counter(told_difference(before, now) for before, now in pairs if before is not None)
        for difference, count in found.items():
            if difference is not None and difference not in self._told:
                self._told.add(difference)
                part, before, now = difference
                noun = f"{step} is" if count == 1 else f"{step}s are"
                work.notify(f"{self.folder}: {count} stored {noun} not used: {part} was {before}, now {now}")

    @cached_property
    def _told(self) -> set[tuple[str, str, str]]:
        """Differences that were told."""
        return set()

    @cached_property
    def _earlier(self) -> dict[Step, dict[str, dict[str, Any]]]:
        """What decided results by what was asked for, the newest of several, when one was first found absent."""
        return {step: {request(one): one for one in self._identities(step)} for step in STEPS}

    def _identities(self, step: Step) -> Iterator[dict[str, Any]]:
        """Of stored results from old to new; what is damaged is left out, and a run's folder has none but its own."""
        if self.single:
            return
        for place in sorted(self._sealed(step), key=lambda path: path.stat().st_mtime):
            with suppress(TrainingError):
                yield identity_of(place.parent, step)

    @checked
    def facts(self, job: Job, step: Step) -> dict[str, Any]:
        """What is noted of a result, after its sums; raises TrainingError where it is damaged or another's."""
        place = self.place(job, step)
        content = read_result(place, step)
        check_same(place, content["identity"], job.identity(step), TrainingError)
        return dict(content["facts"])

    @checked
    def view(self, job: Job, folder: Path) -> Path:
        """The job's files side by side in a folder of their own, as `heliomesh run --out` leaves them."""
        folder.mkdir(parents=True, exist_ok=True)
        for step in LAST_FILE:
            place = self.place(job, step)
            for file in sorted(place.iterdir()) if place.is_dir() else []:
                if file.is_file() and not file.name.startswith("."):
                    shutil.copy2(file, folder / file.name)
        return folder

    @contextmanager
    def unclaimed(self) -> Iterator[None]:
        """Where the block ends by a user's mistake and nothing is trained, an empty run's folder is empty again."""
        was_empty = self.single and not any((self.folder / name).exists() for name in BEFORE_TRAINING)
        try:
            yield
        except (ScenarioError, TrainingError):
            if was_empty and not (self.folder / CHECKPOINTS).exists():
                for name in BEFORE_TRAINING:
                    (self.folder / name).unlink(missing_ok=True)
            raise

    def _sealed(self, step: Step) -> Iterator[Path]:
        """The sealed files of all results of a step."""
        return self.folder.glob(f"{step}s/*/*/{LAST_FILE[step]}")

    def alone(self) -> AbstractContextManager[None]:
        """Be the only process that works in the store, which is made; raises BusyFolderError."""
        return alone_in(self.folder)

    @contextmanager
    def _written_once(self, job: Job, step: Step) -> Iterator[Path | None]:
        """Where a result goes, for one writer at a time; None where the first writer's is there: it is never changed.

        What a killed writer left is written anew. A run's folder takes one job only.
        """
        place = self.place(job, step)
        if self.single:
            self.check_same(job)
        make_folder(place)
        with only_writer(place / LAST_FILE[step]):
            is_there = is_whole(place, step)
            if not is_there:
                # or a reader would compare other files with its sums
                (place / LAST_FILE[step]).unlink(missing_ok=True)
            yield None if is_there else place

    def check_same(self, job: Job) -> None:
        """Refuse a run's folder that holds another job, with the first thing in which the two differ."""
        for step in STEPS[:2]:
            if (self.folder / LAST_FILE[step]).exists():
                self.facts(job, step)
        if (self.folder / MANIFEST).exists():
            check_same(self.folder, identity_of(self.folder, "run"), job.identity(), TrainingError)

    def _seal(self, job: Job, step: Step, files: Sequence[str], facts: Mapping[str, Any]) -> None:
        place = self.place(job, step)
        sums = {name: file_sha256(place / name) for name in files if (place / name).exists()}
        content = {"key": job.key(step), "identity": job.identity(step), "sha256": sums, "facts": dict(facts)}
        RESULT[step].write(place / LAST_FILE[step], content)


@contextmanager
def opened(store: Store | str | Path | None, *, single: bool = False) -> Iterator[Store]:
    """The given store, the one in a folder, or one that goes when it is no longer needed."""
    if isinstance(store, Store):
        yield store
    elif store is not None:
        yield Store(Path(store), single)
    else:
        with TemporaryDirectory() as folder:
            yield Store(Path(folder), scratch=True)


def _prepared(
    todo: tuple[Sequence[Job], Plan | None], work: Execution = ALONE
) -> tuple[Sequence[Job], Plan | None, list[Trace]]:
    """Plan where that is needed, and simulate: jobs of one plan with it and their traces."""
    jobs, plan = todo
    if plan is None and jobs[0].planner != IDEAL and jobs[0].trace is None:
        plan = planned(jobs[0], work)
    return jobs, plan, simulated(jobs, plan, work)


def _distinct(jobs: Sequence[Job], step: Step) -> list[Job]:
    return list({job.key(step): job for job in reversed(jobs)}.values())[::-1]


def _batches(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs that may be simulated at once: of one plan, seed and truth, to which devices react in one way."""

    def shared(job: Job) -> str:
        return f"{job.key('plan')} {job.seed} {job.changes} {job.reaction} {job.false_alarm_prob}"

    return [list(alike) for _, alike in groupby(sorted(_distinct(jobs, "trace"), key=shared), key=shared)]


def _last_file(place: Path, step: Step) -> dict[str, Any]:
    """The sealed file of a result, without a look at those beside it; raises TrainingError where it is damaged."""
    return read_manifest(place, ()) if step == "run" else RESULT[step].read(place / LAST_FILE[step], TrainingError)


def identity_of(place: Path, step: Step) -> dict[str, Any]:
    """What decided a result; raises TrainingError where its sealed file is damaged."""
    content = _last_file(place, step)
    return dict(content["provenance"].get("identity", {}) if step == "run" else content["identity"])


def is_whole(place: Path, step: Step) -> bool:
    """Whether a result has its sealed file and all that this names."""
    try:
        return all((place / name).exists() for name in _last_file(place, step)["sha256"])
    except TrainingError:
        return False


def read_result(place: Path, step: Step) -> dict[str, Any]:
    """A plan's or trace's sealed file, after the sums of the files beside it; raises TrainingError."""
    content = _last_file(place, step)
    for name, expected in content["sha256"].items():
        check_sum(place / name, expected)
    return content


def read_cost(place: Path) -> dict[str, Any]:
    """A stored cost and what is noted with it; raises TrainingError where it is damaged or another's."""
    content = COST.read(place, TrainingError)
    TrainingError.when(content["key"] != place.stem, place, f"the cost of job {place.stem}", f"{content['key']}")
    return content
