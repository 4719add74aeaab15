"""`heliomesh runs`: what folders of runs hold, whether it is whole, and what may go."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from heliomesh.commands.facts import print_facts, print_json
from heliomesh.commands.options import JsonOption
from heliomesh.learning.run import Run, TrainingError
from heliomesh.problem.size import readable
from heliomesh.report.run_folder import RunFolder, read_run
from heliomesh.scenario import ScenarioError
from heliomesh.simulation.trace import TraceError

app = typer.Typer(no_args_is_help=True, help="List, show, verify and clean folders of runs.")

_MARKS = ("manifest.json", "trace.npz", "checkpoints")  # any of them makes a folder a run's
_MOST_FOLDERS = 100_000  # looked at before giving up

_COLUMNS = ("scenario", "planner", "seed", "slots", "accuracy", "size")

FoldersArgument = Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold some.")]


@app.command("list")
def list_command(folders: FoldersArgument, as_json: JsonOption = False) -> None:
    """One line per run: planner, scenario, seed, how far it came and how good it is."""
    rows = [_line(path) for path in _runs(folders)]
    if as_json:
        print_json(rows)
        return
    table = Table()
    table.add_column("folder", overflow="fold")
    for name in _COLUMNS:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(row["folder"], *(str(row[name]) for name in _COLUMNS))
    Console().print(table)


@app.command("show")
def show_command(
    folder: Annotated[Path, typer.Argument(help="Folder of a run.")], as_json: JsonOption = False
) -> None:
    """Everything known of one run."""
    found = read_run(folder)
    facts: dict[str, Any] = _line(folder) | {"finished": found.finished, "missing": " ".join(found.missing)}
    facts |= {f"plan: {name}": value for name, value in found.plan.items()}
    facts |= {name: float(column[-1]) for name, column in found.curves.metrics.items() if len(column)}
    facts |= {name: value for name, value in found.provenance.items() if name not in ("scenario_toml", "parameters")}
    print_facts(facts, as_json)


@app.command("verify")
def verify_command(folders: FoldersArgument) -> None:
    """Read every file of every run and compare checksums; exit code 2 if anything is wrong."""
    wrong, total = 0, 0
    for path in _runs(folders):
        total += 1
        try:
            found = read_run(path)
            if found.finished:
                Run.load(path)
            state = "whole" if found.finished else f"unfinished, whole up to slot {found.curves.done}"
            sys.stdout.write(f"{path}: {state}\n")
        except (TrainingError, TraceError, ScenarioError) as error:
            wrong += 1
            sys.stdout.write(f"{path}: wrong. {error}\n")
    sys.stdout.write(f"{total - wrong} of {total} runs are whole\n")
    if wrong:
        raise typer.Exit(2)


@app.command("clean")
def clean_command(
    folders: FoldersArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Really remove them.")] = False,
) -> None:
    """Remove what no longer serves: half-written files, and checkpoints of finished runs."""
    removed = 0
    for path in _runs(folders):
        for file in _left_over(path):
            removed += file.stat().st_size
            sys.stdout.write(f"{'removed' if yes else 'would remove'} {file}\n")
            if yes:
                file.unlink()
    sys.stdout.write(f"{readable(removed)} {'freed' if yes else 'would be freed; --yes does it'}\n")


def _runs(folders: list[Path]) -> Iterator[Path]:
    """Every folder of a run at or below the given ones, in order of their names."""
    for folder in folders:
        if not folder.is_dir():
            raise TrainingError(
                f"{folder}: expected a folder, actual: {'a file' if folder.exists() else 'nothing there'}"
            )
        below = [path for path, _ in zip(_walk(folder), range(_MOST_FOLDERS), strict=False)]
        yield from (path for path in below if any((path / mark).exists() for mark in _MARKS))


def _walk(folder: Path) -> Iterator[Path]:
    """A folder and those below it; links are not followed, so there is an end."""
    yield folder
    for child in sorted(folder.iterdir()):
        if child.is_dir() and not child.is_symlink() and child.name != "checkpoints":
            yield from _walk(child)


def _line(path: Path) -> dict[str, Any]:
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    try:
        found = read_run(path)
    except (TrainingError, TraceError, ScenarioError) as error:
        unknown = dict.fromkeys(("scenario", "planner", "seed", "slots", "accuracy"), "?")
        return {"folder": str(path)} | unknown | {"size": readable(size), "wrong": str(error)}
    return {
        "folder": str(path),
        "scenario": found.scenario.name,
        "planner": found.planner,
        "seed": found.seed,
        "slots": f"{found.curves.done} of {found.scenario.slots}",
        "accuracy": _accuracy(found),
        "size": readable(size),
    }


def _accuracy(found: RunFolder) -> str:
    column = found.curves.metrics["accuracy_mean"]
    return f"{column[-1]:.4f}" if len(column) else "none yet"


def _left_over(path: Path) -> Iterator[Path]:
    """Temporary files of writers that were killed, and checkpoints where the run is finished."""
    yield from (file for file in sorted(path.glob(".*.part")) if file.is_file())
    checkpoints = path / "checkpoints"
    if checkpoints.is_dir() and not checkpoints.is_symlink():
        finished = (path / "manifest.json").exists()
        names = sorted(checkpoints.iterdir())
        yield from (file for file in names if file.is_file() and (finished or file.name.endswith(".part")))
