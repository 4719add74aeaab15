"""`heliomesh store`: what folders of runs and stores of results hold, whether it is whole, and what may go."""

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from glob import escape as glob_escape
from pathlib import Path
from typing import Annotated, Any

import typer

from heliomesh.commands.facts import print_facts, show, table
from heliomesh.commands.options import JsonOption, check_folder, option
from heliomesh.commands.terminal import say
from heliomesh.durable import alone_in
from heliomesh.interop.weights import write_weights
from heliomesh.jobs.pack import Packs
from heliomesh.jobs.result_files import PLAN, TRACE, TRACE_ARRAYS, read_cost, read_result
from heliomesh.jobs.store import PACKS, Store
from heliomesh.learning.run import CHECKPOINTS, MANIFEST, Run, TrainingError, is_finished
from heliomesh.pages.run_folder import RunFolder, is_run, read_run
from heliomesh.problem.size import readable
from heliomesh.scenario import ScenarioError
from heliomesh.simulation.trace import Trace, TraceError

app = typer.Typer(no_args_is_help=True, help="List, show, verify, clean and export folders of runs and results.")

_MOST_FOLDERS = 100_000  # looked at before giving up
_LEFT_BEHIND = (".*.part", ".*.lock")  # by writers that were killed

_COLUMNS = ("scenario", "planner", "seed", "slots", "accuracy", "size")
_ERRORS = (TrainingError, TraceError, ScenarioError)

FoldersArgument = Annotated[list[Path], typer.Argument(help="Folders of runs or results, or folders that hold some.")]


@app.command("list")
def list_command(folders: FoldersArgument, as_json: JsonOption = False) -> None:
    """One line per run or stored result: planner, scenario, seed, how far it came and how good it is."""
    rows = [row for path in _walk(folders) for row in _lines(path)]
    cells = [{name: str(row[name]) for name in ("folder", *_COLUMNS)} for row in rows]
    show(as_json, rows, table(cells, fold="folder") if cells else "no runs or results here")


@app.command("show")
def show_command(
    folder: Annotated[Path, typer.Argument(help="Folder of a run.")], as_json: JsonOption = False
) -> None:
    """Everything known of one run."""
    found = read_run(folder)
    facts: dict[str, Any] = _run_line(folder) | {"finished": found.finished, "missing": " ".join(found.missing)}
    steps = {"plan": PLAN, "simulate": TRACE, "train": MANIFEST}
    facts["steps finished"] = ", ".join(step for step, file in steps.items() if (folder / file).exists())
    facts |= {f"plan: {name}": value for name, value in found.plan.items()}
    facts |= {name: value for name, value in found.provenance.items() if name not in ("scenario_toml", "parameters")}
    # last, since a setting may have the name of a metric: what was asked for, and what it came to
    facts |= {name: float(column[-1]) for name, column in found.curves.metrics.items() if len(column)}
    print_facts(facts, as_json)


@app.command("verify")
def verify_command(folders: FoldersArgument) -> None:
    """Compare every file of runs and stores with its sums; exit code 2 if any is wrong."""
    wrong = dict.fromkeys(("runs", "stored results"), 0)
    total = dict(wrong)
    for path in _walk(folders):
        kind = "runs" if is_run(path) else "stored results"
        for place, read in [(path, _run_state)] if is_run(path) else _stored(path):
            total[kind] += 1
            try:
                found = read(place)
                say(f"{place}: {found if kind == 'runs' else 'whole'}")
            except _ERRORS as error:
                wrong[kind] += 1
                say(f"{place}: wrong. {error}")
    for kind, number in total.items():
        if number or kind == "runs":
            say(f"{number - wrong[kind]} of {number} {kind} are whole")
    if any(wrong.values()):
        raise typer.Exit(2)


class WeightForm(StrEnum):
    """How a device's model is written."""

    SAFETENSORS = "safetensors"
    ONNX = "onnx"


@app.command("export")
def export_command(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    out: Annotated[Path, option("Folder for the files.")],
    form: Annotated[
        WeightForm, option("safetensors: a named state_dict; onnx: a graph.", "--format")
    ] = WeightForm.SAFETENSORS,
    as_json: JsonOption = False,
) -> None:
    """Write every device's trained model as a file of its own."""
    check_folder(out)
    run = Run.load(folder)
    files = write_weights(run, out, "onnx" if form is WeightForm.ONNX else "safetensors")
    facts = {"devices": len(files), "parameters": run.weights.shape[1], "files": [str(file) for file in files]}
    print_facts(facts, as_json)


def _run_state(path: Path) -> str:
    found = read_run(path)
    if not found.finished:
        return f"unfinished, whole up to slot {found.curves.done}"
    Run.load(path)
    return "whole"


