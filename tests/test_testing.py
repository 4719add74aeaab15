"""The shipped contract tests: our own variants keep the contracts, and broken ones are told in a sentence."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from heliomesh import testing
from heliomesh.common import catalog
from heliomesh.model.policy import Decision
from heliomesh.physics.harvesting import memoryless, replay
from heliomesh.planners.uncoordinated import Greedy
from heliomesh.scenario.schema import AGGREGATION_CATALOG
from heliomesh.tasks.dataset import DATASET_CATALOG, Dataset, dataset_from_arrays
from heliomesh.tasks.model import MODEL_CATALOG
from tests.learning.test_datasets import settings_for
from tests.physics.test_two_faces import EXAMPLES, HARVESTS
from tests.simulation.test_slot_loop import PLANNERS

SHAPES = {"cnn": (1, 28, 28), "resnet18": (3, 32, 32)}


@pytest.mark.parametrize(("name", "options"), PLANNERS)
def test_our_planners(name, options):
    testing.check_planner(name, **options)


@pytest.mark.parametrize(("source", "settings"), [h for h in HARVESTS if h.values[1] != EXAMPLES["solar"][-1]])
def test_our_harvest_sources(source, settings):
    testing.check_harvest(source, **settings)


@pytest.mark.parametrize("name", ["digits", "synthetic", "own"])
def test_our_datasets(name, tmp_path):
    assert name in catalog.names(DATASET_CATALOG)
    testing.check_dataset(name, settings_for(name, tmp_path))


@pytest.mark.parametrize("name", catalog.names(MODEL_CATALOG))
def test_our_models(name):
    testing.check_model(name, SHAPES.get(name, (7,)))


@pytest.mark.parametrize("name", catalog.names(AGGREGATION_CATALOG))
def test_our_rules(name):
    testing.check_aggregation(name)


# broken planners


class Spendthrift:
    """Sends at all costs."""

    def decide(self, slot, seen):
        on = torch.ones_like(seen.battery_joule)
        return Decision(2.0 * on, on.bool())


def fickle(context):
    fickle.calls = getattr(fickle, "calls", 0) + 1
    return Greedy(context.problem) if fickle.calls % 2 else Idle()


class Idle:
    def decide(self, slot, seen):
        return Decision(torch.zeros_like(seen.battery_joule), torch.zeros_like(seen.battery_joule).bool())


@pytest.mark.parametrize(
    ("planner", "sentence"),
    [
        (lambda context: Spendthrift(), "expected decisions that batteries pay for"),
        (lambda context: "receiver", r"a policy with decide\(slot, seen\), actual value 'receiver'"),
        (fickle, "expected the same plan for the same seed"),
        (
            SimpleNamespace(plan=lambda context: None, Options=dict),
            "Options to be a subclass of heliomesh.scenario.section",
        ),
    ],
)
def test_broken_planners(planner, sentence):
    with pytest.raises(testing.ContractError, match=sentence):
        testing.check_planner(planner)


# broken sources


def half_law(settings, scenario):
    return memoryless(np.ones((1, 1)), np.full((1, 1), 0.5), [1.0] * 5, np.zeros(12, int))


def three_devices(settings, scenario):
    return memoryless(np.ones((1, 1)), np.ones((1, 1)), [1.0] * 3, np.zeros(12, int))


def two_faced(settings, scenario):
    """Draws twos, and says that they are ones."""
    said = replay(np.ones(4), [1.0] * 5, 12, None)
    return SimpleReplay(2 * torch.ones(4, dtype=torch.float64), said.law, None)


SimpleReplay = type(replay(np.ones(4), [1.0], 1, None))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            half_law,
            "harvest: expected a law, actual: harvest.source: expected rows of prob to be at least 0 and sum to 1",
        ),
        (three_devices, "harvest: expected "),
        (two_faced, "harvest: expected draws with the law's mean"),
        (lambda settings, scenario: None, "harvest: expected a law, .* Python can import by its name"),
    ],
)
def test_broken_harvests(source, sentence):
    with pytest.raises(testing.ContractError, match=sentence):
        testing.check_harvest(source)


# broken data, models and rules


def random_data(settings):
    inputs = np.random.default_rng().standard_normal((6, 2))
    return dataset_from_arrays("random", inputs, [0, 1] * 3, inputs, [0, 1] * 3)


def a_list(settings):
    return [1]


def in_double(settings):
    inputs = torch.zeros(6, 2)
    labels = torch.tensor([0, 1] * 3)
    return Dataset("double", inputs.double(), labels, inputs, labels, 2)


def received_alone(arrived):
    return arrived.received.sum(0)


def in_place(arrived):
    return arrived.own.mul_(0.5)


@pytest.mark.parametrize(
    ("check", "variant", "sentence"),
    [
        (testing.check_dataset, random_data, "dataset: expected the same data twice"),
        (testing.check_dataset, a_list, "dataset: .* expected a Dataset from .*, as dataset_from_arrays makes it"),
        (testing.check_dataset, in_double, "dataset: expected what dataset_from_arrays makes, float32 and int64"),
        (testing.check_model, nn.Linear, r"model: expected to be usable, actual: learning\.model: expected a model"),
        (testing.check_aggregation, in_place, "aggregation: expected inputs left alone"),
        (testing.check_aggregation, received_alone, "on which all agree to be kept"),
        (testing.check_aggregation, "mean", "aggregation: expected a known name, actual: expected one of median"),
    ],
)
def test_other_broken_variants(check, variant, sentence):
    with pytest.raises(testing.ContractError, match=sentence):
        check(variant)
