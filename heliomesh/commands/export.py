"""`heliomesh export` writes a plan for other tools: tables, C headers, or a schedule for Flower."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from heliomesh.commands.facts import build_noted, print_facts
from heliomesh.commands.options import (
    FiniteOption,
    OutputOptions,
    PlannerArgument,
    ScenarioArgument,
    SeedOption,
    Settings,
    flattened,
    without_end,
)
from heliomesh.interop.c_header import Header, beyond, write_headers
from heliomesh.interop.c_rounds import RoundHeader, write_round_headers
from heliomesh.interop.export_tables import PlanTables, tabulate, write_tables
from heliomesh.interop.flower_schedule import make_schedule, write_schedule
from heliomesh.interop.rounded import ValueWidth
from heliomesh.learning.replay import TrainJob
from heliomesh.planners.prices import Coordinated
from heliomesh.planners.receiver import ReceiverTables
from heliomesh.planning import find_planner, make_plan
from heliomesh.problem.endless import one_cycle
from heliomesh.scenario import ScenarioError
from heliomesh.simulation.trace import simulate


class Format(StrEnum):
    """What to write."""

    JSON = "json"
    NPZ = "npz"
    C = "c"
    FLOWER = "flower"


class TableBits(StrEnum):
    """Bits of an entry of a receiver's table."""

    EIGHT = "8"
    SIXTEEN = "16"
    THIRTY_TWO = "32"


_WIDTH: dict[TableBits, ValueWidth] = {TableBits.EIGHT: 8, TableBits.SIXTEEN: 16, TableBits.THIRTY_TWO: 32}


@dataclass(frozen=True)
class FormOptions:
    """What is written."""

    kind: Annotated[
        Format,
        typer.Option(
            "--format", help="json or npz: tables; c: a C99 header per device; flower: a schedule to replay."
        ),
    ] = Format.JSON
    table_bits: Annotated[
        TableBits, typer.Option("--table-bits", help="c, receiver: bits of an entry of the tables of values.")
    ] = TableBits.SIXTEEN
    finite: FiniteOption = False

    def options(self, planner: str, given: dict[str, Any]) -> dict[str, Any]:
        """A planner's options: no end, and tables that are looked up by integers; a schedule is one episode."""
        if self.kind is Format.FLOWER:
            return given
        whole = {"interpolate": False} if "interpolate" in find_planner(planner).options.model_fields else {}
        return without_end(planner, whole | given, self.finite)


@dataclass(frozen=True)
class ScheduleOptions:
    """The episode of a schedule."""

    seed: SeedOption = 0
    episode: Annotated[int, typer.Option("--episode", min=0, help="flower: episode of the schedule.")] = 0


@flattened
def export_command(
    scenario: ScenarioArgument,
    planner: PlannerArgument,
    out: Annotated[Path, typer.Option("--out", help="Folder for the files.")],
    form: FormOptions,
    settings: Settings,
    schedule: ScheduleOptions,
    output: OutputOptions,
) -> None:
    """Write a plan for other tools."""
    if out.exists() and not out.is_dir():
        raise ScenarioError("--out", f"expected a folder, actual value {str(out)!r}")
    problem = build_noted(settings.scenario(scenario))
    options = form.options(planner, settings.of_planner)
    made = make_plan(problem, planner, options, bound=False, track=output.track)
    policy = one_cycle(made.policy)
    if form.kind is Format.FLOWER:
        trace = simulate(problem, made, [schedule.episode], schedule.seed, track=output.track)
        facts = _schedule(TrainJob(problem.scenario, trace, 0, schedule.seed), out)
    elif form.kind is Format.C and isinstance(policy, Coordinated | ReceiverTables):
        headers = write_round_headers(policy.problem, policy, made.planner, out, _WIDTH[form.table_bits])
        facts = {"after the last slot": beyond(policy.problem.slots, policy.problem.cycle_slots)}
        facts |= _header_facts(headers, out)
    else:
        facts = _tables(tabulate(made, track=output.track), out, form.kind)
    print_facts({"planner": made.planner} | facts, output.as_json)


def _tables(plan: PlanTables, out: Path, kind: Format) -> dict[str, Any]:
    different = max(len(device.tables) for device in plan.devices)
    facts: dict[str, Any] = {
        "devices": len(plan.devices),
        "after the last slot": beyond(plan.slots, plan.period),
        "states of the largest table": max(len(device.tables[0]) for device in plan.devices),
        "different tables, most of a device": different,
    }
    if kind is Format.C:
        return facts | _header_facts(write_headers(plan, out), out)
    files = write_tables(plan, out, "json" if kind is Format.JSON else "npz")
    return facts | {"file bytes": files[0].stat().st_size, "files": [str(file) for file in files]}


def _header_facts(headers: Sequence[Header | RoundHeader], out: Path) -> dict[str, Any]:
    flash = [header.flash_bytes for header in headers]
    return {
        "flash bytes, largest device": max(flash),
        "flash bytes, all devices": sum(flash),
        "RAM bytes, largest device": max(header.ram_bytes for header in headers),
        "hops that messages travel": max(header.hops for header in headers),
        "files": [str(out / header.file_name) for header in headers],
    }


def _schedule(job: TrainJob, out: Path) -> dict[str, Any]:
    schedule = make_schedule(job)
    files = write_schedule(schedule, out)
    return {
        "rounds": len(schedule.rounds),
        "clients": len(schedule.clients),
        "trained, of all client rounds": float(job.trace.scheduled.mean()),
        "packets that arrive": sum(len(one.arrivals) for one in schedule.rounds),
        "files": [str(file) for file in files],
    }