@app.command("clean")
def clean_command(
    folders: FoldersArgument,
    yes: Annotated[bool, option("Really remove them.", "--yes")] = False,
) -> None:
    """Remove what no longer serves: left by killed writers, checkpoints of finished runs, traces of packed ones."""
    removed = 0
    for path in list(_walk(folders)):
        if not path.is_dir() or not any(_left_over(path)):
            continue
        with alone_in(path):  # a living writer's files are not left over
            for file in _left_over(path):
                removed += file.stat().st_size
                say(f"{'removed' if yes else 'would remove'} {file}")
                if yes:
                    file.unlink()
                    _remove_empty(file.parent, path)
    say(f"{readable(removed)} {'freed' if yes else 'would be freed; --yes does it'}")


def _walk(folders: list[Path]) -> Iterator[Path]:
    """The given folders and all below them, in order of their names; what is inside a run is part of it."""
    for folder in folders:
        if not folder.is_dir():
            raise TrainingError(
                f"{folder}: expected a folder, actual: {'a file' if folder.exists() else 'nothing there'}"
            )
        yield from (path for path, _ in zip(_below(folder), range(_MOST_FOLDERS), strict=False))


def _below(folder: Path) -> Iterator[Path]:
    """A folder and those below it; links are not followed, so there is an end."""
    yield folder
    for child in sorted(folder.iterdir()):
        if child.is_dir() and not child.is_symlink() and child.name != CHECKPOINTS:
            yield from _below(child)


def _stored(path: Path) -> Iterator[tuple[Path, Callable[[Path], object]]]:
    """Plans, traces, costs and packs of a store, with what reads each."""
    if (path / PLAN).exists():
        yield path / PLAN, lambda place: read_result(place.parent, "plan")
    if (path / TRACE).exists():
        yield path / TRACE, _read_trace
    for place in sorted(path.glob("*.json")):
        if path.name == PACKS:
            yield place, lambda place: Packs(place.parent).content(place.stem)
        elif re.fullmatch(r"[0-9a-f]{64}", place.stem):
            yield place, read_cost


def _read_trace(place: Path) -> None:
    read_result(place.parent, "trace")
    Trace.load(place.with_name(TRACE_ARRAYS))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if is_run(path):
        yield _run_line(path)
    elif path.name == PACKS:
        yield from (_pack_line(place) for place in sorted(path.glob("*.json")))


def _run_line(path: Path) -> dict[str, Any]:
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    try:
        found = read_run(path)
    except _ERRORS as error:
        return _unknown(path, size, error)
    return {
        "folder": str(path),
        "scenario": found.scenario.name,
        "planner": found.planner,
        "seed": found.seed,
        "slots": f"{found.curves.done} of {found.scenario.slots}",
        "accuracy": _accuracy(found),
        "size": readable(size),
    }


def _pack_line(place: Path) -> dict[str, Any]:
    size = sum(file.stat().st_size for file in place.parent.glob(f"{glob_escape(place.stem)}.*"))
    try:
        runs = Packs(place.parent).runs(place.stem)
    except _ERRORS as error:
        return _unknown(place, size, error)
    origins = [run.provenance for run in runs]
    return {
        "folder": str(place.with_suffix("")),
        "scenario": ", ".join(sorted({str(one.get("name", "?")) for one in origins})),
        "planner": ", ".join(sorted({str(one.get("planner", "?")) for one in origins})),
        "seed": f"{len(runs)} runs",
        "slots": int(max(run.final["slot"] for run in runs)),
        "accuracy": f"{sum(run.final['accuracy_mean'] for run in runs) / len(runs):.4f}",
        "size": readable(size),
    }


def _unknown(path: Path, size: int, error: Exception) -> dict[str, Any]:
    row = dict.fromkeys(_COLUMNS, "?")
    return {"folder": str(path)} | row | {"size": readable(size), "wrong": str(error)}


def _accuracy(found: RunFolder) -> str:
    column = found.curves.metrics["accuracy_mean"]
    return f"{column[-1]:.4f}" if len(column) else "none yet"


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove a folder below another one, and those between them, as far as they are empty."""
    while folder != top and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _left_over(path: Path) -> Iterator[Path]:
    """Temporary files of writers that were killed, and checkpoints where the run is finished."""
    for pattern in _LEFT_BEHIND:
        yield from (file for file in sorted(path.glob(pattern)) if file.is_file())
    yield from (file for place in Store(path).garbage() for file in sorted(place.iterdir()))
    checkpoints = path / CHECKPOINTS
    if checkpoints.is_dir() and not checkpoints.is_symlink():
        hidden = {file for pattern in _LEFT_BEHIND for file in checkpoints.glob(pattern)}
        files = sorted(checkpoints.iterdir())
        yield from (file for file in files if file.is_file() and (is_finished(path) or file in hidden))
