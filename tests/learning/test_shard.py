"""Parts of a network that exchange rows train as the whole does, bit for bit, and send no more than they must."""

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.learning.replay import Replay
from heliomesh.learning.shard import Border, Shard
from heliomesh.physics.topology import build_topology
from heliomesh.tasks.dataset import load_dataset

SEPARATE = {"energy.actions": "separate", "energy.compute_joule": 2.5}  # many batteries pay for sending only
RULES = {
    "model": {"learning.aggregation": "model"},
    "renormalized": {"learning.aggregation": "renormalized"},
    "reassigned": {"learning.aggregation": "reassigned"},
    "update": {"learning.aggregation": "update", "network.mixing": "lazy-metropolis"},
    "quasi-global model": {"learning.aggregation": "model", "learning.quasi_global": 0.8},
    "int8 reassigned": {"learning.aggregation": "reassigned", "learning.on_air": "int8"},
    "top-k median": {"learning.aggregation": "median", "learning.on_air": "top-k"},
    "top-k update": {
        "learning.aggregation": "update",
        "network.mixing": "lazy-metropolis",
        "learning.on_air": "top-k",
    },
    "quasi-global update": {
        "learning.aggregation": "update",
        "network.mixing": "lazy-metropolis",
        "learning.quasi_global": 0.8,
    },
}


def job_of(**changes):
    small = {"slots": 5, "network.devices": 9, "network.topology": "geometric", "network.mean_degree": 3.0}
    learning = {"learning.dataset": "digits", "learning.local_steps": 2, "learning.batch": 8}
    scenario = hm.Scenario.load("ring10").override(small | learning | changes)
    problem = hm.build(scenario)
    return hm.TrainJob(scenario, hm.simulate(problem, hm.plan(problem, "uncoordinated"), 1))


def slot_of(shards, slot):
    """One slot of all parts; the rows that travelled, by (from, to)."""
    trained = {number: shard.train(slot) for number, shard in enumerate(shards)}
    travelled = {(here, there): rows for here, (_, sent) in trained.items() for there, rows in sent.items()}
    for number, shard in enumerate(shards):
        shard.average(slot, {here: rows for (here, there), rows in travelled.items() if there == number})
    return [losses for losses, _ in trained.values()], travelled


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("actions", [{}, SEPARATE], ids=["coupled", "separate"])
@pytest.mark.parametrize("rule", RULES)
def test_parts_train_as_the_whole_does(rule, actions, strategy):
    job = job_of(**RULES[rule], **actions)
    sends_only = (job.trace.power_watt > 0) & ~job.trace.scheduled
    assert job.trace.delivered[sends_only[..., job.trace.edge_sender]].any() == bool(actions)
    data, part = load_dataset(job.scenario.learning), np.array([0, 1, 2, 1, 1, 0, 2, 0, 1])
    settings = hm.TrainSettings(strategy=strategy, device_samples=100)
    whole = Replay([job], data, settings)
    shards = [Shard(job, data, settings, part, number) for number in range(3)]
    assert job.trace.delivered.any()
    for slot in range(job.scenario.slots):
        expected = whole.step(slot)
        losses, _ = slot_of(shards, slot)
        for number, shard in enumerate(shards):
            own = part == number
            assert np.array_equal(losses[number], expected[own], equal_nan=True)
            assert np.array_equal(shard.state()[0], whole.weights[own].numpy())
    for done in (1, job.scenario.slots):  # on a part of the test set, and on all of it
        together = whole.score_devices(done)
        for number, shard in enumerate(shards):
            alone = shard.score_devices(done)
            assert torch.equal(alone.loss, together.loss[part == number])
            assert torch.equal(alone.accuracy, together.accuracy[part == number])


def test_only_rows_travel_of_which_something_arrived_elsewhere():
    job = job_of()
    topology, part = build_topology(job.scenario), np.array([0, 1, 2, 1, 1, 0, 2, 0, 1])
    data, delivered = load_dataset(job.scenario.learning), job.trace.delivered[0]
    border = Border(topology, part, delivered)
    shards = [Shard(job, data, hm.TrainSettings(strategy="loop"), part, number) for number in range(3)]
    for slot in range(job.scenario.slots):
        _, travelled = slot_of(shards, slot)
        for (here, there), rows in travelled.items():
            expected = {
                int(j)
                for i, j, arrived in zip(topology.edge_receiver, topology.edge_sender, delivered[slot], strict=True)
                if arrived and part[j] == here and part[i] == there
            }
            assert border.senders(slot, here, there).tolist() == sorted(expected)
            assert len(rows) == len(expected)
            assert all(job.trace.scheduled[0, slot, j] for j in expected)


@pytest.mark.parametrize("rule", ["model", "quasi-global model", "top-k update"])
def test_a_part_goes_back_to_weights(rule):
    job = job_of(**RULES[rule])
    data, part = load_dataset(job.scenario.learning), np.arange(9) % 2
    shards = [Shard(job, data, hm.TrainSettings(strategy="loop"), part, number) for number in range(2)]
    slot_of(shards, 0)
    kept = [[one.copy() for one in shard.state()] for shard in shards]
    slot_of(shards, 1)
    expected = [[one.copy() for one in shard.state()] for shard in shards]
    for shard, state in zip(shards, kept, strict=True):
        shard.restore(*state)
    slot_of(shards, 1)
    for shard, state in zip(shards, expected, strict=True):
        assert np.array_equal(shard.state(), state)


def test_an_own_device_that_diverges_is_named_by_its_number_in_the_network():
    job = job_of(**{"learning.learning_rate": 1e30})
    data, part = load_dataset(job.scenario.learning), np.arange(9) // 5
    shard = Shard(job, data, hm.TrainSettings(strategy="loop"), part, 1)
    with pytest.raises(hm.TrainingError, match=r"device [5-8]: expected finite losses"):
        list(map(shard.train, range(job.scenario.slots)))
