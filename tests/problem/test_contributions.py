"""Whose training is in whose model: rows mix as weights do, and values are differences of the loss."""

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.learning.aggregation import aggregate
from heliomesh.problem.contributions import (
    BiasWeight,
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


def random_state(model: LearningModel, rng: np.random.Generator) -> tuple[Contributions, torch.Tensor]:
    """Contributions after some random slots, and the matrix C itself, (device, device)."""
    problem = model.problem
    matrix, now = torch.zeros(problem.num_devices, problem.num_devices, dtype=torch.float64), model.first(1)
    for _ in range(6):
        trained = torch.from_numpy(rng.random((1, problem.num_devices)) < 0.6)
        arrived = torch.from_numpy(rng.random((1, problem.topology.num_edges)) < 0.5)
        now = model.averaged(model.trained(now, trained), arrived)
        matrix = matrix + torch.diag(trained[0].double())
        rule = problem.scenario.learning.aggregation
        aggregate(rule, problem.topology, None, matrix, arrived[0].numpy(), trained[0].numpy(), matrix)
    return now, matrix


def loss(now: Contributions, weight: BiasWeight) -> torch.Tensor:
    return -now.progress + weight.squared * now.bias + weight.root * now.bias.sqrt()


@pytest.mark.parametrize("rule", RULES)
def test_rows_mix_as_weights_do(rule):
    model = LearningModel(build({"learning.aggregation": rule}))
    now, matrix = random_state(model, np.random.default_rng(3))
    torch.testing.assert_close(now.progress[0], matrix.sum(1))
    torch.testing.assert_close(now.bias[0], (matrix - matrix.mean(1, keepdim=True)).square().sum(1))


@pytest.mark.parametrize("weight", [BiasWeight(0.0, 0.0), BiasWeight(0.3, 0.0), BiasWeight(0.1, 2.0)])
def test_training_is_worth_the_fall_of_the_loss(weight):
    model = LearningModel(build({}))
    now, _ = random_state(model, np.random.default_rng(4))
    after = model.trained(now, torch.ones_like(now.progress, dtype=torch.bool))
    fall = loss(now, weight) - loss(after, weight)
    torch.testing.assert_close(model.training_value(now, weight), fall)


@pytest.mark.parametrize("rule", RULES)
def test_a_packet_is_worth_the_fall_of_its_receivers_loss(rule):
    model = LearningModel(build({"learning.aggregation": rule}))
    now, _ = random_state(model, np.random.default_rng(5))
    weight = BiasWeight(0.2, 1.5)
    found, topology = model.packet_value(now, weight), model.problem.topology
    for edge in range(topology.num_edges):
        receiver, sender = int(topology.edge_receiver[edge]), int(topology.edge_sender[edge])
        arrived = (torch.arange(topology.num_edges) == edge).unsqueeze(0)
        for training in range(4):
            trained = torch.zeros(1, model.problem.num_devices, dtype=torch.bool)
            trained[0, receiver], trained[0, sender] = bool(training // 2), bool(training % 2)
            before = model.trained(now, trained)
            after = model.averaged(before, arrived)
            fall = loss(before, weight) - loss(after, weight)
            assert float(found[0, edge, training // 2, training % 2]) == pytest.approx(float(fall[0, receiver]))


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
    rows = model.trained(model.first(1), trained).progress[0]
    matrix = torch.from_numpy(model.problem.topology.mixing) * rows
    exact = (matrix - matrix.mean(1, keepdim=True)).square().sum(1)
    assert float(now.bias.mean()) == pytest.approx(float(exact.mean()), rel=0.1)


def test_bias_weighs_most_at_deadlines():
    at_end = [weight.root for weight in bias_weights(build({"slots": 60}), 0.8)]
    assert at_end[-1] == max(at_end)
    assert sorted(at_end) == at_end
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
