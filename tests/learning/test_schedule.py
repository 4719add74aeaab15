"""Schedules of the learning rate: their shares by hand, and every way to train follows them."""

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.jobs.job import Job
from heliomesh.learning.schedule import learning_rates
from heliomesh.learning.settings import TrainSettings
from heliomesh.learning.strategy import Chosen

SLOTS = 7
FALLING = {"learning.schedule": "cosine", "learning.final_rate": 0.25}


def scenario_of(**changes):
    base = {"slots": SLOTS, "learning.local_steps": 2, "learning.batch": 8, "learning.learning_rate": 0.2}
    return hm.Scenario.load("tiny").override(base | changes)


def trace_of(scenario):
    problem = hm.build(scenario)
    return hm.simulate(problem, hm.plan(problem, "uncoordinated", bound=False), 1)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (None, [0.2] * 7),
        ("constant", [0.2] * 7),
        ("cosine", [0.2, 0.189952, 0.1625, 0.125, 0.0875, 0.060048, 0.05]),  # 0.2 (0.25 + 0.375 (1 + cos πt/6))
        ("inverse", [0.2, 0.2 / 1.5, 0.1, 0.08, 0.2 / 3, 0.2 / 3.5, 0.05]),  # 0.2 / (1 + 3t/6)
        ("step", [0.2, 0.2, 0.1, 0.1, 0.05, 0.05, 0.05]),
    ],
)
def test_rates_by_hand(schedule, expected):
    changes = {} if schedule is None else {"learning.schedule": schedule}
    rates = learning_rates(scenario_of(**{"learning.final_rate": 0.25, **changes}))
    np.testing.assert_allclose(rates, expected, atol=1e-6)
    if schedule in (None, "constant"):
        assert rates == (0.2,) * 7  # to the bit


def test_the_last_rate_is_kept_and_one_slot_has_the_first():
    rates = learning_rates(scenario_of(**{"learning.schedule": "inverse", "learning.schedule_slots": 3}))
    np.testing.assert_allclose(rates, [0.2, 0.2 / 5.5] + [0.02] * 5)  # a tenth, where nothing else is said
    assert learning_rates(scenario_of(**{"slots": 1, "learning.schedule": "cosine"})) == (0.2,)


@pytest.mark.parametrize("strategy", ["loop", "vmap", "batched"])
def test_every_strategy_is_given_the_rate_of_the_slot(strategy, monkeypatch):
    scenario, given = scenario_of(**FALLING), []
    trace, train = trace_of(scenario), Chosen.train

    def watched(self, weights, rows, batches, samples, learning_rate):
        given.append(learning_rate)
        return train(self, weights, rows, batches, samples, learning_rate)

    monkeypatch.setattr(Chosen, "train", watched)
    found = hm.train(scenario, trace, strategy=strategy)
    active = trace.scheduled[0].any(1)
    assert given == [rate for rate, some in zip(learning_rates(scenario), active, strict=True) if some]
    torch.testing.assert_close(found.weights, hm.train(scenario, trace).weights, rtol=1e-4, atol=1e-5)


def test_a_constant_schedule_changes_no_bit_and_no_default_changes_a_key():
    plain = scenario_of()
    trace = trace_of(plain)
    constant = scenario_of(**{"learning.schedule": "constant"})
    assert torch.equal(hm.train(plain, trace).weights, hm.train(constant, trace).weights)
    new = {"schedule", "final_rate", "schedule_slots", "momentum", "second_momentum"}
    assert not new & plain.as_dict()["learning"].keys()


def test_a_training_that_ends_early_is_the_beginning_of_the_whole():
    scenario = scenario_of(**FALLING)
    job = Job(scenario, "uncoordinated", training=TrainSettings(evaluate_every=1), until=4)
    cut = job.train_job(trace_of(scenario)).scenario
    assert cut.slots == 4
    assert learning_rates(cut) == learning_rates(scenario)[:4]
    assert (
        "schedule_slots"
        not in Job(scenario_of(), "uncoordinated", until=4)
        .train_job(trace_of(scenario_of()))
        .scenario.as_dict()["learning"]
    )


def test_runs_of_other_schedules_train_in_other_stacks(tmp_path):
    scenarios = [scenario_of(), scenario_of(**FALLING), scenario_of(**{"learning.optimizer": "momentum"})]
    trace = trace_of(scenarios[0])
    jobs = [hm.TrainJob(scenario, trace) for scenario in scenarios]
    with pytest.raises(hm.ScenarioError, match=r"learning\.schedule: expected one value in a stack, None, actual"):
        hm.train_many(jobs[:2])
    store = hm.Store(tmp_path)
    stored = store.runs([Job(scenario, "uncoordinated") for scenario in scenarios])
    assert len({run.weights.numpy().tobytes() for run in stored}) == 3
