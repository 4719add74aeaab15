"""`heliomesh bench`: every planner on ten fixed scenarios, and the leaderboard."""

from pathlib import Path
from typing import Annotated

from heliomesh.commands.facts import show
from heliomesh.commands.options import OutputOptions, flattened, option
from heliomesh.commands.terminal import note, tell
from heliomesh.common.durable import write_text
from heliomesh.pages.leaderboard import leaderboard_text, overall_text
from heliomesh.studies.bench.bench import bench, leaderboard
from heliomesh.studies.bench.scenarios import BENCH

PAGE = "leaderboard.md"  # in the folder of results


@flattened
def bench_command(
    only: Annotated[list[str], option("A scenario. Repeatable; default: all ten.")] = [],  # noqa: B006
    planner: Annotated[list[str], option("A planner. Repeatable; default: all that are installed.")] = [],  # noqa: B006
    folder: Annotated[Path, option("Folder of results; what it holds is not repeated.")] = Path("results/bench"),
    only_print: Annotated[bool, option("The page of what is stored.", "--only-print")] = False,
    only_list: Annotated[bool, option("The scenarios, and how each is measured.", "--list")] = False,
    *,
    output: OutputOptions,
) -> None:
    """Measure planners on ten fixed scenarios where that is missing, and write the leaderboard."""
    if only_list:
        own = ("description", "episodes", "seeds", "sha256")
        rows = [{"scenario": one.name} | {name: getattr(one, name) for name in own} for one in BENCH.scenarios]
        lines = (f"{row['scenario']}: {row['description']}" for row in rows)
        show(output.as_json, {"bench": BENCH.version, "scenarios": rows}, *lines)
        return
    if not only_print:
        report = (lambda _: None) if output.silent else tell
        bench(folder, only, planner or None, track=output.track, notify=note, report=report)
    board = leaderboard(folder)
    write_text(folder / PAGE, leaderboard_text(board))
    more = f"{folder / PAGE} has every scenario"
    show(output.as_json, board.table().to_dict("records"), overall_text(board), more)
