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

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from heliomesh.durable import Sealed, alone_in, file_sha256, make_folder, write_text
from heliomesh.jobs.job import RESULTS_VERSION, Job, Step, trace_key
from heliomesh.jobs.pack import Packs
from heliomesh.jobs.steps import needs_plan, plan_facts, planned, simulated, simulated_costs, trained
from heliomesh.learning.checkpoint import Checkpoints
from heliomesh.learning.replay import SHARED
from heliomesh.learning.run import CHECKPOINTS, MANIFEST, Run, TrainingError, check_sum, read_provenance
from heliomesh.learning.same_run import check_same
from heliomesh.learning.trainer import ALONE, Work
from heliomesh.problem.plan_file import PlanError, load_plan, save_plan
from heliomesh.problem.policy import Plan
from heliomesh.scenario import ScenarioError
from heliomesh.simulation.trace import Trace

PLAN, PLAN_TABLES, TRACE, TRACE_ARRAYS, SCENARIO = (
    "plan.json",
    "plan.safetensors",
    "trace.json",
    "trace.npz",
    "scenario.toml",
)
_RESULT: dict[Step, Sealed] = {
    step: Sealed(f"the {step} of a job", 1, (("key", str), ("identity", dict), ("sha256", dict), ("facts", dict)))
    for step in ("plan", "trace")
}
PACKS = "packs"
_BEFORE_TRAINING = (PLAN, PLAN_TABLES, TRACE, TRACE_ARRAYS, SCENARIO)
_COST = Sealed("the cost of an episode", 1, (("key", str), ("cost", float)))
_FILE: dict[Step, str] = {"plan": PLAN, "trace": TRACE, "run": MANIFEST}


