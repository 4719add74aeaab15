"""What folders of runs and stores of results hold, and whether it is whole."""

import re
from collections.abc import Callable, Iterable, Iterator
from glob import escape as glob_escape
from pathlib import Path
from typing import Any

from heliomesh.common.memory_limit import readable
from heliomesh.jobs.pack import Packs
from heliomesh.jobs.store import PACKS, PLAN, TRACE, read_cost, read_result
from heliomesh.learning.run import CHECKPOINTS, Run, TrainingError
from heliomesh.pages.run_folder import is_run, read_run, read_trace
from heliomesh.scenario.errors import ScenarioError
from heliomesh.simulation.trace import TraceError

COLUMNS = ("scenario", "planner", "seed", "slots", "accuracy", "size")
_MOST_FOLDERS = 100_000  # looked at before giving up
_ERRORS = (TrainingError, TraceError, ScenarioError)


def walk(folders: list[Path]) -> Iterator[Path]:
    """The given folders and all below them, in order of their names; what is inside a run is part of it."""
    for folder in folders:
        actual = "a file" if folder.exists() else "nothing there"
        TrainingError.when(not folder.is_dir(), folder, "a folder", f": {actual}")
        yield from (path for path, _ in zip(_below(folder), range(_MOST_FOLDERS), strict=False))


def _below(folder: Path) -> Iterator[Path]:
    """A folder and those below it; links are not followed, so there is an end."""
    yield folder
    for child in sorted(folder.iterdir()):
        if child.is_dir() and not child.is_symlink() and child.name != CHECKPOINTS:
            yield from _below(child)


def states(path: Path) -> Iterator[tuple[Path, str, bool]]:
    """Every run or stored result of a folder, in what state it is, and whether it is whole so far."""
    for place, read in [(path, _run_state)] if is_run(path) else _stored(path):
        try:
            found = read(place)
        except _ERRORS as error:
            yield place, f"wrong. {error}", False
        else:
            yield place, f"{found if is_run(path) else 'whole'}", True


def _run_state(path: Path) -> str:
    found = read_run(path)
    if not found.finished:
        return f"unfinished, whole up to slot {found.curves.done}"
    Run.load(path)
    return "whole"


def _stored(path: Path) -> Iterator[tuple[Path, Callable[[Path], object]]]:
    """Plans, traces, costs and packs of a store, with what reads each."""
    if (path / PLAN).exists():
        yield path / PLAN, lambda place: read_result(place.parent, "plan")
    if (path / TRACE).exists():
        yield path / TRACE, lambda place: read_trace(place.parent)
    for place in sorted(path.glob("*.json")):
        if path.name == PACKS:
            yield place, lambda place: Packs(place.parent).content(place.stem)
        elif re.fullmatch(r"[0-9a-f]{64}", place.stem):
            yield place, read_cost


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """What is known of the run or of the packed runs in a folder."""
    if is_run(path):
        yield run_line(path)
    elif path.name == PACKS:
        for place in sorted(path.glob("*.json")):
            yield _line(place, path.glob(f"{glob_escape(place.stem)}.*"), _pack_facts)


def run_line(path: Path) -> dict[str, Any]:
    """What is known of a run."""
    return _line(path, path.rglob("*"), _run_facts)


def _line(place: Path, files: Iterable[Path], read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """What is read of a place, or why it cannot be."""
    try:
        facts = read(place)
    except _ERRORS as error:
        facts = dict.fromkeys(COLUMNS, "?") | {"wrong": str(error)}
    size = readable(sum(file.stat().st_size for file in files if file.is_file()))
    return {"folder": str(place)} | facts | {"size": size}


def _run_facts(path: Path) -> dict[str, Any]:
    found = read_run(path)
    accuracy = found.curves.metrics["accuracy_mean"]
    return {
        "scenario": found.scenario.name,
        "planner": found.planner,
        "seed": found.seed,
        "slots": f"{found.curves.done} of {found.scenario.slots}",
        "accuracy": f"{accuracy[-1]:.4f}" if len(accuracy) else "none yet",
    }


def _pack_facts(place: Path) -> dict[str, Any]:
    runs = Packs(place.parent).runs(place.stem)
    names = {
        name: ", ".join(sorted({str(run.provenance.get(own, "?")) for run in runs}))
        for name, own in (("scenario", "name"), ("planner", "planner"))
    }
    return {
        "folder": str(place.with_suffix("")),
        **names,
        "seed": f"{len(runs)} runs",
        "slots": int(max(run.final["slot"] for run in runs)),
        "accuracy": f"{sum(run.final['accuracy_mean'] for run in runs) / len(runs):.4f}",
    }
