"""`heliomesh compare`: all planners on one scenario, and the models they lead to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.table import Table

from heliomesh.catalog import nearest
from heliomesh.commands.facts import (
    build_noted,
    network_facts,
    number_table,
    print_json,
    remarks,
    summary_facts,
    text_of,
)
from heliomesh.commands.ledger import ledger_facts, ledger_table
from heliomesh.commands.options import (
    DeviceOption,
    EpisodesOption,
    EvaluateOption,
    OutputOptions,
    ProcessesOption,
    ScenarioArgument,
    SeedOption,
    SetOption,
    TypeOption,
    check_target,
    flattened,
    load,
    process_maps,
)
from heliomesh.commands.terminal import console, note, say, tell
from heliomesh.durable import write_text
from heliomesh.jobs.steps import plan_facts
from heliomesh.jobs.store import Store
from heliomesh.learning.run import Run
from heliomesh.pages.pareto import pareto_svg
from heliomesh.pages.report import report
from heliomesh.pages.tables import interval_text, seeds_text, seeds_title
from heliomesh.planning import planner_names
from heliomesh.problem.problem import Problem, build
from heliomesh.problem.size import readable
from heliomesh.scenario import ScenarioError
from heliomesh.studies.compare import Comparison, Row, compare
from heliomesh.studies.gap_ledger import GapLedger


@dataclass(frozen=True)
class KeepOptions:
    """What a comparison leaves behind."""

    svg: Annotated[Path | None, typer.Option("--svg", help="Draw cost over planning time and bytes here.")] = None
    report: Annotated[Path | None, typer.Option("--report", help="Write a page of the trained runs here.")] = None
    runs: Annotated[Path | None, typer.Option("--runs", help="Keep the trained runs in this empty folder.")] = None

    store: Annotated[
        Path | None, typer.Option("--store", help="Keep plans and runs here: the same command again goes on.")
    ] = None
    ledger: Annotated[
        bool, typer.Option("--ledger", help="Say through what accuracy is lost against the lossless ideal.")
    ] = False

    def check(self, train: int) -> None:
        """Refuse what could not be kept before any work is done."""
        check_target(self.svg, "--svg")
        check_target(self.report, "--report")
        for wanted, option in ((self.report, "--report"), (self.runs, "--runs"), (self.ledger, "--ledger")):
            if wanted and not train:
                raise ScenarioError(option, "expected --train with a number of episodes, actual value 0")
        runs = self.runs
        if runs is not None and runs.exists() and (not runs.is_dir() or any(runs.iterdir())):
            raise ScenarioError("--runs", f"expected an empty or new folder, actual value {str(runs)!r}")

    def keep(self, result: Comparison, scenario: str) -> None:
        """Write the picture, the runs' folders and their page."""
        if self.svg is not None:
            write_text(self.svg, pareto_svg(result, f"{scenario}: cost against computation and messages"))
        if self.runs is not None:
            result.save_runs(self.runs)
        if self.report is not None:
            report(result, self.report)  # a comparison knows which planners refused, folders do not


@dataclass(frozen=True)
class ComparingOptions:
    """Under what planners are compared."""

    overrides: SetOption = field(default_factory=list)
    episodes: EpisodesOption = 64
    seed: SeedOption = 0
    memory_gib: Annotated[float | None, typer.Option("--memory-gib", help="Memory limit of each plan.")] = None
    certify: Annotated[
        bool | None,
        typer.Option("--certify/--no-certify", help="Certify a lower bound; default: if it takes seconds."),
    ] = None
    train: Annotated[int, typer.Option("--train", min=0, help="Also train under so many episodes of each plan.")] = 0
    device: DeviceOption = "cpu"
    dtype: TypeOption = "float64"
    processes: ProcessesOption = 1
    evaluate_every: EvaluateOption = 5


_TABLE_WIDTH = 118  # the comparison table is cut below it


@flattened
def compare_command(
    scenario: ScenarioArgument,
    names: Annotated[list[str] | None, typer.Argument(help="Planners; all if none is named.")] = None,
    *,
    asked: ComparingOptions,
    output: OutputOptions,
    keep: KeepOptions,
) -> None:
    """All planners on one scenario, with common random numbers."""
    if asked.memory_gib is not None and not asked.memory_gib > 0:
        raise ScenarioError("--memory-gib", f"expected a number above 0, actual value {asked.memory_gib:g}")
    keep.check(asked.train)
    _check_names(names or [])
    make = build_noted if output.as_json else build  # the table has remarks of its own
    problem = make(load(scenario, asked.overrides), asked.device, asked.dtype)
    limits: dict[str, Any] = {"memory_gib": asked.memory_gib, "track": output.track, "train": asked.train}
    limits |= {"certify": asked.certify, "evaluate_every": asked.evaluate_every, **process_maps(asked.processes)}
    limits["notify"] = note
    with TemporaryDirectory() as scratch:
        store = keep.store or (Store(Path(scratch), scratch=True) if asked.train else None)
        result = compare(problem, names, asked.episodes, asked.seed, store=store, **limits)
        fits = any(row.runs for row in result.rows)
        ledgers = result.gap_ledgers(track=output.track, notify=note) if keep.ledger and fits else {}
        if output.as_json:
            _print_json(problem, result, ledgers)
        else:
            title = f"{scenario}: cost per slot, {asked.episodes} episodes, 95 % intervals; gap to {result.reference}"
            _print_tables(problem, result, ledgers, title, with_seconds=not output.quiet)
        keep.keep(result, scenario)
    if keep.report is not None and not output.as_json:
        say(f"{keep.report}: open it in a browser")
    if result.failures():
        raise typer.Exit(_SOME_FAILED)


