"""`heliomesh fleet`: a run in which every device is an actor, and only messages between neighbours count."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from heliomesh.commands.facts import build_noted, print_facts, summary_facts
from heliomesh.commands.options import (
    AddressOption,
    EpisodeOption,
    EvaluateOption,
    JsonOption,
    PlannerOptions,
    QuietOption,
    ScenarioArgument,
    SetOption,
    StrategyOption,
    load,
    planner_options,
    start_ray,
    track_unless,
)
from heliomesh.commands.terminal import console, tell
from heliomesh.durable import write_json
from heliomesh.engine.fleet.clock import FleetRun, run_fleet
from heliomesh.engine.fleet.messages import PLANNING, Kind
from heliomesh.engine.fleet.scheme import FleetScheme, scheme_of
from heliomesh.jobs.job import Job
from heliomesh.jobs.store import PLAN, Store
from heliomesh.learning.readiness import check_trainable
from heliomesh.learning.run import TrainingError, is_finished
from heliomesh.learning.tracking import unobserved
from heliomesh.learning.trainer import TrainSettings, Work
from heliomesh.scenario import ScenarioError
from heliomesh.simulation.diagnostics import summarise

_MESSAGES = "messages.json"

OutOption = Annotated[Path, typer.Option("--out", help="Folder for the finished run.")]
KillOption = Annotated[
    list[str], typer.Option("--kill", help="Kill a device's actor at the start of a slot: device@slot. Repeatable.")
]


def fleet_command(
    scenario: ScenarioArgument,
    out: OutOption,
    planner: Annotated[
        str, typer.Option("--planner", help="decentralized, skiptrain or uncoordinated.")
    ] = "decentralized",
    overrides: SetOption = [],  # noqa: B006
    options: PlannerOptions = [],  # noqa: B006
    address: AddressOption = None,
    episode: EpisodeOption = 0,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Seed of simulation and training; default: the scenario's.")
    ] = None,
    evaluate_every: EvaluateOption = 10,
    strategy: StrategyOption = "auto",
    kill: KillOption = [],  # noqa: B006
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run every device as a Ray actor of its own; they plan, coordinate and learn by messages between neighbours."""
    loaded = load(scenario, overrides)
    problem = build_noted(loaded)
    scheme = scheme_of(problem, planner, planner_options(options))
    deaths = dict(_death(text, problem.num_devices, problem.slots) for text in kill)
    _check_out(out)
    seed = loaded.seed if seed is None else seed
    training = TrainSettings(evaluate_every=evaluate_every, strategy=strategy)
    check_trainable(loaded, training, seed, here=False)
    job = Job(loaded, planner, scheme.options, seed=seed, episode=episode, training_seed=seed, training=training)
    os.environ.setdefault("RAY_worker_maximum_startup_concurrency", str(problem.num_devices))  # else Ray warns
    engine = start_ray(address)
    from heliomesh.engine.fleet.ray_post import RayPost  # Ray is there only now

    try:
        found = run_fleet(scheme, RayPost, job, deaths=deaths, work=_watched(quiet or as_json))
    except (KeyboardInterrupt, SystemExit):  # a signal
        tell("stopped; of an unfinished fleet nothing is kept")
        raise
    finally:
        engine.stop()
    _keep(Store(out, single=True), found, scheme)
    facts = {"scenario": loaded.name, "planner": planner, "seed": seed, **found.run.final, "folder": str(out)}
    print_facts(facts | summary_facts(summarise(found.trace)) | _message_facts(found, scheme), as_json)


def _check_out(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise TrainingError(f"{out}: expected a folder, actual: a file")
    if is_finished(out) or (out / PLAN).exists():
        raise TrainingError(f"{out}: expected an empty folder, actual: it holds a run")


def _watched(quiet: bool) -> Work:
    return Work(
        track=track_unless(quiet),
        observer=unobserved if quiet or console(stderr=True).is_terminal else _tell,
    )


def _keep(store: Store, found: FleetRun, scheme: FleetScheme) -> None:
    """The files of `heliomesh run`, and what was counted."""
    with store.alone():
        store.put_plan(found.job, found.plan)
        store.put_trace(found.job, found.trace)
        store.put_run(found.job, found.run)
        write_json(store.folder / _MESSAGES, _message_facts(found, scheme))


def _message_facts(found: FleetRun, scheme: FleetScheme) -> dict[str, Any]:
    """Messages and bytes over single hops as the living devices received them, beside what the model predicts."""
    slots = scheme.problem.slots
    kinds: tuple[Kind, ...] = ("share", "policy", "state", "model")
    totals = {kind: found.total(kind) for kind in kinds}
    facts: dict[str, Any] = {f"messages: {kind}": count for kind, (count, _) in totals.items()}
    return facts | {
        "planning bytes, counted": sum(totals[kind][1] for kind in PLANNING),
        "planning bytes, predicted": scheme.predicted.offline_bytes,
        "coordination bytes per slot, counted": totals["state"][1] / slots,
        "coordination bytes per slot, predicted": scheme.predicted.online_bytes_per_slot,
        "model bytes per slot, counted": totals["model"][1] / slots,
        "died": " ".join(f"{device}@{slot}" for device, slot in sorted(found.died.items())) or "none",
    }


def _death(text: str, devices: int, slots: int) -> tuple[int, int]:
    """A device and the slot in which it dies."""
    device, _, slot = text.partition("@")
    if not (device.isdecimal() and slot.isdecimal() and int(device) < devices and int(slot) < slots):
        raise ScenarioError(
            "--kill",
            f"expected device@slot with a device below {devices} and a slot below {slots}, actual value {text!r}",
        )
    return int(device), int(slot)


def _tell(run: int, row: Mapping[str, float]) -> None:
    tell(f"slot {row['slot']:.0f}: accuracy {row['accuracy_mean']:.4f}")
