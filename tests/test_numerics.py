"""Extreme parameters have known limits, and long horizons do not drift."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.model.policy import Remembers
from heliomesh.planning import planner_names
from heliomesh.simulation.diagnostics import interval
from heliomesh.simulation.ledger import energy_ledger
from tests.test_properties import variants

PLANNERS = list(variants())

SMALL = {"network.devices": 3, "slots": 4}
RESTING_AT_THE_END = ("contributions",)  # four slots are too close to the deadline for it to train
RICH = {"harvest.joule": [30.0], "harvest.prob": [1.0], "energy.initial": 3.0}  # every action can always be paid for


def tiny(changes: dict[str, Any], **place: str) -> hm.Problem:
    return hm.build(hm.Scenario.load("tiny").override(SMALL | changes), **place)


def simulated(problem: hm.Problem, planner: str, options: dict[str, Any]) -> tuple[hm.Plan, hm.Trace]:
    plan = hm.plan(problem, planner, bound=True, **options)
    return plan, hm.simulate(problem, plan, episodes=4)


def assert_bound(plan: hm.Plan, cost: float, planner: str) -> None:
    """Plans with powers of their own have no bound."""
    assert (plan.lower_bound is not None) == plan.picks_actions, planner
    assert plan.lower_bound in (None, pytest.approx(cost, rel=1e-9)), planner


def check_is_idle(problem: hm.Problem, cost: float, planner: str, options: dict[str, Any]) -> None:
    plan, trace = simulated(problem, planner, options)
    assert not trace.scheduled.any(), planner
    assert not trace.spent_joule.any(), planner
    np.testing.assert_allclose(trace.cost, cost, rtol=1e-12, err_msg=planner)
    assert_bound(plan, cost, planner)
    if plan.expected_cost is not None:
        assert plan.expected_cost == pytest.approx(cost, rel=1e-9), planner


@pytest.mark.parametrize(("planner", "options"), PLANNERS)
@pytest.mark.parametrize("idle_penalty", [0.0, 1.0])
def test_capacity_below_the_cheapest_action(planner: str, options: dict[str, Any], idle_penalty: float) -> None:
    """Everybody idles and pays its weight at its neighbours and the penalty: Σ_j (1 − a_jj + penalty · a_jj)."""
    changes = {"energy.capacity_joule": 0.9, "energy.initial": "uniform", "cost.idle_penalty": idle_penalty}
    problem = tiny(changes)
    own = problem.topology.self_weight
    check_is_idle(problem, float((1 - own + idle_penalty * own).sum()), planner, options)


@pytest.mark.parametrize(("planner", "options"), PLANNERS)
def test_no_power_but_zero(planner: str, options: dict[str, Any]) -> None:
    check_is_idle(tiny({"energy.powers_watt": [0.0]}), 3.0, planner, options)


@pytest.mark.parametrize("planner", planner_names())
def test_one_battery_level_on_the_grid_is_an_empty_battery(planner: str) -> None:
    """Plans that look levels up never act; those that look at joules act as soon as something is harvested."""
    problem = tiny({"energy.battery_levels": 1})
    plan, trace = simulated(problem, planner, {})
    if not isinstance(plan.policy, Remembers):  # whose exact cost is refused
        assert hm.exact_cost(problem, plan.policy) == pytest.approx(3.0)
    sees_joules = planner not in ("centralized", "decentralized", "battery_threshold")
    if planner not in RESTING_AT_THE_END:
        assert bool(trace.scheduled.any()) == sees_joules
    assert plan.lower_bound is None or plan.lower_bound < 3.0  # it speaks of continuous batteries, which can pay


def test_a_finer_grid_that_holds_the_coarse_one_changes_nothing() -> None:
    """Energies of `tiny` are whole joules: 4 levels are exact, and so are 64, in steps of 1/21 J."""
    changes = {"energy.initial": 1.0, "network.devices": 2, "network.topology": "star"}
    coarse, fine = (tiny(changes | {"energy.battery_levels": levels}) for levels in (4, 64))
    costs = [hm.plan(problem, "centralized").expected_cost for problem in (coarse, fine)]
    assert costs[1] == pytest.approx(costs[0], rel=1e-12)
    traces = [hm.simulate(problem, hm.plan(problem, "centralized", bound=False), 16) for problem in (coarse, fine)]
    np.testing.assert_allclose(traces[1].cost.mean(), traces[0].cost.mean(), rtol=0.1)
    assert hm.lower_bound(fine) == pytest.approx(hm.lower_bound(coarse), rel=1e-6)


PAUSING = ("skiptrain", "turns", *RESTING_AT_THE_END)
WATERFALLS = [1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e3]


@pytest.mark.parametrize(("planner", "options"), [v for v in PLANNERS if v[0] not in PAUSING])
def test_waterfall_to_zero_loses_nothing(planner: str, options: dict[str, Any]) -> None:
    plan, trace = simulated(tiny(RICH | {"link.waterfall": 1e-6}), planner, options)
    # q ≤ φ (interference + noise) / signal ≤ φ · (2 W · 1.5 + 0.3 W) / (1 W · 0.3) = 11 φ on each of two links
    if options.get("form") != "literal":  # whose averaged tables prefer to idle, as the paper's do
        assert trace.scheduled.all(), planner
        assert (trace.cost <= 3 * 11e-6).all(), planner
    assert 0 <= (plan.lower_bound or 0.0) <= 3 * 11e-6


@pytest.mark.parametrize(("planner", "options"), PLANNERS)
def test_waterfall_to_infinity_loses_all_that_is_sent(planner: str, options: dict[str, Any]) -> None:
    """Sending is as bad as silence, but training still saves the idle penalty: x_j = 1 − a_jj or 1."""
    problem = tiny(RICH | {"link.waterfall": 1e3})
    plan, trace = simulated(problem, planner, options)
    expected = 1 - problem.topology.self_weight * trace.scheduled
    np.testing.assert_allclose(trace.update_loss, expected, rtol=1e-12, err_msg=planner)
    assert not trace.delivered.any(), planner
    assert_bound(plan, 2.0, planner)


def test_cost_rises_with_the_waterfall() -> None:
    costs = [hm.plan(tiny({"link.waterfall": phi}), "centralized").expected_cost for phi in WATERFALLS]
    assert all(cost is not None and 0 < cost <= 3 for cost in costs)
    assert costs == sorted(costs)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("planner", "options"), PLANNERS)
def test_gains_over_twelve_decades(planner: str, options: dict[str, Any], dtype: str) -> None:
    """In the deep fade nothing arrives, at the peak only interference matters; no number leaves [0, 1]."""
    changes = {"channel.gains": [1e-6, 1e6], "channel.gain": [1e-3, 1.0, 1e3], "link.noise_watt": 1e-3}
    problem = tiny(changes, dtype=dtype)
    plan, trace = simulated(problem, planner, options)
    for array in (trace.update_loss, trace.error_prob):
        assert ((array >= 0) & (array <= 1 + 1e-12)).all(), planner
    assert 0 <= (plan.lower_bound or 0.0) <= 3
    sent = trace.power_watt[:, :, trace.edge_sender] > 0
    faded = trace.channel_level[:, :, trace.edge_receiver] == 0
    noisy = trace.edge_receiver < 2  # receivers whose signal in the fade is below the noise by three decades or more
    assert (trace.error_prob[sent & faded & noisy] >= 1 - np.exp(-10)).all()


FLOAT32 = 1e-5  # relative difference of expected costs and bounds; 3e-6 is the largest seen


@pytest.mark.parametrize("planner", ["centralized", "prices", "receiver", "battery_threshold"])
def test_float32_keeps_five_digits(planner: str) -> None:
    wide, narrow = (
        hm.plan(tiny({"slots": 60}, dtype=dtype), planner, bound=True) for dtype in ("float64", "float32")
    )
    assert narrow.lower_bound == pytest.approx(wide.lower_bound, rel=FLOAT32)
    if wide.expected_cost is not None:
        assert narrow.expected_cost == pytest.approx(wide.expected_cost, rel=FLOAT32)


LONG = 100_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planner", "options"), [("uncoordinated", {}), ("battery_threshold", {"thresholds": [0.6, 0.9]})]
)
def test_a_long_horizon_does_not_drift(planner: str, options: dict[str, Any]) -> None:
    """The books close to 1e-9 of what was harvested, and late slots cost what early ones did."""
    changes = {"energy.compute_joule": 0.7, "harvest.joule": [0.0, 1.1, 1.9], "energy.initial": "uniform"}
    problem = tiny(changes | {"slots": LONG, "network.devices": 2, "network.topology": "star"})
    plan = hm.plan(problem, planner, bound=False, **options)
    trace = hm.simulate(problem, plan, episodes=2)
    ledger = energy_ledger(trace)
    assert (abs(ledger.imbalance_joule) <= 1e-9 * ledger.harvested_joule).all()
    assert np.isfinite(trace.update_loss).all()
    blocks = trace.update_loss.sum(-1).reshape(2, -1, 1000).mean(-1)  # (episode, thousand slots): nearly independent
    early, late = interval(blocks[:, :10].ravel()), interval(blocks[:, 10:].ravel())
    assert abs(early.mean - late.mean) <= 2 * (early.half_width + late.half_width)
    np.testing.assert_allclose(hm.simulate_costs(problem, plan, 2), trace.cost, rtol=1e-12)


@pytest.mark.slow
def test_value_tables_of_a_long_horizon_stay_finite() -> None:
    problem = tiny({"slots": LONG, "network.devices": 2, "network.topology": "star"})
    short = tiny({"slots": LONG // 10, "network.devices": 2, "network.topology": "star"})
    prices = hm.plan(problem, "prices", bound=False, sweeps=1, restarts=0)
    receiver = hm.plan(problem, "receiver", bound=False)
    assert bool(prices.policy.alone.futures.isfinite().all())
    assert all(bool(table.isfinite().all()) for table in receiver.policy.tables)
    assert hm.lower_bound(problem) == pytest.approx(hm.lower_bound(short), rel=1e-3)


# `ru_maxrss` would be the parent's peak where that is more
_MEASURE = """
import sys
from pathlib import Path
import heliomesh as hm
changes = {"slots": int(sys.argv[1]), "network.devices": 2, "network.topology": "star"}
problem = hm.build(hm.Scenario.load("tiny").override(changes))
hm.simulate_costs(problem, hm.plan(problem, "uncoordinated", bound=False), 1)
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


