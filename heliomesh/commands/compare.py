"""`heliomesh compare`: all planners on one scenario, on common luck, and the models they lead to."""

from collections.abc import Sequence
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
    interval_text,
    network_facts,
    number_table,
    plan_facts,
    print_json,
    remarks,
    summary_facts,
    text_of,
)
from heliomesh.commands.options import (
    DeviceOption,
    EpisodesOption,
    JsonOption,
    QuietOption,
    ScenarioArgument,
    SeedOption,
    SetOption,
    TrustOption,
    TypeOption,
    check_target,
    load,
    track_unless,
)
from heliomesh.commands.terminal import console
from heliomesh.commands.train import keep_plan
from heliomesh.comparison import Comparison, Row, compare
from heliomesh.durable import write_text
from heliomesh.learning.dataset import Dataset
from heliomesh.learning.journal import finish_step
from heliomesh.learning.readiness import check_trainable
from heliomesh.learning.replay import TrainJob
from heliomesh.learning.run import Run
from heliomesh.learning.trainer import TrainSettings, train_many
from heliomesh.planning import continuous_bound, planner_names
from heliomesh.problem.policy import Track
from heliomesh.problem.problem import Problem, build
from heliomesh.problem.size import readable
from heliomesh.report.page import report_page
from heliomesh.report.pareto import pareto_svg
from heliomesh.scenario import ScenarioError
from heliomesh.simulation.diagnostics import interval
from heliomesh.simulation.trace import simulate

_TRAINING = TrainSettings(evaluate_every=5)
_TABLE_WIDTH = 118  # the comparison table is cut below it


def compare_command(
    scenario: ScenarioArgument,
    names: Annotated[list[str] | None, typer.Argument(help="Planners; all if none is named.")] = None,
    overrides: SetOption = [],  # noqa: B006
    episodes: EpisodesOption = 64,
    seed: SeedOption = 0,
    memory_gib: Annotated[float | None, typer.Option("--memory-gib", help="Memory limit of each plan.")] = None,
    certify: Annotated[
        bool, typer.Option("--certify", help="Also bound the process with continuous batteries.")
    ] = False,
    svg: Annotated[Path | None, typer.Option("--svg", help="Draw cost over planning time and bytes here.")] = None,
    train: Annotated[int, typer.Option("--train", min=0, help="Also train under so many episodes of each plan.")] = 0,
    report: Annotated[Path | None, typer.Option("--report", help="Write a page of the trained runs here.")] = None,
    runs: Annotated[Path | None, typer.Option("--runs", help="Keep the trained runs in this empty folder.")] = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    device: DeviceOption = "cpu",
    dtype: TypeOption = "float64",
) -> None:
    """All planners on one scenario, on common luck."""
    if memory_gib is not None and not memory_gib > 0:
        raise ScenarioError("--memory-gib", f"expected a number above 0, actual value {memory_gib:g}")
    check_target(svg, "--svg")
    check_target(report, "--report")
    _check_training(train, report, runs)
    _check_names(names or [])
    loaded = load(scenario, overrides, trust)
    problem = build(loaded, device, dtype)
    dataset = check_trainable(loaded, _TRAINING, seed) if train else None
    result = compare(problem, names, episodes, seed, memory_gib=memory_gib, track=track_unless(quiet or as_json))
    facts = network_facts(problem)
    if certify:
        facts["lower bound (simulated)"] = continuous_bound(problem, track_unless(quiet or as_json))
    if svg is not None:
        write_text(svg, pareto_svg(result, f"{scenario}: cost against computation and messages"))
    trained = (
        _trained(problem, result.rows, train, seed, report, runs, dataset, track_unless(quiet or as_json))
        if train
        else {}
    )
    if as_json:
        print_json(
            facts
            | {
                "reference": result.reference,
                "lower bound (grid)": result.lower_bound,
                "rows": [_row_facts(row, trained.get(row.planner)) for row in result.rows],
            }
        )
        return
    screen = console(width=max(_TABLE_WIDTH, console().width))
    screen.print(", ".join(f"{name} {text_of(value)}" for name, value in facts.items()))
    screen.print(_comparison_table(result, scenario, episodes))
    _print_below_table(screen, problem, result, trained)
    if report is not None:
        screen.print(f"{report}: open it in a browser")


def _print_below_table(screen: Console, problem: Problem, result: Comparison, trained: dict[str, list[Run]]) -> None:
    """Accuracies, remarks on the scenario, what the bound says, and why planners refused."""
    if trained:
        screen.print(_accuracy_table(trained, problem))
    for remark in remarks(problem):
        screen.print(f"Note: {remark}")
    if result.lower_bound is not None:
        screen.print(
            "Certified: on the planning grid no policy is expected to cost less than "
            f"{result.lower_bound:.4f} per slot."
        )
    if not problem.grid_is_exact:
        screen.print("Simulated batteries are continuous; the grid rounds them, so costs may lie below its optimum.")
    for row in result.rows:
        if row.refusal:
            screen.print(f"{row.planner} refused. {row.refusal}")


