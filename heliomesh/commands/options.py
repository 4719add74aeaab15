"""Options and arguments that several commands share, and how they are read."""

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import partial, wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from heliomesh.commands.terminal import console, tell
from heliomesh.learning.replay import Replay
from heliomesh.learning.settings import TrainSettings
from heliomesh.learning.trainer import MakeStack
from heliomesh.planning import find_planner
from heliomesh.problem.policy import ParallelMap, Track, untracked
from heliomesh.scenario import Scenario, ScenarioError, parse_override

_Item = TypeVar("_Item")


class Engine(StrEnum):
    """What carries the work out."""

    local = "local"
    ray = "ray"


ScenarioArgument = Annotated[str, typer.Argument(help="A shipped scenario's name or a path to a .toml file.")]
PlannerArgument = Annotated[str, typer.Argument(help="A planner's name.")]
PlannerNameOption = Annotated[str, typer.Option("--planner", help="A planner's name.")]
SetOption = Annotated[list[str], typer.Option("--set", help="Override one value: path=value. Repeatable.")]
PlannerOptions = Annotated[list[str], typer.Option("--option", "-o", help="Planner option: name=value. Repeatable.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
StrategyOption = Annotated[
    str,
    typer.Option(
        "--strategy", help="How local steps are executed; auto: by the model on a CPU, the quickest on a GPU."
    ),
]
PrecisionOption = Annotated[str, typer.Option("--precision", help="fp32, tf32 or bf16.")]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu or cuda.")]
TypeOption = Annotated[str, typer.Option("--dtype", help="float64 or float32 tables.")]
ProcessesOption = Annotated[
    int, typer.Option("--processes", min=1, help="Plan, simulate and train in so many processes.")
]
EngineOption = Annotated[Engine, typer.Option("--engine", help="local, or ray: many cores or machines.")]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="host:port of a Ray cluster; by default this machine's own.")
]
ActorsOption = Annotated[
    int | None, typer.Option("--actors", min=1, help="Ray actors that share the network; by default as many as fit.")
]
GpusOption = Annotated[
    float | None, typer.Option("--gpus-per-actor", min=0, help="With --device cuda; a fraction shares a GPU.")
]
EpisodesOption = Annotated[int, typer.Option("--episodes", min=1, help="Simulated episodes.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of the simulation.")]
EpisodeOption = Annotated[int, typer.Option("--episode", min=0, help="Episode to train under.")]
EvaluateOption = Annotated[int, typer.Option("--evaluate-every", min=1, help="Slots between evaluations.")]


OutOption = Annotated[Path, typer.Option("--out", help="Folder for checkpoints and the finished run.")]


@dataclass(frozen=True)
class Settings:
    """What differs from the scenario's file and from the planner's defaults."""

    overrides: SetOption = field(default_factory=list)
    options: PlannerOptions = field(default_factory=list)

    def scenario(self, name: str) -> Scenario:
        """The named scenario with the values of --set."""
        return load(name, self.overrides)

    @property
    def of_planner(self) -> dict[str, Any]:
        """The values of --option."""
        return dict(parse_override(text, "--option") for text in self.options)


FiniteOption = Annotated[
    bool,
    typer.Option(
        "--finite", help="Plan for the scenario's slots only; else receiver, prices and decentralized have no end."
    ),
]


def without_end(planner: str, options: Mapping[str, Any], finite: bool) -> dict[str, Any]:
    """A planner's options, with a plan that has no end where it can make one and nothing else is asked for."""
    able = "endless" in find_planner(planner).options.model_fields and options.get("form") != "literal"
    return {"endless": True} | dict(options) if able and not finite else dict(options)


@dataclass(frozen=True)
class SamplingOptions:
    """Which episodes are simulated."""

    episodes: EpisodesOption = 64
    seed: SeedOption = 0


@dataclass(frozen=True)
class OutputOptions:
    """What a command prints."""

    as_json: JsonOption = False
    quiet: QuietOption = False

    @property
    def silent(self) -> bool:
        """Whether nobody sees progress."""
        return self.quiet or self.as_json

    @property
    def track(self) -> Track:
        """Progress bars, unless there is nobody to see them."""
        return track_unless(self.silent)


@dataclass(frozen=True)
class TrainingOptions:
    """How a run is trained."""

    evaluate_every: EvaluateOption = 10
    checkpoint_second: Annotated[float, typer.Option("--checkpoint-second", min=0, help="Between checkpoints.")] = (
        60.0
    )
    device: DeviceOption = "cpu"
    strategy: StrategyOption = "auto"
    precision: PrecisionOption = "fp32"
    memory_gib: Annotated[float | None, typer.Option("--memory-gib", min=0, help="Memory limit of the training.")] = (
        None
    )
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="Write curves into a folder of the run's own in this one.")
    ] = None
    mlflow: Annotated[str | None, typer.Option("--mlflow", help="Log curves to MLflow at this address.")] = None

    @property
    def settings(self) -> TrainSettings:
        """The same for the trainer."""
        watching = ("tensorboard", "mlflow")
        own = {part.name: getattr(self, part.name) for part in fields(self) if part.name not in watching}
        return TrainSettings(**own)


