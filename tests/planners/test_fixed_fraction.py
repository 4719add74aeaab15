"""A fixed share of the battery: the costliest action below it, by hand and in its limits."""

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.model.policy import Observation
from heliomesh.planners.fixed_fraction import costliest_first, default_share

SEPARATE = {"energy.actions": "separate"}
TRAIN_ONLY = {"energy.train_only": True}


def chosen(problem, battery_joule, **options):
    """Actions of five devices with these batteries [J]."""
    level = torch.zeros(1, problem.num_devices, dtype=torch.long)
    battery = torch.tensor([battery_joule], dtype=torch.float64)
    policy = hm.plan(problem, "fixed_fraction", **options).policy
    return policy.action(0, Observation(level, battery, level, torch.zeros_like(battery)))[0].tolist()


def test_separate_actions_by_hand(tiny):
    """Idle 0 J, send 1 and 2 J, train 1 J, train and send 2 and 3 J; of equal energies the one that trains."""
    problem = tiny({**SEPARATE, "energy.capacity_joule": 6.0})
    assert chosen(problem, [1.9, 2.0, 3.9, 4.0, 6.0], share=0.5) == [0, 3, 3, 4, 5]
    assert chosen(problem, [0.9, 1.0, 1.9, 2.0, 3.0], share=1.0) == [0, 3, 3, 4, 5]


def test_the_costliest_action_may_be_one_that_only_sends(tiny):
    """Sending at 2 W costs 2 J, more than training and sending at 1 W with 1.5 J."""
    problem = tiny({**SEPARATE, "energy.compute_joule": 0.5})
    assert costliest_first(problem)[0].tolist() == [5, 2, 4, 1, 3, 0]
    assert chosen(problem, [0.5, 1.0, 1.5, 2.0, 2.5], share=1.0) == [3, 1, 4, 2, 5]


def test_coupled_actions_by_hand(tiny):
    problem = tiny({"energy.capacity_joule": 6.0})
    assert chosen(problem, [2.0, 3.9, 4.0, 5.9, 6.0], share=0.5) == [0, 0, 1, 1, 2]


def test_equal_energies_up_to_rounding_prefer_training(tiny):
    """Training costs 0.3 J and sending 0.1 W · 3 s, which is a little more in floating point."""
    changes = {"energy.compute_joule": 0.3, "energy.powers_watt": [0.0, 0.1], "energy.transmit_second": 3.0}
    problem = tiny({**SEPARATE, **changes, "energy.slot_second": 4.0})
    assert float(problem.actions.spent_joule[0, 1]) > float(problem.actions.spent_joule[0, 2])
    assert costliest_first(problem)[0].tolist() == [3, 2, 1, 0]


def test_default_share_lets_a_full_battery_pay_for_the_costliest_action(tiny):
    problem = tiny({**SEPARATE, "energy.capacity_joule": [2.5, 3.0, 4.0, 6.0, 0.5], "energy.initial": 0.0})
    torch.testing.assert_close(default_share(problem), torch.tensor([0.8, 1.0, 0.75, 0.5, 0.0]).double())
    assert chosen(problem, [2.5, 3.0, 4.0, 6.0, 0.5]) == [4, 5, 5, 5, 0]
    assert chosen(problem, [2.4, 2.9, 3.9, 5.9, 0.4]) == [3, 4, 4, 4, 0]


def test_a_share_of_one_is_the_uncoordinated_plan_of_coupled_actions(tiny):
    problem = tiny({"energy.initial": "uniform", "harvest.joule": [0.0, 0.7, 1.9]})
    ours, greedy = hm.plan(problem, "fixed_fraction", share=1.0), hm.plan(problem, "uncoordinated")
    np.testing.assert_array_equal(
        hm.simulate(problem, ours, 8).power_watt, hm.simulate(problem, greedy, 8).power_watt
    )


@pytest.mark.parametrize("actions", [{}, TRAIN_ONLY, SEPARATE])
def test_never_more_than_the_share(tiny, actions):
    uneven = {"energy.initial": "uniform", "harvest.joule": [0.0, 0.7, 1.9], "energy.compute_joule": 0.37}
    problem = tiny({**uneven, **actions})
    trace = hm.simulate(problem, hm.plan(problem, "fixed_fraction", share=0.6), episodes=32)
    assert (trace.spent_joule <= 0.6 * trace.battery_joule[:, :-1] + 1e-8).all()
    assert trace.scheduled.any()
    assert (trace.power_watt > 0).any()


@pytest.mark.parametrize("actions", [{}, TRAIN_ONLY, SEPARATE])
def test_cost_is_the_exact_cost(tiny, actions):
    problem = tiny({"network.devices": 3, **actions})
    plan = hm.plan(problem, "fixed_fraction", share=0.7)
    cost = hm.simulate(problem, plan, episodes=4000, seed=5).cost
    assert abs(cost.mean() - hm.exact_cost(problem, plan)) <= 4 * cost.std(ddof=1) / len(cost) ** 0.5


def test_without_energy_nobody_acts(tiny):
    problem = tiny({**SEPARATE, "harvest.joule": [0.0], "harvest.prob": [1.0], "energy.initial": 0.0})
    assert not hm.simulate(problem, hm.plan(problem, "fixed_fraction"), episodes=2).spent_joule.any()


@pytest.mark.parametrize("share", [0.0, 1.1])
def test_other_shares_are_refused(tiny, share):
    with pytest.raises(hm.ScenarioError, match=r"fixed_fraction option.share"):
        hm.plan(tiny(), "fixed_fraction", share=share)
