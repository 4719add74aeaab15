"""`heliomesh train` replays a trace; `heliomesh run` plans, simulates, trains and saves."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from heliomesh.commands.facts import plan_facts, print_facts, summary_facts
from heliomesh.commands.options import (
    ActorsOption,
    AddressOption,
    DeviceOption,
    Engine,
    EngineOption,
    EpisodeOption,
    EvaluateOption,
    GpusOption,
    JsonOption,
    PlannerArgument,
    PlannerOptions,
    PrecisionOption,
    QuietOption,
    ScenarioArgument,
    SetOption,
    StrategyOption,
    TrustOption,
    load,
    planner_options,
    start_engine,
    track_unless,
)
from heliomesh.commands.terminal import console, tell
from heliomesh.durable import alone_in, no_empty_folder, write_text
from heliomesh.learning.checkpoint import CheckpointError
from heliomesh.learning.dataset import DatasetError
from heliomesh.learning.journal import (
    PLAN,
    PLAN_FILE,
    SCENARIO,
    TRACE,
    check_steps,
    finish_step,
    finished_steps,
    reserved,
    take_back_plan,
)
from heliomesh.learning.readiness import check_trainable
from heliomesh.learning.replay import TrainJob
from heliomesh.learning.run import MANIFEST, Run, TrainingError, is_finished
from heliomesh.learning.same_run import check_same
from heliomesh.learning.theorem1 import diagnose
from heliomesh.learning.tracking import both, tensorboard
from heliomesh.learning.trainer import MakeStack, TrainingInterrupted, TrainSettings, replay_here, train
from heliomesh.planning import make_plan
from heliomesh.problem.policy import Plan
from heliomesh.problem.problem import build
from heliomesh.problem.size import TooLargeError
from heliomesh.scenario import Scenario, ScenarioError, read_text
from heliomesh.simulation.diagnostics import summarise
from heliomesh.simulation.trace import Trace, TraceError, simulate

_Item = TypeVar("_Item")

OutOption = Annotated[Path, typer.Option("--out", help="Folder for checkpoints and the finished run.")]
CheckpointOption = Annotated[float, typer.Option("--checkpoint-second", min=0, help="Seconds between checkpoints.")]
MemoryOption = Annotated[float | None, typer.Option("--memory-gib", min=0, help="Memory limit of the training.")]
DiagnoseOption = Annotated[bool, typer.Option("--diagnose", help="Estimate Theorem 1's constants and terms.")]
TensorboardOption = Annotated[Path | None, typer.Option("--tensorboard", help="Write curves to this folder.")]


def train_command(
    scenario: ScenarioArgument,
    trace: Annotated[Path, typer.Argument(help="A trace of the scenario, from `heliomesh simulate --out`.")],
    out: OutOption,
    episode: EpisodeOption = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    overrides: SetOption = [],  # noqa: B006
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Seed of the training; default: the scenario's.")
    ] = None,
    evaluate_every: EvaluateOption = 10,
    checkpoint_second: CheckpointOption = 60.0,
    device: DeviceOption = "cpu",
    strategy: StrategyOption = "auto",
    precision: PrecisionOption = "fp32",
    memory_gib: MemoryOption = None,
    engine: EngineOption = Engine.local,
    address: AddressOption = None,
    actors: ActorsOption = None,
    gpus_per_actor: GpusOption = None,
    tensorboard_folder: TensorboardOption = None,
    with_diagnosis: DiagnoseOption = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train the scenario's model under one episode of a trace."""
    loaded, replayed = load(scenario, overrides, trust), Trace.load(trace)
    make_stack = _stack_maker(engine, address, actors, gpus_per_actor)
    run = _trained(
        TrainJob(loaded, replayed, episode, seed),
        "the same command with --resume goes on",
        tensorboard_folder,
        quiet or as_json,
        folder=out,
        resume=resume,
        evaluate_every=evaluate_every,
        checkpoint_second=checkpoint_second,
        device=device,
        strategy=strategy,
        precision=precision,
        memory_gib=memory_gib,
        make_stack=make_stack,
    )
    _enter_training(out)
    facts = _run_facts(run, out)
    if with_diagnosis:
        facts |= _theorem_facts(loaded, replayed, run, episode)
    print_facts(facts, as_json)