@pytest.mark.slow
def test_memory_of_simulated_costs_does_not_grow_with_the_horizon() -> None:
    """A trace of the longer horizon would take 20 MB more."""
    peaks = [
        int(subprocess.run([sys.executable, "-c", _MEASURE, str(slots)], capture_output=True, check=True).stdout)  # noqa: S603
        for slots in (1000, LONG)
    ]
    assert peaks[1] - peaks[0] < 8_000  # KiB; the law's phase of every slot is 800 of them


def test_errors_at_the_ends_of_floating_point() -> None:
    """1 − e^{−z} keeps its relative precision for the smallest z and saturates at one for the largest."""
    from heliomesh.physics.link import waterfall_error

    signal = torch.tensor([1.0, 1e-300, 1e300, 0.0, 5e-324], dtype=torch.float64)
    error = waterfall_error(signal, torch.full_like(signal, 1e-9), 1e-6)
    assert error.isfinite().all()
    expected = torch.tensor([1e-15, 1.0, 1e-315, 1.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(error, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("planner", ["prices", "decentralized", "battery_threshold", "uncoordinated", "receiver"])
def test_more_powers_than_a_byte_counts(planner: str) -> None:
    """With 140 powers and energy for all, someone sends above the 128th, and nobody below zero."""
    powers = [0.0, *np.linspace(0.5, 2.0, 139).tolist()]
    changes = RICH | {"energy.powers_watt": powers, "energy.battery_levels": 2, "network.devices": 2, "slots": 2}
    changes |= {"network.topology": "star", "energy.compute_joule": 0.0, "energy.transmit_second": 1e-12}
    problem = tiny(changes)
    plan = hm.plan(problem, planner, bound=False)
    trace = hm.simulate(problem, plan, 4)
    assert trace.scheduled.any()
    assert (trace.power_watt >= 0).all()
    assert trace.power_watt.max() > powers[128]


def test_more_joint_actions_than_four_bytes_count() -> None:
    """Two parts of twelve devices with six actions have 6^12 > 2^31 joint ones each."""
    changes = {
        "network.devices": 24,
        "slots": 2,
        "channel.gains": [1.0],
        "channel.kernel": [[1.0]],
        "energy.powers_watt": [0.0, 1.0, 1.1, 1.2, 1.3, 1.4],
        "energy.battery_levels": 2,
    }
    problem = tiny(changes)
    plan = hm.plan(problem, "centralized", bound=False)
    assert hm.exact_cost(problem, plan.policy) == pytest.approx(plan.expected_cost, rel=1e-12)
    wider = tiny(changes | {"network.devices": 90, "energy.battery_levels": 1})
    with pytest.raises(hm.TooLargeError, match="exact tables: expected at most 64 axes"):
        hm.plan(wider, "centralized", bound=False)


def test_a_hub_that_can_only_idle() -> None:
    changes = {"network.topology": "star", "network.devices": 40, "slots": 2, "energy.powers_watt": [0.0]}
    problem = tiny(changes | {"channel.gains": [1.0], "channel.kernel": [[1.0]], "energy.battery_levels": 1})
    assert hm.plan(problem, "receiver", bound=True).lower_bound == pytest.approx(40.0)


def test_the_estimate_counts_the_tables_of_a_slots_search() -> None:
    """Few battery states, but the channels of fifteen links and six actions together: 2^15 · 3^6 costs."""
    changes = {"network.topology": "complete", "network.devices": 6, "channel.state": "reciprocal", "slots": 1}
    problem = tiny(changes | {"link.half_duplex": True, "energy.battery_levels": 2})
    with pytest.raises(hm.TooLargeError, match=r"centralized optimum: expected at most 0\.1 GiB"):
        hm.plan(problem, "centralized", memory_gib=0.1, bound=False)


@pytest.mark.parametrize("half_duplex", [False, True])
@pytest.mark.parametrize(("planner", "options"), PLANNERS)
def test_one_device_trains_as_often_as_it_can(planner: str, options: dict[str, Any], half_duplex: bool) -> None:
    """Nobody hears it, so the cheapest action that trains is as good as any; nothing else costs anything."""
    problem = tiny({"network.devices": 1, "link.half_duplex": half_duplex})
    plan, trace = simulated(problem, planner, options)
    assert trace.delivered.shape == (4, 4, 0)
    np.testing.assert_array_equal(trace.update_loss, ~trace.scheduled)
    assert 0 < (plan.lower_bound or 0.5) < 1
    if planner in ("receiver", "prices", "centralized"):
        assert hm.exact_cost(problem, plan.policy) == pytest.approx(plan.lower_bound, rel=1e-12)


@pytest.mark.parametrize("planner", ["receiver", "prices"])
def test_a_device_that_nobody_hears_saves_its_energy(planner: str) -> None:
    """It trains by the cheapest action whatever the others agree on."""
    pair = {"network.topology": "edges", "network.edges": [[0, 1]], "network.allow_disconnected": True}
    trace = hm.simulate(problem := tiny(pair | {"slots": 12}), hm.plan(problem, planner), episodes=4)
    sent = trace.power_watt[:, :, 2]
    assert set(np.unique(sent)) == {0.0, 1.0}
    alone = hm.plan(tiny({"network.devices": 1, "slots": 12}), "centralized").expected_cost
    many = hm.simulate(problem, hm.plan(problem, planner), episodes=400).update_loss[:, :, 2].mean(1)
    assert abs(many.mean() - float(alone or 0)) < 4 * many.std() / 20
