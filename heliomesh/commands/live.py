"""`heliomesh live`: changing worlds."""

import math
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from heliomesh.commands.facts import build_noted, network_facts, number_table, print_json
from heliomesh.commands.options import (
    EvaluateOption,
    OutputOptions,
    PlannerNameOption,
    SamplingOptions,
    ScenarioArgument,
    Settings,
    flattened,
)
from heliomesh.commands.reproduce import StackOptions
from heliomesh.commands.terminal import console, note, say
from heliomesh.living.replanning import USUAL_FALSE_ALARM_PROB
from heliomesh.pages.survivors_figure import draw_survivors
from heliomesh.pages.tables import interval_text
from heliomesh.scenario import Scenario, ScenarioError
from heliomesh.simulation.diagnostics import interval
from heliomesh.studies.live import Trial, live
from heliomesh.studies.survivors import UNCHANGED, Survivors

CURVES = "curves.svg"


@dataclass(frozen=True)
class ModelOptions:
    """What is trained, and where it is kept."""

    train: Annotated[int, typer.Option("--train", min=0, help="Paired seeds to train; 0: costs only.")] = 5
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of results, curves and a picture; no run is repeated.")
    ] = None
    evaluate_every: EvaluateOption = 10

    def check(self) -> None:
        """Refuse a folder for models that nobody trains."""
        if self.out is not None and not self.train:
            raise ScenarioError("--out", "expected --train with a number of seeds, actual value 0")


@flattened
def live_command(
    scenario: ScenarioArgument,
    changes: Annotated[
        list[str],
        typer.Option(
            "--change",
            help="WHAT=VALUE@SLOT: harvest=0.5@50, harvest.3=0@50, link.3-4=off@50, device.3=dead@50, "
            "channel=[[…],…]@50. Repeatable.",
        ),
    ],
    *,
    planner: PlannerNameOption = "prices",
    settings: Settings,
    false_alarm_prob: Annotated[
        float, typer.Option("--false-alarm-prob", help="Of an alarm over the horizon if nothing changes.")
    ] = USUAL_FALSE_ALARM_PROB,
    sampling: SamplingOptions,
    models: ModelOptions,
    training: StackOptions,
    output: OutputOptions,
) -> None:
    """A world that changes: costs and models of the stale plan, a re-planned one, and one that was told."""
    models.check()
    problem = build_noted(settings.scenario(scenario))
    told = {"track": output.track, "notify": note}
    own: dict[str, Any] = {"false_alarm_prob": false_alarm_prob, **told, **asdict(sampling)}
    own |= {"train": models.train, "folder": models.out, "evaluate_every": models.evaluate_every}
    result = live(problem, changes, planner, options=settings.of_planner, **own, **asdict(training))
    facts, title = _trial_facts(result), f"{scenario}, {planner}: {', '.join(changes)}"
    if models.out is not None and result.models is not None:
        result.models.save(models.out)
        draw_survivors(result.models, problem.scenario, title, models.out / CURVES)
    if output.as_json:
        asked = {"planner": planner, "changes": list(changes), "episodes": sampling.episodes}
        print_json(network_facts(problem) | asked | facts)
        return
    _print_trial(result, facts, title)
    if result.models is not None:
        console().print(_model_table(result.models, problem.scenario))
    if models.out is not None:
        say(f"{models.out / CURVES}: accuracy over slots")


def _trial_facts(result: Trial) -> dict[str, Any]:
    delays, recovered = result.delays, result.recovered
    costs = {name: interval(getattr(result, name)) for name in ("stale", "replanned", "fresh")}
    return {
        **{f"cost, {name}": cost.mean for name, cost in costs.items()},
        **{f"cost, {name}, 95 % half-width": cost.half_width for name, cost in costs.items()},
        "recovered share": recovered.mean,
        "recovered share, 95 % half-width": recovered.half_width,
        "detected share": result.detected_share,
        "slots to detect, mean": float(delays.mean()) if len(delays) else math.nan,
        "slots to detect, 90 % of episodes": float(np.percentile(delays, 90)) if len(delays) else math.nan,
        "false alarms before the change": result.false_alarm_share,
        "alarms by cause": dict(Counter(alarm.cause for alarms in result.alarms for alarm in alarms)),
        **({} if result.models is None else _model_facts(result.models)),
    }


def _model_facts(models: Survivors) -> dict[str, Any]:
    return {
        "devices at the end": list(models.devices),
        "accuracy": {plan: models.final(plan).tolist() for plan in models.runs},
        "accuracy since the change": {plan: models.since_change(plan).tolist() for plan in models.runs},
    }


def _model_table(models: Survivors, scenario: Scenario) -> Table:
    """Accuracies of the devices that are left, and what the failure and the reactions to it are worth."""
    seeds, left = len(models.final(UNCHANGED)), len(models.devices)
    title = f"accuracy % of the {left} devices at the end on {scenario.learning.dataset}, {seeds} seeds"
    headings = ("at the end", "over unchanged", "over stale", "since the change")
    table = number_table(f"{title}, 95 % intervals", "plan", *headings)
    for plan in models.runs:
        own = models.final(plan)
        table.add_row(
            plan,
            interval_text(interval(own), ".2f"),
            "" if plan == UNCHANGED else interval_text(interval(own - models.final(UNCHANGED)), "+.2f"),
            "" if plan in (UNCHANGED, "stale") else interval_text(interval(own - models.final("stale")), "+.2f"),
            interval_text(interval(models.since_change(plan)), ".2f"),
        )
    return table


def _print_trial(result: Trial, facts: dict[str, Any], title: str) -> None:
    table = number_table(title, "plan", "cost per slot after the change", "against the stale plan")
    for name, cost in result.costs.items():
        table.add_row(
            name,
            interval_text(interval(cost)),
            "" if name == "stale" else interval_text(interval(cost - result.stale)),
        )
    screen = console()
    screen.print(table)
    if math.isnan(result.recovered.mean):
        screen.print("The stale plan loses nothing against the fresh one: there is nothing to recover.")
    else:
        screen.print(
            f"Recovered {interval_text(result.recovered, '.1f', 100)} % of the loss between stale and fresh plan."
        )
    screen.print(
        f"Detected in {100 * result.detected_share:.0f} % of the episodes, after "
        f"{facts['slots to detect, mean']:.1f} slots on average; alarms before the change in "
        f"{100 * result.false_alarm_share:.1f} %."
    )
    causes = ", ".join(f"{cause} {count}" for cause, count in facts["alarms by cause"].items())
    screen.print(f"Alarms by cause: {causes or 'none'}.")
