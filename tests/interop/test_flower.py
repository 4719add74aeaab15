"""Schedules say what the trace and the trainer do, and the Flower example replays them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.interop.flower_schedule import make_schedule, read_schedule, write_schedule
from heliomesh.learning.aggregation import aggregate
from heliomesh.learning.dataset import load_dataset
from heliomesh.learning.partition import split
from heliomesh.learning.schedule import learning_rates
from heliomesh.physics.topology import build_topology
from heliomesh.streams import stream

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "flower_client.py"
CHANGES = {"slots": 20, "learning.partition": "dirichlet", "learning.learning_rate": 0.1}


@pytest.fixture
def job():
    scenario = hm.Scenario.load("tiny").override(CHANGES)
    problem = hm.build(scenario)
    return hm.TrainJob(scenario, hm.simulate(problem, hm.plan(problem, "receiver"), 2, seed=4), 1, 6)


@pytest.fixture
def files(job, tmp_path):
    """A schedule and the training data as files."""
    dataset = load_dataset(job.scenario.learning)
    arrays = {"train_inputs": dataset.train_inputs.numpy(), "train_labels": dataset.train_labels.numpy()}
    np.savez(tmp_path / "data.npz", **arrays)
    return write_schedule(make_schedule(job), tmp_path)[0], tmp_path / "data.npz"


def test_rounds_are_the_trace(job):
    schedule, trace = make_schedule(job), job.trace
    assert (schedule.planner, schedule.simulation_seed, schedule.partition_seed) == ("receiver", 4, 6)
    assert len(schedule.rounds) == 20
    for slot, one in enumerate(schedule.rounds):
        assert list(one.trains) == np.flatnonzero(trace.scheduled[1, slot]).tolist()
        assert set(one.sends) <= set(one.trains)
        edges = np.flatnonzero(trace.delivered[1, slot])
        pairs = zip(trace.edge_receiver[edges].tolist(), trace.edge_sender[edges].tolist(), strict=True)
        assert list(one.arrivals) == list(pairs)
        assert {sender for _, sender in one.arrivals} <= set(one.sends)


def test_who_sends_without_training_is_listed_under_sends_only():
    scenario = hm.Scenario.load("tiny").override({"energy.actions": "separate", "energy.compute_joule": 1.5})
    problem = hm.build(scenario)
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated"), 1)
    schedule = make_schedule(hm.TrainJob(scenario, trace))
    for slot, one in enumerate(schedule.rounds):
        assert list(one.sends) == np.flatnonzero(trace.power_watt[0, slot] > 0).tolist()
        assert list(one.trains) == np.flatnonzero(trace.scheduled[0, slot]).tolist()
    assert any(set(one.sends) - set(one.trains) for one in schedule.rounds)


def test_samples_are_the_trainers_partition(job):
    schedule = make_schedule(job)
    labels = load_dataset(job.scenario.learning).train_labels
    partition = split(labels, job.scenario.learning, 5, stream(6, "partition"))
    assert [list(client.samples) for client in schedule.clients] == [partition.of(d).tolist() for d in range(5)]
    for client in schedule.clients:
        assert client.self_weight + sum(client.weights) == pytest.approx(1.0)


def test_files_come_back_and_damage_is_refused(job, tmp_path):
    schedule = make_schedule(job)
    target, schema = write_schedule(schedule, tmp_path)
    assert read_schedule(target) == schedule
    assert schema.name == "schedule.schema.json"
    target.write_text(target.read_text(encoding="utf-8").replace('"version":1', '"version":9'), encoding="utf-8")
    with pytest.raises(hm.ScenarioError, match="expected a schedule of version 1, version"):
        read_schedule(target)


@pytest.mark.parametrize("rule", ["model", "renormalized", "reassigned"])
def test_the_example_mixes_as_the_trainer_does(rule, job, example, tmp_path):
    scenario = job.scenario.override({"learning.aggregation": rule})
    job = hm.TrainJob(scenario, job.trace, 1, 6)
    schedule = example("flower_client").Schedule.load(write_schedule(make_schedule(job), tmp_path)[0])
    models, topology = np.random.default_rng(0).normal(size=(5, 7)), build_topology(scenario)
    for slot in range(20):
        out = torch.empty(1, 5, 7, dtype=torch.float64)
        after, delivered = torch.from_numpy(models)[None], job.trace.delivered[1:, slot]
        aggregate(rule, topology, None, after, delivered, job.trace.scheduled[1:, slot], out=out)
        np.testing.assert_allclose(schedule.mixed(slot, models), out[0].numpy(), atol=1e-12)


def test_a_schedule_of_the_learning_rate_is_followed(job, example, tmp_path):
    falling = job.scenario.override({"learning.schedule": "cosine"})
    for scenario in (job.scenario, falling):
        target = write_schedule(make_schedule(hm.TrainJob(scenario, job.trace)), tmp_path)[0]
        read = example("flower_client").Schedule.load(target)
        assert tuple(read.learning_rate(number) for number in range(20)) == learning_rates(scenario)
        assert ("learning_rates" in read.content) == (scenario is falling)


def replayed(example, schedule_file, data_file):
    """Accuracies at tenths of the rounds, without Flower."""
    schedule = example.Schedule.load(schedule_file)
    inputs, labels = example.load_data(data_file)
    models = np.stack([example.first_weights(inputs.shape[1], 10)] * schedule.num_clients)
    lines = []
    for number in range(schedule.num_rounds):
        for client in schedule.trains(number):
            own = schedule.samples(client)
            rng = np.random.default_rng([client, number])
            models[client] = example.local_steps(models[client], inputs[own], labels[own], 5, 32, 0.1, rng)
        models = schedule.mixed(number, models)
        if (number + 1) % 2 == 0:
            mean = np.mean([example.accuracy(model, inputs, labels) for model in models])
            lines.append(f"round {number + 1}: accuracy {mean:.4f}")
    return lines


def test_a_replay_learns(files, example):
    last = replayed(example("flower_client"), *files)[-1]
    assert float(last.rpartition(" ")[2]) > 0.7


def test_the_example_refuses_what_it_cannot_replay(job, example, tmp_path):
    client = example("flower_client")
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="expected a heliomesh-schedule of version 1"):
        client.Schedule.load(tmp_path / "other.json")
    lazy = job.scenario.override({"learning.aggregation": "update", "network.mixing": "lazy-metropolis"})
    target = write_schedule(make_schedule(hm.TrainJob(lazy, job.trace, 0, 0)), tmp_path)[0]
    with pytest.raises(ValueError, match="actual 'update'"):
        client.Schedule.load(target)


@pytest.fixture
def flower_python(tmp_path):
    """An interpreter with Flower: that of HELIOMESH_FLOWER_PYTHON, or of a throw-away environment."""
    given = os.environ.get("HELIOMESH_FLOWER_PYTHON")
    if given:
        return given
    python = tmp_path / "environment" / "bin" / "python"
    steps = [[sys.executable, "-m", "venv", tmp_path / "environment"], [python, "-m", "pip", "install", "-q", "flwr"]]
    for step in steps:
        if subprocess.run(step, capture_output=True, check=False).returncode:  # noqa: S603
            pytest.skip("Flower cannot be installed here")
    return python


@pytest.mark.slow
def test_flower_replays_the_schedule(files, example, flower_python):
    command = [flower_python, HERE / "flower_in_process.py", *files, EXAMPLE]
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, encoding="utf-8")  # noqa: S603
    assert done.returncode == 0, done.stderr
    version, *lines = done.stdout.splitlines()
    assert version.startswith("flwr 1.")
    assert lines == replayed(example("flower_client"), *files)
