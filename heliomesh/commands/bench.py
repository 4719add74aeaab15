"""Every planner on ten fixed scenarios: the leaderboard."""

from pathlib import Path
from typing import Annotated, Any

import typer

from heliomesh.commands.facts import show
from heliomesh.commands.options import JsonOption, PlannerOptions, QuietOption, option, planner_options
from heliomesh.commands.progress import track_unless
from heliomesh.commands.terminal import note, say, tell
from heliomesh.common.catalog import trusting, vouch
from heliomesh.common.durable import write_text
from heliomesh.learning.trainer import Execution
from heliomesh.pages.leaderboard import leaderboard_text, overall_text
from heliomesh.scenario.errors import refuse
from heliomesh.studies.bench.bench import TOLERANCE, Planner, add_line, bench, leaderboard, verify
from heliomesh.studies.bench.line import read_line
from heliomesh.studies.bench.scenarios import BENCH

app = typer.Typer(invoke_without_command=True, add_completion=False, help=__doc__)
PAGE = "leaderboard.md"  # in the folder of results

OnlyOption = Annotated[list[str], option("A scenario. Repeatable; default: all ten.")]
FolderOption = Annotated[Path, option("Folder of results; what it holds is not repeated.")]
_FOLDER = Path("results/bench")


@app.callback()
def bench_command(
    context: typer.Context,
    only: OnlyOption = [],  # noqa: B006
    planner: Annotated[list[str], option("A planner. Repeatable; default: all that are installed.")] = [],  # noqa: B006
    folder: FolderOption = _FOLDER,
    only_print: Annotated[bool, option("The page of what is stored.", "--only-print")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure what is missing, and write the page."""
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    if not only_print:
        bench(folder, only, planner or None, **_watched(quiet or as_json))
    _publish(folder, as_json)


def _refuse_options(context: typer.Context) -> None:
    """Options belong behind the name of the command that they are for."""
    sources = filter(None, map(context.get_parameter_source, context.params))
    early, command = any(source.name == "COMMANDLINE" for source in sources), context.invoked_subcommand
    refuse(early, "bench", f"options behind `heliomesh bench {command}`", ": some stand before its end")


def _watched(silent: bool) -> dict[str, Any]:
    """Who is told how far the work is."""
    return {"track": track_unless(silent), "notify": note, "report": (lambda _: None) if silent else tell}


def _publish(folder: Path, as_json: bool = False) -> None:
    """Write the page, and print its first table."""
    board = leaderboard(folder)
    write_text(folder / PAGE, leaderboard_text(board))
    more = f"{folder / PAGE} has every scenario"
    show(as_json, board.table().to_dict("records"), overall_text(board), more)


@app.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """The scenarios, and how each is measured."""
    rows = [
        {
            "scenario": one.name,
            "description": one.description,
            "devices": one.scenario.network.devices,
            "episodes": one.episodes,
            "seeds": one.seeds,
            "sha256": one.sha256,
        }
        for one in BENCH.scenarios
    ]
    lines = (f"{row['scenario']}: {row['description']}" for row in rows)
    show(as_json, {"bench": BENCH.version, "scenarios": rows}, *lines)


@app.command("add")
def add_command(
    what: Annotated[str, typer.Argument(help="A planner: its name or module:name; or the file of a line.")],
    options: PlannerOptions = [],  # noqa: B006
    only: OnlyOption = [],  # noqa: B006
    folder: FolderOption = _FOLDER,
    quiet: QuietOption = False,
) -> None:
    """Measure a planner from outside and add its line, or add a line that was measured elsewhere."""
    if what.endswith(".json"):
        line = add_line(what, folder)
        say(f"{line.label}: added with {len(line.entries)} scenarios; `heliomesh bench verify` checks its costs")
        _publish(folder)
        return
    chosen = planner_options(options)
    planner: Planner | str = (what, chosen) if chosen else what
    with trusting(None):
        vouch(what)  # who calls names the code, no file does
        bench(folder, only, [planner], **_watched(quiet))
        _publish(folder)


@app.command("verify")
def verify_command(
    files: Annotated[list[Path] | None, typer.Argument(help="Files of lines; all of the folder if none.")] = None,
    episodes: Annotated[int, option("Episodes to simulate again.", min=1)] = 4,
    only: OnlyOption = [],  # noqa: B006
    folder: FolderOption = _FOLDER,
    quiet: QuietOption = False,
) -> None:
    """Plan again, simulate a few episodes and compare costs; exit code 2 if one is wrong."""
    lines = [read_line(file, BENCH) for file in files] if files else list(leaderboard(folder).lines)
    wrong = 0
    for verdict in verify(lines, BENCH, only, episodes, Execution(track=track_unless(quiet))):
        state = "agrees" if verdict.agrees else "WRONG"
        say(f"{verdict.scenario}: {verdict.label}: stored {verdict.stored:.6f}, found {verdict.found:.6f}: {state}")
        wrong += not verdict.agrees
    refuse(wrong, "cost", f"stored costs within {TOLERANCE:.1%}", f"number of others {wrong}")
