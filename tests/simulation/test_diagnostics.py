"""Diagnostics and books of hand-made traces, intervals against scipy, and the paper's bounds by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import heliomesh as hm
from heliomesh.simulation.diagnostics import (
    LearningConstants,
    cost_factor,
    interval,
    theorem1_cost,
    theorem1_terms,
    theorem2_bound,
)

CONSTANTS = LearningConstants(
    smoothness=2.0, gradient_bound=3.0, local_variance=0.5, global_variance=0.25, initial_gap=1.5
)

SEPARATE = {"energy.actions": "separate", "energy.compute_joule": 1.5}  # a battery of 1 J pays for sending only


def problem_of(**changes):
    return hm.build(hm.Scenario.load("tiny").override(changes))


def hand_made():
    """One episode, two slots, two devices that hear each other: only device 0 sends, and only at first."""
    pair = {"network.devices": 2, "network.topology": "complete"}
    return hm.Trace(
        scenario_toml=hm.Scenario.load("tiny").override(pair).to_toml(),
        planner="hand",
        seed=0,
        scheduled=np.array([[[True, True], [False, False]]]),
        power_watt=np.array([[[2.0, 0.0], [0.0, 0.0]]]),  # device 1 trains without sending
        update_loss=np.array([[[0.1, 0.5], [1.0, 1.0]]]),
        battery_joule=np.array([[[3.0, 1.0], [1.0, 0.5], [2.0, 3.0]]]),
        spent_joule=np.array([[[3.0, 1.0], [0.0, 0.0]]]),
        harvested_joule=np.array([[[1.0, 0.5], [1.0, 4.0]]]),
        overflow_joule=np.array([[[0.0, 0.0], [0.0, 1.5]]]),
        delivered=np.array([[[False, True], [False, False]]]),  # edges 0 ← 1 and 1 ← 0
        error_prob=np.array([[[1.0, 0.2], [1.0, 1.0]]]),
        channel_level=np.zeros((1, 2, 2), dtype=np.int16),
        edge_receiver=np.array([0, 1]),
        edge_sender=np.array([1, 0]),
    )


# intervals


@pytest.mark.parametrize("count", [2, 3, 10, 500])
def test_interval_is_students(count):
    samples = np.random.default_rng(count).normal(3, 2, count)
    low, high = stats.ttest_1samp(samples, 0).confidence_interval(0.95)
    found = interval(samples)
    assert found.mean == pytest.approx(samples.mean())
    assert found.mean - found.half_width == pytest.approx(low)
    assert found.mean + found.half_width == pytest.approx(high)


def test_interval_by_hand():
    found = interval(np.array([1.0, 2.0, 3.0]))
    assert found.mean == 2
    assert found.half_width == pytest.approx(
        4.302653 / math.sqrt(3), rel=1e-6
    )  # t quantile of two degrees of freedom


def test_one_sample_has_no_interval():
    found = interval(np.array([4.0]))
    assert found.mean == 4
    assert math.isnan(found.half_width)


def test_equal_samples_leave_no_doubt():
    assert interval(np.full(5, 2.0)).half_width == 0


def test_interval_covers_as_promised():
    samples = np.random.default_rng(0).normal(size=(4000, 6))
    covered = [abs(found.mean) <= found.half_width for found in map(interval, samples)]
    assert abs(np.mean(covered) - 0.95) <= 5 * math.sqrt(0.95 * 0.05 / 4000)


# summaries


def test_summary_by_hand():
    summary = hm.summarise(hand_made())
    assert summary.cost.mean == pytest.approx((0.1 + 0.5 + 1.0 + 1.0) / 2)
    assert math.isnan(summary.cost.half_width)
    assert summary.participation == 0.5
    assert summary.sending == 0.25
    assert summary.delivery == 1.0  # of the one packet sent
    np.testing.assert_allclose(summary.update_loss, [0.55, 0.75])
    assert summary.update_loss_spread == pytest.approx(0.2)
    assert summary.overflow_share == pytest.approx(1.5 / 6.5)
    assert summary.mean_battery_joule == pytest.approx((3 + 1 + 1 + 0.5 + 2 + 3) / 6)


def test_nothing_sent_has_no_delivery_and_no_harvest_no_overflow():
    still = replace(hand_made(), power_watt=np.zeros((1, 2, 2)), harvested_joule=np.zeros((1, 2, 2)))
    summary = hm.summarise(still)
    assert math.isnan(summary.delivery)
    assert summary.overflow_share == 0


@pytest.mark.parametrize("changes", [{}, SEPARATE], ids=str)
def test_summary_equals_plain_counts(changes):
    problem = problem_of(**changes)
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated"), episodes=4)
    trained = sending = sent = arrived = 0
    for episode in range(4):
        for slot in range(problem.slots):
            trained += sum(map(int, trace.scheduled[episode, slot]))
            sending += sum(int(power > 0) for power in trace.power_watt[episode, slot])
            for edge, sender in enumerate(trace.edge_sender):
                if trace.power_watt[episode, slot, sender] > 0:
                    sent += 1
                    arrived += int(trace.delivered[episode, slot, edge])
    summary = hm.summarise(trace)
    assert summary.participation == pytest.approx(trained / (4 * problem.slots * 5))
    assert summary.sending == pytest.approx(sending / (4 * problem.slots * 5))
    assert summary.delivery == pytest.approx(arrived / sent)
    assert summary.update_loss.sum() == pytest.approx(summary.cost.mean)


# books


def test_ledger_by_hand():
    ledger = hm.energy_ledger(hand_made())
    assert ledger.initial_joule.tolist() == [[3, 1]]
    assert ledger.harvested_joule.tolist() == [[2, 4.5]]
    assert ledger.spent_joule.tolist() == [[3, 1]]
    assert ledger.overflow_joule.tolist() == [[0, 1.5]]
    assert ledger.stored_joule.tolist() == [[2, 3]]
    assert ledger.imbalance_joule.tolist() == [[0, 0]]


def test_ledger_finds_what_is_missing():
    leaky = replace(hand_made(), overflow_joule=np.zeros((1, 2, 2)))
    assert hm.energy_ledger(leaky).imbalance_joule.tolist() == [[0, 1.5]]


# Theorem 1


def test_theorem1_by_hand():
    """m = 4 on a ring: λ = 1/3; K = 4, T = 100, L = 2, G² = 9, C₁ = 0.5 + 4·4·0.25 = 4.5, C₁ + 4KG² = 148.5."""
    problem = problem_of(**{"network.devices": 4, "slots": 100, "learning.local_steps": 4})
    terms = theorem1_terms(problem, mean_cost=1.25, constants=CONSTANTS)
    assert terms == pytest.approx(
        {
            "initial error": 256 * 2 * 1.5 / 20,
            "gradient noise": 2 * 4.5 / (2 * 4 * 10),
            "gradient noise, second order": 4 * 4.5 / (256 * 4 * 100),
            "disagreement": 2 * 148.5 / (128 * (2 / 3) * 4 * 1000),
            "disagreement, second order": 4 * 148.5 / (16384 * (2 / 3) * 4 * 10_000),
            "lost updates": 4 * (4 * 2 + 2) * 9 / 4 * 1.25,
        }
    )


@pytest.mark.parametrize("changes", [{}, {"energy.train_only": True}, SEPARATE], ids=str)
@pytest.mark.parametrize("idle_penalty", [0.0, 0.5, 1.0])
def test_lost_updates_are_the_triple_sum_of_the_theorem(idle_penalty, changes):
    """The theorem charges a device that does not train 1, whatever the scenario does and even if it sends."""
    problem = problem_of(**{"cost.idle_penalty": idle_penalty}, **changes)
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated"), episodes=1)
    m, steps, mixing = 5, problem.scenario.learning.local_steps, problem.topology.mixing
    edge = {(i, j): problem.topology.edge(i, j) for i in range(m) for j in problem.topology.neighbours[i]}
    total = 0.0
    for slot in range(problem.slots):
        for j in range(m):
            for i in set(range(m)) - {j}:
                error = trace.error_prob[0, slot, edge[i, j]] if (i, j) in edge else 0.0
                total += ((m - 1) * mixing[i, j] * error - 1) * trace.scheduled[0, slot, j] + 1
    factor = 4 * (steps * 2 + math.sqrt(steps)) * 9 / ((m - 1) * steps * problem.slots)
    terms = theorem1_terms(problem, theorem1_cost(trace), CONSTANTS)
    assert not trace.scheduled.all()
    assert terms["lost updates"] == pytest.approx(factor * total)
    sends_only = (trace.power_watt > 0) & ~trace.scheduled
    assert sends_only.any() == (changes == SEPARATE)
    if idle_penalty == 1 and not sends_only.any():
        assert terms["lost updates"] == pytest.approx(cost_factor(problem, CONSTANTS) * trace.cost[0])


def test_a_packet_without_training_is_no_update_by_hand():
    """Device 1 sends and its packet arrives for sure, yet it did not train: it pays 1, beside device 0's 0.1."""
    sends_only = replace(
        hand_made(),
        scheduled=np.array([[[True, False], [False, False]]]),
        power_watt=np.array([[[2.0, 2.0], [0.0, 0.0]]]),
        update_loss=np.array([[[0.1, 0.5], [1.0, 1.0]]]),
        error_prob=np.array([[[0.0, 0.2], [1.0, 1.0]]]),
    )
    assert theorem1_cost(sends_only) == pytest.approx((0.1 + 1 + 1 + 1) / 2)


