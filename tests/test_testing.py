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
from heliomesh.scenario.schema import AGGREGATION_CATALOG, CHANNEL_CATALOG, OPTIMISER_CATALOG
from heliomesh.tasks.dataset import DATASET_CATALOG, dataset_from_arrays
from heliomesh.tasks.model import MODEL_CATALOG
from tests.learning.test_datasets import settings_for
from tests.physics.test_two_faces import EXAMPLES, HARVESTS
from tests.simulation.test_slot_loop import PLANNERS

CHANNELS = {"table": {"gains": [0.3, 1.5], "kernel": [[0.8, 0.2], [0.2, 0.8]]}}
SHAPES = {"cnn": (1, 28, 28), "resnet18": (3, 32, 32)}


@pytest.mark.parametrize(("name", "options"), PLANNERS)
def test_our_planners(name, options):
    testing.check_planner(name, **options)


@pytest.mark.parametrize(("source", "settings"), [h for h in HARVESTS if h.values[1] != EXAMPLES["solar"][-1]])
def test_our_harvest_sources(source, settings):
    testing.check_harvest(source, **settings)


@pytest.mark.parametrize("source", catalog.names(CHANNEL_CATALOG))
def test_our_channels(source):
    testing.check_channel(source, **CHANNELS.get(source, {}))


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


@pytest.mark.parametrize("name", [*catalog.names(OPTIMISER_CATALOG), "sgd", "torch.optim:RMSprop"])
def test_our_optimisers(name):
    testing.check_optimiser(name)


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
        (
            lambda problem, options: None,
            r"expected a function plan\(context\), actual parameters \(problem, options\)",
        ),
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


def one_parameter(scenario):
    return None


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            half_law,
            "harvest: expected a law, actual: harvest.source: expected rows of prob to be at least 0 and sum to 1",
        ),
        (three_devices, "harvest: expected "),
        (two_faced, "harvest: expected draws with the law's mean"),
        (one_parameter, r"harvest: expected build\(settings, scenario\), actual parameters \(scenario\)"),
        (lambda settings, scenario: None, "harvest: expected an importable object"),
    ],
)
def test_broken_harvests(source, sentence):
    with pytest.raises(testing.ContractError, match=sentence):
        testing.check_harvest(source)


def test_a_broken_channel():
    with pytest.raises(
        testing.ContractError, match=r"channel: expected gains .* actual: channel\.source: expected gains"
    ):
        testing.check_channel(half_law)


# broken data, models, rules and optimisers


def random_data(settings):
    inputs = np.random.default_rng().standard_normal((6, 2))
    return dataset_from_arrays("random", inputs, [0, 1] * 3, inputs, [0, 1] * 3)


def in_place(arrived):
    return arrived.own.mul_(0.5)


@pytest.mark.parametrize(
    ("check", "variant", "sentence"),
    [
        (testing.check_dataset, random_data, "dataset: expected the same data twice"),
        (testing.check_dataset, lambda settings: [1], "dataset: expected a Dataset, as dataset_from_arrays makes it"),
        (testing.check_model, nn.Linear, r"model: expected to be usable, actual: learning\.model: expected a model"),
        (testing.check_aggregation, in_place, "aggregation: expected inputs left alone"),
        (testing.check_aggregation, lambda arrived: arrived.received.sum(0), "on which all agree to be kept"),
        (testing.check_aggregation, "mean", "aggregation: expected a known name, actual: expected one of median"),
        (testing.check_optimiser, one_parameter, r"optimiser: expected .*learning\.optimizer: expected build"),
    ],
)
def test_other_broken_variants(check, variant, sentence):
    with pytest.raises(testing.ContractError, match=sentence):
        check(variant)
