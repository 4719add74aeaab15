"""`heliomesh fleet`: a run in which every device is an actor, and only messages between neighbours count."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from heliomesh.commands.facts import print_facts, summary_facts
from heliomesh.commands.options import (
    AddressOption,
    Engine,
    EpisodeOption,
    EvaluateOption,
    JsonOption,
    PlannerOptions,
    QuietOption,
    ScenarioArgument,
    SetOption,
    StrategyOption,
    TrustOption,
    load,
    planner_options,
    start_engine,
    track_unless,
)
from heliomesh.commands.terminal import console, tell
from heliomesh.commands.train import keep_plan
from heliomesh.durable import write_json
from heliomesh.engine.fleet.clock import FleetRun, run_fleet
from heliomesh.engine.fleet.messages import PLANNING, Kind
from heliomesh.engine.fleet.scheme import Scheme, scheme_of
from heliomesh.learning.journal import PLAN, finish_step, reserved
from heliomesh.learning.readiness import check_trainable
from heliomesh.learning.run import TrainingError, is_finished
from heliomesh.learning.tracking import unobserved
from heliomesh.learning.trainer import TrainSettings
from heliomesh.problem.problem import build
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
        int | None, typer.Option("--seed", min=0, help="Seed of luck and training; default: the scenario's.")
    ] = None,
    evaluate_every: EvaluateOption = 10,
    strategy: StrategyOption = "auto",
    kill: KillOption = [],  # noqa: B006
    trust: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run every device as a Ray actor of its own; they plan, coordinate and learn by messages between neighbours."""
    loaded = load(scenario, overrides, trust)
    problem = build(loaded)
    scheme = scheme_of(problem, planner, planner_options(options))
    deaths = dict(_death(text, problem.num_devices, problem.slots) for text in kill)
    _check_out(out)
    seed = loaded.seed if seed is None else seed
    check_trainable(loaded, TrainSettings(strategy=strategy), seed, here=False)
    os.environ.setdefault("RAY_worker_maximum_startup_concurrency", str(problem.num_devices))  # else Ray warns
    engine = start_engine(Engine.ray, address)
    from heliomesh.engine.fleet.ray_post import RayPost  # Ray is there only now

    try:
        found = run_fleet(
            scheme,
            RayPost,
            seed=seed,
            episode=episode,
            evaluate_every=evaluate_every,
            strategy=strategy,
            deaths=deaths,
            track=track_unless(quiet or as_json),
            observer=unobserved if quiet or as_json or console(stderr=True).is_terminal else _tell,
        )
    except (KeyboardInterrupt, SystemExit):  # a signal
        tell("stopped; of an unfinished fleet nothing is kept")
        raise
    finally:
        engine.stop()
    wanted = {
        "scenario": loaded.content_hash,
        "planner": planner,
        "options": scheme.options,
        "seed": seed,
        "episode": episode,
    }
    _keep(out, found, wanted, scheme)
    facts = {"scenario": loaded.name, "planner": planner, "seed": seed, **found.run.final, "folder": str(out)}
    print_facts(facts | summary_facts(summarise(found.trace)) | _message_facts(found, scheme), as_json)


def _check_out(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise TrainingError(f"{out}: expected a folder, actual: a file")
    if is_finished(out) or (out / PLAN).exists():
        raise TrainingError(f"{out}: expected an empty folder, actual: it holds a run")


def _keep(out: Path, found: FleetRun, wanted: dict[str, Any], scheme: Scheme) -> None:
    """The files of `heliomesh run`, and what was counted."""
    keep_plan(out, found.trace, found.plan, wanted)
    with reserved(out):
        found.run.save(out)
        finish_step(out, "train")
        write_json(out / _MESSAGES, _message_facts(found, scheme))


def _message_facts(found: FleetRun, scheme: Scheme) -> dict[str, Any]:
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
