"""`heliomesh export` writes a plan for other tools: tables or a firmware kit in C."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from heliomesh.commands import options as shared
from heliomesh.commands.facts import build_noted, print_facts
from heliomesh.commands.options import flattened, option
from heliomesh.interop.c_bids import BidHeader, write_bid_headers
from heliomesh.interop.c_header import Header, write_headers
from heliomesh.interop.c_kit import beyond, flash_bytes
from heliomesh.interop.export_tables import PlanTables, tabulate, write_tables
from heliomesh.model.endless import one_cycle
from heliomesh.model.problem import Problem
from heliomesh.planners.bids import Bidders
from heliomesh.planning import find_planner, make_plan

_MOST_LISTED = 10  # files by name; of more the table shows the number


@dataclass(frozen=True)
class FormOptions(shared.OutputOptions, shared.PlannerSettings):
    """What is written, and what is printed of it."""

    kind: Annotated[Literal["json", "c"], option("json: tables; c: a firmware kit in C99.", "--format")] = "json"
    finite: shared.FiniteOption = False


@flattened
def export_command(
    scenario: shared.ScenarioArgument,
    planner: shared.PlannerArgument,
    out: Annotated[Path, option("Folder for the files.")],
    form: FormOptions,
) -> None:
    """Write a plan for other tools."""
    shared.check_folder(out)
    problem = build_noted(form.scenario(scenario))
    # no end, and tables that are looked up by integers
    whole = {"interpolate": False} if "interpolate" in find_planner(planner).options.model_fields else {}
    options = shared.without_end(planner, whole | form.of_planner, form.finite)
    made = make_plan(problem, planner, options, bound=False, track=form.track)
    policy = one_cycle(made.policy)
    if form.kind == "c" and isinstance(policy, Bidders):
        kit = write_bid_headers(policy, out)
        facts = {"after the last slot": beyond(policy.problem.slots, policy.problem.cycle_slots)} | _kit_facts(*kit)
    else:
        own = getattr(policy, "problem", problem)  # that of a whole cycle, where the plan has no end
        facts = _tables(tabulate(made, track=form.track), own, out, form.kind)
    if not form.as_json and len(facts["files"]) > _MOST_LISTED:
        facts["files"] = f"{len(facts['files'])} in {out}"
    print_facts({"planner": made.planner} | facts, form.as_json)


def _tables(plan: PlanTables, problem: Problem, out: Path, kind: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "devices": len(plan.devices),
        "after the last slot": beyond(plan.slots, plan.period),
        "states of the largest table": max(len(device.tables[0]) for device in plan.devices),
        "different tables, most of a device": max(len(device.tables) for device in plan.devices),
    }
    if kind == "c":
        return facts | _kit_facts(*write_headers(plan, problem, out))
    files = write_tables(plan, out)
    return facts | {"file bytes": files[0].stat().st_size, "files": [str(file) for file in files]}


def _kit_facts(headers: Sequence[Header | BidHeader], files: Sequence[Path]) -> dict[str, Any]:
    flash = [flash_bytes(header) for header in headers]
    return {
        "flash bytes of tables, largest device": max(flash),
        "flash bytes of tables, all devices": sum(flash),
        "RAM bytes, largest device": max(header.ram_bytes for header in headers),
        "hops that messages travel": max(header.hops for header in headers),
        "files": [str(file) for file in files],
    }
