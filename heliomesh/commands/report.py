"""`heliomesh report`: one self-contained page of some runs."""

from pathlib import Path
from typing import Annotated

import typer

from heliomesh.commands.options import check_target, option
from heliomesh.commands.terminal import say
from heliomesh.common.memory_limit import readable
from heliomesh.pages.page import report


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, from `heliomesh run --out`.")],
    out: Annotated[Path, option("The HTML file to write.")] = Path("report.html"),
    title: Annotated[str | None, option("Heading; default: scenarios and planners.")] = None,
    every: Annotated[int, option("Keep every such slot in the player, for long runs.", min=1)] = 1,
    quiet: Annotated[bool, option("Do not say what was written.", "--quiet")] = False,
) -> None:
    """Write one HTML page of some runs; it opens from the disk and needs no network."""
    check_target(out)
    report(runs, out, title=title, every=every)
    if not quiet:
        number = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        say(f"{out}: {number}, {readable(out.stat().st_size)}")