@dataclass(frozen=True)
class Store:
    """A folder of results, each computed once.

    Attributes
    ----------
    folder
        Where it is.
    single
        Whether it is a run's folder, of one job.
    """

    folder: Path
    single: bool = False

    def place(self, job: Job, step: Step) -> Path:
        """The folder of a result."""
        key = job.key(step)
        return self.folder if self.single else self.folder / f"{step}s" / key[:2] / key

    def has(self, job: Job, step: Step = "run") -> bool:
        """Whether a result is complete."""
        return (self.place(job, step) / _FILE[step]).exists() or (step == "run" and self.packs.has(job.key()))

    @cached_property
    def packs(self) -> Packs:
        """Runs that were packed, many to a file."""
        return Packs(self.folder / PACKS)

    def plan(self, job: Job, work: Work = ALONE) -> Plan:
        """The job's plan, made if it is not there."""
        made = self._stored_plan(job)
        if made is None:
            made = planned(job, work)
            self.put_plan(job, made)
        return made

    def _stored_plan(self, job: Job) -> Plan | None:
        tables = self.place(job, "plan") / PLAN_TABLES
        if not self.has(job, "plan") or not tables.exists():
            return None
        self.facts(job, "plan")
        return load_plan(tables, trust=True)  # it was made here, by code that was trusted then

    def put_plan(self, job: Job, made: Plan) -> None:
        """Keep a plan."""
        place = self._new(job, "plan")
        write_text(place / SCENARIO, job.scenario.to_toml())
        try:
            save_plan(made, place / PLAN_TABLES)
        except PlanError:  # a user's own policy need not be a dataclass: only what is known of it is kept
            (place / PLAN_TABLES).unlink(missing_ok=True)
        self._seal(job, "plan", [SCENARIO, PLAN_TABLES], plan_facts(made))

    def trace(self, job: Job, work: Work = ALONE) -> Trace:
        """The trace of the job's episode, planned and simulated if it is not there."""
        return self.traces([job], work)[0]

    def traces(self, jobs: Sequence[Job], work: Work = ALONE) -> list[Trace]:
        """The traces of several jobs; those that only differ by their episodes are simulated together."""
        absent = _distinct([job for job in jobs if job.given is None and not self.has(job, "trace")], "trace")
        groups = [list(alike) for _, alike in groupby(sorted(absent, key=_batch), key=_batch)]
        if len(groups) == 1:  # the planner itself may work in parallel, and show how far it is
            self._keep_traces(_prepared((groups[0], self._stored_plan(groups[0][0])), work))
        elif groups:
            todo = ((group, self._stored_plan(group[0])) for group in groups)
            for found in work.track(work.parallel_map(_prepared, todo), "plan and simulate", len(groups)):
                self._keep_traces(found)
        return [self._read_trace(job) for job in jobs]

    def _keep_traces(self, prepared: "_Prepared") -> None:
        if prepared.plan is not None and not self.has(prepared.jobs[0], "plan"):
            self.put_plan(prepared.jobs[0], prepared.plan)
        for job, trace in zip(prepared.jobs, prepared.traces, strict=True):
            self.put_trace(job, trace)

    def put_trace(self, job: Job, trace: Trace) -> None:
        """Keep the trace of an episode."""
        place = self._new(job, "trace")
        trace.save(place / TRACE_ARRAYS)
        self._seal(job, "trace", [TRACE_ARRAYS], {"planner": trace.planner, "cost": float(trace.cost[0])})

    def _read_trace(self, job: Job) -> Trace:
        if job.given is not None:
            return job.given
        self.facts(job, "trace")
        return Trace.load(self.place(job, "trace") / TRACE_ARRAYS)

    def run(self, job: Job, work: Work = ALONE) -> Run:
        """The trained run, which goes on from its last checkpoint if there is one."""
        if self.has(job):
            if self.single:
                self.check_same(job)
            return self._read_run(job)
        trace = self.trace(job, work)
        place = self._new(job, "run")
        checkpoints = Checkpoints(place / CHECKPOINTS, job.identity())
        (run,) = trained([job], [trace], work, checkpoints)
        self.put_run(job, run, work)
        checkpoints.clear()
        return run

    def runs(self, jobs: Sequence[Job], work: Work = ALONE) -> list[Run]:
        """The runs of several jobs; those of one dataset and model train together in stacks, without checkpoints."""
        absent = _distinct([job for job in jobs if not self.has(job)], "run")
        self.traces(absent, work)
        stacks = [
            members[start : start + size]
            for _, alike in groupby(sorted(absent, key=_stack), key=_stack)
            for members in [list(alike)]
            for size in [min(work.runs_at_once, math.ceil(len(members) / work.stacks_at_once))]
            for start in range(0, len(members), size)
        ]
        if len(stacks) == 1:
            self._keep_runs(_trained((stacks[0], [self._read_trace(job) for job in stacks[0]]), work), work)
        elif stacks:
            todo = ((stack, [self._read_trace(job) for job in stack]) for stack in stacks)
            spread = work.train_map or work.parallel_map
            for found in work.track(spread(_trained, todo), "train", len(stacks)):
                self._keep_runs(found, work)
        return [self._read_run(job) for job in jobs]

    def _keep_runs(self, found: Sequence[tuple[Job, Run]], work: Work) -> None:
        for job, run in found:
            self.put_run(job, run, work)

    def put_run(self, job: Job, run: Run, work: Work = ALONE) -> None:
        """Keep a trained run."""
        run.save(self._new(job, "run"), weights=work.keep_weights)

    def _read_run(self, job: Job) -> Run:
        place = self.place(job, "run")
        if not (place / MANIFEST).exists():
            return self.packs.run(job.key())
        check_same(place, _identity_of_run(place), job.identity(), TrainingError)
        return Run.load(place)

    def costs(self, jobs: Sequence[Job], work: Work = ALONE) -> list[float]:
        """The mean cost per slot of each job's episode; traces are not kept where nothing else needs them."""
        absent = _distinct([job for job in jobs if not self._cost_file(job).exists()], "trace")
        for _, alike in groupby(sorted(absent, key=_batch), key=_batch):
            group = list(alike)
            for job, cost in zip(group, simulated_costs(group, self.plan(group[0], work), work), strict=True):
                make_folder(self._cost_file(job).parent)
                _COST.write(self._cost_file(job), {"key": job.key("trace"), "cost": cost})
        return [self._read_cost(job) for job in jobs]

    def _cost_file(self, job: Job) -> Path:
        key = job.key("trace")
        return self.folder / "costs" / key[:2] / f"{key}.json"

    def _read_cost(self, job: Job) -> float:
        place = self._cost_file(job)
        return read_cost(place)

    def pack(self, name: str, jobs: Sequence[Job]) -> None:
        """Move finished runs into a new pack, those that another one holds left out.

        A pack that is there is never written again: it may be all that is left of its runs.
        """
        loose = [job for job in _distinct(jobs, "run") if (self.place(job, "run") / MANIFEST).exists()]
        new = [self._read_run(job) for job in loose if not self.packs.has(job.key())]
        if new:
            self.packs.write(self.packs.unused_name(name), new)
            del self.__dict__["packs"]  # it is read anew
        for job in loose:
            place = self.place(job, "run")
            shutil.rmtree(place)
            with suppress(OSError):  # another run is beside it
                place.parent.rmdir()

    def facts(self, job: Job, step: Step) -> dict[str, Any]:
        """What is noted of a result, after its sums; raises TrainingError where it is damaged or another's."""
        place = self.place(job, step)
        content = read_result(place, step)
        check_same(place, content["identity"], job.identity(step), TrainingError)
        found: dict[str, Any] = content["facts"]
        return found

    def view(self, job: Job, folder: Path) -> Path:
        """The job's files side by side in a folder of their own, as `heliomesh run --out` leaves them."""
        folder.mkdir(parents=True, exist_ok=True)
        for step in _FILE:
            place = self.place(job, step)
            for file in sorted(place.iterdir()) if place.is_dir() else []:
                if file.is_file() and not file.name.startswith("."):
                    shutil.copy2(file, folder / file.name)
        return folder

    @contextmanager
    def unclaimed(self) -> Iterator[None]:
        """Where the block ends by a user's mistake and nothing is trained, an empty run's folder is empty again."""
        was_empty = self.single and not any((self.folder / name).exists() for name in _BEFORE_TRAINING)
        try:
            yield
        except (ScenarioError, TrainingError):
            if was_empty and not (self.folder / CHECKPOINTS).exists():
                for name in _BEFORE_TRAINING:
                    (self.folder / name).unlink(missing_ok=True)
            raise

    def garbage(self) -> list[Path]:
        """Folders of results that nobody will read: traces of packed runs, and what another version computed.

        Plans and costs stay, also those without a run: they are dear, and may be all that was asked for.
        """
        served = {trace_key(run["identity"]) for run in self.packs.provenances()}
        steps: tuple[Step, ...] = ("plan", "trace")
        found = [place.parent for step in steps for place in sorted(self.folder.glob(f"{step}s/*/*/{_FILE[step]}"))]
        return [place for place in found if place.name in served or _outdated(place)]

    def alone(self) -> AbstractContextManager[None]:
        """Be the only process that works in the store, which is made; raises BusyFolderError."""
        return alone_in(self.folder)

    def _new(self, job: Job, step: Step) -> Path:
        """Where a result goes; a run's folder takes one job only."""
        place = self.place(job, step)
        if self.single:
            self.check_same(job)
        make_folder(place)
        return place

    def check_same(self, job: Job) -> None:
        """Refuse a run's folder that holds another job, with the first thing in which the two differ."""
        steps: tuple[Step, ...] = ("plan", "trace")
        for step in steps:
            if (self.folder / _FILE[step]).exists():
                self.facts(job, step)
        if (self.folder / MANIFEST).exists():
            check_same(self.folder, _identity_of_run(self.folder), job.identity(), TrainingError)

    def _seal(self, job: Job, step: Step, files: Sequence[str], facts: Mapping[str, Any]) -> None:
        place = self.place(job, step)
        sums = {name: file_sha256(place / name) for name in files if (place / name).exists()}
        content = {"key": job.key(step), "identity": job.identity(step), "sha256": sums, "facts": dict(facts)}
        _RESULT[step].write(place / _FILE[step], content)


