"""A planner that fails in a comparison is named, and the others' results are computed, kept and shown."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import heliomesh as hm
from heliomesh.engine.processes import parallel_map
from heliomesh.jobs.job import Job
from heliomesh.model.policy import ActionPolicy
from heliomesh.planners import prices
from tests.conftest import Call

SCENARIO = hm.Scenario.load("tiny").override({"slots": 6, "learning.local_steps": 1})


def raises(context: Any) -> Any:
    """A planner with a mistake of its own."""
    return 1 / 0


def refuses(context: Any) -> Any:
    """A planner that does not take the scenario."""
    raise hm.ScenarioError("harvest", "expected a forecast, actual value none")


@dataclass(frozen=True)
class _Overspending(ActionPolicy):
    problem: hm.Problem

    def action(self, slot: int, seen: Any) -> Any:
        return (seen.battery_joule >= 0).long() * 99


def overspends(context: Any) -> Any:
    """A planner whose policy is refused in the simulation."""
    return _Overspending(context.problem)


@pytest.mark.parametrize(
    ("planner", "words", "place"),
    [
        (raises, r"raises failed\. ZeroDivisionError: division by zero \(test_failing_planners\.py, line \d+\)", 0),
        (refuses, r"refuses failed\. harvest: expected a forecast, actual value none", 1),
        (overspends, r"overspends failed\. _Overspending\.action: expected 0 to 2, actual value 99", 2),
    ],
    ids=["raises", "refuses", "overspends"],
)
def test_the_others_are_compared(planner: Any, words: str, place: int) -> None:
    names: list[Any] = ["uncoordinated", "fixed_fraction"]
    names.insert(place, planner)
    found = hm.compare(hm.build(SCENARIO), names, episodes=2, train=1)
    without = hm.compare(hm.build(SCENARIO), [name for name in names if name is not planner], episodes=2, train=1)
    assert [bool(row.failure) for row in found.rows] == [name is planner for name in names]
    assert list(found.failures()) == [planner.__name__]
    others = found.table()[found.table()["failure"].isna()]
    assert others["cost"].tolist() == without.table()["cost"].tolist()
    assert others["accuracy"].tolist() == without.table()["accuracy"].tolist()
    assert re.match(words, found.absences()[-1])


def test_the_others_are_kept(tmp_path: Path) -> None:
    problem = hm.build(SCENARIO)
    found = hm.compare(problem, ["uncoordinated", raises, "prices"], episodes=2, train=1, store=tmp_path)
    kept = hm.Store(tmp_path)
    assert [all(kept.has(job) for job in row.jobs) for row in found.rows] == [True] * 4
    assert [len(row.jobs) for row in found.rows] == [1, 0, 1, 1]
    assert kept.has(Job(SCENARIO, "prices"), "plan")


def test_a_planner_elsewhere_fails_alone() -> None:
    spread = partial(parallel_map, processes=2)
    found = hm.compare(hm.build(SCENARIO), ["uncoordinated", raises], episodes=2, parallel_map=spread)
    assert [row.planner for row in found.rows if row.cost is not None] == ["uncoordinated"]
    assert found.failures()["raises"].startswith("ZeroDivisionError: division by zero (test_failing_planners.py")


def test_what_changed_is_said_before_planners_go_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    asked = partial(hm.compare, hm.build(SCENARIO), ["uncoordinated", "turns"], 1, store=tmp_path, notify=said.append)
    asked()
    monkeypatch.setattr("heliomesh.jobs.job.RESULTS_VERSION", 0)
    asked(parallel_map=partial(parallel_map, processes=2))
    assert [text.partition(": ")[2].partition(" was ")[0] for text in said] == [
        "2 stored plans are not used: results version"
    ]


def test_where_all_fail_the_first_error_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        hm.compare(hm.build(SCENARIO), [raises, refuses], episodes=2)


def test_a_callback_that_cancels_is_no_failure_of_a_planner() -> None:
    class CancelledError(Exception):
        pass

    def track(items: Iterable[Any], description: str, total: int) -> Iterator[Any]:
        raise CancelledError
        yield from items

    with pytest.raises(CancelledError):
        hm.compare(hm.build(SCENARIO), ["prices", "uncoordinated"], episodes=2, track=track)


def test_a_run_that_diverges_fails_its_planner_only() -> None:
    """Of two plans, one never lets anybody train."""
    world = SCENARIO.override({"learning.learning_rate": 1e30})
    found = hm.compare(hm.build(world), ["uncoordinated", _idle], episodes=2, train=2)
    ((planner, reason),) = found.failures().items()
    assert planner == "uncoordinated"
    assert reason.startswith("uncoordinated, training seed 0: device ")
    assert [len(row.runs) for row in found.rows] == [0, 2]
    assert all(row.cost is not None for row in found.rows)


@dataclass(frozen=True)
class _Idle(ActionPolicy):
    problem: hm.Problem

    def action(self, slot: int, seen: Any) -> Any:
        return (seen.battery_joule < 0).long()


def _idle(context: Any) -> Any:
    return _Idle(context.problem)


# the command line

SHORT = ("compare", "tiny", "prices", "uncoordinated", "--episodes", 2, "--set", "slots=6", "--quiet")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`prices` fails."""
    monkeypatch.setattr(prices, "plan", raises)


def test_the_exit_code_says_that_one_failed(failing: None, call: Call) -> None:
    code, out, _ = call(*SHORT)
    assert code == 3
    assert "prices failed. ZeroDivisionError: division by zero" in out
    (line,) = [line for line in out.splitlines() if line.lstrip().startswith("uncoordinated")]
    assert "±" in line
    code, out, _ = call(*SHORT, "--json")
    rows = {row["planner"]: row for row in json.loads(out)["rows"]}
    assert code == 3
    assert rows["prices"]["failure"].startswith("ZeroDivisionError")
    assert rows["uncoordinated"]["cost"] > 0


def test_the_page_says_which_planner_failed(failing: None, call: Call, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert call(*SHORT, "--train", 1, "--report", page)[0] == 3
    assert "<li>prices failed. ZeroDivisionError" in page.read_text(encoding="utf-8")


def test_the_same_command_again_repeats_no_planner_and_no_run(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (*SHORT, "--train", 1, "--store", tmp_path / "kept", "--json")
    code, first, _ = call(*command)
    assert code == 0
    monkeypatch.setattr("heliomesh.jobs.steps.make_plan", pytest.fail)
    monkeypatch.setattr("heliomesh.jobs.stacks.begun", pytest.fail)
    assert call(*command)[:2] == (0, first)
