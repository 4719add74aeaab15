"""Run the benchmark: every planner on every scenario, kept as it is finished and never measured twice."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from heliomesh.common.arguments import checked
from heliomesh.common.durable import alone_in
from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB, readable
from heliomesh.jobs.job import RESULTS_VERSION
from heliomesh.learning.trainer import Execution
from heliomesh.model.problem import build
from heliomesh.planning import chosen_options, planner_names
from heliomesh.simulation.trace import estimate_bytes
from heliomesh.studies.bench.board import Leaderboard
from heliomesh.studies.bench.line import (
    BenchError,
    BenchLine,
    Entry,
    known_line,
    label_of,
    new_line,
    place_of,
    read_line,
    read_lines,
    write_line,
)
from heliomesh.studies.bench.measuring import bound_of, key_of, measured, read_bounds, write_bounds
from heliomesh.studies.bench.scenarios import BENCH, Bench, BenchScenario
from heliomesh.studies.compare import in_variants

Report = Callable[[str], None]
Planner = tuple[str, Mapping[str, Any]]  # its name and options


@checked
def bench(
    folder: str | Path = "results/bench",
    only: Sequence[str] | None = None,
    planners: Sequence[Planner | str] | None = None,
    *,
    again: bool = False,
    version: Bench = BENCH,
    report: Report = lambda _: None,
    **work: Any,
) -> Leaderboard:
    """Measure planners on the scenarios of the benchmark; what the folder holds is not repeated.

    Parameters
    ----------
    folder
        Of results; lines that others added are part of the leaderboard.
    only
        Names of scenarios; by default all.
    planners
        Names, or names with options; by default every installed planner in all its variants.
    again
        Whether to measure again what is there.
    version
        Of the benchmark.
    report
        Is told every finished measurement in one sentence.
    **work
        Fields of `Execution`, such as ``track``.

    Returns
    -------
    Leaderboard
        All lines of the folder; ``table()`` gives them as a pandas table.
    """
    place, chosen = Path(folder), version.named(only)
    given: list[Planner] = []
    for one in planner_names() if planners is None else planners:
        given += in_variants([one]) if isinstance(one, str) else [one]
    asked = [(name, chosen_options(name, options)) for name, options in given]  # refuses wrong ones before any work
    how = Execution(**work)
    with alone_in(place):
        for scenario in chosen:  # from small to large
            absent = [planner for planner in asked if again or not _has(place, version, scenario, planner)]
            _measure(place, version, scenario, absent, how, report)
    return leaderboard(place, version)


def leaderboard(folder: str | Path, version: Bench = BENCH) -> Leaderboard:
    """What a folder holds; raises BenchError for a file that is no result of this version."""
    place = Path(folder)
    return Leaderboard(version, tuple(read_lines(place, version)), read_bounds(place, version))


def _has(folder: Path, version: Bench, one: BenchScenario, planner: Planner) -> bool:
    """Whether an entry is there that was measured as it would be now."""
    line = known_line(folder, version, label_of(*planner))
    entry = None if line is None else line.entries.get(one.name)
    return entry is not None and entry.key == key_of(version, one, *planner)


def _measure(
    folder: Path, version: Bench, one: BenchScenario, planners: Sequence[Planner], work: Execution, report: Report
) -> None:
    """The bound of a scenario, then an entry in each planner's line, with where its code comes from now."""
    bounds = read_bounds(folder, version)
    if not planners and one.name in bounds:
        return
    problem = build(one.scenario)
    trace = readable(estimate_bytes(problem, one.episodes))
    report(f"{one.name}: {len(planners)} to measure; traces take {trace}, a plan at most {DEFAULT_LIMIT_GIB:g} GiB")
    found = None if one.name in bounds else bound_of(one, problem, work)
    if found is not None:
        write_bounds(folder, version, bounds | {one.name: found})
        report(f"{one.name}: no policy on its powers costs less than {found.per_slot:.4f} per slot")
    for planner in planners:
        line = new_line(version, *planner)
        known = known_line(folder, version, line.label)
        if known is not None and one.name in known.entries and not _has(folder, version, one, planner):
            work.notify(f"{one.name}: {line.label}: measured again: {_changed(known, line, one.name)}")
        entry = measured(version, one, problem, line, work)
        line = line.model_copy(update={"entries": {one.name: entry}})
        write_line(folder, version, line.beside(known))
        report(f"{one.name}: {line.label}: {_in_words(entry)}")


def _changed(known: BenchLine, line: BenchLine, scenario: str) -> str:
    """Why a stored entry does not serve: its code, or how heliomesh computes."""
    if known.planner_source != line.planner_source:
        return "its code has changed"
    version = known.entries[scenario].results_version
    return f"results version was {version}, now {RESULTS_VERSION}"


def _in_words(entry: Entry) -> str:
    if entry.refusal:
        return f"refused. {entry.refusal}"
    learned = f", accuracy {100 * fmean(entry.accuracy):.2f} %" if entry.accuracy else ""
    return f"cost {fmean(entry.cost):.4f} per slot{learned}, planned in {entry.process_seconds:.1f} s"


def add_line(file: str | Path, folder: str | Path, version: Bench = BENCH) -> BenchLine:
    """Take a line that somebody else measured, with what the folder knows beside it.

    Raises BenchError for another file, and where the line would replace what the folder holds.
    """
    line, target = read_line(Path(file), version), Path(folder)
    with alone_in(target):
        known = known_line(target, version, line.label)
        if known is not None:
            _check_adds(line, known, place_of(target, version, line.label))
        write_line(target, version, line.beside(known))
    return line


def _check_adds(line: BenchLine, known: BenchLine, place: Path) -> None:
    """Refuse a line that says other things than a known one: nobody measured here what it says."""
    if line.planner_source != known.planner_source:
        raise BenchError(place, "a line of the same code", "code is another; remove this file first")
    for name, entry in line.entries.items():
        if known.entries.get(name, entry) != entry:
            expected = "no entry or the same one"
            raise BenchError(f"{place}: {name}", expected, "entry is another; remove this file first")