def run_command(
    scenario: ScenarioArgument,
    planner: PlannerArgument,
    out: OutOption,
    overrides: SetOption = [],  # noqa: B006
    options: PlannerOptions = [],  # noqa: B006
    episode: EpisodeOption = 0,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Seed of simulation and training; default: the scenario's.")
    ] = None,
    evaluate_every: EvaluateOption = 10,
    checkpoint_second: CheckpointOption = 60.0,
    device: DeviceOption = "cpu",
    strategy: StrategyOption = "auto",
    precision: PrecisionOption = "fp32",
    memory_gib: MemoryOption = None,
    engine: EngineOption = Engine.local,
    address: AddressOption = None,
    actors: ActorsOption = None,
    gpus_per_actor: GpusOption = None,
    tensorboard_folder: TensorboardOption = None,
    with_diagnosis: DiagnoseOption = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Plan, simulate an episode, train under it and save everything; the same command again resumes."""
    loaded = load(scenario, overrides, trust)
    seed = loaded.seed if seed is None else seed
    settings: dict[str, Any] = {
        "folder": out,
        "resume": True,
        "evaluate_every": evaluate_every,
        "checkpoint_second": checkpoint_second,
        "device": device,
        "strategy": strategy,
        "precision": precision,
        "memory_gib": memory_gib,
    }
    was_finished, here = is_finished(out), engine is Engine.local
    dataset = None if was_finished else check_trainable(loaded, TrainSettings(**settings), seed, here=here)
    make_stack = _stack_maker(engine, address, actors, gpus_per_actor)
    wanted = {
        "scenario": loaded.content_hash,
        "planner": planner,
        "options": planner_options(options),
        "seed": seed,
        "episode": episode,
    }
    with no_empty_folder(out):
        trace, is_new = _planned(loaded, wanted, out, device, quiet or as_json)
        with _unclaimed_by_mistakes(out) if is_new else nullcontext():
            run = _trained(
                TrainJob(loaded, trace, 0, seed),
                "the same command goes on",
                tensorboard_folder,
                quiet or as_json,
                dataset=dataset,
                make_stack=make_stack,
                **settings,
            )
    _enter_training(out)
    if was_finished:
        _note(f"{out}: this run was finished before; nothing was trained")
    facts = _run_facts(run, out) | summary_facts(summarise(trace))
    if with_diagnosis:
        facts |= _theorem_facts(loaded, trace, run, 0)
    print_facts(facts, as_json)


def _stack_maker(engine: Engine, address: str | None, actors: int | None, gpus_per_actor: float | None) -> MakeStack:
    """Who will hold the weights: this process, or actors of a Ray that is started now."""
    if engine is Engine.ray:
        start_engine(engine, address)
        from heliomesh.engine.ray_network import over_actors  # Ray need not be installed otherwise

        return over_actors(actors, gpus_per_actor)
    for option, value in (("--address", address), ("--actors", actors), ("--gpus-per-actor", gpus_per_actor)):
        if value is not None:
            raise ScenarioError(option, f"expected --engine ray with it, actual value {value!r} with local")
    return replay_here


def _trained(job: TrainJob, remedy: str, tensorboard_folder: Path | None, quiet: bool, **settings: Any) -> Run:
    """Train with a live display; a signal such as Ctrl-C ends the program with a sentence that has the ``remedy``."""
    live = _Live(job.trace, job.episode, quiet)
    observer = both(live.observe, tensorboard(tensorboard_folder)) if tensorboard_folder else live.observe
    try:
        return train(
            job.scenario,
            job.trace,
            job.episode,
            seed=job.seed,
            track=live.track,
            observer=observer,
            notify=_note,
            **settings,
        )
    except TrainingInterrupted as stop:
        tell(f"{stop}; {remedy}")
        raise typer.Exit(128 + stop.signal_number) from None


def _enter_training(out: Path) -> None:
    """Note in the folder's journal that the training is finished; what was noted before must still be true."""
    with alone_in(out, wait=True):
        if "train" not in check_steps(out):
            finish_step(out, "train")


@contextmanager
def _unclaimed_by_mistakes(out: Path) -> Iterator[None]:
    """Take the plan back where a mistake of the user is found before anything of the training is kept."""
    try:
        yield
    except CheckpointError:  # a full disk, for example, is no mistake
        raise
    except (DatasetError, ScenarioError, TooLargeError, TraceError, TrainingError):
        take_back_plan(out)
        raise


def _planned(scenario: Scenario, wanted: dict[str, Any], out: Path, device: str, quiet: bool) -> tuple[Trace, bool]:
    """The folder's trace if it is of the run that is wanted, else one saved with its plan; whether it is new."""
    with reserved(out):
        if (out / PLAN).exists():
            _check_same(out, wanted, scenario)
        if "simulate" in finished_steps(out):
            check_steps(out, "plan", "simulate")
            return Trace.load(out / TRACE), False
        track = track_unless(quiet)
        problem = build(scenario, device)
        made = make_plan(problem, wanted["planner"], wanted["options"], track=track)
        _keep_facts(out, problem.scenario.to_toml(), made, wanted)
        trace = simulate(problem, made, 1, wanted["seed"], first_episode=wanted["episode"], track=track)
        _keep_trace(out, trace)
    return trace, True


def keep_plan(out: Path, trace: Trace, plan: Plan, wanted: dict[str, Any]) -> None:
    """Save a trace with its scenario, the facts of its plan and what run it is for."""
    with reserved(out):
        _keep_facts(out, trace.scenario_toml, plan, wanted)
        _keep_trace(out, trace)


def _keep_facts(out: Path, scenario_toml: str, plan: Plan, wanted: dict[str, Any]) -> None:
    write_text(out / SCENARIO, scenario_toml)
    PLAN_FILE.write(out / PLAN, {"run": wanted, "plan": plan_facts(plan)})
    finish_step(out, "plan")


def _keep_trace(out: Path, trace: Trace) -> None:
    trace.save(out / TRACE)
    finish_step(out, "simulate")


def _check_same(out: Path, wanted: dict[str, Any], scenario: Scenario) -> None:
    stored = PLAN_FILE.read(out / PLAN, TrainingError)["run"]
    if stored.get("scenario") != wanted["scenario"]:  # the text is only read to say what differs
        stored["scenario_toml"] = read_text("scenario", out / SCENARIO)
    check_same(out, stored, wanted | {"scenario_toml": scenario.to_toml()}, TrainingError)


class _Live:
    """Progress on standard error: one line that moves on a terminal, a plain line per evaluation elsewhere."""

    def __init__(self, trace: Trace, episode: int, quiet: bool) -> None:
        sent = (trace.power_watt[episode] > 0)[:, trace.edge_sender].sum(1).cumsum()
        arrived = trace.delivered[episode].sum(1).cumsum()
        self._lost = 1 - arrived / np.maximum(sent, 1)  # (slot,) share of packets so far
        self._battery_joule = trace.battery_joule[episode].mean(1)  # (slot + 1,)
        self._quiet, self._console, self._accuracy = quiet, console(stderr=True), "–"

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
        raise TrainingError(f"{out / MANIFEST}: expected the run's {min(missing)}, actual: it is missing")
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


def _note(sentence: str) -> None:
    tell(f"note: {sentence}")
