"""The gap ledger: its parts sum to the gap, and each is zero where nothing of its kind is lost."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.jobs.training import given_job
from heliomesh.studies.gap_ledger import COUNTERFACTUALS, LEDGER, all_arrive, all_arrive_job, ideal_job

# so uneven that devices which hear nothing know one or two classes
SCENARIO = hm.Scenario.load("tiny").override(
    {"slots": 20, "learning.partition": "dirichlet", "learning.alpha": 0.1, "learning.learning_rate": 0.1}
)
SETTINGS = hm.TrainSettings(evaluate_every=10)
PARTS = ("untrained", "disagreement", "drift")


@pytest.fixture(scope="module")
def trace() -> hm.Trace:
    """One episode in which devices often wait and packets often get lost."""
    problem = hm.build(SCENARIO)
    return hm.simulate(problem, hm.plan(problem, "uncoordinated", bound=False), 1, seed=3)


def ledger_of(trace: hm.Trace, **arrays: float) -> Any:
    """The ledger of a training under a trace of which some arrays are all zero or all one."""
    changed = {name: np.full_like(getattr(trace, name), value) for name, value in arrays.items()}
    return hm.gap_ledger(given_job(hm.TrainJob(SCENARIO, replace(trace, **changed)), SETTINGS))


def nonzero(ledger: Any) -> set[str]:
    return {name for name in PARTS if getattr(ledger, name).any()}


def test_the_parts_sum_to_the_gap_of_every_seed(tmp_path: Path) -> None:
    planners = ["uncoordinated", "skiptrain"]
    compared = hm.compare(hm.build(SCENARIO), planners, episodes=2, train=2, store=tmp_path)
    ledgers = compared.gap_ledgers()
    assert list(ledgers) == [row.planner for row in compared.rows]
    for row in compared.rows:
        ledger = ledgers[row.planner]
        accuracy = np.array([run.final["accuracy_mean"] for run in row.runs])
        np.testing.assert_allclose(ledger.untrained + ledger.disagreement + ledger.drift, ledger.gap, atol=1e-9)
        np.testing.assert_allclose(ledger.gap, 100 * (ledger.ideal - accuracy), atol=1e-9)
        means = {name: value.mean for name, value in ledger.intervals().items()}
        gap = means.pop("gap to the ideal")
        assert sum(means.values()) == pytest.approx(gap, abs=1e-9)
        assert all(value.half_width >= 0 for value in ledger.intervals().values())


def test_nothing_is_lost_where_everyone_trains_and_everything_arrives(trace: hm.Trace) -> None:
    ledger = ledger_of(trace, scheduled=True, delivered=True)
    assert nonzero(ledger) == set()
    assert not ledger.gap.any()
    assert nonzero(hm.gap_ledger(hm.Job(SCENARIO, "ideal", training=SETTINGS))) == set()


def test_without_packets_nothing_is_lost_through_steps(trace: hm.Trace) -> None:
    ledger = ledger_of(trace, scheduled=True, delivered=False)
    assert not ledger.untrained.any()
    assert ledger.gap > 10  # 36 here: a device that hears nobody knows its own classes only
    np.testing.assert_allclose(ledger.disagreement + ledger.drift, ledger.gap, atol=1e-9)


def test_without_losses_only_steps_are_missing(trace: hm.Trace) -> None:
    ledger = ledger_of(trace, delivered=True)
    assert nonzero(ledger) <= {"untrained"}
    np.testing.assert_allclose(ledger.untrained, ledger.gap, atol=1e-9)


def test_who_never_trains_loses_every_step(trace: hm.Trace) -> None:
    ledger = ledger_of(trace, scheduled=False)
    assert nonzero(ledger) == {"untrained"}
    assert ledger.gap > 10  # 73 here


def test_all_arrive_keeps_who_trained_and_loses_no_packet(trace: hm.Trace) -> None:
    arrived = all_arrive(trace)
    np.testing.assert_array_equal(arrived.scheduled, trace.scheduled)
    assert arrived.delivered.all()
    assert not arrived.update_loss[trace.scheduled].any()
    assert not trace.delivered.all()  # the given trace is left as it was


def test_the_ideal_is_one_for_all_planners_of_a_training_seed() -> None:
    one = hm.Job(SCENARIO, "receiver", {"levels": 5}, seed=4, episode=2, changes=("harvest=0@2",), training_seed=1)
    assert ideal_job(one).key() == ideal_job(hm.Job(SCENARIO, "uncoordinated", training_seed=1)).key()
    assert ideal_job(one).key() != ideal_job(replace(one, training_seed=2)).key()
    assert ideal_job(one).key() != ideal_job(replace(one, scenario=SCENARIO.override({"slots": 19}))).key()


def test_equal_schedules_under_other_mixing_weights_are_other_counterfactuals(trace: hm.Trace) -> None:
    lazy = SCENARIO.override({"network.mixing": "lazy-metropolis"})
    keys = {all_arrive_job(hm.Job(one, "uncoordinated"), trace).key() for one in (SCENARIO, lazy)}
    assert len(keys) == 2


class CancelledError(Exception):
    """What a user's callback raises."""


