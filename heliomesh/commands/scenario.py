"""List, show and check scenarios."""

from typing import Any

import typer
from rich.table import Table

from heliomesh.commands.facts import show, table, text_of
from heliomesh.commands.options import Changes, JsonOption, ScenarioArgument, flattened
from heliomesh.commands.terminal import say
from heliomesh.model.doubts import remarks
from heliomesh.model.problem import build
from heliomesh.scenario import parts
from heliomesh.scenario.files import shipped
from heliomesh.scenario.scenario import Scenario
from heliomesh.tasks.dataset import find_dataset

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)


@app.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """Names of the shipped scenarios."""
    rows = [
        {
            "name": name,
            "topology": scenario.network.topology,
            "devices": scenario.network.devices,
            "slots": scenario.slots,
            "harvest": scenario.as_dict()["harvest"]["source"],
        }
        for name, scenario in ((name, Scenario.load(name)) for name in shipped())
    ]
    show(as_json, rows, table(rows))


@app.command("show")
@flattened
def show_command(scenario: ScenarioArgument, *, changes: Changes, as_json: JsonOption = False) -> None:
    """Print a scenario in full, defaults included."""
    loaded = changes.scenario(scenario)
    text = f"# sha256 {loaded.content_hash}\n{loaded.to_toml().rstrip()}"
    show(as_json, loaded.as_dict() | {"hash": loaded.content_hash}, text)


@app.command("validate")
@flattened
def validate_command(scenario: ScenarioArgument, *, changes: Changes) -> None:
    """Check a scenario and all it refers to; exit code 2 and one sentence if it is wrong."""
    loaded = changes.scenario(scenario)
    find_dataset(loaded.learning)
    problem = build(loaded)
    least, most = problem.scarcity().min(), problem.scarcity().max()
    size = f"{problem.num_devices} devices, diameter {problem.topology.diameter}"
    say(f"{scenario}: valid; {size}, scarcity ratio {float(least):.2f} to {float(most):.2f}")
    for remark in remarks(problem):
        say(f"note: {remark}")


@app.command("radios")
def radios_command(as_json: JsonOption = False) -> None:
    """Radios for energy.radio: their numbers, and the data sheets that these are from."""
    _print_parts("radio", as_json)


@app.command("boards")
def boards_command(as_json: JsonOption = False) -> None:
    """Computers for energy.board: their numbers, and where these are from."""
    _print_parts("board", as_json)


def _print_parts(kind: str, as_json: bool) -> None:
    found = {name: parts.read(kind, name).model_dump(mode="json", exclude_none=True) for name in parts.names(kind)}
    show(as_json, found, *(_part_table(name, **part) for name, part in found.items()))


def _part_table(name: str, title: str, source: dict[str, str], **numbers: Any) -> Table:
    rows = [{"number": field, "value": text_of(value), "place": source[field]} for field, value in numbers.items()]
    return table(rows, f"{name}: {title}", fold="place", caption=source["document"])


@app.command("schema")
def schema_command() -> None:
    """JSON schema of scenario files, for editors."""
    show(True, Scenario.json_schema())
