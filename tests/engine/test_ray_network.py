"""One network over Ray actors: the results of the local engine, also when actors are lost or the run is stopped."""

import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import heliomesh as hm
from heliomesh.cli import app
from heliomesh.learning.evaluation import COLUMNS

if find_spec("ray") is None:
    pytest.skip("Ray is not installed (pip install heliomesh[ray])", allow_module_level=True)

from heliomesh.engine import ray as engine  # isort: skip  # it sets what Ray reads when it is imported
from heliomesh.engine.ray_network import ActorNetwork, over_actors

import ray  # isort: skip
from ray.cluster_utils import Cluster  # isort: skip

GEOMETRIC = {"network.topology": "geometric", "network.mean_degree": 4.0, "network.devices": 14}
RING = {"network.devices": 10}
SEPARATE = {"energy.actions": "separate", "energy.compute_joule": 2.5}  # many batteries pay for sending only
LOOPBACK = "127.0.0.1"


@pytest.fixture(scope="module")
def local_ray():
    engine.start()
    yield
    engine.stop()


def job_of(slots=7, **changes):
    learning = {"slots": slots, "learning.dataset": "digits", "learning.local_steps": 2, "learning.batch": 8}
    scenario = hm.Scenario.load("ring10").override(learning | changes)
    problem = hm.build(scenario)
    return hm.TrainJob(scenario, hm.simulate(problem, hm.plan(problem, "uncoordinated"), 1))


def train(job, **options):
    return hm.train(job.scenario, job.trace, evaluate_every=3, strategy="loop", **options)


def assert_equal(ours, theirs):
    for name in COLUMNS:
        assert np.array_equal(ours.metrics[name], theirs.metrics[name], equal_nan=True), name
    assert np.array_equal(ours.accuracy, theirs.accuracy)
    assert np.array_equal(ours.loss, theirs.loss)
    assert torch.equal(ours.weights, theirs.weights)


@pytest.mark.parametrize("actions", [{}, pytest.param(SEPARATE, marks=pytest.mark.slow)], ids=["coupled", "separate"])
def test_three_actors_train_as_one_process_does(local_ray, actions):
    job = job_of(**GEOMETRIC, **actions)
    assert ((job.trace.power_watt > 0) & ~job.trace.scheduled).any() == bool(actions)
    spread = train(job, make_stack=over_actors(3))
    assert_equal(train(job), spread)
    facts = spread.provenance
    row = 4 * spread.weights.shape[1]
    assert facts["actors"] == 3
    assert 0 < facts["cut_links"] < facts["links"]
    assert 0 < facts["bytes_between_actors"] <= job.trace.delivered.sum() * row
    assert facts["bytes_gathered"] == 3 * 14 * row  # after 3, 6 and 7 slots


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["loop", "vmap", "auto"])
def test_a_ring_that_averages_updates_is_equal_by_every_strategy(local_ray, strategy):
    update = {"learning.aggregation": "update", "network.mixing": "lazy-metropolis"}
    job = job_of(**RING, **update)
    ours, theirs = (
        hm.train(job.scenario, job.trace, evaluate_every=3, strategy=strategy, **options)
        for options in ({}, {"make_stack": over_actors(3)})
    )
    assert_equal(ours, theirs)
    assert ours.provenance["strategy"] == theirs.provenance["strategy"]


class Killer:
    """Kills one actor's process before a slot."""

    def __init__(self, slot):
        self.slot, self.networks, self.killed = slot, [], []

    def make_stack(self, jobs, dataset, settings):
        self.networks.append(ActorNetwork(jobs[0], dataset, settings, 3))
        return self.networks[-1]

    def track(self, items, description, total):
        for item in items:
            if item == self.slot and not self.killed:
                actor = self.networks[0]._actors[1]
                process = ray.get(actor.__ray_call__.remote(lambda own: os.getpid()))
                os.kill(process, signal.SIGKILL)
                self.killed.append(process)
            yield item


@pytest.mark.slow
@pytest.mark.parametrize("slot", [1, 5])  # before and after weights were gathered
@pytest.mark.parametrize(
    "memory",
    [{}, {"learning.quasi_global": 0.9, "learning.schedule": "cosine"}, {"learning.on_air": "top-k"}],
)
def test_a_lost_actor_is_replaced_and_catches_up(local_ray, slot, memory):
    job, killer = job_of(**GEOMETRIC, **memory), Killer(slot)
    spread = train(job, make_stack=killer.make_stack, track=killer.track)
    assert len(killer.killed) == 1
    assert_equal(train(job), spread)


@pytest.mark.slow
def test_a_run_goes_on_in_the_other_engine(local_ray, tmp_path):
    job = job_of(**GEOMETRIC)
    whole = train(job)

    def stop_at(slot):
        def track(items, description, total):
            for item in items:
                if item == slot:
                    raise KeyboardInterrupt
                yield item

        return track

    for name, first, then in (("a", {}, {"make_stack": over_actors(2)}), ("b", {"make_stack": over_actors(3)}, {})):
        with pytest.raises(KeyboardInterrupt):
            train(job, folder=tmp_path / name, checkpoint_every=2, track=stop_at(5), **first)
        assert_equal(whole, train(job, folder=tmp_path / name, **then))


