"""`heliomesh train` replays a trace; `heliomesh run` plans, simulates, trains and saves."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from heliomesh.commands.facts import build_noted, print_facts, summary_facts
from heliomesh.commands.ledger import ledger_facts, ledger_table
from heliomesh.commands.options import (
    Engine,
    EngineOptions,
    EpisodeOption,
    OutOption,
    OutputOptions,
    PlannerArgument,
    PlannerOptions,
    ScenarioArgument,
    SetOption,
    Settings,
    TrainingOptions,
    flattened,
    load,
)
from heliomesh.commands.terminal import console, note, tell
from heliomesh.jobs.job import Job
from heliomesh.jobs.run import run_in
from heliomesh.jobs.store import Store
from heliomesh.jobs.training import given_job, train_in
from heliomesh.learning.preflight import check_trainable
from heliomesh.learning.run import MANIFEST, Run, TrainingError
from heliomesh.learning.settings import TrainJob
from heliomesh.learning.theorem1 import diagnose
from heliomesh.learning.tracking import Observer, both, mlflow, tensorboard
from heliomesh.learning.trainer import Execution, MakeStack, TrainingInterrupted
from heliomesh.problem.size import DEFAULT_LIMIT_GIB
from heliomesh.scenario import Scenario
from heliomesh.simulation.diagnostics import summarise
from heliomesh.simulation.trace import Trace
from heliomesh.studies.gap_ledger import LEDGER, gap_ledger

_Item = TypeVar("_Item")

DiagnoseOption = Annotated[bool, typer.Option("--diagnose", help="Estimate Theorem 1's constants and terms.")]
TrainSeedOption = Annotated[
    int | None, typer.Option("--seed", min=0, help="Seed of the training; default: the scenario's.")
]
RunSeedOption = Annotated[
    int | None, typer.Option("--seed", min=0, help="Seed of simulation and training; default: the scenario's.")
]


@dataclass(frozen=True)
class ReplayOptions:
    """Which training of a trace."""

    episode: EpisodeOption = 0
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False
    overrides: SetOption = field(default_factory=list)
    seed: TrainSeedOption = None
    with_diagnosis: DiagnoseOption = False


@dataclass(frozen=True)
class RunOptions:
    """Which run of a planner."""

    overrides: SetOption = field(default_factory=list)
    options: PlannerOptions = field(default_factory=list)
    episode: EpisodeOption = 0
    seed: RunSeedOption = None
    with_diagnosis: DiagnoseOption = False
    ledger: Annotated[
        bool, typer.Option("--ledger", help="Say through what accuracy is lost against the lossless ideal.")
    ] = False

    def job(self, scenario: str, planner: str, training: TrainingOptions) -> Job:
        """What is to be run."""
        settings = Settings(self.overrides, self.options)
        loaded = settings.scenario(scenario)
        seed = loaded.seed if self.seed is None else self.seed
        own = {"seed": seed, "episode": self.episode, "training_seed": seed, "plan_device": training.device}
        return Job(loaded, planner, settings.of_planner, training=training.settings, **own)  # type: ignore[arg-type]


@flattened
def train_command(
    scenario: ScenarioArgument,
    trace: Annotated[Path, typer.Argument(help="A trace of the scenario, from `heliomesh simulate --out`.")],
    out: OutOption,
    asked: ReplayOptions,
    training: TrainingOptions,
    engine: EngineOptions,
    output: OutputOptions,
) -> None:
    """Train the scenario's model under one episode of a trace."""
    loaded = load(scenario, asked.overrides)
    replayed = Trace.load(trace, memory_gib=max(training.memory_gib or 0.0, DEFAULT_LIMIT_GIB))
    job = given_job(TrainJob(loaded, replayed, asked.episode, asked.seed), training.settings)
    live = _Live(replayed, asked.episode, output.silent)
    work = live.work(_watchers(job, replayed, training), engine.make_stack())
    try:
        run = train_in(Store(out, single=True), job, work, asked.resume)
    except TrainingInterrupted as stop:
        tell(f"{stop}; the same command with --resume goes on")
        raise typer.Exit(128 + stop.signal_number) from None
    facts = _run_facts(run, out)
    if asked.with_diagnosis:
        facts |= _theorem_facts(loaded, replayed, run, asked.episode)
    print_facts(facts, output.as_json)


