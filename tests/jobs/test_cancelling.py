"""A callback that raises cancels: locks are released, what is finished stays, and the same call goes on."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.common.durable import BusyFolderError
from heliomesh.jobs import stacks, store

SCENARIO = hm.Scenario.load("tiny").override({"slots": 6, "learning.local_steps": 1})


class CancelledError(Exception):
    """What a user's callback raises."""


def cancelling(at: int) -> Callable[..., Any]:
    """An observer that cancels at an evaluated slot."""

    def observer(run: int, row: Any) -> None:
        if row["slot"] >= at:
            raise CancelledError

    return observer


def stopping(what: str, after: int) -> Callable[..., Any]:
    """A progress callback that cancels so many steps into some work."""

    def track(items: Iterable[Any], description: str, total: int) -> Iterator[Any]:
        for number, item in enumerate(items):
            if description == what and number == after:
                raise CancelledError
            yield item

    return track


def counted(monkeypatch: pytest.MonkeyPatch, step: str) -> list[Any]:
    """Calls of one of a job's steps from now on."""
    module = stacks if step == "begun" else store
    calls, real = [], getattr(module, step)

    def noted(*arguments: Any) -> Any:
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(module, step, noted)
    return calls


def assert_unlocked(folder: Path) -> None:
    with hm.Store(folder).alone():
        pass


@pytest.mark.parametrize("how", [{"observer": cancelling(4)}, {"track": stopping("train", 4)}])
def test_a_cancelled_run_goes_on_from_its_last_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {"folder": tmp_path, "evaluate_every": 1, "planner": "uncoordinated"}
    whole = hm.run(SCENARIO, **settings | {"folder": None})
    with pytest.raises(CancelledError):
        hm.run(SCENARIO, **settings, **how)
    assert_unlocked(tmp_path)
    for step in ("planned", "simulated"):
        monkeypatch.setattr(f"heliomesh.jobs.store.{step}", pytest.fail)
    seen: list[float] = []
    run = hm.run(SCENARIO, **settings, observer=lambda _, row: seen.append(row["slot"]))
    assert seen == [5, 6]  # the four before were not trained again
    for name, column in whole.metrics.items():
        np.testing.assert_array_equal(run.metrics[name], column)


def test_a_cancelled_comparison_repeats_neither_plans_nor_finished_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, planners = hm.build(SCENARIO), ["uncoordinated", "prices"]
    settings: dict[str, Any] = {"episodes": 2, "train": 2, "store": tmp_path, "runs_at_once": 1}
    with pytest.raises(CancelledError):
        hm.compare(problem, planners, **settings, track=stopping("train", 2 * SCENARIO.slots))
    assert_unlocked(tmp_path)
    planned, trained = (counted(monkeypatch, step) for step in ("planned", "begun"))
    found = hm.compare(problem, planners, **settings)
    assert len(planned) == 0
    assert len(trained) == sum(len(row.jobs) for row in found.rows) - 2
    fresh = hm.compare(problem, planners, episodes=2, train=2)
    columns = ["planner", "cost", "accuracy"]
    assert found.table()[columns].equals(fresh.table()[columns])


def test_a_cancelled_sizing_measures_no_pair_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"capacity_joule": [1, 3], "panel": [0.5, 2.0], "episodes": 2, "store": tmp_path}
    settings |= {"target_loss": 0.7, "planner": "uncoordinated"}
    with pytest.raises(CancelledError):
        hm.size(SCENARIO, **settings, track=stopping("size", 3))
    assert_unlocked(tmp_path)
    measured = counted(monkeypatch, "simulated_means")
    found = hm.size(SCENARIO, **settings)
    assert len(measured) == 1
    assert found.table().equals(hm.size(SCENARIO, **settings | {"store": None}).table())


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    with hm.Store(tmp_path).alone(), pytest.raises(BusyFolderError):
        hm.compare(hm.build(SCENARIO), ["uncoordinated"], episodes=1, store=tmp_path)
