"""`heliomesh device fleet`: the same files as `heliomesh run`, and mistakes in one sentence."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from heliomesh.learning.run import Run
from heliomesh.pages.run_folder import read_run
from heliomesh.simulation.trace import Trace
from tests.conftest import Call


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--planner", "myopic"],
            "error: planner: expected one of bids, decentralized, fixed_fraction, skiptrain",
        ),
        (["--kill", "5@0"], "error: --kill: expected device@slot with a device below 5 and a slot below 12"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    call: Call,
) -> None:
    code, _, said = call("device", "fleet", "tiny", *words, "--out", tmp_path / "run")
    assert code == 2
    assert said.startswith(sentence)
    assert said.count("\n") == 1


@pytest.mark.slow
def test_twenty_devices_do_what_run_does(tmp_path: Path, call: Call) -> None:
    ring = ["--set", "network.devices=20", "--set", "slots=6", "--evaluate-every", "3", "--json"]
    fleet, alone = tmp_path / "fleet", tmp_path / "run"
    words = ["device", "fleet", "ring10", *ring, "--finite", "--out", fleet]
    code, printed, told = call(*words, "--planner", "decentralized")
    assert code == 0, told
    assert call("run", "ring10", "decentralized", *ring, "-o", "share_tables=false", "--out", alone)[0] == 0
    _assert_same_folders(fleet, alone)
    facts = json.loads(printed)
    assert facts["planning bytes, counted"] == facts["planning bytes, predicted"] > 0
    assert facts["coordination bytes per slot, counted"] == facts["coordination bytes per slot, predicted"] > 0
    assert read_run(fleet).finished
    code, _, told = call(*words)
    assert code == 2
    assert "expected an empty folder" in told


@pytest.mark.slow
def test_twenty_bidders_do_what_run_does(tmp_path: Path, call: Call) -> None:
    words = ["--set", "network.devices=20", "--set", "slots=20", "--set", "energy.control_loss=0.2", "--seed", "3"]
    words += ["--evaluate-every", "10", "--json", "-o", "practice=2"]
    fleet, alone = tmp_path / "fleet", tmp_path / "run"
    code, printed, told = call("device", "fleet", "ring10", *words, "--out", fleet)
    assert code == 0, told
    assert call("run", "ring10", "bids", *words, "--out", alone)[0] == 0
    _assert_same_folders(fleet, alone)
    facts = json.loads(printed)
    assert facts["coordination bytes per slot, counted"] == facts["coordination bytes per slot, predicted"] > 0


def _assert_same_folders(one: Path, other: Path) -> None:
    _assert_same_traces(Trace.load(one / "trace.npz"), Trace.load(other / "trace.npz"))
    _assert_same_runs(Run.load(one), Run.load(other))


def _assert_same_traces(one: Trace, other: Trace) -> None:
    for field in fields(Trace):
        assert np.array_equal(getattr(one, field.name), getattr(other, field.name)), field.name


def _assert_same_runs(one: Run, other: Run) -> None:
    for name, column in one.metrics.items():
        assert np.array_equal(column, other.metrics[name], equal_nan=True), name
    assert torch.equal(one.weights, other.weights)
    assert np.array_equal(one.accuracy, other.accuracy)
    assert one.provenance["trace"] == other.provenance["trace"]