@flattened
def run_command(
    scenario: ScenarioArgument,
    planner: PlannerArgument,
    out: OutOption,
    asked: RunOptions,
    training: TrainingOptions,
    engine: EngineOptions,
    output: OutputOptions,
) -> None:
    """Plan, simulate an episode, train under it and save everything; the same command again resumes."""
    job = asked.job(scenario, planner, training)
    build_noted(job.scenario, training.device)
    store = Store(out, single=True)
    was_finished = store.has(job) and (not asked.ledger or (out / LEDGER).exists())
    if engine.engine is Engine.ray and not was_finished:
        check_trainable(job.scenario, job.training, job.training_seed, here=False)  # before Ray is started
    make_stack = engine.make_stack()

    def watch(trace: Trace) -> Execution:
        return _Live(trace, 0, output.silent).work(_watchers(job, trace, training), make_stack)

    shown: dict[str, Any] = {"track": output.track, "notify": note, "make_stack": make_stack}
    run = run_in(store, job, Execution(**shown), watch)
    ledger = gap_ledger(job, store, **shown) if asked.ledger else None
    if was_finished:
        note(f"{out}: this run was finished before; nothing was trained")
    trace = store.trace(job)
    facts = _run_facts(run, out) | summary_facts(summarise(trace))
    if asked.with_diagnosis:
        facts |= _theorem_facts(job.scenario, trace, run, 0)
    if ledger is not None and output.as_json:
        facts["ledger"] = ledger_facts(ledger)
    print_facts(facts, output.as_json)
    if ledger is not None and not output.as_json:
        console().print(ledger_table({trace.planner: ledger}))


def _watchers(job: Job, trace: Trace, training: TrainingOptions) -> list[Observer]:
    """Other tools that follow the run; they know it by its planner, its seed and the first digits of its key."""
    seed, key = job.identity()["training seed"], job.key()[:12]
    name = f"{trace.planner.replace(':', '-').replace('/', '-')}-seed{seed}-{key}"
    found: list[Observer] = []
    if training.tensorboard is not None:
        found.append(tensorboard(training.tensorboard, name))
    if training.mlflow is not None:
        facts = {"scenario": job.scenario.name, "planner": trace.planner, "seed": seed, "key": job.key()}
        found.append(mlflow(training.mlflow, name, facts, slots=job.scenario.slots))
    return found


class _Live:
    """Progress on standard error: one line that moves on a terminal, a plain line per evaluation elsewhere."""

    def __init__(self, trace: Trace, episode: int, quiet: bool) -> None:
        sent = (trace.power_watt[episode] > 0)[:, trace.edge_sender].sum(1).cumsum()
        arrived = trace.delivered[episode].sum(1).cumsum()
        self._lost = 1 - arrived / np.maximum(sent, 1)  # (slot,) share of packets so far
        self._battery_joule = trace.battery_joule[episode].mean(1)  # (slot + 1,)
        self._quiet, self._console, self._accuracy = quiet, console(stderr=True), "–"

    def work(self, watchers: Sequence[Observer], make_stack: MakeStack) -> Execution:
        """A training that is shown."""
        observer = reduce(both, watchers, self.observe)
        return Execution(track=self.track, observer=observer, notify=note, make_stack=make_stack)

    def track(self, items: Iterable[_Item], description: str, total: int) -> Iterator[_Item]:
        """Show slots as they go by."""
        columns = (
            TextColumn("slot {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=24),
            TextColumn("accuracy {task.fields[accuracy]}"),
            TextColumn("batteries {task.fields[battery]:.2f} J"),
            TextColumn("lost {task.fields[lost]:.0%}"),
            TimeRemainingColumn(),
        )
        hidden = self._quiet or not self._console.is_terminal
        slots = len(self._lost)
        with Progress(*columns, console=self._console, transient=True, disable=hidden) as progress:
            task = progress.add_task("", total=slots, completed=slots - total, **self._fields(slots - total))
            for done, item in enumerate(items, start=slots - total):
                progress.update(task, completed=done, **self._fields(done))
                yield item

    def _fields(self, done: int) -> dict[str, Any]:
        lost = float(self._lost[done - 1]) if done else 0.0
        return {"accuracy": self._accuracy, "battery": float(self._battery_joule[done]), "lost": lost}

    def observe(self, run: int, row: Mapping[str, float]) -> None:
        """Note the accuracy."""
        self._accuracy = f"{row['accuracy_mean']:.3f}"
        if not self._quiet and not self._console.is_terminal:
            tell(
                f"slot {row['slot']:.0f} of {len(self._lost)}: accuracy {row['accuracy_mean']:.4f}, "
                f"of the average model {row['average_accuracy']:.4f}"
            )


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


def _theorem_facts(scenario: Scenario, trace: Trace, run: Run, episode: int) -> dict[str, Any]:
    found = diagnose(scenario, trace, run, episode)
    constants = found.constants
    return {
        "L": constants.smoothness,
        "sigma_l^2": constants.local_variance,
        "sigma_g^2": constants.global_variance,
        "G^2, the trivial bound": found.trivial_bound,
        "Theorem 1's bound": found.bound,
        **{f"Theorem 1: {name}": value for name, value in found.terms.items()},
        "Theorem 1's learning rate": found.learning_rate,
    }