def test_only_the_last_term_stays_as_the_horizon_grows():
    short = theorem1_terms(problem_of(slots=100), 1.0, CONSTANTS)
    long = theorem1_terms(problem_of(slots=10_000), 1.0, CONSTANTS)
    orders = dict(zip(short, (0.5, 0.5, 1, 1.5, 2, 0), strict=True))
    for name, order in orders.items():
        assert long[name] == pytest.approx(short[name] / 100**order)


def test_one_device_has_nobody_to_disagree_with():
    terms = theorem1_terms(problem_of(**{"network.devices": 1}), 0.0, CONSTANTS)
    assert terms["disagreement"] == pytest.approx((0.5 + 5 + 4 * 5 * 9) / (128 * 5 * 12**1.5))
    assert terms["lost updates"] == 0


def test_parts_that_never_meet_never_agree():
    apart = {"network.topology": "edges", "network.edges": [[0, 1], [2, 3], [3, 4]]}
    terms = theorem1_terms(problem_of(**apart, **{"network.allow_disconnected": True}), 1.0, CONSTANTS)
    assert terms["disagreement"] == terms["disagreement, second order"] == math.inf
    assert math.isfinite(terms["lost updates"])


def test_the_slowest_mode_may_be_an_alternating_one():
    """Two groups of three, all across: A has eigenvalues 1, 1/4 and −1/2, so λ = 1/2."""
    across = [[i, j] for i in range(3) for j in range(3, 6)]
    changes = {"network.topology": "edges", "network.devices": 6, "network.edges": across}
    terms = theorem1_terms(problem_of(**changes), 1.0, CONSTANTS)
    drift = (0.5 + 4 * 5 * 0.25 + 4 * 5 * 9) / 5
    assert terms["disagreement"] == pytest.approx(math.sqrt(6) * drift / (128 * 0.5 * 12**1.5))


