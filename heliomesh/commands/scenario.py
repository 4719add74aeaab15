"""`heliomesh scenario`: list, show and check scenarios."""

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from heliomesh.commands.facts import print_json, remarks, text_of
from heliomesh.commands.options import JsonOption, ScenarioArgument, SetOption, load
from heliomesh.commands.terminal import console, say
from heliomesh.learning.dataset import find_dataset
from heliomesh.physics import parts
from heliomesh.problem.problem import build
from heliomesh.scenario import Scenario, shipped

app = typer.Typer(no_args_is_help=True, help="List, show and check scenarios.")


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
        for name in shipped()
        for scenario in [Scenario.load(name)]
    ]
    if as_json:
        print_json(rows)
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    console().print(table)


@app.command("show")
def show_command(scenario: ScenarioArgument, overrides: SetOption = [], as_json: JsonOption = False) -> None:  # noqa: B006
    """Print a scenario in full, defaults included."""
    loaded = load(scenario, overrides)
    if as_json:
        print_json(loaded.as_dict() | {"hash": loaded.content_hash})
    else:
        say(f"# sha256 {loaded.content_hash}\n{loaded.to_toml().rstrip()}", lines=True)


@app.command("validate")
def validate_command(scenario: ScenarioArgument, overrides: SetOption = []) -> None:  # noqa: B006
    """Check a scenario and all it refers to; exit code 2 and one sentence if it is wrong."""
    loaded = load(scenario, overrides)
    find_dataset(loaded.learning)
    problem = build(loaded)
    scarcity = problem.scarcity()
    say(
        f"{scenario}: valid; {problem.num_devices} devices, diameter {problem.topology.diameter}, "
        f"scarcity ratio {float(scarcity.min()):.2f} to {float(scarcity.max()):.2f}"
    )
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
    if as_json:
        print_json(found)
        return
    for name, part in found.items():
        places = part.pop("source")
        title, document = f"{name}: {part.pop('title')}", places["document"]
        table = Table("number", "value", "place", title=title, caption=document, box=SIMPLE_HEAD, pad_edge=False)
        for field, value in part.items():
            table.add_row(field, text_of(value), places[field])
        console().print(table)


@app.command("schema")
def schema_command() -> None:
    """JSON schema of scenario files, for editors."""
    print_json(Scenario.json_schema())
