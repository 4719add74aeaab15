"""Directions of training from label shares: centred, of length one, alike where data are, and told where unknown."""

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.slot.leans import leans_of
from heliomesh.slot.learning_model import LearningModel, bias_weights
from heliomesh.tasks.dataset import load_dataset
from heliomesh.tasks.partition import split

SHARDS = {"learning.partition": "shards", "learning.shards_per_device": 2}
HALVES = {"learning.partition": "indices", "network.devices": 4}


def build(changes: dict[str, object]) -> hm.Problem:
    return hm.build(hm.Scenario.load("ring10").override(changes))


@pytest.mark.parametrize("changes", [{}, SHARDS, {"learning.partition": "dirichlet", "learning.alpha": 0.3}])
@pytest.mark.parametrize("seed", [None, 5])
def test_directions_are_the_label_shares_of_the_partition_that_is_trained_on(changes, seed):
    problem = build(changes)
    leans = leans_of(problem, True, seed)
    learning = problem.scenario.learning
    labels = load_dataset(learning).train_labels.numpy()
    part = split(labels, learning, 10, np.random.default_rng(np.random.SeedSequence(seed or 0, spawn_key=(5,))))
    shares = np.stack(
        [np.bincount(labels[part.of(device)], minlength=10) / part.sizes[device] for device in range(10)]
    )
    apart = shares - shares.mean(0)
    distance = (apart**2).sum(1).mean()
    directions = apart / np.sqrt(distance)
    cut = directions / np.maximum(np.linalg.norm(directions, axis=1), 1)[:, None]
    np.testing.assert_allclose(leans.directions, cut, rtol=1e-12)
    assert leans.unlikeness == pytest.approx(0.2 + 6 * distance)
    assert leans.directions.norm(dim=1).max() == pytest.approx(1.0)


def test_every_device_gains_by_training_a_model_without_bias():
    """Also the only one that has a class, whose data are further from the mean than all others'."""
    labels = load_dataset(build({}).scenario.learning).train_labels.numpy()
    common, rare = np.flatnonzero(labels > 0)[:900].reshape(9, -1).tolist(), np.flatnonzero(labels == 0).tolist()
    problem = build({"learning.partition": "indices", "learning.indices": [*common, rare]})
    leans = leans_of(problem, True)
    model = LearningModel(problem, leans.directions)
    assert model.training_value(model.first(1), bias_weights(problem, 0.8, leans.unlikeness)[0]).min() > 0.1


def test_devices_of_like_data_lead_the_same_way():
    labels = load_dataset(build({}).scenario.learning).train_labels.numpy()
    low, high = np.flatnonzero(labels < 5), np.flatnonzero(labels >= 5)
    lists = [part.tolist() for part in (low, high, low, high)]
    found = leans_of(build({**HALVES, "learning.indices": lists}), True).directions
    torch.testing.assert_close(found[0], found[2])
    torch.testing.assert_close(found[0], -found[1], atol=1e-12, rtol=0)


def test_equal_data_lead_nowhere():
    everything = list(range(100))
    leans = leans_of(build({**HALVES, "learning.indices": [everything] * 4}), True)
    assert not leans.directions.any()
    assert leans.unlikeness == pytest.approx(0.2)


@pytest.mark.parametrize(
    "changes",
    [{"learning.dataset": "own"}, {"network.devices": 1500, "network.topology": "ring"}],
    ids=["data that cannot be read", "more devices than samples"],
)
def test_unknown_labels_leave_a_direction_to_every_device_and_the_plan_says_so(changes):
    problem = build({**changes, "slots": 3, "energy.actions": "separate"})
    leans = leans_of(problem, True)
    assert leans.directions is None
    notes = hm.plan(problem, "bids", practice=1, passes=0).notes
    assert any(note.startswith("no labels are known, so each device has a direction of its own (") for note in notes)


def test_a_given_weight_stands():
    assert leans_of(build({"cost.unlikeness": 1.5, **SHARDS}), True).unlikeness == 1.5
