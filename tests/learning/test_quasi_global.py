"""Quasi-global momentum: numbers by hand, the equations written plainly, and stacks."""

import pytest
import torch

import heliomesh as hm
from heliomesh.learning.quasi_global import lean, remember
from heliomesh.learning.replay import Replay
from heliomesh.tasks.dataset import load_dataset

BETA = 0.8
SLOTS = 6


def scenario_of(**changes):
    base = {"slots": SLOTS, "learning.local_steps": 2, "learning.batch": 8, "learning.learning_rate": 0.1}
    return hm.Scenario.load("tiny").override(base | {"learning.quasi_global": BETA} | changes)


def trace_of(scenario):
    problem = hm.build(scenario)
    return hm.simulate(problem, hm.plan(problem, "uncoordinated", bound=False), 1)


def test_two_slots_by_hand():
    """β = 1/2; only the second device trains, and moves from 8 to 4 and from 4 − 1 to 2."""
    weights, momentum = torch.tensor([[1.0], [8.0]]), torch.zeros(2, 1)
    before = weights.clone()
    lean(weights, momentum, [1], 0.5)
    assert weights.flatten().tolist() == [1.0, 8.0]
    weights[1] = 4.0
    remember(momentum, before, weights, 0.5)
    assert momentum.flatten().tolist() == [0.0, 2.0]
    before = weights.clone()
    lean(weights, momentum, [1], 0.5)
    assert weights.flatten().tolist() == [1.0, 3.0]
    weights[1] = 2.0
    remember(momentum, before, weights, 0.5)
    assert momentum.flatten().tolist() == [0.0, 2.0]  # (2 + 4 − 2) / 2


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_equals_the_equations(strategy):
    """The steps and averages of a run without momentum, from weights that lean."""
    scenario = scenario_of()
    trace, data = trace_of(scenario), load_dataset(scenario.learning)
    plain = Replay(
        [hm.TrainJob(scenario_of(**{"learning.quasi_global": None}), trace)],
        data,
        hm.TrainSettings(strategy=strategy),
    )
    momentum = torch.zeros_like(plain.weights)
    for slot in range(SLOTS):
        before, trained = plain.weights.clone(), torch.from_numpy(trace.scheduled[0, slot])
        plain.weights[trained] -= BETA * momentum[trained]
        plain.step(slot)
        momentum = BETA * momentum + (1 - BETA) * (before - plain.weights)
    found = hm.train(scenario, trace, strategy=strategy)
    torch.testing.assert_close(found.weights, plain.weights, rtol=1e-5, atol=1e-6)
    assert trace.scheduled.any()
    assert not trace.scheduled.all()


def test_none_changes_no_bit_and_stacks_share_one_value():
    without = scenario_of(**{"learning.quasi_global": None})
    trace = trace_of(without)
    assert "quasi_global" not in without.as_dict()["learning"]
    zero = scenario_of(**{"learning.quasi_global": 0.0})
    assert torch.equal(hm.train(zero, trace).weights, hm.train(without, trace).weights)
    with pytest.raises(
        hm.ScenarioError, match=r"learning\.quasi_global: expected one value in a stack, 0\.8, actual"
    ):
        hm.train_many([hm.TrainJob(scenario_of(), trace), hm.TrainJob(without, trace)])


@pytest.mark.parametrize("rule", ["model", "renormalized", "median"])
def test_stacked_runs_are_single_runs(rule):
    scenario = scenario_of(**{"learning.aggregation": rule})
    trace = trace_of(scenario)
    jobs = [hm.TrainJob(scenario, trace, 0, seed) for seed in (1, 2)]
    for job, stacked in zip(jobs, hm.train_many(jobs), strict=True):
        assert torch.equal(hm.train(scenario, trace, seed=job.seed).weights, stacked.weights)


def test_memory_counts_weights_before_training_and_momentum():
    scenario = scenario_of()
    trace = trace_of(scenario)
    sentence = []
    for beta in (None, BETA):
        with pytest.raises(hm.TooLargeError) as caught:
            hm.train(scenario.override({"learning.quasi_global": beta}), trace, memory_gib=1e-9)
        sentence.append(str(caught.value))
    assert sentence[0] != sentence[1]
