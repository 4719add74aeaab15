"""Detection with a bounded rate of false alarms, and what is believed and done after an alarm."""

from collections import Counter

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.field.living.change import eras
from heliomesh.field.living.conditional_plan import Answering, Switching
from heliomesh.field.living.conditions import Conditions
from heliomesh.field.living.detector import Watch
from heliomesh.field.living.reaction import costs_by_slot
from heliomesh.field.living.replanning import Replanning, rounded_factor, without_links
from heliomesh.model.policy import Plan
from heliomesh.planning import make_plan
from heliomesh.simulation.diagnostics import ratio_interval

NOTHING = {0: Conditions()}


@pytest.fixture(scope="module")
def problem():
    return hm.build(hm.Scenario.load("tiny").override({"slots": 40}))


def watching(problem, **settings):
    answering = Answering(problem, "uncoordinated")
    watch = Watch(**{"calibration_episodes": 60} | settings)
    return Replanning(answering, answering.answer_to(Conditions()), watch)


def test_false_alarms_are_as_rare_as_asked_for(problem):
    asked, episodes = 0.1, 200
    policy = watching(problem, false_alarm_prob=asked, calibration_episodes=200)
    costs_by_slot(problem, NOTHING, policy, episodes, seed=5)
    share = np.mean([bool(alarms) for alarms in policy.alarms])
    # 200 episodes, and a threshold from 150: three standard deviations of both together
    assert share <= asked + 3 * np.sqrt(asked * (1 - asked) * (1 / episodes + 1 / 150))
    assert share > 0


@pytest.mark.parametrize(
    ("change", "causes", "believed"),
    [
        ("harvest=0@10", {"harvest"}, lambda b: b.harvest_factor(5) == [0.0] * 5),
        ("harvest.2=4@10", {"harvest of a device", "harvest"}, lambda b: b.harvest_factor(5)[2] > 2),
        ("link.0-1=off@10", {"silence"}, lambda b: (0, 1) in b.links_off),
        ("device.3=dead@10", {"harvest of a device", "silence"}, lambda b: 3 in b.away),
        ("channel=[[0.1, 0.9], [0.9, 0.1]]@10", {"channel"}, lambda b: b.kernel is not None and b.kernel[0][1] > 0.5),
    ],
)
def test_a_step_change_is_noticed_and_named(problem, change, causes, believed):
    policy = watching(problem)
    costs_by_slot(problem, eras(problem, [change]), policy, 12)
    first = [next((a for a in alarms if a.slot >= 10), None) for alarms in policy.alarms]
    assert sum(alarm is not None for alarm in first) >= 11
    most = Counter(alarm.cause for alarm in first if alarm is not None).most_common(1)[0][0]
    assert most in causes
    assert sum(map(believed, policy.beliefs)) >= 8


def test_a_device_that_joins_is_heard_and_counted_on(problem):
    truth = eras(problem, ["device.3=dead@0", "device.3=alive@15"])
    answering = Answering(problem, "uncoordinated")
    policy = Replanning(answering, answering.answer_to(truth[0]), Watch(calibration_episodes=80))
    costs_by_slot(problem, truth, policy, 8)
    assert sum(not belief.away and not belief.links_off for belief in policy.beliefs) >= 7
    assert all(alarm.slot >= 15 for alarms in policy.alarms for alarm in alarms if alarm.cause == "life")


def test_nothing_is_known_before_it_can_be_noticed(problem):
    """Two truths that part in slot 20 lead to the same costs up to there: a policy knows the past only."""
    policy = watching(problem)
    ends = (["harvest=0.2@20"], ["link.0-1=off@20", "device.3=dead@20"])
    one, other = (costs_by_slot(problem, eras(problem, end), policy, 8) for end in ends)
    np.testing.assert_array_equal(one[:, :20], other[:, :20])
    assert not np.array_equal(one[:, 20:], other[:, 20:])


