"""`heliomesh reproduce`: the paper's figures and tables, stored as they finish and never computed twice."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from heliomesh.commands.options import QuietOption, SpreadOptions, StackOptions, check_folder, flattened, option
from heliomesh.commands.progress import track_unless
from heliomesh.commands.terminal import note, say
from heliomesh.pages.tables import publish
from heliomesh.studies.experiments import EXPERIMENTS, experiments
from heliomesh.studies.reproduce import reproduce, store_of

_NAMES = f"Experiments, of {', '.join(one.name for one in EXPERIMENTS)}; all if none is named."


@dataclass(frozen=True)
class FigureOptions:
    """How much of the figures."""

    quick: Annotated[bool, option("A small version of every figure, in the folder quick of --out.", "--quick")] = (
        False
    )
    only_plan: Annotated[bool, option("Plan and simulate, and train later.", "--only-plan")] = False
    only_print: Annotated[bool, option("Tables and figures of what is stored.", "--only-print")] = False

    @property
    def only(self) -> Literal["plan", "read"] | None:
        """The same for the study."""
        return "read" if self.only_print else "plan" if self.only_plan else None


@flattened
def reproduce_command(
    names: Annotated[list[str] | None, typer.Argument(help=_NAMES)] = None,
    out: Annotated[Path, option("Folder of results; what it holds is not repeated.")] = Path("results"),
    *,
    asked: FigureOptions,
    training: StackOptions,
    together: Annotated[int, option("Runs trained in one stack.", min=1)] = 10,
    spread: SpreadOptions,
    quiet: QuietOption = False,
) -> None:
    """Everything in the paper's evaluation, over paired seeds, with 95 % intervals."""
    check_folder(out)
    experiments(names)  # refuses unknown names before Ray is started
    maps = {} if asked.only_print else spread.maps(training.device)
    work: dict[str, Any] = {"track": track_unless(quiet), "notify": note, "runs_at_once": together, **maps}
    found = reproduce(names, out, quick=asked.quick, only=asked.only, **asdict(training), **work)
    folder = store_of(out, asked.quick).folder
    for figure in found:
        page = folder / f"{figure.name}.md"
        if figure.results or page.exists():  # an old page of what is no longer there is made anew
            say(publish(figure, folder), lines=True)
    _tell_absent([figure.name for figure in found if not figure.results], folder, out, asked.quick)


def _tell_absent(names: list[str], folder: Path, out: Path, quick: bool) -> None:
    if names:
        command = f"heliomesh reproduce {' '.join(names)}{' --quick' if quick else ''} --out {out}"
        say(f"{folder} holds no results of {', '.join(names)} yet: `{command}` makes them.")
