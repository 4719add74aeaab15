"""Whatever a folder or store holds, another job never gets its numbers."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.jobs.job import Job
from heliomesh.jobs.store import Store, opened
from heliomesh.learning.settings import TrainSettings
from heliomesh.studies.sizing import Measurement
from tests.conftest import Call

SHORT = ("--set", "slots=6", "--set", "learning.local_steps=2", "--quiet")


def refused(call: Call, *arguments: object) -> str:
    code, _, error = call(*arguments)
    assert code == 2, error
    return error


def test_a_comparison_s_run_is_of_its_own_seeds(call: Call, tmp_path: Path) -> None:
    """Episode 1 of `compare` is simulated with seed 0 and trained with seed 1, which no `run` asks for."""
    call("compare", "tiny", "uncoordinated", "--train", 2, "--runs", tmp_path, "--episodes", 2, *SHORT)
    place = tmp_path / "uncoordinated-1"
    run = ("run", "tiny", "uncoordinated", "--episode", 1, "--out", place, "--evaluate-every", 5, *SHORT)
    assert "seed: expected 0 (as in the folder), actual 1" in refused(call, *run, "--seed", 1)
    assert "training seed: expected 1 (as in the folder), actual 0" in refused(call, *run, "--seed", 0)


def test_a_smaller_variant_is_recorded_with_its_options(call: Call, tmp_path: Path) -> None:
    compared = ("compare", "tiny", "decentralized:memory_gib=0.0001", "--train", 1, "--runs", tmp_path)
    code, out, error = call(*compared, "--episodes", 2, "--json", *SHORT)
    assert code == 0, error
    kept = [row["planner"] for row in json.loads(out)["rows"] if "accuracy" in row]
    place = tmp_path / f"{kept[0].replace(':', '-')}-0"
    error = refused(call, "run", "tiny", "decentralized", "--out", place, "--evaluate-every", 5, *SHORT)
    assert "options." in error


def test_another_precision_is_another_run(call: Call, tmp_path: Path) -> None:
    run = ("run", "tiny", "uncoordinated", "--out", tmp_path / "r", *SHORT)
    assert call(*run)[0] == 0
    error = refused(call, *run, "--precision", "bf16")
    assert "precision: expected 'fp32' (as in the folder), actual 'bf16'" in error


def test_a_killed_device_is_a_change_of_the_world(call: Call, tmp_path: Path) -> None:
    """As `heliomesh device fleet --kill 1@2` keeps it."""
    scenario = hm.Scenario.load("tiny").override({"slots": 6, "learning.local_steps": 2})
    job = Job(scenario, "uncoordinated", changes=("device.1=killed@2",))
    whole, store = replace(job, changes=()), Store(tmp_path, single=True)
    with opened(None) as scratch:
        store.put_plan(job, scratch.plan(whole))
        store.put_trace(job, scratch.trace(whole))
    assert "changes.0: expected 'device.1=killed@2'" in refused(
        call, "run", "tiny", "uncoordinated", "--out", tmp_path, *SHORT
    )


def _data(path: Path, flipped: bool) -> None:
    """Samples whose label is written into them, or the opposite label."""
    labels = np.arange(64) % 2
    inputs = np.zeros((64, 8, 8)) + (labels ^ flipped)[:, None, None]
    inputs += 0.01 * np.random.default_rng(0).random(inputs.shape)
    own = {"train_inputs": inputs, "train_labels": labels}
    np.savez(
        path, **own, test_inputs=np.zeros((8, 8, 8)) + (np.arange(8) % 2)[:, None, None], test_labels=np.arange(8) % 2
    )


def test_replaced_data_are_measured_anew(tmp_path: Path) -> None:
    file, store = tmp_path / "own.npz", Store(tmp_path / "store")
    scenario = hm.Scenario.load("tiny").override(
        {"slots": 12, "learning.dataset": "own", "learning.path": str(file), "learning.model": "mlp"}
        | {"learning.learning_rate": 0.5, "learning.min_samples": 1}
    )
    measurement = Measurement("accuracy", "uncoordinated", episodes=2)
    found = []
    for flipped in (False, True):
        _data(file, flipped)
        found.append(measurement.samples(scenario, store).measure.mean())
    assert found[0] > 0.9
    assert found[1] < 0.1


def test_a_trace_of_another_world_is_refused(call: Call, tmp_path: Path) -> None:
    trace = tmp_path / "trace.npz"
    assert call("simulate", "tiny", "uncoordinated", "--episodes", 1, "--out", trace, *SHORT[:2], "--quiet")[0] == 0
    train = ("run", "tiny", "--trace", trace, "--out", tmp_path / "r", "--set", "slots=6", "--quiet")
    error = refused(call, *train, "--set", "link.waterfall=0.3")
    assert "trace: link.waterfall: expected 1.0 as it was simulated with, actual 0.3" in error
    assert call(*train, "--set", "learning.learning_rate=0.1")[0] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("network.mixing=lazy-metropolis", "scenario.network.mixing: expected the default (as in the folder)"),
        ("cost.idle_penalty=0.5", "scenario.cost.idle_penalty: expected the default (as in the folder), actual 0.5"),
        ("learning.learning_rate=0.2", "learning.learning_rate: expected the default (as in the folder), actual 0.2"),
        ("link.noise_watt=0.01", "scenario.link.noise_watt: expected 0.3 (as in the folder), actual the default"),
    ],
)
def test_a_value_against_a_default_is_told(call: Call, tmp_path: Path, change: str, words: str) -> None:
    run = ("run", "tiny", "uncoordinated", "--out", tmp_path / "r", *SHORT)
    assert call(*run)[0] == 0
    assert words in refused(call, *run, "--set", change)


@pytest.mark.parametrize("step", ["plan", "trace", "run"])
def test_a_result_under_another_key_is_refused(tmp_path: Path, step: str) -> None:
    """As if two jobs had one key, or somebody had moved folders."""
    scenario = hm.Scenario.load("tiny").override({"slots": 6, "learning.local_steps": 2})
    one = Job(scenario, "uncoordinated", training=TrainSettings(evaluate_every=3))
    other, store = replace(one, scenario=scenario.override({"link.waterfall": 0.5})), Store(tmp_path)
    store.run(one)
    place = store.place(other, step)  # type: ignore[arg-type]
    place.parent.mkdir(parents=True, exist_ok=True)
    store.place(one, step).rename(place)  # type: ignore[arg-type]
    with pytest.raises(hm.TrainingError, match=r"scenario\.link\.waterfall: expected the default"):
        getattr(store, step)(other)
