"""Options and arguments that several commands share, and how they are read.

Each is declared once: alone as ``…Option``, or with others in a dataclass that `flattened` spreads over a command.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial, wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import typer

from heliomesh.commands.progress import track_unless
from heliomesh.learning.replay import Replay
from heliomesh.learning.settings import TrainSettings
from heliomesh.learning.trainer import MakeStack
from heliomesh.model.policy import ParallelMap, Track
from heliomesh.planning import find_planner
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.scenario import Scenario, parse_override


def option(meaning: str, *flags: str, **limits: Any) -> Any:
    """An option; its flag is its parameter's name unless another is given, as every switch needs."""
    return typer.Option(*flags, help=meaning, **limits)


ScenarioArgument = Annotated[str, typer.Argument(help="A shipped scenario's name or a path to a .toml file.")]
PlannerArgument = Annotated[str, typer.Argument(help="A planner's name.")]
PlannerNameOption = Annotated[str, option("A planner's name.")]
SetOption = Annotated[list[str], option("Override one value: path=value. Repeatable.", "--set")]
PlannerOptions = Annotated[list[str], option("Planner option: name=value. Repeatable.", "--option", "-o")]
JsonOption = Annotated[bool, option("Print one JSON value and nothing else.", "--json")]
QuietOption = Annotated[bool, option("No progress bars.", "--quiet")]
DeviceOption = Annotated[str, option("cpu or cuda.")]
TypeOption = Annotated[str, option("float64 or float32 tables.")]
ProcessesOption = Annotated[int, option("Plan, simulate and train in so many processes.", min=1)]
EpisodeOption = Annotated[int, option("Episode to train under.", min=0)]
SeedOption = Annotated[int, option("Seed of the simulation.", min=0)]
RunSeedOption = Annotated[int | None, option("Seed of simulation and training; default: the scenario's.", min=0)]
EvaluateOption = Annotated[int, option("Slots between evaluations.", min=1)]
StrategyOption = Annotated[str, option("How local steps run; auto: by the model on a CPU, the quickest on a GPU.")]
LedgerOption = Annotated[bool, option("Say through what accuracy is lost against the lossless ideal.", "--ledger")]
StoreOption = Annotated[Path | None, option("Keep results here: the same command again goes on.")]
FiniteOption = Annotated[bool, option("Plan for the scenario's slots only instead of without an end.", "--finite")]


@dataclass(frozen=True)
class Changes:
    """What differs from the scenario's file."""

    overrides: SetOption = field(default_factory=list)

    def scenario(self, name: str) -> Scenario:
        """The named scenario with the values of --set."""
        return Scenario.load(name).override(dict(parse_override(text, "--set") for text in self.overrides))


@dataclass(frozen=True)
class PlannerSettings(Changes):
    """What differs from the scenario's file and from the planner's defaults."""

    options: PlannerOptions = field(default_factory=list)

    @property
    def of_planner(self) -> dict[str, Any]:
        """The values of --option."""
        return dict(parse_override(text, "--option") for text in self.options)


@dataclass(frozen=True)
class SamplingOptions:
    """Which episodes are simulated."""

    episodes: Annotated[int, option("Simulated episodes.", min=1, max=10**9)] = 64
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
class StackOptions:
    """On what runs are trained."""

    device: DeviceOption = "cpu"
    precision: Annotated[str, option("fp32, tf32 or bf16.")] = "fp32"
    strategy: StrategyOption = "auto"


