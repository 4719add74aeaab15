"""`heliomesh reproduce`: the paper's figures and tables, stored as they finish and never computed twice."""

from pathlib import Path
from typing import Annotated, Any

import typer

from heliomesh.commands.options import (
    AddressOption,
    DeviceOption,
    Engine,
    EngineOption,
    PrecisionOption,
    QuietOption,
    StrategyOption,
    engine_maps,
    flattened,
    track_unless,
)
from heliomesh.commands.terminal import say
from heliomesh.durable import write_text
from heliomesh.jobs.store import Store
from heliomesh.learning.execution import check_strategy
from heliomesh.learning.precision import check_precision
from heliomesh.learning.run import TrainingError
from heliomesh.learning.trainer import TrainSettings, Work
from heliomesh.pages.figures import draw
from heliomesh.pages.tables import figure_text
from heliomesh.problem.problem import torch_device
from heliomesh.studies.line import BASELINE
from heliomesh.studies.reproduce import Figure, carry_out, figures, prepare, store_of


@flattened
def reproduce_command(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments; all if none is named.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of results; what it holds is not repeated.")] = Path(
        "results"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="A small version of every figure.")] = False,
    only_plan: Annotated[bool, typer.Option("--only-plan", help="Plan and simulate, and train later.")] = False,
    only_print: Annotated[bool, typer.Option("--only-print", help="Tables and figures of what is stored.")] = False,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "fp32",
    strategy: StrategyOption = "auto",
    together: Annotated[int, typer.Option("--together", min=1, help="Runs trained in one stack.")] = 10,
    engine: EngineOption = Engine.local,
    address: AddressOption = None,
    quiet: QuietOption = False,
) -> None:
    """Everything in the paper's evaluation, over paired seeds, with 95 % intervals."""
    if out.exists() and not out.is_dir():
        raise TrainingError(f"--out: expected a folder, actual: {out} is a file")
    check_precision(precision)
    check_strategy(strategy)
    store, training = store_of(out, quick), TrainSettings(device=device, precision=precision, strategy=strategy)  # type: ignore[arg-type]
    figures(names, store, quick, training)  # refuses unknown names before any work
    if not only_print:
        if engine is Engine.local and not only_plan:
            torch_device(device)  # refuse before hours of planning; Ray's workers have devices of their own
        maps: dict[str, Any] = engine_maps(engine, address, device)
        work = Work(track=track_unless(quiet), keep_weights=False, runs_at_once=together, **maps)
        with store.alone():
            prepare(names, store, quick, training, work)
            if not only_plan:
                carry_out(names, store, quick, training, work)
    _publish(figures(names, store, quick, training), store, f"{' --quick' if quick else ''} --out {out}")


def _publish(found: list[Figure], store: Store, settings: str) -> None:
    """Write each experiment's table and figure, and print the tables."""
    for figure in found:
        if figure.results:
            text = figure_text(figure)
            say(text, lines=True)
            write_text(store.folder / f"{figure.name}.md", text)
            target = store.folder / f"{figure.name}.svg"
            draw(figure.results, figure.title, figure.place, _reference(figure), target)
    absent = [figure.name for figure in found if not figure.results]
    if absent:
        command = f"heliomesh reproduce {' '.join(absent)}{settings}"
        say(f"{store.folder} holds no results of {', '.join(absent)} yet: `{command}` makes them.")


def _reference(figure: Figure) -> str | None:
    """The scheme over which the figure draws gains; places are compared by the table alone."""
    if isinstance(figure.against, str):
        return figure.against
    return None if isinstance(figure.against, int | float) else BASELINE