@dataclass(frozen=True)
class EngineOptions:
    """Who does the work."""

    engine: EngineOption = Engine.local
    address: AddressOption = None
    actors: ActorsOption = None
    gpus_per_actor: GpusOption = None

    def make_stack(self) -> MakeStack:
        """Who will hold the weights: this process, or actors of a Ray that is started now."""
        if self.engine is Engine.ray:
            start_ray(self.address)
            from heliomesh.engine.ray_network import over_actors  # Ray need not be installed otherwise

            return over_actors(self.actors, self.gpus_per_actor)
        named = {"--address": self.address, "--actors": self.actors, "--gpus-per-actor": self.gpus_per_actor}
        for option, value in named.items():
            if value is not None:
                raise ScenarioError(option, f"expected --engine ray with it, actual value {value!r} with local")
        return Replay


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its option groups as parameters of their own, as typer wants them."""
    own = inspect.signature(command)
    groups: dict[str, Any] = {
        name: one.annotation for name, one in own.parameters.items() if is_dataclass(one.annotation)
    }
    spread = [
        part.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, one in own.parameters.items()
        for part in (_parameters(groups[name]) if name in groups else [one])
    ]

    @wraps(command)
    def call(**given: Any) -> None:
        made = {
            name: group(**{part.name: given.pop(part.name) for part in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    call.__signature__ = own.replace(parameters=spread)  # type: ignore[attr-defined]
    return call


def _parameters(group: Any) -> list[inspect.Parameter]:
    return [
        inspect.Parameter(part.name, inspect.Parameter.KEYWORD_ONLY, default=_default(part), annotation=part.type)
        for part in fields(group)
    ]


def _default(part: Field[Any]) -> Any:
    return part.default if part.default_factory is MISSING else part.default_factory()


def load(scenario: str, overrides: list[str]) -> Scenario:
    """The named scenario with the values of --set."""
    return Scenario.load(scenario).override(dict(parse_override(text, "--set") for text in overrides))


def start_ray(address: str | None) -> ModuleType:
    """The Ray engine's file, connected to this machine's own Ray or to a cluster."""
    if find_spec("ray") is None:
        raise ScenarioError("--engine", "Ray is not installed. Run `pip install heliomesh[ray]`.")
    module = import_module("heliomesh.engine.ray")
    module.start(address)
    return module


def engine_maps(engine: Engine, address: str | None, device: str = "cpu") -> dict[str, ParallelMap]:
    """How the engine spreads work, as fields of `Execution`: nothing to say for this process."""
    if engine is Engine.ray:
        ray = start_ray(address)
        gpus = 1 if device.startswith("cuda") else 0
        return {"parallel_map": ray.parallel_map, "train_map": partial(ray.parallel_map, num_gpus=gpus)}
    if address is not None:
        raise ScenarioError("--address", f"expected --engine ray with it, actual value {address!r} with local")
    return {}


def process_maps(processes: int, device: str = "cpu") -> dict[str, Any]:
    """How so many processes share the work, as fields of `Execution`: nothing to say for this one alone.

    They train on a CPU only: a GPU has more room for one stack than for several.
    """
    if processes == 1:
        return {}
    module = import_module("heliomesh.engine.processes")
    stacks = processes if device == "cpu" else 1
    spread = partial(module.parallel_map, processes=processes)
    return {"parallel_map": spread, "stacks_at_once": stacks, "same_disk": True}


def track_unless(quiet: bool) -> Track:
    """Progress bars for work that lasts, or none."""
    return untracked if quiet else _after_two_seconds


def _after_two_seconds(items: Iterable[_Item], description: str, total: int) -> Iterator[_Item]:
    """Show progress on standard error: a bar after two seconds on a terminal, a plain line a minute elsewhere."""
    screen = console(stderr=True)
    return _bar(screen, items, description, total) if screen.is_terminal else _lines(items, description, total)


def _lines(items: Iterable[_Item], description: str, total: int) -> Iterator[_Item]:
    last_second = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last_second >= _LINE_SECOND:
            tell(f"{description}: {done} of {total}")
            last_second = time.monotonic()
        yield item


_LINE_SECOND = 60  # between lines of progress in a file


def _bar(screen: Console, items: Iterable[_Item], description: str, total: int) -> Iterator[_Item]:
    started, progress, task = time.monotonic(), None, None
    try:
        for done, item in enumerate(items):
            if progress is None and time.monotonic() - started > 2:
                columns = (
                    TextColumn("{task.description}"),
                    BarColumn(),
                    MofNCompleteColumn(),
                    TimeRemainingColumn(),
                )
                progress = Progress(*columns, console=screen, transient=True)
                progress.start()
                task = progress.add_task(description, total=total)
            if progress is not None and task is not None:
                progress.update(task, completed=done)
            yield item
    finally:
        if progress is not None:
            progress.stop()


def check_target(path: Path | None, option: str) -> None:
    """Refuse a file that could not be written before any work is done."""
    if path is not None and (path.is_dir() or not path.resolve().parent.is_dir()):
        raise ScenarioError(option, f"expected a file in an existing folder, actual value {str(path)!r}")
