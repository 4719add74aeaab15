"""Compare plans in a changing world, tune schemes, and pilot the data."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from heliomesh.commands import options as shared
from heliomesh.commands.facts import build_noted, print_facts, show, table
from heliomesh.commands.options import flattened, option
from heliomesh.commands.terminal import note
from heliomesh.field.living.detector import USUAL_FALSE_ALARM_PROB
from heliomesh.jobs.steps import network_facts
from heliomesh.pages.intervals import interval_text, seeds_title
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.studies.live import UNCHANGED, Survivors, Trial, live
from heliomesh.studies.pilot import pilot
from heliomesh.studies.tuning import tune

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)

CURVES = "curves.svg"


@app.command("tune")
@flattened
def tune_command(
    scenario: shared.ScenarioArgument,
    schemes: Annotated[list[str], typer.Argument(help="Planners or schemes; see `compare`.")],
    seeds: Annotated[int, option("Validation seeds to train.", "--train", min=1, max=10**5)] = 3,
    out: Annotated[Path | None, option("Folder of results; nothing in it is repeated.")] = None,
    *,
    changes: shared.Changes,
    training: shared.StackOptions,
    output: shared.OutputOptions,
) -> None:
    """Turn every scheme's few knobs by one small search, on held-out samples and seeds of its own."""
    problem = build_noted(changes.scenario(scenario))
    found = tune(problem, schemes, seeds, store=out, track=output.track, notify=note, **asdict(training))
    rows, facts = [], {}
    for asked, one in zip(schemes, found, strict=True):
        best = 100 * one.tried[one.scheme.label]
        rows.append({"asked": asked, "chosen": one.scheme.label, "accuracy %": best, "tried": len(one.tried)})
        facts[asked] = {"chosen": one.scheme.label, "tried": one.tried}
    show(output.as_json, facts, table(rows, f"{scenario}: what {seeds} validation seeds choose"))


@app.command("pilot")
@flattened
def pilot_command(
    scenario: shared.ScenarioArgument,
    seed: Annotated[int | None, option("Seed of data and training.", min=0)] = None,
    as_json: shared.JsonOption = False,
    *,
    changes: shared.Changes,
    training: shared.StackOptions,
) -> None:
    """Train briefly and print `cost.unlikeness` for the planner `contributions`."""
    found = pilot(changes.scenario(scenario), seed=seed, **asdict(training))
    print_facts({name.replace("_", " "): value for name, value in asdict(found).items()}, as_json)


@app.command("change")
@flattened
def change_command(
    scenario: shared.ScenarioArgument,
    changes: Annotated[
        list[str],
        option(
            "WHAT=VALUE@SLOT: harvest=0.5@50, harvest.3=0@50, link.3-4=off@50, device.3=dead@50, "
            "channel=[[…],…]@50. Repeatable.",
            "--change",
        ),
    ],
    *,
    planner: shared.PlannerNameOption = "prices",
    settings: shared.PlannerSettings,
    false_alarm_prob: Annotated[float, option("Of an alarm if nothing changes.")] = USUAL_FALSE_ALARM_PROB,
    sampling: shared.SamplingOptions,
    training: shared.StackOptions,
    train: Annotated[int, option("Paired seeds to train; 0: costs only.", min=0, max=10**5)] = 5,
    evaluate_every: shared.EvaluateOption = 10,
    out: Annotated[Path | None, option("Folder of results, curves and a picture; no run is repeated.")] = None,
    output: shared.OutputOptions,
) -> None:
    """A world that changes: costs and models of the stale plan, a re-planned one, and one that was told."""
    refuse(out is not None and not train, "--out", "--train with a number of seeds", "value 0")
    problem = build_noted(settings.scenario(scenario))
    own: dict[str, Any] = asdict(training) | asdict(sampling) | {"track": output.track, "notify": note}
    own |= {"train": train, "evaluate_every": evaluate_every, "folder": out, "false_alarm_prob": false_alarm_prob}
    result = live(problem, changes, planner, options=settings.of_planner, **own)
    title = f"{scenario}, {planner}: {', '.join(changes)}"
    if out is not None and result.models is not None:
        from heliomesh.pages.figures import draw_survivors  # matplotlib is slow to import

        draw_survivors(result.models, title, out / CURVES)
    asked = {"planner": planner, "changes": list(changes), "episodes": sampling.episodes}
    facts = result.facts()
    parts = _trial_parts(result, facts, title, problem.scenario)
    drawn = f"{out / CURVES}: accuracy over slots" if out else None
    show(output.as_json, network_facts(problem) | asked | facts, *parts, drawn)


def _trial_parts(result: Trial, facts: dict[str, Any], title: str, scenario: Scenario) -> Iterator[Table | str]:
    rows = [
        {
            "plan": name,
            "cost per slot after the change": cost,
            "against the stale plan": None if name == "stale" else cost - result.stale,
        }
        for name, cost in result.costs.items()
    ]
    yield table(rows, title)
    if math.isnan(result.recovered.mean):
        yield "The stale plan loses nothing against the fresh one: there is nothing to recover."
    else:
        yield f"Recovered {interval_text(result.recovered, '.1f', 100)} % of the loss between stale and fresh plan."
    yield (
        f"Detected in {100 * result.detected_share:.0f} % of the episodes, after "
        f"{facts['slots to detect, mean']:.1f} slots on average; alarms before the change in "
        f"{100 * result.false_alarm_share:.1f} %."
    )
    causes = ", ".join(f"{cause} {count}" for cause, count in facts["alarms by cause"].items())
    yield f"Alarms by cause: {causes or 'none'}."
    if result.models is not None:
        yield _model_table(result.models, scenario)


def _model_table(models: Survivors, scenario: Scenario) -> Table:
    """Accuracies of the devices that are left, and what the failure and the reactions to it are worth."""
    unchanged, stale = models.final(UNCHANGED), models.final("stale")
    title = f"accuracy % of the {len(models.devices)} devices at the end on {scenario.learning.dataset}"
    rows = [
        {
            "plan": plan,
            "at the end": models.final(plan),
            "over unchanged": None if plan == UNCHANGED else models.final(plan) - unchanged,
            "over stale": None if plan in (UNCHANGED, "stale") else models.final(plan) - stale,
            "since the change": models.since_change(plan),
        }
        for plan in models.runs
    ]
    return table(rows, seeds_title(f"{title}, {len(unchanged)} seeds", len(unchanged)))