def test_weights_in_force_decide_what_is_lost(problem):
    """Over a dead link the old weights lose a_ij each way in every slot; the new weights lose nothing there."""
    truth = eras(problem, ["link.0-1=off@0"])
    old, new = (Answering(problem, "uncoordinated").answer_to(c) for c in (Conditions(), truth[0]))
    costs = [costs_by_slot(problem, truth, Switching(problem, ((0, a),)), 8) for a in (old, new)]
    plan = Plan("uncoordinated", old.plan.policy)
    sent = hm.simulate(problem, plan, 8, 0).power_watt > 0  # batteries do not depend on packets
    # the five-ring has weights of a third, and they stay a third where one end lost a link; idle costs 1 both times
    np.testing.assert_allclose(costs[0] - costs[1], (sent[:, :, 0] + sent[:, :, 1] * 1.0) / 3, atol=1e-12)


def test_plans_that_switch_keep_training_and_sending_apart():
    changes = {"slots": 40, "energy.actions": "separate", "energy.compute_joule": 1.5}
    problem = hm.build(hm.Scenario.load("tiny").override(changes))
    answer = Answering(problem, "uncoordinated").answer_to(Conditions())
    switching = Switching(problem, ((0, answer), (20, answer)))
    alone, switched, watched = (
        hm.simulate(problem, plan, 4)
        for plan in (answer.plan, Plan("switching", switching), Plan("watching", watching(problem)))
    )
    assert ((alone.power_watt > 0) & ~alone.scheduled).any()
    for found in (switched, watched):
        np.testing.assert_array_equal(found.power_watt, alone.power_watt)
        np.testing.assert_array_equal(found.scheduled, alone.scheduled)


def test_who_is_away_loses_nothing(problem):
    truth = eras(problem, ["device.3=dead@0"])
    answer = Answering(problem, "uncoordinated").answer_to(truth[0])
    costs = costs_by_slot(problem, truth, Switching(problem, ((0, answer),)), 4)
    assert costs.max() <= 4


def test_replanning_wins_back_most_of_what_a_lost_link_costs():
    problem = hm.build(hm.Scenario.load("tiny").override({"slots": 100}))
    found = hm.live(problem, ["link.0-1=off@10"], episodes=12, train=0)
    assert (found.stale - found.fresh).mean() > 0.1
    assert found.recovered.mean - found.recovered.half_width > 0.7
    assert found.detected_share == 1


def test_a_device_without_links_is_away(problem):
    belief = without_links(problem, Conditions(), {(0, 1), (1, 2)})
    assert belief.away == {1}
    assert not belief.links_off
    assert without_links(problem, Conditions(), {(0, 1)}).links_off == {(0, 1)}


def test_factors_are_rounded_to_equal_ratios():
    assert rounded_factor(0.5) == 0.5
    assert rounded_factor(0.52) == 0.5
    assert rounded_factor(0.01) == 0
    assert rounded_factor(1.9) == pytest.approx(2.0)


def test_the_interval_of_a_ratio():
    denominator = np.array([1.0, 2.0, 3.0, 4.0])
    exact = ratio_interval(0.25 * denominator, denominator)
    assert exact.mean == pytest.approx(0.25)
    assert exact.half_width == pytest.approx(0, abs=1e-12)
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        base = 1 + 0.1 * rng.standard_normal(30)
        found = ratio_interval(0.5 * base + 0.1 * rng.standard_normal(30), base)
        covered += abs(found.mean - 0.5) <= found.half_width
    assert 0.91 <= covered / 400 <= 0.99


def test_a_warm_start_from_its_own_result_stays_there():
    problem = hm.build(hm.Scenario.load("tiny"))
    options = {"coordinate": False}
    cold = make_plan(problem, "prices", options, bound=False)
    warm = make_plan(problem, "prices", options, bound=False, previous=cold)
    assert warm.rounds <= 2
    assert warm.expected_cost <= cold.expected_cost + 1e-12
    assert torch.equal(warm.policy.actions[:, :, 0], cold.policy.actions[:, :, 0])


def test_a_planner_without_a_warm_start_plans_anew():
    problem = hm.build(hm.Scenario.load("tiny"))
    first = make_plan(problem, "receiver", {}, bound=False)
    again = make_plan(problem, "receiver", {}, bound=False, previous=first)
    assert again.lower_bound == first.lower_bound
