"""Optimisers of the local steps: plain SGD keeps its bits, others are PyTorch's own within a slot."""

import pytest
import torch
from torch import nn

import heliomesh as hm
from heliomesh.learning.stacked import Samples, flat_weights
from heliomesh.learning.strategy import choose_for
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.schema import Learning

MODEL = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
SAMPLES = Samples(torch.linspace(-1, 1, 32).view(8, 4), torch.arange(8) % 3)
BATCHES = torch.arange(8).repeat(3).view(2, 3, 4)  # (row, step, sample)


def no_optimiser(parameters, learning_rate):
    return None


def trained(optimizer, **options):
    settings = Learning(optimizer=optimizer, local_steps=3, batch=4, **options)
    strategy = choose_for(settings, MODEL, SAMPLES, "fp32", "loop")
    weights = flat_weights(MODEL).repeat(2, 1)
    for _ in range(2):
        strategy.train(weights, torch.tensor([1, 0]), BATCHES, SAMPLES, 0.1)
    return weights


def test_pytorchs_sgd_gives_the_bits_of_plain_sgd():
    assert torch.equal(trained("torch.optim:SGD"), trained(None))
    assert torch.equal(trained("sgd"), trained(None))


@pytest.mark.parametrize(
    ("name", "options", "build"),
    [
        ("momentum", {}, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
        ("momentum", {"momentum": 0.5}, lambda p: torch.optim.SGD(p, 0.1, momentum=0.5)),
        ("adam", {}, lambda p: torch.optim.Adam(p, 0.1)),
        ("adam", {"momentum": 0.8, "second_momentum": 0.9}, lambda p: torch.optim.Adam(p, 0.1, (0.8, 0.9))),
        ("torch.optim:RMSprop", {"momentum": 0.5}, lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.5)),
    ],
)
def test_state_lives_for_the_steps_of_a_slot(name, options, build):
    expected = []
    for own in BATCHES.flip(0):  # rows 1, 0
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        model.load_state_dict(MODEL.state_dict())
        for _ in range(2):
            optimiser = build(model.parameters())
            for batch in own:
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(SAMPLES.inputs[batch]), SAMPLES.labels[batch]).backward()
                optimiser.step()
        expected.append(flat_weights(model))
    torch.testing.assert_close(trained(name, **options), torch.stack(expected))
    assert not torch.allclose(trained(name, **options), trained(None))


def test_a_scenario_names_its_optimiser_and_plain_sgd_changes_no_hash():
    scenario = hm.Scenario.load("tiny")
    assert "optimizer" not in scenario.as_dict()["learning"]
    problem = hm.build(scenario)
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated", bound=False), 1)
    other = scenario.override({"learning.optimizer": torch.optim.Adam, "learning.aggregation": "median"})
    assert other.learning.optimizer == "torch.optim.adam:Adam"
    runs = [hm.train(one, trace, strategy="auto") for one in (scenario, other)]
    assert not torch.equal(runs[0].weights, runs[1].weights)


@pytest.mark.parametrize(
    ("settings", "strategy", "sentence"),
    [
        ({"optimizer": "math:gcd"}, "loop", r"learning\.optimizer: expected build.* raised TypeError"),
        (
            {"optimizer": "momentum", "second_momentum": 0.5},
            "loop",
            r"expected build\(parameters, learning_rate, second_momentum\), actual 'momentum' raised TypeError",
        ),
        (
            {"optimizer": f"{__name__}:no_optimiser"},
            "loop",
            r"expected a torch\.optim\.Optimizer, actual .* NoneType",
        ),
        (
            {"optimizer": "adam"},
            "vmap",
            "strategy: expected auto or loop with learning.optimizer, actual value 'vmap'",
        ),
    ],
)
def test_what_is_no_optimiser_is_refused(settings, strategy, sentence):
    with pytest.raises(ScenarioError, match=sentence):
        choose_for(Learning(**settings), MODEL, SAMPLES, "fp32", strategy)


def test_unknown_names_list_the_known():
    with pytest.raises(
        ScenarioError, match=r"optimizer: expected one of adam, momentum, sgd, .*did you mean 'adam'\?"
    ):
        hm.Scenario.load("tiny").override({"learning.optimizer": "adm"})
    with pytest.raises(
        ScenarioError, match="aggregation: expected one of median, model, reassigned, renormalized, update, actual"
    ):
        hm.Scenario.load("tiny").override({"learning.aggregation": "mean"})
