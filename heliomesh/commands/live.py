"""`heliomesh live | prune | scope`: changing worlds, fewer links, larger neighbourhoods where they pay."""

import math
from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
import typer

from heliomesh.commands.facts import build_noted, network_facts, number_table, print_json
from heliomesh.commands.options import (
    OutputOptions,
    PlannerNameOption,
    SamplingOptions,
    ScenarioArgument,
    Settings,
    flattened,
)
from heliomesh.commands.terminal import console
from heliomesh.living.pruning import Pruning, prune
from heliomesh.living.scope import AdaptedScope, adapt_scope
from heliomesh.living.trial import Trial, live
from heliomesh.pages.tables import interval_text
from heliomesh.problem.size import readable
from heliomesh.simulation.diagnostics import interval


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
    ] = 0.05,
    sampling: SamplingOptions,
    output: OutputOptions,
) -> None:
    """A world that changes: the stale plan, one that notices and plans anew, and one that was told."""
    problem = build_noted(settings.scenario(scenario))
    own: dict[str, Any] = {"false_alarm_prob": false_alarm_prob, "track": output.track, **asdict(sampling)}
    result = live(problem, changes, planner, options=settings.of_planner, **own)
    facts = _trial_facts(result)
    if output.as_json:
        asked = {"planner": planner, "changes": list(changes), "episodes": sampling.episodes}
        print_json(network_facts(problem) | asked | facts)
    else:
        _print_trial(result, facts, f"{scenario}, {planner}: {', '.join(changes)}")


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
    }


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


@flattened
def prune_command(
    scenario: ScenarioArgument,
    *,
    keep_gap: Annotated[
        float, typer.Option("--keep-gap", help="Least share of the mixing matrix's spectral gap to keep.")
    ] = 0.8,
    planner: PlannerNameOption = "prices",
    settings: Settings,
    sampling: SamplingOptions,
    output: OutputOptions,
) -> None:
    """Leave links that deliver little out of the averaging: cost and spectral gap before and after."""
    problem = build_noted(settings.scenario(scenario))
    own: dict[str, Any] = {"keep_gap": keep_gap, "track": output.track, **asdict(sampling)}
    result = prune(problem, planner, settings.of_planner, **own)
    if output.as_json:
        print_json(_pruning_facts(result))
    else:
        _print_pruning(result, f"{scenario}, {planner}: links kept")


def _print_pruning(result: Pruning, title: str) -> None:
    table = number_table(title, "network", "links", "cost per slot", "gap", "gap applied")
    for name, side in (("before", result.before), ("after", result.after)):
        cells = (str(side.links), interval_text(interval(side.cost)), f"{side.gap:.4f}", f"{side.real_gap:.4f}")
        table.add_row(name, *cells)
    screen = console()
    screen.print(table)
    screen.print(f"Fewer updates lost per slot: {interval_text(result.saved)}.")
    dropped = ", ".join("{}-{}".format(*pair) for pair in result.dropped)
    screen.print(f"Dropped: {dropped or 'none'}.")


def _pruning_facts(result: Pruning) -> dict[str, Any]:
    facts: dict[str, Any] = {"dropped": [list(pair) for pair in result.dropped]}
    for name, side in (("before", result.before), ("after", result.after)):
        cost = interval(side.cost)
        facts[name] = {
            "links": side.links,
            "cost": cost.mean,
            "cost, 95 % half-width": cost.half_width,
            "spectral gap": side.gap,
            "spectral gap applied": side.real_gap,
        }
    return facts | {"saved": result.saved.mean, "saved, 95 % half-width": result.saved.half_width}


@flattened
def scope_command(
    scenario: ScenarioArgument,
    *,
    hops: Annotated[int, typer.Option("--hops", min=0, max=7, help="Hops that every device sees at least.")] = 0,
    keep_gain: Annotated[
        float, typer.Option("--keep-gain", help="Share of the saving of one hop more for all that must be kept.")
    ] = 0.8,
    settings: Settings,
    sampling: SamplingOptions,
    output: OutputOptions,
) -> None:
    """One hop more for the devices where it pays (planner `decentralized`), and the traffic saved."""
    problem = build_noted(settings.scenario(scenario))
    own: dict[str, Any] = {"keep_gain": keep_gain, "track": output.track, **asdict(sampling)}
    result = adapt_scope(problem, hops, settings.of_planner, **own)
    if output.as_json:
        print_json(_scope_facts(result))
    else:
        _print_scope(result, f"{scenario}, decentralized")


def _print_scope(result: AdaptedScope, title: str) -> None:
    table = number_table(title, "who sees one hop more", "cost per slot", "offline", "online/slot")
    for name, scope in (("nobody", result.base), ("where it pays", result.chosen), ("everybody", result.full)):
        overhead = scope.overhead
        table.add_row(
            f"{name} ({len(scope.grown)})",
            interval_text(interval(scope.cost)),
            readable(overhead.offline_bytes),
            readable(overhead.online_bytes_per_slot),
        )
    screen = console()
    screen.print(table)
    screen.print(
        f"Saved per slot: {interval_text(result.gain)} of {interval_text(result.full_gain)} with everybody grown."
    )
    for what, field in (("offline", "offline_bytes"), ("online", "online_bytes_per_slot")):
        screen.print(f"Extra {what} traffic avoided: {100 * result.overhead_saved(field):.0f} %.")
    screen.print(f"Grown: {', '.join(map(str, result.chosen.grown)) or 'none'}.")


def _scope_facts(result: AdaptedScope) -> dict[str, Any]:
    facts: dict[str, Any] = {"hops": result.hops, "grown": list(result.chosen.grown)}
    for name, scope in (("base", result.base), ("chosen", result.chosen), ("full", result.full)):
        cost = interval(scope.cost)
        facts[name] = {
            "cost": cost.mean,
            "cost, 95 % half-width": cost.half_width,
            "offline bytes": scope.overhead.offline_bytes,
            "online bytes per slot": scope.overhead.online_bytes_per_slot,
        }
    return facts | {
        "gain": result.gain.mean,
        "gain, 95 % half-width": result.gain.half_width,
        "offline traffic avoided": result.overhead_saved("offline_bytes"),
        "online traffic avoided": result.overhead_saved("online_bytes_per_slot"),
    }
