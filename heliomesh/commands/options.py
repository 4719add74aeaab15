"""Options and arguments that several commands share, and how they are read."""

import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from heliomesh.problem.policy import Track, untracked
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
    str, typer.Option("--strategy", help="How local steps are executed; auto: loop on a CPU, the quickest on a GPU.")
]
PrecisionOption = Annotated[str, typer.Option("--precision", help="fp32, tf32 or bf16.")]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu or cuda.")]
TypeOption = Annotated[str, typer.Option("--dtype", help="float64 or float32 tables.")]
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


def load(scenario: str, overrides: list[str]) -> Scenario:
    """The named scenario with the values of --set."""
    return Scenario.load(scenario).override(dict(parse_override(text, "--set") for text in overrides))


def planner_options(options: list[str]) -> dict[str, Any]:
    """The values of --option."""
    return dict(parse_override(text, "--option") for text in options)


def start_engine(engine: Engine, address: str | None) -> ModuleType:
    """The engine's file, ready to work: it offers ``parallel_map``, ``prepare_all`` and ``train_all``."""
    if engine is Engine.local and address is not None:
        raise ScenarioError("--address", f"expected --engine ray with it, actual value {address!r} with local")
    if engine is Engine.ray and find_spec("ray") is None:
        raise ScenarioError(
            "--engine", "expected Ray to be installed (pip install heliomesh[ray]), actual: it is not"
        )
    module = import_module(f"heliomesh.engine.{engine}")
    if engine is Engine.ray:
        module.start(address)
    return module


def track_unless(quiet: bool) -> Track:
    """Progress bars for work that lasts, or none."""
    return untracked if quiet else _after_two_seconds


def _after_two_seconds(items: Iterable[_Item], description: str, total: int) -> Iterator[_Item]:
    """Show a progress bar on standard error once the work has lasted two seconds."""
    started, progress, task = time.monotonic(), None, None
    console = Console(stderr=True)
    try:
        for done, item in enumerate(items):
            if progress is None and console.is_terminal and time.monotonic() - started > 2:
                columns = (
                    TextColumn("{task.description}"),
                    BarColumn(),
                    MofNCompleteColumn(),
                    TimeRemainingColumn(),
                )
                progress = Progress(*columns, console=console, transient=True)
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