def stopping(training: int, slot: int) -> Callable[..., Any]:
    """A progress callback that cancels in a slot of one of the trainings that it sees."""
    seen = []

    def track(items: Iterable[Any], description: str, total: int) -> Iterator[Any]:
        seen.append(description)
        for item in items:
            if seen.count("train") == training and item == slot:
                raise CancelledError
            yield item

    return track


def slots_trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The slots that are trained from now on."""
    slots: list[int] = []
    real = hm.learning.replay.Replay.step  # type: ignore[attr-defined]

    def noted(self: Any, slot: int) -> Any:
        slots.append(slot)
        return real(self, slot)

    monkeypatch.setattr("heliomesh.learning.replay.Replay.step", noted)
    return slots


def test_a_cancelled_ledger_of_a_run_goes_on_from_its_last_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, store = hm.Job(SCENARIO, "uncoordinated", training=SETTINGS), hm.Store(tmp_path, single=True)
    whole = hm.gap_ledger(job)
    with pytest.raises(CancelledError):
        hm.gap_ledger(job, store, track=stopping(3, 15))  # the run, the ideal, and then all arrive
    assert (tmp_path / COUNTERFACTUALS).is_dir()
    with store.alone():
        assert not (tmp_path / LEDGER).exists()
    slots = slots_trained(monkeypatch)
    for _ in range(2):  # the second call finds the ledger
        assert hm.gap_ledger(job, store).points() == whole.points()
        assert slots == list(range(15, 20))
    assert not (tmp_path / COUNTERFACTUALS).exists()


def test_ledgers_of_a_comparison_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = hm.compare(hm.build(SCENARIO), ["uncoordinated"], episodes=1, train=1, store=tmp_path / "store")
    first = compared.gap_ledgers()["uncoordinated"].points()
    slots = slots_trained(monkeypatch)
    assert compared.gap_ledgers()["uncoordinated"].points() == first
    assert slots == []
    (folder,) = compared.save_runs(tmp_path / "runs")
    assert (folder / LEDGER).exists()


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(hm.TrainingError, match="jobs: expected at least one, actual number 0"):
        hm.gap_ledger([])
    problem = hm.build(SCENARIO)
    with pytest.raises(hm.ScenarioError, match="store: expected a store given to compare"):
        hm.compare(problem, ["uncoordinated"], episodes=1, train=1).gap_ledgers()
    with pytest.raises(hm.ScenarioError, match="train: expected at least 1 trained episode"):
        hm.compare(problem, ["uncoordinated"], episodes=1, store=tmp_path).gap_ledgers()
    with pytest.raises(hm.ScenarioError, match=r"learning\.dataset: expected one of"):
        hm.gap_ledger(hm.Job(SCENARIO.override({"learning.dataset": "numbers"}), "uncoordinated"), tmp_path / "new")
    assert not (tmp_path / "new").exists()
