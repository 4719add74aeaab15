"""Turns: who sends when, what comes first where the battery is small, and the last slots."""

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.model.policy import Observation

SEPARATE = {"energy.actions": "separate"}
TRAIN_ONLY = {"energy.train_only": True}
RICH = {"harvest.joule": [3.0], "harvest.prob": [1.0], "energy.initial": 3.0}
# one receiver hears all others: every turn has one leaf
STAR = {"network.topology": "star", "link.half_duplex": True}


def chosen(problem, slot, battery_joule, **options):
    """Actions of devices with these batteries [J]."""
    level = torch.zeros(1, problem.num_devices, dtype=torch.long)
    battery = torch.tensor([battery_joule], dtype=torch.float64)
    policy = hm.plan(problem, "turns", **options).policy
    return policy.action(slot, Observation(level, battery, level, torch.zeros_like(battery)))[0].tolist()


def by_turn(problem, battery_joule, **options):
    """Actions of one device in its turn and out of it, for one battery after the other."""
    turns = max(problem.colour) + 1
    slots = (problem.colour[0], (problem.colour[0] + 1) % turns)
    batteries = [[joule] * problem.num_devices for joule in battery_joule]
    return [[chosen(problem, slot, battery, **options)[0] for battery in batteries] for slot in slots]


def test_separate_actions_by_hand(tiny):
    """Idle 0 J, send 1 and 2 J, train 1 J, train and send 2 and 3 J: in turn sending comes first, then training."""
    problem = tiny(SEPARATE)
    assert by_turn(problem, [0.9, 1.0, 2.0, 3.0]) == [[0, 1, 2, 5], [0, 3, 3, 3]]
    assert by_turn(problem, [0.9, 1.0, 2.0, 3.0], power_watt=1.0) == [[0, 1, 4, 4], [0, 3, 3, 3]]


def test_a_battery_that_cannot_pay_for_sending_trains_in_its_turn(tiny):
    problem = tiny({**SEPARATE, "energy.compute_joule": 0.5})
    assert by_turn(problem, [0.4, 0.5, 1.0, 1.5]) == [[0, 3, 1, 4], [0, 3, 3, 3]]


def test_coupled_actions_act_in_turn_only(tiny):
    assert by_turn(tiny(), [1.9, 2.0, 3.0]) == [[0, 1, 2], [0, 0, 0]]
    assert by_turn(tiny(TRAIN_ONLY), [0.9, 1.0, 2.0, 3.0]) == [[0, 1, 2, 3], [0, 1, 1, 1]]


def test_last_slots_only_send(tiny):
    problem = tiny({**RICH, **SEPARATE})
    trace = hm.simulate(problem, hm.plan(problem, "turns", last_slots=5), episodes=2)
    assert trace.scheduled[:, :7].all()
    assert not trace.scheduled[:, 7:].any()
    turns = max(problem.colour) + 1
    in_turn = np.arange(12)[:, None] % turns == np.array(problem.colour)
    assert (trace.power_watt == 2.0 * in_turn).all()


def test_more_last_slots_than_slots_train_never(tiny):
    problem = tiny({**RICH, **SEPARATE})
    assert not hm.simulate(problem, hm.plan(problem, "turns", last_slots=99), episodes=1).scheduled.any()


def test_last_slots_of_coupled_actions_send_in_turn(tiny):
    problem = tiny({**RICH, **TRAIN_ONLY})
    trace = hm.simulate(problem, hm.plan(problem, "turns", last_slots=5), episodes=1)
    assert trace.scheduled[:, :7].all()
    assert (trace.scheduled[:, 7:] == (trace.power_watt[:, 7:] > 0)).all()


@pytest.mark.parametrize("changes", [{}, SEPARATE, {**SEPARATE, **STAR}])
def test_no_receiver_hears_two_senders(tiny, changes):
    problem = tiny(changes)
    trace = hm.simulate(problem, hm.plan(problem, "turns"), episodes=8)
    sending = np.take(trace.power_watt > 0, trace.edge_sender, axis=2)
    for receiver in range(problem.num_devices):
        assert sending[:, :, trace.edge_receiver == receiver].sum(-1).max() == 1


@pytest.mark.parametrize("actions", [{}, TRAIN_ONLY, SEPARATE])
def test_cost_is_the_exact_cost(tiny, actions):
    problem = tiny({"network.devices": 3, **actions})
    plan = hm.plan(problem, "turns", last_slots=3)
    cost = hm.simulate(problem, plan, episodes=4000, seed=5).cost
    assert abs(cost.mean() - hm.exact_cost(problem, plan)) <= 4 * cost.std(ddof=1) / len(cost) ** 0.5


@pytest.mark.parametrize("actions", [{}, TRAIN_ONLY, SEPARATE])
def test_batteries_pay_for_everything(tiny, actions):
    uneven = {"energy.initial": "uniform", "harvest.joule": [0.0, 0.7, 1.9], "energy.compute_joule": 0.37}
    problem = tiny({**uneven, **actions})
    trace = hm.simulate(problem, hm.plan(problem, "turns"), episodes=32)
    assert (trace.spent_joule <= trace.battery_joule[:, :-1] + 1e-8).all()
    assert trace.scheduled.any()
    assert (trace.power_watt > 0).any()


def test_without_energy_nobody_acts(tiny):
    problem = tiny({**SEPARATE, "harvest.joule": [0.0], "harvest.prob": [1.0], "energy.initial": 0.0})
    assert not hm.simulate(problem, hm.plan(problem, "turns"), episodes=2).spent_joule.any()


def test_without_powers_devices_train(tiny):
    problem = tiny({**RICH, **SEPARATE, "energy.powers_watt": [0.0]})
    assert hm.simulate(problem, hm.plan(problem, "turns"), episodes=1).scheduled.all()


def test_unknown_power_is_refused(tiny):
    with pytest.raises(hm.ScenarioError, match=r"turns option.power_watt: expected one of 1, 2, actual value 3"):
        hm.plan(tiny(), "turns", power_watt=3.0)
