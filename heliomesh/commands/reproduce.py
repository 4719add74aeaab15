"""`heliomesh reproduce`: the paper's figures and tables, stored as they finish and never computed twice."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from heliomesh.commands.options import QuietOption, SpreadOptions, StackOptions, check_folder, flattened, option
from heliomesh.commands.progress import track_unless
from heliomesh.commands.terminal import note, say
from heliomesh.pages.tables import publish
from heliomesh.studies.experiments import EXPERIMENTS, experiments
from heliomesh.studies.reproduce import reproduce, store_of

_NAMES = f"Experiments, of {', '.join(one.name for one in EXPERIMENTS)}; all if none is named."


@flattened
def reproduce_command(
    names: Annotated[list[str] | None, typer.Argument(help=_NAMES)] = None,
    out: Annotated[Path, option("Folder of results; what it holds is not repeated.")] = Path("results"),
    *,
    quick: Annotated[bool, option("Small versions of all figures, in the folder quick of --out.", "--quick")] = False,
    only_plan: Annotated[bool, option("Plan and simulate, and train later.", "--only-plan")] = False,
    only_print: Annotated[bool, option("Tables and figures of what is stored.", "--only-print")] = False,
    training: StackOptions,
    together: Annotated[int, option("Runs trained in one stack.", min=1)] = 10,
    spread: SpreadOptions,
    quiet: QuietOption = False,
) -> None:
    """Everything in the paper's evaluation, over paired seeds, with 95 % intervals."""
    check_folder(out)
    experiments(names)  # refuses unknown names before Ray is started
    work: dict[str, Any] = {"track": track_unless(quiet), "notify": note, "runs_at_once": together}
    work |= asdict(training) | ({} if only_print else spread.maps(training.device))
    found = reproduce(names, out, quick=quick, only="read" if only_print else "plan" if only_plan else None, **work)
    folder = store_of(out, quick).folder
    for figure in found:
        page = folder / f"{figure.name}.md"
        if figure.results or page.exists():  # an old page of what is no longer there is made anew
            say(publish(figure, folder), lines=True)
    absent = [figure.name for figure in found if not figure.results]
    if absent:
        command = f"heliomesh reproduce {' '.join(absent)}{' --quick' if quick else ''} --out {out}"
        say(f"{folder} holds no results of {', '.join(absent)} yet: `{command}` makes them.")