@contextmanager
def opened(store: Store | str | Path | None, *, single: bool = False) -> Iterator[Store]:
    """The given store, the one in a folder, or one that goes when it is no longer needed."""
    if isinstance(store, Store):
        yield store
    elif store is not None:
        yield Store(Path(store), single)
    else:
        with TemporaryDirectory() as folder:
            yield Store(Path(folder))


@dataclass(frozen=True)
class _Prepared:
    """Jobs of one plan with their traces."""

    jobs: Sequence[Job]
    plan: Plan | None
    traces: Sequence[Trace]


def _prepared(todo: tuple[Sequence[Job], Plan | None], work: Work = ALONE) -> _Prepared:
    """Plan where that is needed, and simulate."""
    jobs, plan = todo
    if plan is None and needs_plan(jobs[0]):
        plan = planned(jobs[0], work)
    return _Prepared(jobs, plan, simulated(jobs, plan, work))


def _trained(todo: tuple[Sequence[Job], Sequence[Trace]], work: Work = ALONE) -> list[tuple[Job, Run]]:
    jobs, traces = todo
    return list(zip(jobs, trained(jobs, traces, work, None), strict=True))


def _identity_of_run(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_provenance(place, ()).get("identity", {})
    return found


def read_result(place: Path, step: Step) -> dict[str, Any]:
    """A plan's or trace's sealed file, after the sums of the files beside it; raises TrainingError."""
    content = _RESULT[step].read(place / _FILE[step], TrainingError)
    for name, expected in content["sha256"].items():
        check_sum(place / name, expected)
    return content


def read_cost(place: Path) -> float:
    """A stored cost; raises TrainingError where it is damaged or another's."""
    content = _COST.read(place, TrainingError)
    if content["key"] != place.stem:
        raise TrainingError(f"{place}: expected the cost of job {place.stem}, actual {content['key']}")
    cost: float = content["cost"]
    return cost


def _outdated(place: Path) -> bool:
    """Whether a plan or trace was computed under another version of the results, so that no job asks for it."""
    step: Step = "plan" if (place / PLAN).exists() else "trace"
    version: int = read_result(place, step)["identity"].get("results version")
    return version != RESULTS_VERSION


def _distinct(jobs: Sequence[Job], step: Step) -> list[Job]:
    return list({job.key(step): job for job in reversed(jobs)}.values())[::-1]


def _batch(job: Job) -> str:
    """Jobs that may be simulated at once: of one plan, seed and truth, to which devices react in one way."""
    return f"{job.key('plan')} {job.seed} {job.changes} {job.reaction} {job.false_alarm_prob}"


def _stack(job: Job) -> str:
    """Jobs that may train in one stack: of one dataset, model, horizon and way to train."""
    own = job.scenario.learning
    shared = [getattr(own, name) for name in SHARED]
    return f"{shared} {job.scenario.slots} {job.training} {id(job.dataset)}"