def _check_names(names: Sequence[str]) -> None:
    known = planner_names()
    for name in names:
        if name not in known:
            hint = nearest(name, known)
            raise ScenarioError("planner", f"expected some of {', '.join(known)}, actual value {name!r}{hint}")


def _check_training(train: int, report: Path | None, runs: Path | None) -> None:
    """Refuse what could not be kept before any work is done."""
    for path, option in ((report, "--report"), (runs, "--runs")):
        if path is not None and not train:
            raise ScenarioError(option, "expected --train with a number of episodes, actual value 0")
    if runs is not None and runs.exists() and (not runs.is_dir() or any(runs.iterdir())):
        raise ScenarioError("--runs", f"expected an empty or new folder, actual value {str(runs)!r}")


def _trained(
    problem: Problem,
    rows: Sequence[Row],
    episodes: int,
    seed: int,
    report: Path | None,
    runs: Path | None,
    dataset: Dataset | None,
    track: Track,
) -> dict[str, list[Run]]:
    """Runs by planner, one per episode: all in one stack, on common luck, data and first weights."""
    plans = [row.plan for row in rows if row.plan is not None]
    traces = [
        simulate(problem, plan, episodes, seed, track=track).episode(e) for plan in plans for e in range(episodes)
    ]
    jobs = [TrainJob(problem.scenario, trace, seed=seed + n % episodes) for n, trace in enumerate(traces)]
    done = train_many(jobs, _TRAINING, dataset=dataset, track=track)
    with TemporaryDirectory() as scratch:
        folder = runs or Path(scratch)
        places = []
        for number, (job, run) in enumerate(zip(jobs, done, strict=True)):
            plan, episode = plans[number // episodes], number % episodes
            place = folder / f"{plan.planner.replace(' ', '-')}-{episode}"
            wanted = {"scenario": problem.scenario.content_hash, "planner": plan.planner, "options": {}}
            keep_plan(place, job.trace, plan, wanted | {"seed": job.seed, "episode": episode})
            run.save(place)
            finish_step(place, "train")
            places.append(place)
        if report is not None:
            write_text(report, report_page(places, None, 1))
    return {plan.planner: done[n * episodes : (n + 1) * episodes] for n, plan in enumerate(plans)}


def _accuracy_table(trained: dict[str, list[Run]], problem: Problem) -> Table:
    learning, episodes = problem.scenario.learning, len(next(iter(trained.values())))
    title = f"accuracy after {problem.slots} slots on {learning.dataset}, {episodes} episodes, 95 % intervals"
    best = max(trained, key=lambda name: _finals(trained[name], "accuracy_mean").mean())
    headings = ("mean device %", f"against {best}", "least device %", "average model %", "% per joule")
    table = number_table(title, "planner", *headings)
    for planner, runs in trained.items():
        accuracy = _finals(runs, "accuracy_mean")
        table.add_row(
            planner,
            interval_text(interval(accuracy), ".2f", 100),
            interval_text(interval(accuracy - _finals(trained[best], "accuracy_mean")), "+.2f", 100),
            f"{100 * _finals(runs, 'accuracy_min').min():.2f}",
            interval_text(interval(_finals(runs, "average_accuracy")), ".2f", 100),
            f"{100 * _finals(runs, 'accuracy_per_joule').mean():.4f}",
        )
    return table


def _finals(runs: Sequence[Run], name: str) -> npt.NDArray[np.float64]:
    """A metric at the end of every run."""
    return np.array([run.final[name] for run in runs])


def _row_facts(row: Row, trained: list[Run] | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"planner": row.planner}
    if row.plan is not None and row.summary is not None and row.gap is not None:
        facts |= plan_facts(row.plan) | summary_facts(row.summary)
        facts |= {"gap": row.gap.mean, "gap, 95 % half-width": row.gap.half_width}
    else:
        facts["refusal"] = row.refusal
    if trained:
        facts["accuracy"] = [run.final["accuracy_mean"] for run in trained]
        facts["accuracy of the average model"] = [run.final["average_accuracy"] for run in trained]
    return facts


def _comparison_table(result: Comparison, scenario: str, episodes: int) -> Table:
    title = f"{scenario}: cost per slot, {episodes} episodes, 95 % intervals; gap to {result.reference}"
    headings = ("cost", "gap %", "active %", "arrived %", "offline", "online/slot", "seconds")
    table = number_table(title, "planner", *headings)
    for row in result.rows:
        if row.plan is None or row.summary is None or row.gap is None:
            table.add_row(row.planner, "refused", *[""] * 6)
            continue
        overhead = row.plan.overhead
        table.add_row(
            row.planner + ("" if row.plan.converged else " *"),
            interval_text(row.summary.cost, ".3f"),
            interval_text(row.gap, "+.2f", 100),
            f"{100 * row.summary.participation:.1f}",
            f"{100 * row.summary.delivery:.1f}",
            readable(overhead.offline_bytes),
            readable(overhead.online_bytes_per_slot),
            f"{row.plan.seconds:.2f}",
        )
    if any(row.plan is not None and not row.plan.converged for row in result.rows):
        table.caption = "* the last round still changed some of the policy"
    return table
