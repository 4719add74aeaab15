"""`heliomesh reproduce`: the paper's figures and tables, stored as they finish and never computed twice."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from heliomesh import catalog
from heliomesh.commands.facts import interval_text
from heliomesh.commands.options import (
    AddressOption,
    DeviceOption,
    Engine,
    EngineOption,
    PrecisionOption,
    QuietOption,
    StrategyOption,
    start_engine,
    track_unless,
)
from heliomesh.durable import write_text
from heliomesh.engine.arm import BASELINE, Arm
from heliomesh.engine.local import Hardware
from heliomesh.engine.results import Against, Estimate, Final, Paired, Trend, compared, final, trends
from heliomesh.engine.store import Result, Store
from heliomesh.learning.journal import reserved
from heliomesh.learning.precision import check_precision
from heliomesh.learning.run import TrainingError
from heliomesh.problem.problem import torch_device
from heliomesh.report.figures import draw
from heliomesh.simulation.diagnostics import interval

EXPERIMENT_CATALOG = "heliomesh.experiments"


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
    together: Annotated[int, typer.Option("--together", min=1, help="Arms trained in one stack.")] = 1,
    engine: EngineOption = Engine.local,
    address: AddressOption = None,
    quiet: QuietOption = False,
) -> None:
    """Everything in the paper's evaluation, over paired seeds, with 95 % intervals."""
    if out.exists() and not out.is_dir():
        raise TrainingError(f"--out: expected a folder, actual: {out} is a file")
    wanted = dict.fromkeys(names or catalog.names(EXPERIMENT_CATALOG))  # each once
    modules = [catalog.find(EXPERIMENT_CATALOG, name) for name in wanted]
    store, track = Store(out / "quick" if quick else out), track_unless(quiet)
    arms = [arm for module in modules for arm in module.arms(quick)]
    check_precision(precision)
    if engine is Engine.local and not (only_print or only_plan):
        torch_device(device)  # refuse before hours of planning; Ray's workers have devices of their own
    hardware = Hardware(device, precision, strategy, together)  # type: ignore[arg-type]
    if not only_print:
        with reserved(store.folder):
            runner = start_engine(engine, address)
            runner.prepare_all(arms, store, track)
            if not only_plan:
                runner.train_all(arms, store, hardware, track)
    absent = []
    for module in modules:
        results = [store.get(arm) for arm in module.arms(quick) if store.has(arm)]
        if results:
            _publish(module, results, quick, store)
        else:
            absent.append(module.NAME)
    if absent:
        command = f"heliomesh reproduce {' '.join(absent)}{' --quick' if quick else ''} --out {out}"
        sys.stdout.write(f"{store.folder} holds no results of {', '.join(absent)} yet: `{command}` makes them.\n")


def _publish(module: ModuleType, results: Sequence[Result], quick: bool, store: Store) -> None:
    """Write an experiment's table and figure, and print the table."""
    arms: list[Arm] = module.arms(quick)
    title = f"{module.TITLE} (quick version, {arms[0].scenario.learning.dataset})" if quick else module.TITLE
    lines = [f"## {title}", ""]
    if len(results) < len(arms):
        lines += [f"{len(arms) - len(results)} of {len(arms)} lines are not there yet.", ""]
    finals = [final(result) for result in results]
    lines += _table(results, finals) + _comparisons(finals, module.AGAINST, module.PLACE)
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text + "\n")
    write_text(store.folder / f"{module.NAME}.md", text)
    draw(results, title, module.PLACE, _reference(module.AGAINST), store.folder / f"{module.NAME}.svg")


def _reference(against: Against) -> str | None:
    """The scheme over which the figure draws gains; places are compared by the table alone."""
    if isinstance(against, str):
        return against
    return None if isinstance(against, int | float) else BASELINE


def _table(results: Sequence[Result], finals: Sequence[Final]) -> list[str]:
    lines = [
        "| setting | scheme | at | accuracy % | over the run % | average model % | update loss | active % |"
        " arrived % | seeds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result, one in zip(results, finals, strict=True):
        facts = result.manifest
        cells = [one.setting, one.scheme, "" if one.place is None else f"{one.place:g}"]
        percents = (one.accuracy, one.accuracy_over_run, one.average_accuracy)
        cells += [interval_text(interval(percent), ".2f") for percent in percents]
        cells += [interval_text(interval(one.cost), ".3f")]
        cells += [f"{100 * facts['participation']:.1f}", f"{100 * facts['delivery']:.1f}", str(len(one.accuracy))]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _comparisons(finals: Sequence[Final], against: Against, place: str | None) -> list[str]:
    """What the figure is about, paired by seed; bold where the interval excludes zero."""
    rows = [(_where(pair), pair.at_end, pair.over_run) for pair in compared(finals, against)]
    if place and not isinstance(against, str | int | float):
        rows += [
            (f"{_trend_name(trend)}, per unit of {place}", trend.at_end, trend.over_run)
            for trend in trends(finals, against)
        ]
    head = ["| points, paired by seed | at the end | p | over the run | p |", "|---|---|---|---|---|"]
    lines = [f"| {where} | {_tested(at_end)} | {_tested(over_run)} |" for where, at_end, over_run in rows]
    return [*head, *lines, ""] if lines else []


def _tested(estimate: Estimate) -> str:
    """An estimate and its p-value, as two cells."""
    text = interval_text(estimate.points, "+.2f")
    return f"{f'**{text}**' if estimate.sign else text} | {estimate.p_value:.2g}"


def _trend_name(trend: Trend) -> str:
    name = trend.first if trend.second is None else f"{trend.first} against {trend.second}"
    return f"{trend.setting}: {name}" if trend.setting else name


def _where(pair: Paired) -> str:
    """The two lines that a comparison names, and the panel they share."""
    first, second = pair.first, pair.second
    if first.scheme == second.scheme:
        shared, names = [first.setting, first.scheme], (f"{first.place:g}", f"{second.place:g}")
    else:
        place = "" if first.place is None else f"{first.place:g}"
        shared, names = [first.setting, place], (first.scheme, second.scheme)
    where = ", ".join(word for word in shared if word)
    return f"{where}: {names[0]} against {names[1]}" if where else f"{names[0]} against {names[1]}"
