"""`heliomesh pilot`: a short training that finds how unlike the devices' data are."""

from dataclasses import asdict
from typing import Annotated

import typer

from heliomesh.commands.facts import print_facts
from heliomesh.commands.learn import ChangeOptions
from heliomesh.commands.options import JsonOption, ScenarioArgument, flattened, load
from heliomesh.commands.reproduce import StackOptions
from heliomesh.studies.pilot import pilot


@flattened
def pilot_command(
    scenario: ScenarioArgument,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed of data and training.")] = None,
    as_json: JsonOption = False,
    *,
    changes: ChangeOptions,
    training: StackOptions,
) -> None:
    """Train briefly and print `cost.unlikeness` for the planner `contributions`."""
    found = pilot(load(scenario, changes.overrides), seed=seed, **asdict(training))
    print_facts({name.replace("_", " "): value for name, value in asdict(found).items()}, as_json)
