"""What planning for learning gives: schemes share their seeds, results are kept, and mistakes are one sentence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.jobs.scheme import Scheme
from heliomesh.studies.gain import COUPLED, SCHEMES, SEPARATE
from tests.conftest import Call

SMALL = {"slots": 16, "network.devices": 3, "learning.local_steps": 2, "learning.dataset": "digits"}
SCENARIO = hm.Scenario.load("tiny").override(SMALL)
SETTINGS: dict[str, Any] = {"strategy": "loop", "evaluate_every": 8}
QUICK = (
    Scheme("for learning", "news", {"last_slots": 4}, SEPARATE),
    Scheme("uncoordinated", "uncoordinated", {}, COUPLED),
)
COMMAND = ["study", "learning", "tiny", "--train", "2", "--strategy", "loop", "--quiet"]
COMMAND += [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def found() -> Any:
    """Two schemes over two seeds."""
    return hm.gain(SCENARIO, 2, schemes=QUICK, **SETTINGS)


def test_every_scheme_is_trained_over_the_same_seeds(found: Any) -> None:
    assert [arm.label for arm in found.arms] == ["for learning", "uncoordinated"]
    for arm in found.arms:
        assert arm.accuracy.shape == arm.accuracy_over_run.shape == (2,)
        assert ((arm.accuracy > 0) & (arm.accuracy <= 100)).all()
        assert (arm.final("spent_joule") > 0).all()


def test_over_is_the_mean_of_paired_differences(found: Any) -> None:
    first, other = found.arms
    assert found.over(other).mean == pytest.approx(float((first.accuracy - other.accuracy).mean()))
    assert found.over(first).mean == 0


def test_a_run_is_that_of_the_library(found: Any) -> None:
    """The second seed of the second scheme, planned, simulated and trained by hand."""
    scenario = SCENARIO.override(COUPLED)
    problem = hm.build(scenario)
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated", bound=False), [1])
    run = hm.train(scenario, trace, 0, seed=1, **SETTINGS)
    np.testing.assert_array_equal(found.arms[1].runs[1].accuracy, run.accuracy)


def test_a_folder_is_not_computed_twice(tmp_path: Path, found: Any) -> None:
    def refuse(items: object, description: str, total: int) -> Any:
        raise AssertionError(description)

    kept = hm.gain(SCENARIO, 2, schemes=QUICK, folder=tmp_path, **SETTINGS)
    again = hm.gain(SCENARIO, 2, schemes=QUICK, folder=tmp_path, track=refuse, **SETTINGS)
    for one, other, plain in zip(kept.arms, again.arms, found.arms, strict=True):
        np.testing.assert_array_equal(one.accuracy, other.accuracy)
        np.testing.assert_array_equal(one.accuracy, plain.accuracy)


@pytest.mark.parametrize("seeds", [0, -1])
def test_no_seeds_are_refused(seeds: int) -> None:
    with pytest.raises(hm.MistakeError, match=f"seeds: expected a whole number of at least 1, actual value {seeds}"):
        hm.gain(SCENARIO, seeds)


def test_the_command_prints_every_scheme_as_json(call: Call, tmp_path: Path) -> None:
    code, printed, told = call(*COMMAND, "--json", "--out", tmp_path / "kept")
    assert (code, told) == (0, "")
    facts = json.loads(printed)
    assert list(facts) == [scheme.label for scheme in SCHEMES]
    for arm in facts.values():
        assert set(arm) == {"accuracy", "accuracy over the run", "spent_joule"}
        assert all(len(values) == 2 for values in arm.values())
    assert call(*COMMAND, "--json", "--out", tmp_path / "kept")[1] == printed
    code, table, told = call(*COMMAND, "--out", tmp_path / "kept")
    assert (code, told) == (0, "")
    for word in ("tiny", "digits", "2 seeds", *facts):
        assert word in table


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["study", "learning", "tyni"], "scenario: expected"),
        (["study", "learning", "tiny", "--set", "cost.unlikeness=-1"], "cost.unlikeness: expected"),
        (["study", "learning", "tiny", "--set", "cost.deadline=soon"], "cost.deadline"),
        (["study", "learning", "tiny", "--set", "learning.dataset=nothing"], "learning.dataset: expected"),
        (["study", "learning", "tiny", "--strategy", "magic"], "learning.strategy: expected"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(call: Call, arguments: list[str], said: str) -> None:
    code, printed, told = call(*arguments)
    assert (code, printed) == (2, "")
    assert told.startswith(f"error: {said}")
    assert told.count("\n") == 1


def test_no_seeds_end_the_command_with_2(call: Call) -> None:
    code, _, told = call("study", "learning", "tiny", "--train", "0")
    assert code == 2
    assert "--train" in told