_SOME_FAILED = 3  # exit code: the others' results are shown and kept


def _print_json(problem: Problem, result: Comparison, ledgers: Mapping[str, GapLedger]) -> None:
    bounds = {"reference": result.reference, "lower bound": result.lower_bound}
    rows = [_row_facts(row, ledgers.get(row.planner)) for row in result.rows]
    print_json(network_facts(problem) | bounds | {"rows": rows})


def _print_tables(
    problem: Problem, result: Comparison, ledgers: Mapping[str, GapLedger], title: str, *, with_seconds: bool
) -> None:
    screen = console(width=max(_TABLE_WIDTH, console().width))
    screen.print(", ".join(f"{name} {text_of(value)}" for name, value in network_facts(problem).items()))
    screen.print(_comparison_table(result, title))
    if with_seconds:
        _tell_seconds(result)
    _print_below_table(screen, problem, result, ledgers)


def _tell_seconds(result: Comparison) -> None:
    """Seconds of planning on standard error: no two runs have the same."""
    planned = [f"{row.planner} {row.plan.seconds:.2f}" for row in result.rows if row.plan is not None]
    tell(f"Seconds of planning: {', '.join(planned)}.")


def _print_below_table(
    screen: Console, problem: Problem, result: Comparison, ledgers: Mapping[str, GapLedger]
) -> None:
    """Accuracies, remarks on the scenario, what the bound says, and why planners refused."""
    trained = {row.planner: row.runs for row in result.rows if row.runs}
    if trained:
        screen.print(_accuracy_table(trained, problem))
    if ledgers:
        screen.print(ledger_table(ledgers))
    for remark in remarks(problem):
        screen.print(f"Note: {remark}")
    if result.lower_bound is not None:
        screen.print(
            "Certified: no policy with the scenario's actions is expected to cost less than "
            f"{result.lower_bound:.4f} per slot."
        )
    _explain_centralized(screen, problem, result)
    for sentence in result.absences():
        screen.print(sentence)


def _explain_centralized(screen: Console, problem: Problem, result: Comparison) -> None:
    """Why a planner may cost less than `centralized`, where one does."""
    cost = {row.planner: row.summary.cost.mean for row in result.rows if row.summary is not None}
    exact = cost.get("centralized")
    if exact is not None and exact > min(cost.values()) and not problem.grid_is_exact:
        screen.print(
            "centralized is optimal on its own coarse battery grid; planners on finer grids may cost less, "
            "because simulated batteries are continuous."
        )


def _check_names(names: Sequence[str]) -> None:
    known = planner_names()
    for name in names:
        if name not in known:
            hint = nearest(name, known)
            raise ScenarioError("planner", f"expected some of {', '.join(known)}, actual value {name!r}{hint}")


def _accuracy_table(trained: Mapping[str, Sequence[Run]], problem: Problem) -> Table:
    learning, episodes = problem.scenario.learning, len(next(iter(trained.values())))
    title = seeds_title(f"accuracy after {problem.slots} slots on {learning.dataset}, {episodes} episodes", episodes)
    best = max(trained, key=lambda name: _finals(trained[name], "accuracy_mean").mean())
    headings = ("mean device %", f"against {best}", "least device %", "average model %", "% per joule")
    table = number_table(title, "planner", *headings)
    for planner, runs in trained.items():
        accuracy = _finals(runs, "accuracy_mean")
        table.add_row(
            planner,
            seeds_text(accuracy, ".2f", 100),
            seeds_text(accuracy - _finals(trained[best], "accuracy_mean"), "+.2f", 100),
            f"{100 * _finals(runs, 'accuracy_min').min():.2f}",
            seeds_text(_finals(runs, "average_accuracy"), ".2f", 100),
            f"{100 * _finals(runs, 'accuracy_per_joule').mean():.4f}",
        )
    return table


def _finals(runs: Sequence[Run], name: str) -> npt.NDArray[np.float64]:
    """A metric at the end of every run."""
    return np.array([run.final[name] for run in runs])


def _row_facts(row: Row, ledger: GapLedger | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"planner": row.planner}
    if row.plan is not None and row.summary is not None:
        facts |= plan_facts(row.plan) | summary_facts(row.summary)
    facts |= {name: said for name, said in (("refusal", row.refusal), ("failure", row.failure)) if said}
    if row.gap is not None:
        facts |= {"gap": row.gap.mean, "gap, 95 % half-width": row.gap.half_width}
    if row.runs:
        facts["accuracy"] = [run.final["accuracy_mean"] for run in row.runs]
        facts["accuracy of the average model"] = [run.final["average_accuracy"] for run in row.runs]
    if ledger is not None:
        facts["ledger"] = ledger_facts(ledger)
    return facts


def _comparison_table(result: Comparison, title: str) -> Table:
    headings = ("cost", "gap %", "trains %", "arrived %", "offline", "online/slot")
    table = number_table(title, "planner", *headings)
    for row in result.rows:
        if row.plan is None or row.summary is None:
            table.add_row(row.planner, "refused" if row.refusal else "failed", *[""] * 5)
            continue
        overhead = row.plan.overhead
        table.add_row(
            row.planner + ("" if row.plan.converged else " *"),
            interval_text(row.summary.cost, ".3f"),
            "" if row.gap is None else interval_text(row.gap, "+.2f", 100),
            f"{100 * row.summary.participation:.1f}",
            f"{100 * row.summary.delivery:.1f}",
            readable(overhead.offline_bytes),
            readable(overhead.online_bytes_per_slot),
        )
    if any(row.plan is not None and not row.plan.converged for row in result.rows):
        table.caption = "* the last round still changed some of the policy"
    return table
