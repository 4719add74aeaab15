"""Battery thresholds: the best of them by enumeration, and limits."""

from itertools import product

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.planners.battery_threshold import Thresholds, threshold_actions

DRY = {"harvest.joule": [0.0], "harvest.prob": [1.0], "energy.initial": 0.0}
SEPARATE = {"energy.actions": "separate", "energy.powers_watt": [0.0, 2.0]}


def test_actions_by_hand(tiny):
    """Powers of 1 and 2 W cost 2 and 3 levels of four; a threshold below the price is raised to it."""
    problem = tiny()
    assert threshold_actions(problem, torch.tensor([0, 0]))[0].tolist() == [0, 0, 1, 2]
    assert threshold_actions(problem, torch.tensor([3, 4]))[0].tolist() == [0, 0, 0, 1]
    assert threshold_actions(problem, torch.tensor([4, 4]))[0].tolist() == [0, 0, 0, 0]


def test_actions_of_their_own_by_hand(tiny):
    """Sending costs 2 levels of four, training 1, both 3: who trains takes the place of who only sends."""
    problem = tiny(SEPARATE)
    assert threshold_actions(problem, torch.tensor([0, 0, 0]))[0].tolist() == [0, 2, 2, 3]
    assert threshold_actions(problem, torch.tensor([2, 3, 3]))[0].tolist() == [0, 0, 1, 3]


@pytest.mark.parametrize("changes", [{}, {"energy.train_only": True}, SEPARATE, {"link.half_duplex": True}])
def test_shared_thresholds_are_the_best_of_all(tiny, changes):
    problem = tiny({"network.devices": 3, "slots": 5, **changes})
    count = len(problem.actions) - 1
    costs = [
        hm.exact_cost(problem, Thresholds(problem, threshold_actions(problem, torch.tensor(level))))
        for level in product(range(5), repeat=count)
        if list(level) == sorted(level)
    ]
    plan = hm.plan(problem, "battery_threshold", shared=True)
    assert plan.expected_cost == pytest.approx(min(costs), abs=1e-9)
    assert plan.expected_cost == pytest.approx(hm.exact_cost(problem, plan), abs=1e-9)


def test_own_thresholds_gain_where_devices_differ(tiny):
    problem = tiny({"network.devices": 4, "network.topology": "star", "harvest.scale": [0.4, 1.0, 1.5, 2.0]})
    shared, own = (hm.plan(problem, "battery_threshold", shared=shared) for shared in (True, False))
    assert own.converged
    assert own.expected_cost < shared.expected_cost - 1e-6
    assert own.expected_cost == pytest.approx(hm.exact_cost(problem, own), abs=1e-9)


def test_no_device_gains_by_a_change_of_its_own(tiny):
    problem = tiny({"network.devices": 3, "slots": 5, "harvest.scale": [0.5, 1.0, 2.0]})
    plan = hm.plan(problem, "battery_threshold")
    for device, level in product(range(3), product(range(5), repeat=2)):
        actions = plan.policy.actions.clone()
        actions[device] = threshold_actions(problem, torch.tensor(level))[device]
        if list(level) == sorted(level):
            assert hm.exact_cost(problem, Thresholds(problem, actions)) >= plan.expected_cost - 1e-8


def test_zero_thresholds_are_the_uncoordinated_plan_on_a_grid(tiny):
    problem = tiny()
    assert problem.grid_is_exact
    ours, greedy = hm.plan(problem, "battery_threshold", thresholds=[0.0, 0.0]), hm.plan(problem, "uncoordinated")
    np.testing.assert_array_equal(
        hm.simulate(problem, ours, 8).power_watt, hm.simulate(problem, greedy, 8).power_watt
    )


def test_never_below_the_threshold(tiny):
    problem = tiny({"energy.initial": "uniform", "harvest.joule": [0.0, 0.7, 1.9]})
    trace = hm.simulate(problem, hm.plan(problem, "battery_threshold", thresholds=[0.9, 1.0]), episodes=32)
    battery = trace.battery_joule[:, :-1]
    assert (battery[trace.power_watt == 1.0] >= 3.0 - 1e-8).sum() == (trace.power_watt == 1.0).sum()
    assert (trace.scheduled == (battery >= 3.0 - 1e-8)).all()


def test_better_than_the_uncoordinated_plan(tiny):
    problem = tiny()
    greedy = hm.exact_cost(problem, hm.plan(problem, "uncoordinated"))
    assert hm.plan(problem, "battery_threshold").expected_cost < greedy


def test_without_energy_nobody_acts(tiny):
    problem = tiny(DRY)
    plan = hm.plan(problem, "battery_threshold")
    assert plan.expected_cost == pytest.approx(5.0)
    assert not hm.simulate(problem, plan, episodes=2).scheduled.any()


def test_wrong_numbers_of_thresholds_are_refused(tiny):
    with pytest.raises(hm.ScenarioError, match="expected 2 values, one per action but idle, actual number"):
        hm.plan(tiny(), "battery_threshold", thresholds=[0.5])
    with pytest.raises(hm.ScenarioError, match=r"battery_threshold option.thresholds"):
        hm.plan(tiny(), "battery_threshold", thresholds=[0.5, 1.5])


def test_too_many_candidates_are_refused(tiny):
    with pytest.raises(hm.TooLargeError, match="laws of all thresholds"):
        hm.plan(tiny(), "battery_threshold", memory_gib=1e-6)
