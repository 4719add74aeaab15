"""A Flower app follows the trace: who trains, whose packets arrive, and how the trainer averages them."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.common.streams import stream
from heliomesh.interop.flower import FlowerGate
from heliomesh.learning.aggregation import aggregate
from heliomesh.learning.schedule import learning_rates
from heliomesh.physics.topology import build_topology
from heliomesh.tasks.dataset import load_dataset
from heliomesh.tasks.partition import split

HERE = Path(__file__).parent
APP = HERE.parents[1] / "examples" / "flower"
CHANGES = {"slots": 20, "learning.partition": "dirichlet", "learning.learning_rate": 0.1}
SCENARIO = hm.Scenario.load("tiny").override(CHANGES)


@pytest.fixture(scope="module")
def trace():
    problem = hm.build(SCENARIO)
    return hm.simulate(problem, hm.plan(problem, "receiver"), 2, seed=4)


def test_rounds_are_the_slots_of_the_trace(trace):
    gate = FlowerGate(SCENARIO, trace, 1)
    assert (gate.num_rounds, gate.num_clients) == (20, 5)
    for number in range(20):
        assert gate.trains(number) == np.flatnonzero(trace.scheduled[1, number]).tolist()


def test_samples_are_the_trainers_partition(trace):
    gate = FlowerGate(SCENARIO, trace, 1, seed=6)
    labels = load_dataset(SCENARIO.learning).train_labels
    partition = split(labels, SCENARIO.learning, 5, stream(6, "partition"))
    for client in range(5):
        np.testing.assert_array_equal(gate.samples(client), partition.of(client))


@pytest.mark.parametrize("rule", ["model", "renormalized", "reassigned", "update", "median"])
def test_models_mix_as_the_trainer_mixes_them(rule, trace):
    scenario = SCENARIO.override({"learning.aggregation": rule, "network.mixing": "lazy-metropolis"})
    gate, topology = FlowerGate(scenario, trace, 1), build_topology(scenario)
    before, after = np.random.default_rng(0).normal(size=(2, 5, 7))
    for number in range(20):
        trained = trace.scheduled[1, number]
        moved = np.where(trained[:, None], after, before)
        out = torch.empty(5, 7, dtype=torch.float64)
        weights = torch.from_numpy(before), torch.from_numpy(moved)
        aggregate(rule, topology, *weights, trace.delivered[1, number], trained, out)
        np.testing.assert_array_equal(gate.mixed(number, before, moved), out.numpy())


def test_learning_rates_follow_the_schedule(trace):
    falling = SCENARIO.override({"learning.schedule": "cosine"})
    assert FlowerGate(falling, trace).learning_rates == learning_rates(falling)


def test_files_are_opened_by_their_names(trace, tmp_path):
    (tmp_path / "scenario.toml").write_text(SCENARIO.to_toml(), encoding="utf-8")
    trace.save(tmp_path / "trace.npz")
    gate = FlowerGate(str(tmp_path / "scenario.toml"), tmp_path / "trace.npz")
    assert gate.trains(3) == FlowerGate(SCENARIO, trace).trains(3)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"learning.quasi_global": 0.8}, r"learning\.quasi_global: expected none with Flower, actual value 0\.8"),
        ({"learning.on_air": "int8"}, r"learning\.on_air: expected float32 with Flower, actual value 'int8'"),
        ({"slots": 19}, "trace: expected 19 slots"),
    ],
)
def test_what_flower_cannot_follow_is_refused(change, sentence, trace):
    with pytest.raises((hm.ScenarioError, hm.TraceError), match=sentence):
        FlowerGate(SCENARIO.override(change), trace)


def replayed(scenario, trace):
    """Accuracies at tenths of the rounds, without Flower."""
    sys.path.insert(0, str(APP))
    try:
        from heliomesh_flower.model import accuracy, first_weights, local_steps
    finally:
        sys.path.remove(str(APP))
    gate = FlowerGate(scenario, trace)
    data, lines = gate.dataset, []
    inputs, labels = data.train_inputs.numpy(), data.train_labels.numpy()
    models = np.stack([first_weights(inputs[0].size, 10)] * gate.num_clients)
    for number in range(gate.num_rounds):
        after = models.copy()
        for client in gate.trains(number):
            own, rng = gate.samples(client), np.random.default_rng([client, number])
            after[client] = local_steps(models[client], inputs[own], labels[own], 5, 32, 0.1, rng)
        models = gate.mixed(number, models, after)
        if (number + 1) % 2 == 0:
            scores = [accuracy(model, data.test_inputs.numpy(), data.test_labels.numpy()) for model in models]
            lines.append(f"round {number + 1}: accuracy {np.mean(scores):.4f}")
    return lines


def test_the_example_learns(trace):
    assert float(replayed(SCENARIO, trace)[-1].rpartition(" ")[2]) > 0.7


@pytest.fixture
def flower_python(tmp_path):
    """An interpreter with Flower: that of HELIOMESH_FLOWER_PYTHON, or of a throw-away environment."""
    given = os.environ.get("HELIOMESH_FLOWER_PYTHON")
    if given:
        return Path(given)
    python = tmp_path / "environment" / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", "flwr[simulation]"]
    for step in ([sys.executable, "-m", "venv", tmp_path / "environment"], install):
        if subprocess.run(step, capture_output=True, check=False).returncode:  # noqa: S603
            pytest.skip("Flower cannot be installed here")
    return python


@pytest.mark.slow
def test_flower_plays_the_rounds(trace, flower_python, tmp_path):
    (tmp_path / "scenario.toml").write_text(SCENARIO.to_toml(), encoding="utf-8")
    trace.save(tmp_path / "trace.npz")
    command = [flower_python, HERE / "flower_in_process.py", APP, tmp_path / "scenario.toml", tmp_path / "trace.npz"]
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "HELIOMESH_SITE": sysconfig.get_path("purelib")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, encoding="utf-8")  # noqa: S603
    assert done.returncode == 0, done.stderr
    version, *lines = done.stdout.splitlines()
    assert version.startswith("flwr 1.")
    assert lines == replayed(SCENARIO, trace)


@pytest.mark.slow
def test_flwr_builds_the_example(flower_python, tmp_path):
    """`flwr run` itself leaves a server behind that outlives the test; the bundle that it runs is built here."""
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(tmp_path / "home")}
    command = [flower_python.with_name("flwr"), "build", "--app", APP]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, env=environment, encoding="utf-8", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("*.fab"))) == 1
