"""`heliomesh run`: plan, simulate, train and save; or train under a trace that is there."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from heliomesh.commands import options as shared
from heliomesh.commands.facts import build_noted, facts_table, gap_table, show
from heliomesh.commands.options import flattened, option
from heliomesh.commands.progress import training_work
from heliomesh.commands.terminal import note
from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB
from heliomesh.jobs.job import Job
from heliomesh.jobs.store import Store
from heliomesh.jobs.training import given_job, run_in
from heliomesh.learning.preflight import check_trainable
from heliomesh.learning.run import MANIFEST, Run, TrainingError
from heliomesh.learning.settings import TrainJob
from heliomesh.learning.tracking import Observer, tensorboard
from heliomesh.learning.trainer import Execution
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.simulation.diagnostics import summarise
from heliomesh.simulation.trace import Trace
from heliomesh.studies.gap_ledger import LEDGER, gap_ledger


@dataclass(frozen=True)
class RunOptions(shared.OutputOptions, shared.EngineOptions, shared.TrainingOptions, shared.PlannerSettings):
    """Which run, who does it, and what is printed of it."""

    trace: Annotated[Path | None, option("Train under this trace of `heliomesh simulate --out`.")] = None
    episode: shared.EpisodeOption = 0
    seed: shared.RunSeedOption = None
    ledger: shared.LedgerOption = False

    def job(self, scenario: str, planner: str | None) -> Job:
        """What is to be run: planned and simulated first, or trained under the trace alone."""
        if (planner is None) == (self.trace is None):
            found = "neither" if planner is None else f"{planner!r} and --trace {self.trace}"
            raise ScenarioError("planner", "a planner's name or --trace with a file", f": {found}")
        for flag, value in (("--option", self.options), ("--ledger", self.ledger)):
            refuse(self.trace is not None and value, flag, "a planner with it", f": --trace {self.trace}")
        loaded = self.scenario(scenario)
        if planner is None:
            trace = Trace.load(str(self.trace), memory_gib=max(self.memory_gib or 0.0, DEFAULT_LIMIT_GIB))
            return given_job(TrainJob(loaded, trace, self.episode, self.seed), self.settings)
        seed = loaded.seed if self.seed is None else self.seed
        own = {"seed": seed, "episode": self.episode, "training_seed": seed, "plan_device": self.device}
        return Job(loaded, planner, self.of_planner, training=self.settings, **own)  # type: ignore[arg-type]


@flattened
def run_command(
    scenario: shared.ScenarioArgument,
    planner: Annotated[str | None, typer.Argument(help="A planner's name, unless --trace is given.")] = None,
    *,
    out: Annotated[Path, option("Folder for checkpoints and the finished run.")],
    asked: RunOptions,
) -> None:
    """Plan, simulate an episode, train under it and save everything; the same command again resumes."""
    job, store = asked.job(scenario, planner), Store(out, single=True)
    build_noted(job.scenario, asked.device)
    was_finished = store.has(job) and (not asked.ledger or (out / LEDGER).exists())
    if asked.engine == "ray" and not was_finished:
        check_trainable(job.scenario, job.training, job.training_seed, here=False)  # before Ray is started
    make_stack = asked.make_stack()

    def watch(trace: Trace) -> Execution:
        watchers = _watchers(job, trace, asked)
        return training_work(job.scenario.slots, asked.silent, watchers, make_stack=make_stack)

    work: dict[str, Any] = {"track": asked.track, "notify": note, "make_stack": make_stack}
    run = run_in(store, job, Execution(**work), watch)
    ledger = gap_ledger(job, store, **work) if asked.ledger else None
    if was_finished:
        note(f"{out}: this run was finished before; nothing was trained")
    trace = _own(job, store.trace(job))
    facts = _run_facts(run, out) | summarise(trace).facts()
    lost = {} if ledger is None else {"ledger": ledger.facts()}
    losses = None if ledger is None else gap_table({trace.planner: ledger})
    show(asked.as_json, facts | lost, facts_table(facts), losses)


def _own(job: Job, trace: Trace) -> Trace:
    """The job's episode of a trace, of which files of users may have several."""
    return trace if job.trace is None else trace.episode(job.episode)


def _watchers(job: Job, trace: Trace, training: shared.TrainingOptions) -> list[Observer]:
    """Other tools that follow the run; they know it by its planner, its seed and the first digits of its key."""
    seed, key = job.identity()["training seed"], job.key()[:12]
    name = f"{trace.planner.replace(':', '-').replace('/', '-')}-seed{seed}-{key}"
    found: list[Observer] = []
    if training.tensorboard is not None:
        found.append(tensorboard(training.tensorboard, name))
    return found


def _run_facts(run: Run, out: Path) -> dict[str, Any]:
    kept = ("seed", "planner", "strategy", "device", "duration_second")
    missing = {"name", "scenario", *kept} - run.provenance.keys()
    if missing:
        raise TrainingError(f"{out / MANIFEST}: the run's {min(missing)} is missing.")
    return {
        "scenario": run.provenance["name"],
        "hash": run.provenance["scenario"][:12],
        **{name: run.provenance[name] for name in kept},
        **run.final,
        "folder": str(out),
    }
