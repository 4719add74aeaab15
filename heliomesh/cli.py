"""The command line: scenarios, plans, simulations, comparisons and training."""

import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from heliomesh.catalog import UnknownVariantError, nearest
from heliomesh.commands import data, report, reproduce, train
from heliomesh.commands.facts import network_facts, plan_facts, print_facts, print_json, summary_facts, text_of
from heliomesh.commands.options import (
    DeviceOption,
    EpisodesOption,
    JsonOption,
    PlannerOptions,
    QuietOption,
    ScenarioArgument,
    SeedOption,
    SetOption,
    TypeOption,
    load,
    planner_options,
    track_unless,
)
from heliomesh.comparison import Comparison, Row, compare
from heliomesh.learning.dataset import DatasetError
from heliomesh.learning.run import TrainingError
from heliomesh.planning import continuous_bound, make_plan, planner_names
from heliomesh.problem.problem import Problem, build
from heliomesh.problem.size import TooLargeError, readable
from heliomesh.report.pareto import pareto_svg
from heliomesh.scenario import Scenario, ScenarioError, shipped
from heliomesh.simulation.diagnostics import Interval, summarise
from heliomesh.simulation.ledger import energy_ledger
from heliomesh.simulation.trace import TraceError, simulate

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
scenario_app = typer.Typer(no_args_is_help=True, help="List, show and check scenarios.")
app.add_typer(scenario_app, name="scenario")
app.add_typer(data.app, name="data")
app.command("train")(train.train_command)
app.command("run")(train.run_command)
app.command("report")(report.report_command)
app.command("reproduce")(reproduce.reproduce_command)

_TABLE_WIDTH = 118  # the comparison table is cut below it


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except (DatasetError, ScenarioError, TooLargeError, TraceError, TrainingError, UnknownVariantError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except OSError as error:
        sys.stderr.write(f"error: {error.filename or 'file'}: expected to be usable, actual: {error.strerror}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


@scenario_app.command("list")
def scenario_list(as_json: JsonOption = False) -> None:
    """Names of the shipped scenarios."""
    rows = [
        {
            "name": name,
            "topology": scenario.network.topology,
            "devices": scenario.network.devices,
            "slots": scenario.slots,
            "harvest": scenario.as_dict()["harvest"]["source"],
        }
        for name in shipped()
        for scenario in [Scenario.load(name)]
    ]
    if as_json:
        print_json(rows)
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)


@scenario_app.command("show")
def scenario_show(scenario: ScenarioArgument, overrides: SetOption = [], as_json: JsonOption = False) -> None:  # noqa: B006
    """Print a scenario in full, defaults included."""
    loaded = load(scenario, overrides)
    if as_json:
        print_json(loaded.as_dict() | {"hash": loaded.content_hash})
    else:
        sys.stdout.write(f"# sha256 {loaded.content_hash}\n{loaded.to_toml()}")


@scenario_app.command("validate")
def scenario_validate(scenario: ScenarioArgument, overrides: SetOption = []) -> None:  # noqa: B006
    """Check a scenario and all it refers to; exit code 2 and one sentence if it is wrong."""
    problem = build(load(scenario, overrides))
    scarcity = problem.scarcity()
    sys.stdout.write(
        f"{scenario}: valid; {problem.num_devices} devices, diameter {problem.topology.diameter}, "
        f"scarcity ratio {float(scarcity.min()):.2f} to {float(scarcity.max()):.2f}\n"
    )
    for remark in _remarks(problem):
        sys.stdout.write(f"note: {remark}\n")


@scenario_app.command("schema")
def scenario_schema() -> None:
    """JSON schema of scenario files, for editors."""
    print_json(Scenario.json_schema())


@app.command("plan")
def plan_command(
    scenario: ScenarioArgument,
    planner: Annotated[str, typer.Argument(help="A planner's name.")],
    overrides: SetOption = [],  # noqa: B006
    options: PlannerOptions = [],  # noqa: B006
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    device: DeviceOption = "cpu",
    dtype: TypeOption = "float64",
) -> None:
    """Make one plan and say what is known about it."""
    problem = _problem(scenario, overrides, device, dtype)
    made = make_plan(problem, planner, planner_options(options), track=track_unless(quiet or as_json))
    facts = network_facts(problem) | plan_facts(made)
    print_facts(facts, as_json)


@app.command("simulate")
def simulate_command(
    scenario: ScenarioArgument,
    planner: Annotated[str, typer.Argument(help="A planner's name.")],
    overrides: SetOption = [],  # noqa: B006
    options: PlannerOptions = [],  # noqa: B006
    episodes: EpisodesOption = 64,
    seed: SeedOption = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Save the trace to this .npz file.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    device: DeviceOption = "cpu",
    dtype: TypeOption = "float64",
) -> None:
    """Plan, then simulate with continuous batteries."""
    _check_target(out, "--out")
    problem = _problem(scenario, overrides, device, dtype)
    track = track_unless(quiet or as_json)
    made = make_plan(problem, planner, planner_options(options), track=track)
    trace = simulate(problem, made, episodes, seed, track=track)
    ledger = energy_ledger(trace)
    facts = network_facts(problem) | plan_facts(made) | summary_facts(summarise(trace))
    facts["energy ledger imbalance [J], largest"] = float(abs(ledger.imbalance_joule).max())
    if out is not None:
        trace.save(out)
        facts["trace"] = str(out)
    print_facts(facts, as_json)


@app.command("compare")
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
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    device: DeviceOption = "cpu",
    dtype: TypeOption = "float64",
) -> None:
    """All planners on one scenario, on common luck."""
    if memory_gib is not None and not memory_gib > 0:
        raise ScenarioError("--memory-gib", f"expected a number above 0, actual value {memory_gib:g}")
    _check_target(svg, "--svg")
    unknown = [name for name in names or [] if name not in planner_names()]
    if unknown:
        hint = nearest(unknown[0], planner_names())
        known = ", ".join(planner_names())
        raise ScenarioError("planner", f"expected some of {known}, actual value {unknown[0]!r}{hint}")
    problem = _problem(scenario, overrides, device, dtype)
    result = compare(problem, names, episodes, seed, memory_gib=memory_gib, track=track_unless(quiet or as_json))
    facts = network_facts(problem)
    if certify:
        facts["lower bound (simulated)"] = continuous_bound(problem, track_unless(quiet or as_json))
    if svg is not None:
        svg.write_text(pareto_svg(result, f"{scenario}: cost against computation and messages"))
    if as_json:
        print_json(
            facts
            | {
                "reference": result.reference,
                "lower bound (grid)": result.lower_bound,
                "rows": [_row_facts(row) for row in result.rows],
            }
        )
        return
    console = Console(width=max(_TABLE_WIDTH, Console().width))
    console.print(", ".join(f"{name} {text_of(value)}" for name, value in facts.items()))
    console.print(_comparison_table(result, scenario, episodes))
    for remark in _remarks(problem):
        console.print(f"Note: {remark}")
    if result.lower_bound is not None:
        console.print(f"Certified: on the planning grid no policy costs less than {result.lower_bound:.4f} per slot.")
    if not problem.grid_is_exact:
        console.print("Simulated batteries are continuous; the grid rounds them, so costs may lie below its optimum.")
    for row in result.rows:
        if row.refusal:
            console.print(f"{row.planner} refused. {row.refusal}", markup=False)


