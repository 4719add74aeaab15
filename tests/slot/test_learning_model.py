"""Whose training is in whose model: rows mix as weights do, and values are differences of the loss."""

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.learning.aggregation import aggregate
from heliomesh.slot.learning_model import (
    PULL_BITS,
    Contributions,
    LearningModel,
    bias_weights,
    slots_to_deadline,
    unlikeness,
)

STAR = {"network.topology": "star", "network.devices": 5, "energy.actions": "separate"}
RULES = ("model", "renormalized", "reassigned")


def build(changes: dict[str, object]) -> hm.Problem:
    return hm.build(hm.Scenario.load("tiny").override({**STAR, **changes}))


def random_state(model: LearningModel, seed: int) -> tuple[Contributions, torch.Tensor, torch.Tensor]:
    """Contributions after some random slots; progress and leans of all devices as weights that were averaged."""
    problem, rng, now = model.problem, np.random.default_rng(seed), model.first(1)
    progress, lean = torch.zeros(problem.num_devices, 1, dtype=torch.float64), torch.zeros_like(model.directions)
    for _ in range(6):
        trained = torch.from_numpy(rng.random((1, problem.num_devices)) < 0.6)
        arrived = torch.from_numpy(rng.random((1, problem.topology.num_edges)) < 0.5)
        now = model.averaged(model.trained(now, trained), arrived)
        progress = progress + trained.T
        lean = torch.where(trained.T, torch.lerp(lean, model.directions, 2**-PULL_BITS), lean)
        for weights in (progress, lean):
            rule = problem.scenario.learning.aggregation
            aggregate(rule, problem.topology, None, weights, arrived[0].numpy(), trained[0].numpy(), weights)
    return now, progress, lean


def loss(now: Contributions, weight: float) -> torch.Tensor:
    return -now.progress + weight * now.bias


@pytest.mark.parametrize("rule", RULES)
def test_progress_and_leans_mix_as_weights_do(rule):
    model = LearningModel(build({"learning.aggregation": rule}))
    now, progress, lean = random_state(model, 3)
    torch.testing.assert_close(now.progress[0], progress[:, 0])
    torch.testing.assert_close(now.lean[0], lean)
    torch.testing.assert_close(now.bias[0], lean.square().sum(1))


def test_leans_of_all_devices_cancel():
    model = LearningModel(build({}))
    torch.testing.assert_close(model.directions.sum(0), torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_training_is_worth_the_fall_of_the_loss(weight):
    model = LearningModel(build({}))
    now, _, _ = random_state(model, 4)
    after = model.trained(now, torch.ones_like(now.progress, dtype=torch.bool))
    torch.testing.assert_close(model.training_value(now, weight), loss(now, weight) - loss(after, weight))


@pytest.mark.parametrize("rule", RULES)
def test_a_packet_is_worth_the_fall_of_its_receivers_loss(rule):
    model = LearningModel(build({"learning.aggregation": rule}))
    now, _, _ = random_state(model, 5)
    found, topology = model.packet_value(now, 0.2), model.problem.topology
    for edge in range(topology.num_edges):
        receiver, sender = int(topology.edge_receiver[edge]), int(topology.edge_sender[edge])
        arrived = (torch.arange(topology.num_edges) == edge).unsqueeze(0)
        for sender_trains in (False, True):
            trained = torch.zeros(1, model.problem.num_devices, dtype=torch.bool)
            trained[0, sender] = sender_trains
            before = model.trained(now, trained)
            fall = loss(before, 0.2) - loss(model.averaged(before, arrived), 0.2)
            value = float(found[0, edge, 0, int(sender_trains)])
            assert value == pytest.approx(float(fall[0, receiver]))
            charged = value - float(topology.edge_weight[edge])
            assert float(found[0, edge, 1, int(sender_trains)]) == pytest.approx(charged)


def test_progress_flows_from_who_trained_to_who_did_not():
    """On a star whose leaves alone train, packets to the hub add progress that nobody trained for."""
    model = LearningModel(build({"learning.aggregation": "renormalized"}))
    trained = torch.ones(1, 5, dtype=torch.bool)
    hub = int(np.bincount(model.problem.topology.edge_receiver).argmax())
    trained[0, hub] = False
    now = model.averaged(model.trained(model.first(1), trained), torch.ones(1, 8, dtype=torch.bool))
    assert float(now.progress[0, hub]) > 0
    assert (
        float(
            model.averaged(model.trained(model.first(1), trained), torch.zeros(1, 8, dtype=torch.bool)).progress[
                0, hub
            ]
        )
        == 0
    )


def test_random_directions_keep_bias_on_large_networks():
    model = LearningModel(build({"network.topology": "ring", "network.devices": 400}))
    assert model.directions.shape == (400, 256)
    trained = torch.from_numpy(np.random.default_rng(0).random((1, 400)) < 0.5)
    now = model.averaged(model.trained(model.first(1), trained), torch.ones(1, 800, dtype=torch.bool))
    leans = torch.diag(trained[0].double()) - trained[0].double().unsqueeze(1) / 400
    exact = (torch.from_numpy(model.problem.topology.mixing) @ leans * 2**-PULL_BITS).square().sum(1)
    assert float(now.bias.mean()) == pytest.approx(float(exact.mean()), rel=0.1)


def test_bias_weighs_most_at_deadlines():
    at_end = bias_weights(build({"slots": 60}), 0.8)
    assert list(at_end) == sorted(at_end)
    listed = slots_to_deadline(build({"slots": 60, "cost.deadline": [20, 40]}))
    assert [float(listed[slot]) for slot in (0, 19, 20, 39)] == [19, 0, 19, 0]
    assert np.isinf(listed[40:]).all()
    always = slots_to_deadline(build({"slots": 60, "cost.deadline": "always"}))
    assert np.flatnonzero(always == 0).tolist() == [24, 49, 59]


def test_unlike_data_weigh_more():
    scenario = hm.Scenario.load("tiny")
    kinds = [{"learning.partition": "iid"}] + [
        {"learning.partition": "dirichlet", "learning.alpha": alpha} for alpha in (0.8, 0.1)
    ]
    found = [unlikeness(scenario.override(kind)) for kind in kinds]
    assert found == sorted(found)
    assert found[0] < found[1] < found[2]
    assert unlikeness(scenario.override({"cost.unlikeness": 0.5})) == 0.5