def test_perfect_mixing_has_unit_gap():
    complete = problem_of(**{"network.topology": "complete", "network.devices": 3})  # A = 1/3 everywhere, λ = 0
    terms = theorem1_terms(complete, 1.0, CONSTANTS)
    drift = (0.5 + 4 * 5 * 0.25 + 4 * 5 * 9) / 5
    assert terms["disagreement"] == pytest.approx(math.sqrt(3) * drift / (128 * 12**1.5))


# Theorem 2


@pytest.mark.parametrize(("rounds", "power"), [(0, 1.0), (1, 0.5), (3, 0.125), (20, 0.5**20)])
def test_theorem2_by_hand(rounds, power):
    problem = problem_of()  # m = 5, T = 12, |P| = 3
    gamma = 0.5 / (8 * 5 * 12 * 9)
    assert theorem2_bound(problem, gamma, rounds) == pytest.approx(25 * 12 * power * 2 / 3)


def test_theorem2_in_the_letters_of_the_paper():
    """D = 32 γ m (L+1) G² |P|² with γ of unnormalised costs, and J summed over slots, as L grows."""
    problem, steps, squared, smoothness = problem_of(), 5, 9.0, 1e9
    factor = 4 * (steps * smoothness + math.sqrt(steps)) * squared / steps  # of one slot's cost, times T
    gamma = 0.9 / (32 * 5 * (smoothness + 1) * squared * 9)
    contraction = 32 * gamma * 5 * (smoothness + 1) * squared * 9
    literal = 5 * factor * contraction**4 * (12 * 5 * 2 / 3)
    normalised = theorem2_bound(problem, gamma * factor / 12, rounds=4)
    assert normalised == pytest.approx(literal / factor, rel=1e-6)


def test_theorem2_says_nothing_beyond_its_condition():
    problem = problem_of()
    assert theorem2_bound(problem, 1.01 / (8 * 5 * 12 * 9), rounds=20) == math.inf
    assert theorem2_bound(problem, 100.0, rounds=20) == math.inf
