"""Fast equals slow: blocks of slots, looked-up responses and decisions by NumPy give the bits of the plain loop."""

import dataclasses

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.grid import after_spending as few
from heliomesh.simulation import blocks
from heliomesh.simulation.slot_loop import run_slots
from heliomesh.simulation.trace import Recorder
from heliomesh.slot import coordination

WEATHER = {
    "source": "markov",
    "kernel": [[0.7, 0.3], [0.2, 0.8]],
    "joule": [[0.0, 0.5], [1.0, 2.5]],
    "prob": [[0.5, 0.5], [0.3, 0.7]],
}
WORLDS = [
    {},
    {"channel.state": "link"},
    {"link.half_duplex": True},
    {"energy.leak_per_day": 0.5, "energy.charge_efficiency": 0.9, "energy.sleep_watt": 0.05},
    {"harvest": WEATHER},
    {"harvest": {"source": "trace", "joule": [0.3, 0.0, 2.0, 1.1, 0.7]}},
    {"network": {"topology": "star", "devices": 5}},
    {"network": {"topology": "edges", "devices": 2, "edges": [], "allow_disconnected": True}},  # nobody hears anybody
]
PLANS = [("receiver", {}), ("receiver", {"largest_table": 0}), ("prices", {"restarts": 0, "sweeps": 2})]


def problem_of(changes):
    return hm.build(hm.Scenario.load("tiny").override({"slots": 23, "energy.initial": "uniform", **changes}))


def recorded(problem, steps, episodes):
    recorder = Recorder(problem, episodes)
    for step in steps:
        recorder.add(step)
    return recorder.arrays


def check_equal(problem, policy, monkeypatch):
    """Record three episodes in blocks with all that is fast, and slot by slot."""
    monkeypatch.setattr(blocks, "_BLOCK_SLOTS", 7)
    assert blocks.block_slots(problem, policy, 3) == 7
    fast = recorded(problem, blocks.run_blocks(problem, policy, [0, 4, 2], 6), 3)
    alone = recorded(problem, run_slots(problem, policy, [0, 4, 2], 6), 3)
    for module, limit in ((coordination, "_MOST_RESPONSES"), (few, "_MOST_DEVICES"), (blocks, "_FEW_STEPS")):
        monkeypatch.setattr(module, limit, 0)
    torches = recorded(problem, blocks.run_blocks(problem, policy, [0, 4, 2], 6), 3)
    slow = recorded(problem, run_slots(problem, policy, [0, 4, 2], 6), 3)
    for name, array in slow.items():
        for found in (fast, alone, torches):
            np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("changes", WORLDS, ids=str)
@pytest.mark.parametrize(("planner", "options"), PLANS, ids=str)
def test_blocks_equal_the_slot_loop(planner, options, changes, monkeypatch):
    problem = problem_of(changes)
    check_equal(problem, hm.plan(problem, planner, **options).policy, monkeypatch)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("planner", ["receiver", "prices"])
def test_endless_plans_equal_the_slot_loop_in_blocks(planner, dtype, monkeypatch):
    problem = hm.build(hm.Scenario.load("tiny").override({"slots": 23, "energy.initial": "uniform"}), dtype=dtype)
    check_equal(problem, hm.plan(problem, planner, endless=True).policy, monkeypatch)


def test_who_remembers_or_looks_back_meets_one_slot_at_a_time():
    problem = problem_of({})
    assert blocks.block_slots(problem, hm.plan(problem, "news").policy, 1) == 1
    policy = hm.plan(problem, "uncoordinated").policy
    assert blocks.block_slots(problem, policy, 1) > 1
    assert blocks.block_slots(problem, policy, 1, {5: problem}) == 1


@pytest.mark.parametrize("options", [{}, {"endless": True}])
def test_a_class_that_replaces_decisions_alone_is_asked_in_every_slot(options, monkeypatch):
    """What its base has prepared is not what it decides."""
    problem = problem_of({})
    plan = hm.plan(problem, "receiver", **options)
    decider = plan.policy.cycle if options else plan.policy
    lazy = type("Lazy", (type(decider),), {"action": lambda self, slot, seen: torch.zeros_like(seen.weather)})
    fields = {field.name: getattr(decider, field.name) for field in dataclasses.fields(decider)}
    policy = dataclasses.replace(plan.policy, cycle=lazy(**fields)) if options else lazy(**fields)
    assert hm.simulate(problem, plan, 1).scheduled.any()
    assert not hm.simulate(problem, policy, 1).scheduled.any()


@pytest.mark.parametrize("action", [-1, 99])
def test_a_policy_that_prepares_wrong_actions_is_refused(action, monkeypatch):
    problem = problem_of({})
    plan = hm.plan(problem, "receiver")
    wrong = np.full((1, problem.num_devices), action)
    monkeypatch.setattr(type(plan.policy), "ahead", lambda self, *known: lambda number, battery_joule: wrong)
    with pytest.raises(hm.ScenarioError, match=rf"ReceiverTables.ahead: expected 0 to 2, actual value {action}"):
        hm.simulate(problem, plan, 1)


def test_blocks_and_slots_name_the_same_overdraft(monkeypatch):
    problem = problem_of({})
    policy = hm.plan(problem, "uncoordinated").policy
    full = torch.full((3, problem.num_devices), len(problem.actions) - 1)
    monkeypatch.setattr(type(policy), "action", lambda self, slot, seen: full)
    said = []
    for run in (blocks.run_blocks, run_slots):
        with pytest.raises(hm.ScenarioError) as refusal:
            list(run(problem, policy, [0, 1, 2], 6))
        said.append(str(refusal.value))
    assert said[0] == said[1]


def test_overdrafts_in_a_block_are_caught(monkeypatch):
    problem = problem_of({})
    policy = hm.plan(problem, "uncoordinated").policy
    full = torch.full((1, problem.num_devices), len(problem.actions) - 1)
    monkeypatch.setattr(type(policy), "action", lambda self, slot, seen: full)
    with pytest.raises(hm.ScenarioError, match=r"expected to spend at most the .* J that a battery holds"):
        hm.simulate(problem, policy, 1)


def test_bounds_of_networks_with_more_states_than_floats_hold():
    scenario = hm.Scenario.load("tiny").override({"network": {"topology": "ring", "devices": 400}, "slots": 2})
    problem = hm.build(scenario)
    bound = hm.lower_bound(problem)
    assert bound is not None
    assert 0 < bound < problem.num_devices
