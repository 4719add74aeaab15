"""`heliomesh compare`: all planners on one scenario, and the models they lead to."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from heliomesh.commands import options as shared
from heliomesh.commands.facts import build_noted, gap_table, show, table, text_of
from heliomesh.commands.options import flattened, option
from heliomesh.commands.terminal import note, say, tell
from heliomesh.jobs.steps import network_facts, plan_facts
from heliomesh.jobs.store import Store
from heliomesh.learning.run import Run
from heliomesh.model.doubts import remarks
from heliomesh.model.problem import Problem, build
from heliomesh.pages.intervals import seeds_text, seeds_title
from heliomesh.pages.page import report
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.studies.compare import Comparison, Row, compare
from heliomesh.studies.gap_ledger import GapLedger
from heliomesh.studies.results import finals, scores


@dataclass(frozen=True)
class CompareOptions(shared.OutputOptions, shared.SamplingOptions, shared.Changes):
    """Under what planners are compared, what is printed of it and what is left behind."""

    certify: Annotated[bool | None, option("A certified bound; default: if quick.", "--certify/--no-certify")] = None
    train: Annotated[int, option("Also train under so many episodes of each plan.", min=0, max=10**5)] = 0
    device: shared.DeviceOption = "cpu"
    dtype: shared.TypeOption = "float64"
    processes: shared.ProcessesOption = 1
    evaluate_every: shared.EvaluateOption = 5
    target: Annotated[float | None, option("Also slots and joules until this accuracy.", min=0, max=1)] = None
    report: Annotated[Path | None, option("Write a page of the trained runs here.")] = None
    runs: Annotated[Path | None, option("Keep the trained runs in this empty folder.")] = None
    store: shared.StoreOption = None
    ledger: shared.LedgerOption = False

    def check(self) -> None:
        """Refuse what could not be kept, before any work is done."""
        shared.check_target(self.report, "--report")
        trained = {"--report": self.report, "--runs": self.runs, "--ledger": self.ledger, "--target": self.target}
        for flag, wanted in trained.items():
            refuse(bool(wanted) and not self.train, flag, "--train with a number of episodes", "value 0")
        runs = self.runs
        if runs is not None and runs.exists() and (not runs.is_dir() or any(runs.iterdir())):
            raise ScenarioError("--runs", "an empty or new folder", f"value {str(runs)!r}")


_TABLE_WIDTH = 118  # the comparison table is cut below it
_SOME_FAILED = 3  # exit code: the others' results are shown and kept


@flattened
def compare_command(
    scenario: shared.ScenarioArgument,
    names: Annotated[
        list[str] | None, typer.Argument(help="Planners, or schemes such as receiver+agree=6; or all.")
    ] = None,
    *,
    asked: CompareOptions,
) -> None:
    """All planners on one scenario, with common random numbers."""
    asked.check()
    make = build_noted if asked.as_json else build  # the table has remarks of its own
    problem = make(asked.scenario(scenario), asked.device, asked.dtype)
    same = ("train", "certify", "evaluate_every", "track")
    own: dict[str, Any] = {name: getattr(asked, name) for name in same} | shared.process_maps(asked.processes)
    with TemporaryDirectory() as scratch:
        store = asked.store or (Store(Path(scratch), scratch=True) if asked.train else None)
        result = compare(problem, names, asked.episodes, asked.seed, store=store, notify=note, **own)
        fits = any(row.runs for row in result.rows)
        ledgers = result.gap_ledgers(track=asked.track, notify=note) if asked.ledger and fits else {}
        title = f"{scenario}: cost per slot, {asked.episodes} episodes, 95 % intervals; gap to {result.reference}"
        parts = [] if asked.as_json else _parts(problem, result, ledgers, title, asked.target)
        bounds = {"reference": result.reference, "lower bound": result.lower_bound}
        rows = [_row_facts(row, ledgers.get(row.planner), asked.target) for row in result.rows]
        show(asked.as_json, network_facts(problem) | bounds | {"rows": rows}, *parts, width=_TABLE_WIDTH)
        if not asked.silent:  # on standard error: no two runs take the same time
            planned = [f"{row.planner} {row.plan.seconds:.2f}" for row in result.rows if row.plan is not None]
            tell(f"Seconds of planning: {', '.join(planned)}.")
        if asked.runs is not None:
            result.save_runs(asked.runs)
        if asked.report is not None:
            report(result, asked.report)  # a comparison knows which planners refused, folders do not
    if asked.report is not None and not asked.as_json:
        say(f"{asked.report}: open it in a browser")
    if result.failures():
        raise typer.Exit(_SOME_FAILED)


def _parts(
    problem: Problem, result: Comparison, ledgers: Mapping[str, GapLedger], title: str, target: float | None
) -> Iterator[Table | str]:
    """Costs, accuracies, remarks on the scenario, what the bound says, and why planners refused."""
    yield ", ".join(f"{name} {text_of(value)}" for name, value in network_facts(problem).items())
    unsettled = any(row.plan is not None and not row.plan.converged for row in result.rows)
    caption = "* the last round still changed some of the policy" if unsettled else None
    yield table([_cost_cells(row) for row in result.rows], title, caption=caption)
    trained = {row.planner: row.runs for row in result.rows if row.runs}
    if trained:
        yield _accuracy_table(trained, problem)
    if trained and target is not None:
        yield _paired_table(trained, target)
    if ledgers:
        yield gap_table(ledgers)
    yield from (f"Note: {remark}" for remark in remarks(problem))
    if result.lower_bound is not None:
        yield (
            "Certified: no policy with the scenario's actions is expected to cost less than "
            f"{result.lower_bound:.4f} per slot."
        )
    cost = {row.planner: row.summary.cost.mean for row in result.rows if row.summary is not None}
    if cost.get("centralized", 0.0) > min(cost.values(), default=0.0) and not problem.grid_is_exact:
        yield (
            "centralized is optimal on its own coarse battery grid; planners on finer grids may cost less, "
            "because simulated batteries are continuous."
        )
    yield from result.absences()


def _accuracy_table(trained: Mapping[str, Sequence[Run]], problem: Problem) -> Table:
    learning, episodes = problem.scenario.learning, len(next(iter(trained.values())))
    title = seeds_title(f"accuracy after {problem.slots} slots on {learning.dataset}, {episodes} episodes", episodes)
    best = max(trained, key=lambda name: finals(trained[name], "accuracy_mean").mean())
    rows = [
        {
            "planner": planner,
            "mean device %": finals(runs, "accuracy_mean"),
            f"against {best}": finals(runs, "accuracy_mean") - finals(trained[best], "accuracy_mean"),
            "least device %": float(finals(runs, "accuracy_min").min()),
            "average model %": finals(runs, "average_accuracy"),
            "% per joule": float(finals(runs, "accuracy_per_joule").mean()),
        }
        for planner, runs in trained.items()
    ]
    return table(rows, title)


# what schemes are compared by: the score, its name, how it is written, and by which factor
_PAIRED = (
    ("accuracy", "accuracy %", ".2f", 100),
    ("worst_device", "worst device %", ".2f", 100),
    ("spent_joule", "joule", ".0f", 1),
    ("slots_to_target", "slots to the target", ".0f", 1),
    ("joule_to_target", "joule to the target", ".0f", 1),
)


def _paired_table(trained: Mapping[str, Sequence[Run]], target: float) -> Table:
    """Scores at the end and until the target, and differences from the first scheme over seeds that both reach."""
    found = {planner: scores(runs, target) for planner, runs in trained.items()}
    first = next(iter(found))
    rows = []
    for planner, own in found.items():
        for name, words, form, factor in _PAIRED:
            reached = np.isfinite(own[name])
            both = reached & np.isfinite(found[first][name])
            pair = ((own[name][reached], form), ((own[name] - found[first][name])[both], f"+{form}"))
            value, difference = (seeds_text(one, how, factor) if len(one) else "" for one, how in pair)
            seeds = f"{reached.sum()} of {len(reached)}"
            rows.append(
                {"scheme": planner, "score": words, "mean": value, f"against {first}": difference, "seeds": seeds}
            )
    return table(rows, f"at the end and until the mean device reaches {target:.0%}, paired by seed")


def _row_facts(row: Row, ledger: GapLedger | None, target: float | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"planner": row.planner}
    if row.plan is not None and row.summary is not None:
        facts = plan_facts(row.plan) | row.summary.facts() | facts
    facts |= {name: said for name, said in (("refusal", row.refusal), ("failure", row.failure)) if said}
    if row.gap is not None:
        facts |= row.gap.facts("gap")
    if row.runs:
        facts["accuracy of the average model"] = [run.final["average_accuracy"] for run in row.runs]
        facts |= {name.replace("_", " "): own.tolist() for name, own in scores(row.runs, target).items()}
    if ledger is not None:
        facts["ledger"] = ledger.facts()
    return facts


def _cost_cells(row: Row) -> dict[str, Any]:
    """A planner's line in the table of costs."""
    plan, summary = row.plan, row.summary
    return {
        "planner": row.planner + (" *" if plan and not plan.converged else ""),
        "cost": summary.cost if summary else "refused" if row.refusal else "failed",
        "gap %": row.gap,
        "trains %": summary and summary.participation,
        "arrived %": summary and summary.delivery,
        "offline": plan and plan.overhead.offline_bytes,
        "online/slot": plan and plan.overhead.online_bytes_per_slot,
    }