@pytest.mark.slow
def test_an_error_of_the_training_is_raised_as_it_is(local_ray):
    job = job_of(**GEOMETRIC, **{"learning.learning_rate": 1e30})
    with pytest.raises(hm.TrainingError, match="expected finite losses"):
        train(job, make_stack=over_actors(2))


@pytest.mark.parametrize(
    ("options", "settings", "message"),
    [
        ((15, None), {}, "actors: expected 1 to 14, one device for each, actual value 15"),
        ((2, 0.5), {}, "gpus_per_actor: expected device = 'cuda' with it, actual value 0.5"),
        ((2, 1.5), {"device": "cuda"}, "gpus_per_actor: expected a fraction of a GPU or a whole number"),
        ((2, None), {"device": "cuda:1"}, "device: expected cpu or cuda for actors"),
        (
            (2, 0.5),
            {"device": "cuda"},
            "gpus_per_actor: expected a share at which 2 actors fit, actual value 0.5 fits 0",
        ),
        ((2, None), {"memory_gib": 1e-6}, "weights at the driver: expected at most"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for GPUs that are not there")
def test_what_cannot_be_had_is_refused(local_ray, options, settings, message):
    job = job_of(**GEOMETRIC)
    with pytest.raises(ValueError, match=message):
        train(job, make_stack=over_actors(*options), **settings)


@pytest.mark.parametrize("words", [["--actors", "2"], ["--gpus-per-actor", "0.5"], ["--address", "127.0.0.1:6379"]])
def test_what_is_for_ray_needs_ray(tmp_path, words):
    ended = CliRunner().invoke(app, ["run", "tiny", "uncoordinated", "--out", str(tmp_path / "run"), *words])
    assert isinstance(ended.exception, hm.ScenarioError)
    assert str(ended.exception).startswith(f"{words[0]}: expected --engine ray with it, actual value")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="pretends to have a GPU")
def test_actors_share_a_gpu_by_fractions():
    engine.stop()
    head = {"num_cpus": 2, "num_gpus": 1, "node_ip_address": LOOPBACK, "include_dashboard": False}
    cluster, job = Cluster(initialize_head=True, head_node_args=head), job_of(**GEOMETRIC)
    try:
        engine.start(cluster.address)
        with pytest.raises(ValueError, match=r"expected a share at which 3 actors fit, actual value 0\.5 fits 2"):
            train(job, make_stack=over_actors(3, 0.5), device="cuda")
        with pytest.raises(ValueError, match="no CUDA device is present"):  # said by the actors, so they were placed
            train(job, make_stack=over_actors(None, 0.5), device="cuda")
    finally:
        engine.stop()
        cluster.shutdown()


@pytest.mark.slow
def test_a_network_survives_the_loss_of_a_node():
    engine.stop()
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "node_ip_address": LOOPBACK, "include_dashboard": False}
    )
    node = cluster.add_node(num_cpus=1, node_ip_address=LOOPBACK)
    job, lost = job_of(**GEOMETRIC), []

    def track(items, description, total):
        for item in items:
            if item == 4:
                cluster.remove_node(node, allow_graceful=False)
                lost.append(item)
            yield item

    try:
        engine.start(cluster.address)
        spread = train(job, make_stack=over_actors(2), track=track)
    finally:
        engine.stop()
        cluster.shutdown()
    assert lost == [4]
    assert_equal(train(job), spread)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "send"),
    [
        (signal.SIGINT, os.killpg),  # as a terminal does: Ray's processes get it too
        (signal.SIGHUP, os.killpg),
        (signal.SIGTERM, os.kill),  # Ray's processes must end by it
    ],
)
def test_a_signal_leaves_a_run_that_goes_on(tmp_path, number, send):
    words = ["run", "ring10", "uncoordinated", "--set", "slots=60", "--set", "learning.dataset=digits"]
    words += ["--evaluate-every", "5", "--strategy", "loop", "--out"]
    command = [sys.executable, "-c", "from heliomesh.cli import main; main()", *words]
    log = tmp_path / "log"
    with log.open("w") as errors:
        spread = [*command, str(tmp_path / "a"), "--engine", "ray", "--actors", "2"]
        started = subprocess.Popen(spread, stderr=errors, stdout=errors, start_new_session=True)  # noqa: S603
        _wait_for(log, "slot 10 of 60")
        send(started.pid, number)
        assert started.wait(60) == 128 + number, log.read_text(encoding="utf-8")
    *progress, last = log.read_text(encoding="utf-8").splitlines()
    assert all(re.match(r"slot \d+ of 60: accuracy", line) for line in progress)  # no stack of Ray's
    assert re.fullmatch(r"stopped after slot \d+ of 60; the same command goes on", last)
    for name in "ab":  # goes on, and does it all at once
        subprocess.run([*command, str(tmp_path / name)], check=True, capture_output=True)  # noqa: S603
    assert_equal(hm.Run.load(tmp_path / "a"), hm.Run.load(tmp_path / "b"))


def _wait_for(log: Path, text: str) -> None:
    deadline = time.monotonic() + 120
    while text not in log.read_text(encoding="utf-8"):
        assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
        time.sleep(0.05)