@dataclass(frozen=True)
class TrainingOptions(StackOptions):
    """How a run is trained."""

    evaluate_every: EvaluateOption = 10
    checkpoint_second: Annotated[float, option("Between checkpoints.", min=0)] = 60.0
    memory_gib: Annotated[float | None, option("Memory limit of the training.", min=0)] = None
    tensorboard: Annotated[Path | None, option("Write curves into a folder of the run's own in this one.")] = None

    @property
    def settings(self) -> TrainSettings:
        """The same for the trainer."""
        names = {part.name for part in fields(TrainingOptions)} - {"tensorboard"}
        return TrainSettings(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class SpreadOptions:
    """Who does the work."""

    engine: Annotated[Literal["local", "ray"], option("local, or ray: many cores or machines.")] = "local"
    address: Annotated[str | None, option("host:port of a Ray cluster; by default this machine's own.")] = None

    def maps(self, device: str = "cpu") -> dict[str, ParallelMap]:
        """How the engine spreads work, as fields of `Execution`: nothing to say for this process."""
        ray = self.started()
        if ray is None:
            return {}
        gpus = 1 if device.startswith("cuda") else 0
        return {"parallel_map": ray.parallel_map, "train_map": partial(ray.parallel_map, num_gpus=gpus)}

    def started(self) -> ModuleType | None:
        """The Ray engine, connected; None for this process, where what only Ray understands is refused."""
        if self.engine == "ray":
            return start_ray(self.address)
        for flag in ("--address", "--actors", "--gpus-per-actor"):
            value = getattr(self, flag.strip("-").replace("-", "_"), None)
            if value is not None:
                raise ScenarioError(flag, "--engine ray with it", f"value {value!r} with local")
        return None


@dataclass(frozen=True)
class EngineOptions(SpreadOptions):
    """Who trains."""

    actors: Annotated[int | None, option("Ray actors that share the network; default: as many as fit.", min=1)] = None
    gpus_per_actor: Annotated[float | None, option("With --device cuda; a fraction shares a GPU.", min=0)] = None

    def make_stack(self) -> MakeStack:
        """Who will hold the weights: this process, or actors of a Ray that is started now."""
        if self.started() is None:
            return Replay
        from heliomesh.engine.ray_network import over_actors  # Ray need not be installed otherwise

        return over_actors(self.actors, self.gpus_per_actor)


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its option groups as parameters of their own, as typer wants them."""
    groups: dict[str, Any] = {}
    spread: list[inspect.Parameter] = []
    for name, one in inspect.signature(command).parameters.items():
        parts = [one]
        if is_dataclass(one.annotation):
            groups[name] = one.annotation
            usual = groups[name]()
            own = {part.name: (getattr(usual, part.name), part.type) for part in fields(usual)}
            parts = [one.replace(name=part, default=value, annotation=kind) for part, (value, kind) in own.items()]
        spread += [part.replace(kind=inspect.Parameter.KEYWORD_ONLY) for part in parts]

    @wraps(command)
    def call(**given: Any) -> None:
        made = {
            name: group(**{part.name: given.pop(part.name) for part in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    call.__signature__ = inspect.Signature(spread)  # type: ignore[attr-defined]
    return call


def without_end(planner: str, options: Mapping[str, Any], finite: bool) -> dict[str, Any]:
    """A planner's options, with a plan that has no end where it can make one and nothing else is asked for."""
    able = "endless" in find_planner(planner).options.model_fields and options.get("form") != "literal"
    return {"endless": True} | dict(options) if able and not finite else dict(options)


def start_ray(address: str | None) -> ModuleType:
    """The Ray engine's file, connected to this machine's own Ray or to a cluster."""
    refuse(find_spec("ray") is None, "--engine", "Ray is not installed. Run `pip install heliomesh[ray]`.")
    module = import_module("heliomesh.engine.ray")
    module.start(address)
    return module


def process_maps(processes: int, device: str = "cpu") -> dict[str, Any]:
    """How so many processes share the work, as fields of `Execution`: nothing to say for this one alone."""
    return import_module("heliomesh.engine.processes").work_fields(processes, device) if processes > 1 else {}


def check_target(path: Path | None, flag: str = "--out") -> None:
    """Refuse a file that could not be written before any work is done."""
    if path is not None and (path.is_dir() or not path.resolve().parent.is_dir()):
        raise ScenarioError(flag, "a file in an existing folder", f"value {str(path)!r}")


def check_folder(out: Path) -> None:
    """Refuse a file where a folder is to be."""
    refuse(out.exists() and not out.is_dir(), "--out", "a folder", f": {out} is a file")
