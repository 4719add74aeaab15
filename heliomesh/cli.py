"""The command line: scenarios, plans, simulations, comparisons and training."""

import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from heliomesh.catalog import UnknownVariantError, named_code
from heliomesh.commands import compare, data, export, fleet, live, report, reproduce, runs, size, train
from heliomesh.commands.facts import network_facts, plan_facts, print_facts, print_json, remarks, summary_facts
from heliomesh.commands.options import (
    AddressOption,
    DeviceOption,
    Engine,
    EngineOption,
    EpisodesOption,
    JsonOption,
    PlannerArgument,
    PlannerOptions,
    QuietOption,
    ScenarioArgument,
    SeedOption,
    SetOption,
    TypeOption,
    check_target,
    load,
    planner_options,
    start_engine,
    track_unless,
)
from heliomesh.learning.dataset import DatasetError, find_dataset
from heliomesh.learning.run import TrainingError
from heliomesh.planning import make_plan
from heliomesh.problem.problem import Problem, build
from heliomesh.problem.size import TooLargeError
from heliomesh.scenario import Scenario, ScenarioError, shipped
from heliomesh.simulation.diagnostics import summarise
from heliomesh.simulation.ledger import energy_ledger
from heliomesh.simulation.trace import TraceError, simulate

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
scenario_app = typer.Typer(no_args_is_help=True, help="List, show and check scenarios.")
app.add_typer(scenario_app, name="scenario")
app.add_typer(data.app, name="data")
app.add_typer(runs.app, name="runs")
app.command("compare")(compare.compare_command)
app.command("export")(export.export_command)
app.command("train")(train.train_command)
app.command("run")(train.run_command)
app.command("fleet")(fleet.fleet_command)
app.command("report")(report.report_command)
app.command("reproduce")(reproduce.reproduce_command)
app.command("size")(size.size_command)
app.command("live")(live.live_command)
app.command("prune")(live.prune_command)
app.command("scope")(live.scope_command)


@app.callback()
def trust_callback(
    context: typer.Context,
    trust: Annotated[bool, typer.Option(help="Run code that a scenario names as module:name.")] = False,
) -> None:
    """The command line: scenarios, plans, simulations, comparisons and training."""
    context.with_resource(named_code(trust))


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
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        sys.stderr.write("error: memory: expected enough for this work, actual: an allocation failed\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether Python, or torch on a processor or a GPU, found no room."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


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
    loaded = load(scenario, overrides)
    find_dataset(loaded.learning)
    problem = build(loaded)
    scarcity = problem.scarcity()
    sys.stdout.write(
        f"{scenario}: valid; {problem.num_devices} devices, diameter {problem.topology.diameter}, "
        f"scarcity ratio {float(scarcity.min()):.2f} to {float(scarcity.max()):.2f}\n"
    )
    for remark in remarks(problem):
        sys.stdout.write(f"note: {remark}\n")


@scenario_app.command("schema")
def scenario_schema() -> None:
    """JSON schema of scenario files, for editors."""
    print_json(Scenario.json_schema())


@app.command("plan")
def plan_command(
    scenario: ScenarioArgument,
    planner: PlannerArgument,
    overrides: SetOption = [],  # noqa: B006
    options: PlannerOptions = [],  # noqa: B006
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    device: DeviceOption = "cpu",
    dtype: TypeOption = "float64",
    engine: EngineOption = Engine.local,
    address: AddressOption = None,
) -> None:
    """Make one plan and say what is known about it."""
    problem = _problem(scenario, overrides, device, dtype)
    spread, track = start_engine(engine, address).parallel_map, track_unless(quiet or as_json)
    made = make_plan(problem, planner, planner_options(options), parallel_map=spread, track=track)
    facts = network_facts(problem) | plan_facts(made)
    print_facts(facts, as_json)


@app.command("simulate")
def simulate_command(
    scenario: ScenarioArgument,
    planner: PlannerArgument,
    overrides: SetOption = [],  # noqa: B006
    options: PlannerOptions = [],  # noqa: B006
    episodes: EpisodesOption = 64,
    seed: SeedOption = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Save the trace to this .npz file.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    device: DeviceOption = "cpu",
    dtype: TypeOption = "float64",
    engine: EngineOption = Engine.local,
    address: AddressOption = None,
) -> None:
    """Plan, then simulate with continuous batteries."""
    check_target(out, "--out")
    problem = _problem(scenario, overrides, device, dtype)
    spread, track = start_engine(engine, address).parallel_map, track_unless(quiet or as_json)
    made = make_plan(problem, planner, planner_options(options), parallel_map=spread, track=track)
    trace = simulate(problem, made, episodes, seed, track=track)
    ledger = energy_ledger(trace)
    facts = network_facts(problem) | plan_facts(made) | summary_facts(summarise(trace))
    facts["energy ledger imbalance [J], largest"] = float(abs(ledger.imbalance_joule).max())
    if out is not None:
        trace.save(out)
        facts["trace"] = str(out)
    print_facts(facts, as_json)


def _problem(scenario: str, overrides: list[str], device: str, dtype: str) -> Problem:
    return build(load(scenario, overrides), device, dtype)