def _check_target(path: Path | None, option: str) -> None:
    """Refuse a file that could not be written before any work is done."""
    if path is not None and (path.is_dir() or not path.resolve().parent.is_dir()):
        raise ScenarioError(option, f"expected a file in an existing folder, actual value {str(path)!r}")


def _problem(scenario: str, overrides: list[str], device: str, dtype: str) -> Problem:
    return build(load(scenario, overrides), device, dtype)


def _remarks(problem: Problem) -> list[str]:
    """What is valid but probably not meant."""
    remarks = []
    if not bool((problem.actions.quanta[:, 1:] < problem.battery.levels).any()):
        remarks.append("no device can ever afford to train; raise energy.capacity_joule or lower the energies")
    elif problem.rounding_excess() > _COARSE:
        remarks.append(
            f"the planning grid rounds spending up by as much as {problem.rounding_excess():.0%}, so plans are too "
            "timid; choose energy.battery_levels such that actions cost just under whole steps"
        )
    return remarks


_COARSE = 0.35  # rounding beyond which plans visibly suffer


def _row_facts(row: Row) -> dict[str, Any]:
    facts: dict[str, Any] = {"planner": row.planner}
    if row.plan is not None and row.summary is not None and row.gap is not None:
        facts |= plan_facts(row.plan) | summary_facts(row.summary)
        facts |= {"gap": row.gap.mean, "gap, 95 % half-width": row.gap.half_width}
    else:
        facts["refusal"] = row.refusal
    return facts


def _comparison_table(result: Comparison, scenario: str, episodes: int) -> Table:
    title = f"{scenario}: cost per slot, {episodes} episodes, 95 % intervals; gap to {result.reference}"
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.add_column("planner", no_wrap=True)
    for heading in ("cost", "gap %", "active %", "arrived %", "offline", "online/slot", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result.rows:
        if row.plan is None or row.summary is None or row.gap is None:
            table.add_row(row.planner, "refused", *[""] * 6)
            continue
        overhead = row.plan.overhead
        table.add_row(
            row.planner + ("" if row.plan.converged else " *"),
            _interval(row.summary.cost, "{:.3f}", 1),
            _interval(row.gap, "{:+.2f}", 100),
            f"{100 * row.summary.participation:.1f}",
            f"{100 * row.summary.delivery:.1f}",
            readable(overhead.offline_bytes),
            readable(overhead.online_bytes_per_slot),
            f"{row.plan.seconds:.2f}",
        )
    if any(row.plan is not None and not row.plan.converged for row in result.rows):
        table.caption = "* the last round still changed some of the policy"
    return table


def _interval(value: Interval, form: str, factor: float) -> str:
    width = form.replace("+", "").format(factor * value.half_width) if math.isfinite(value.half_width) else "?"
    return f"{form.format(factor * value.mean)} ± {width}"
