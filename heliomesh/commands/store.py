"""List, show, verify and export folders of runs and results."""

from pathlib import Path
from typing import Annotated, Any

import typer

from heliomesh.commands.facts import print_facts, show, table
from heliomesh.commands.options import JsonOption, check_folder, option
from heliomesh.commands.terminal import say
from heliomesh.interop.weights import WeightFormat, write_weights
from heliomesh.jobs.store import PLAN, TRACE
from heliomesh.learning.run import MANIFEST, Run
from heliomesh.pages.inventory import COLUMNS, lines, run_line, states, walk
from heliomesh.pages.run_folder import is_run, read_run

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)

FoldersArgument = Annotated[list[Path], typer.Argument(help="Folders of runs or results, or folders that hold some.")]


@app.command("list")
def list_command(folders: FoldersArgument, as_json: JsonOption = False) -> None:
    """One line per run or stored result: planner, scenario, seed, how far it came and how good it is."""
    rows = [row for path in walk(folders) for row in lines(path)]
    cells = [{name: str(row[name]) for name in ("folder", *COLUMNS)} for row in rows]
    show(as_json, rows, table(cells, fold="folder") if cells else "no runs or results here")


@app.command("show")
def show_command(
    folder: Annotated[Path, typer.Argument(help="Folder of a run.")], as_json: JsonOption = False
) -> None:
    """Everything known of one run."""
    found = read_run(folder)
    facts: dict[str, Any] = run_line(folder) | {"finished": found.finished, "missing": " ".join(found.missing)}
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
    found: dict[str, list[bool]] = {"runs": [], "stored results": []}
    for path in walk(folders):
        for place, state, is_whole in states(path):
            found["runs" if is_run(path) else "stored results"].append(is_whole)
            say(f"{place}: {state}")
    for kind, whole in found.items():
        if whole or kind == "runs":
            say(f"{sum(whole)} of {len(whole)} {kind} are whole")
    if not all(map(all, found.values())):
        raise typer.Exit(2)


@app.command("export")
def export_command(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    out: Annotated[Path, option("Folder for the files.")],
    form: Annotated[WeightFormat, option("safetensors: a state_dict; onnx: a graph.", "--format")] = "safetensors",
    as_json: JsonOption = False,
) -> None:
    """Write every device's trained model as a file of its own."""
    check_folder(out)
    run = Run.load(folder)
    files = write_weights(run, out, form)
    facts = {"devices": len(files), "parameters": run.weights.shape[1], "files": [str(file) for file in files]}
    print_facts(facts, as_json)
