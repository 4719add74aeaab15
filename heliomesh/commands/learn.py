"""`heliomesh learn`: what planning for learning gives over planning for packets and over no plan."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from heliomesh.commands.facts import number_table, print_json
from heliomesh.commands.options import (
    OutputOptions,
    ProcessesOption,
    ScenarioArgument,
    SetOption,
    flattened,
    load,
    process_maps,
)
from heliomesh.commands.reproduce import StackOptions
from heliomesh.commands.terminal import console, note
from heliomesh.learning.preflight import check_trainable
from heliomesh.learning.settings import TrainSettings
from heliomesh.pages.tables import seeds_text, seeds_title
from heliomesh.scenario import Scenario
from heliomesh.studies.gain import Arm, Gain, gain


@dataclass(frozen=True)
class ChangeOptions:
    """What differs from the scenario's file."""

    overrides: SetOption = field(default_factory=list)


@flattened
def learn_command(
    scenario: ScenarioArgument,
    seeds: Annotated[int, typer.Option("--train", min=1, help="Paired seeds to train.")] = 5,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of results; nothing in it is repeated.")] = None,
    processes: ProcessesOption = 1,
    *,
    changes: ChangeOptions,
    training: StackOptions,
    output: OutputOptions,
) -> None:
    """Train under a plan for learning, the paper's proposal and no plan, with common random numbers."""
    world = load(scenario, changes.overrides)
    check_trainable(world, TrainSettings(**asdict(training)))
    settings: dict[str, Any] = asdict(training) | process_maps(processes, training.device)
    found = gain(world, seeds, folder=out, track=output.track, notify=note, **settings)
    if output.as_json:
        print_json({arm.label: _facts(arm) for arm in found.arms})
    else:
        console().print(_table(found, world))


def _facts(arm: Arm) -> dict[str, Any]:
    return {
        "accuracy": arm.accuracy.tolist(),
        "accuracy over the run": arm.accuracy_over_run.tolist(),
        "spent_joule": arm.final("spent_joule").tolist(),
    }


def _table(found: Gain, scenario: Scenario) -> Table:
    seeds = len(found.arms[0].runs)
    title = f"{scenario.name}: accuracy after {scenario.slots} slots on {scenario.learning.dataset}, {seeds} seeds"
    headings = ("accuracy %", "learning gains", "over the run %", "joule")
    table = number_table(seeds_title(title, seeds), "plan", *headings)
    for arm in found.arms:
        own = arm is found.arms[0]
        table.add_row(
            arm.label,
            seeds_text(arm.accuracy, ".2f"),
            "" if own else seeds_text(found.gained(arm), "+.2f"),
            seeds_text(arm.accuracy_over_run, ".2f"),
            f"{arm.final('spent_joule').mean():.0f}",
        )
    return table
