"""Schedules say what the trace and the trainer do, and the Flower app replays them."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import heliomesh as hm
from heliomesh.common.streams import stream
from heliomesh.interop.flower_app import replay
from heliomesh.interop.flower_schedule import Schedule, make_schedule, write_app, write_schedule
from heliomesh.learning.aggregation import aggregate
from heliomesh.learning.schedule import learning_rates
from heliomesh.physics.topology import build_topology
from heliomesh.tasks.dataset import load_dataset
from heliomesh.tasks.partition import split

HERE = Path(__file__).parent
CHANGES = {"slots": 20, "learning.partition": "dirichlet", "learning.learning_rate": 0.1}


@pytest.fixture
def job():
    scenario = hm.Scenario.load("tiny").override(CHANGES)
    problem = hm.build(scenario)
    return hm.TrainJob(scenario, hm.simulate(problem, hm.plan(problem, "receiver"), 2, seed=4), 1, 6)


@pytest.fixture
def app(job, tmp_path):
    """The folder of an app."""
    dataset = load_dataset(job.scenario.learning)
    write_app(make_schedule(job, dataset), dataset, tmp_path / "app")
    return tmp_path / "app"


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


def test_files_come_back(job, tmp_path):
    schedule = make_schedule(job)
    target, schema = write_schedule(schedule, tmp_path)
    assert Schedule.model_validate_json(target.read_bytes()) == schedule
    assert schema.name == "schedule.schema.json"
    target.write_text(target.read_text(encoding="utf-8").replace('"version":1', '"version":9'), encoding="utf-8")
    with pytest.raises(ValidationError, match="version"):
        Schedule.model_validate_json(target.read_bytes())


@pytest.mark.parametrize("rule", ["model", "renormalized", "reassigned"])
def test_the_app_mixes_as_the_trainer_does(rule, job, tmp_path):
    scenario = job.scenario.override({"learning.aggregation": rule})
    job = hm.TrainJob(scenario, job.trace, 1, 6)
    schedule = replay.ReplayedSchedule.load(write_schedule(make_schedule(job), tmp_path)[0])
    models, topology = np.random.default_rng(0).normal(size=(5, 7)), build_topology(scenario)
    for slot in range(20):
        out = torch.empty(1, 5, 7, dtype=torch.float64)
        after, delivered = torch.from_numpy(models)[None], job.trace.delivered[1:, slot]
        aggregate(rule, topology, None, after, delivered, job.trace.scheduled[1:, slot], out=out)
        np.testing.assert_allclose(schedule.mixed(slot, models), out[0].numpy(), atol=1e-12)


def test_a_schedule_of_the_learning_rate_is_followed(job, tmp_path):
    falling = job.scenario.override({"learning.schedule": "cosine"})
    for scenario in (job.scenario, falling):
        target = write_schedule(make_schedule(hm.TrainJob(scenario, job.trace)), tmp_path)[0]
        read = replay.ReplayedSchedule.load(target)
        assert tuple(read.learning_rate(number) for number in range(20)) == learning_rates(scenario)
        assert ("learning_rates" in read.content) == (scenario is falling)


def replayed(app):
    """Accuracies at tenths of the rounds, without Flower."""
    schedule = replay.ReplayedSchedule.load(app / "heliomesh_app" / "schedule.json")
    data = [replay.load_data(app / "data" / f"client_{client}.npz") for client in range(schedule.num_clients)]
    inputs, labels = replay.load_data(app / "data" / "test.npz")
    models = np.stack([replay.first_weights(inputs.shape[1], 10)] * schedule.num_clients)
    lines = []
    for number, one in enumerate(schedule.content["rounds"]):
        for client in one["trains"]:
            rng = np.random.default_rng([client, number])
            models[client] = replay.local_steps(models[client], *data[client], 5, 32, 0.1, rng)
        models = schedule.mixed(number, models)
        if (number + 1) % 2 == 0:
            mean = np.mean([replay.accuracy(model, inputs, labels) for model in models])
            lines.append(f"round {number + 1}: accuracy {mean:.4f}")
    return lines


def test_a_replay_learns(app):
    assert float(replayed(app)[-1].rpartition(" ")[2]) > 0.7


def test_the_app_refuses_what_it_cannot_replay(job, tmp_path):
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="expected a heliomesh-schedule of version 1"):
        replay.ReplayedSchedule.load(tmp_path / "other.json")
    lazy = job.scenario.override({"learning.aggregation": "update", "network.mixing": "lazy-metropolis"})
    target = write_schedule(make_schedule(hm.TrainJob(lazy, job.trace, 0, 0)), tmp_path)[0]
    with pytest.raises(ValueError, match="actual 'update'"):
        replay.ReplayedSchedule.load(target)


def test_the_command_writes_an_app_with_its_data(call, tmp_path):
    words = ("--format", "flower-app", "--set", "slots=5", "--set", "learning.partition=dirichlet", "--quiet")
    code, printed, _ = call("export", "tiny", "uncoordinated", "--out", tmp_path / "app", "--json", *words)
    facts = json.loads(printed)
    assert code == 0
    assert all(Path(file).is_file() for file in facts["files"])
    assert facts["run it by"].startswith(f"flwr run {tmp_path / 'app'} ")
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    assert project["config"] == {"data": str(tmp_path / "app" / "data")}
    for place in project["components"].values():
        module, _, name = place.partition(":")
        source = (tmp_path / "app" / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8")
        assert f"{name} = " in source
        assert "heliomesh." not in source.replace("heliomesh.heliomesh", "")
    data = load_dataset(hm.Scenario.load("tiny").learning)
    schedule = Schedule.model_validate_json((tmp_path / "app/heliomesh_app/schedule.json").read_bytes())
    for client in schedule.clients:
        with np.load(tmp_path / "app" / "data" / f"client_{client.client}.npz") as file:
            np.testing.assert_array_equal(file["labels"], data.train_labels[list(client.samples)])
            np.testing.assert_array_equal(file["inputs"], data.train_inputs[list(client.samples)])


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
def test_flower_replays_the_schedule(app, flower_python):
    command = [flower_python, HERE / "flower_in_process.py", app]
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, encoding="utf-8")  # noqa: S603
    assert done.returncode == 0, done.stderr
    version, *lines = done.stdout.splitlines()
    assert version.startswith("flwr 1.")
    assert lines == replayed(app)


@pytest.mark.slow
def test_flwr_builds_the_app(app, flower_python, tmp_path):
    """`flwr run` itself leaves a server behind that outlives the test; the bundle that it runs is checked here."""
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(tmp_path / "home")}
    command = [flower_python.with_name("flwr"), "build", "--app", app]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, env=environment, encoding="utf-8", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (bundle,) = tmp_path.glob("*.fab")
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
    wanted = {"__init__.py", "client_app.py", "replay.py", "schedule.json", "server_app.py"}
    assert {f"heliomesh_app/{name}" for name in wanted} <= names
    assert not any(name.endswith(".npz") for name in names)  # a client's samples stay with it
