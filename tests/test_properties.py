"""What must hold on every valid scenario, for every planner of the catalog: networks are generated, not chosen."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heliomesh as hm
from heliomesh.common.streams import stream
from heliomesh.model.policy import Remembers
from heliomesh.planning import planner_names
from heliomesh.simulation import slot_loop
from heliomesh.simulation.ledger import energy_ledger
from tests.planners.test_bounds import random_network

# Options under which a planner is quick, or another planner in effect; those not named run by their defaults.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "decentralized": [{"rounds": 2}, {"form": "literal", "rounds": 2}],
    "myopic": [{}, {"mode": "continuous"}, {"mode": "exhaustive"}],
    "prices": [{}, {"coordinate": False}],
    "skiptrain": [{"train_rounds": 1, "sync_rounds": 1}],
}
# Devices that share a receiver take turns in the order of their numbers, so these may end in another local optimum.
TURN_TAKING = {"decentralized", "myopic", "prices", "receiver", "battery_threshold"}
NUMBERED = {"turns"}  # numbers decide who is first in the cycle, and a short horizon shows it
EPISODES = 8

numbers = st.integers(0, 10**6)  # of a generated network
few = settings(max_examples=2, deadline=None, derandomize=True)
many = settings(max_examples=60, deadline=None, derandomize=True)


def variants() -> Iterator[tuple[str, dict[str, Any]]]:
    for planner in planner_names():
        for options in VARIANTS.get(planner, [{}]):
            yield planner, options


def plans(problem: hm.Problem) -> Iterator[hm.Plan]:
    """Every planner's plan."""
    for planner, options in variants():
        yield hm.plan(problem, planner, bound=False, **options)


def has_exact_cost(plan: hm.Plan) -> bool:
    """Not where powers are of no action set, nor where decisions depend on earlier slots."""
    return plan.picks_actions and not isinstance(plan.policy, Remembers)


def check_energy(number: int) -> None:
    """No plan spends what a battery lacks, batteries stay within their capacity, and the books balance."""
    problem = hm.build(random_network(number))
    capacity = problem.battery.capacity_joule.numpy()
    for plan in plans(problem):
        trace = hm.simulate(problem, plan, EPISODES, seed=number)
        before, after = trace.battery_joule[:, :-1], trace.battery_joule[:, 1:]
        assert (trace.spent_joule <= before).all(), plan.planner
        assert (after >= 0).all(), plan.planner
        assert (trace.battery_joule <= capacity).all(), plan.planner
        due = trace.scheduled * problem.compute_joule.numpy()
        due = due + trace.power_watt * problem.scenario.energy.transmit_second
        np.testing.assert_allclose(trace.spent_joule, due, rtol=0, atol=3e-9 * capacity.max(), err_msg=plan.planner)
        ledger = energy_ledger(trace)
        moved = ledger.initial_joule + ledger.harvested_joule
        assert (abs(ledger.imbalance_joule) <= 1e-12 * (moved + capacity)).all(), plan.planner


@few
@given(numbers)
def test_energy(number: int) -> None:
    check_energy(number)


@pytest.mark.slow
@many
@given(numbers)
def test_energy_of_many(number: int) -> None:
    check_energy(number)


class _OtherFuture:
    """A generator whose numbers are others from some slot on; its first draw is of the initial state."""

    num_replaced = 0  # by all of them, to know that the test changes anything

    def __init__(self, seed: int, purpose: Any, episode: int, from_slot: int) -> None:
        self._same, self._other = stream(seed, purpose, episode), stream(seed + 1, purpose, episode)
        self._from_slot, self._is_first = from_slot, True

    def random(self, out: np.ndarray[Any, Any]) -> None:
        """Fill ``out``, whose first axis is the slot."""
        out[...], other = self._same.random(out.shape), self._other.random(out.shape)
        if not self._is_first:
            out[self._from_slot :] = other[self._from_slot :]
            _OtherFuture.num_replaced += other[self._from_slot :].size
        self._is_first = False


def check_causal(number: int) -> None:
    """What is done up to slot t does not change with the harvests, packets and channels drawn in slot t or later."""
    problem = hm.build(random_network(number))
    last = number % problem.slots
    for plan in plans(problem):
        trace = hm.simulate(problem, plan, EPISODES, seed=number)
        replaced_before = _OtherFuture.num_replaced
        with pytest.MonkeyPatch.context() as patch:
            # a device's own random number of slot t is part of its decision in slot t
            patch.setattr(
                slot_loop,
                "stream",
                lambda seed, purpose, *index: _OtherFuture(seed, purpose, *index, last + (purpose == "policy")),
            )
            other = hm.simulate(problem, plan, EPISODES, seed=number)
        for name in ("power_watt", "scheduled"):
            np.testing.assert_array_equal(
                getattr(trace, name)[:, : last + 1], getattr(other, name)[:, : last + 1], err_msg=plan.planner
            )
        assert _OtherFuture.num_replaced > replaced_before


@few
@given(numbers)
def test_causal(number: int) -> None:
    check_causal(number)


@pytest.mark.slow
@many
@given(numbers)
def test_causal_for_many(number: int) -> None:
    check_causal(number)


def renumbered(scenario: hm.Scenario, place: np.ndarray[Any, Any]) -> hm.Scenario:
    """The same network with device i at number ``place[i]``."""
    data, source = scenario.as_dict(), np.argsort(place)
    data["network"]["edges"] = [[int(place[a]), int(place[b])] for a, b in data["network"]["edges"]]
    for section, field in (
        ("channel", "gain"),
        ("link", "noise_watt"),
        ("energy", "compute_joule"),
        ("energy", "capacity_joule"),
        ("harvest", "scale"),
    ):
        data[section][field] = [data[section][field][i] for i in source]
    return hm.Scenario.parse(data)


def check_numbering(number: int) -> None:
    """The optimum and order-free planners do not care how devices are numbered; bounds and the others hardly do.

    Costs here are exact on each plan's own grid, so they say nothing about the bound, which speaks of continuous
    batteries; `tests/planners/test_certificate.py` compares it with optima.
    """
    scenario = random_network(number)
    place = np.random.default_rng(number).permutation(scenario.network.devices)
    problem, other = hm.build(scenario), hm.build(renumbered(scenario, place))
    # the ascent of prices stops at its own tolerance, and takes another way when devices are numbered otherwise
    assert hm.lower_bound(other) == pytest.approx(hm.lower_bound(problem), rel=1e-3)
    for planner, options in variants():
        plan, replan = (hm.plan(p, planner, bound=False, **options) for p in (problem, other))
        if not has_exact_cost(plan):
            continue
        cost, recost = hm.exact_cost(problem, plan.policy), hm.exact_cost(other, replan.policy)
        if planner in NUMBERED:
            continue
        tolerance = 0.02 if planner in TURN_TAKING else 1e-9
        assert recost == pytest.approx(cost, rel=tolerance, abs=1e-9), (planner, options)


@few
@given(numbers)
def test_numbering(number: int) -> None:
    check_numbering(number)


@pytest.mark.slow
@many
@given(numbers)
def test_numbering_of_many(number: int) -> None:
    check_numbering(number)


def in_other_units(scenario: hm.Scenario, joule: float, watt: float, second: float) -> hm.Scenario:
    """The same scenario with all energies, powers and times multiplied."""
    data = scenario.as_dict()
    factors = {
        ("energy", "powers_watt"): watt,
        ("link", "noise_watt"): watt,
        ("energy", "transmit_second"): second,
        ("energy", "slot_second"): second,
        ("energy", "compute_joule"): joule,
        ("energy", "capacity_joule"): joule,
        ("harvest", "joule"): joule,
    }
    for (section, field), factor in factors.items():
        data[section][field] = (np.array(data[section][field]) * factor).tolist()
    return hm.Scenario.parse(data)


# powers of two multiply without rounding, so decisions must be the same to the bit, ties included
@pytest.mark.parametrize(("joule", "watt", "second"), [(2.0**20, 2.0**20, 1.0), (2.0**-10, 1.0, 2.0**-10)])
@settings(max_examples=1, deadline=None, derandomize=True)
@given(number=numbers)
def test_units(joule: float, watt: float, second: float, number: int) -> None:
    scenario = random_network(number)
    problem, other = hm.build(scenario), hm.build(in_other_units(scenario, joule, watt, second))
    for plan, same in zip(plans(problem), plans(other), strict=True):
        trace, in_units = (hm.simulate(p, made, EPISODES) for p, made in ((problem, plan), (other, same)))
        np.testing.assert_array_equal(in_units.scheduled, trace.scheduled, err_msg=plan.planner)
        np.testing.assert_array_equal(in_units.delivered, trace.delivered, err_msg=plan.planner)
        np.testing.assert_allclose(in_units.power_watt, trace.power_watt * watt, rtol=1e-12, err_msg=plan.planner)
        np.testing.assert_allclose(in_units.spent_joule, trace.spent_joule * joule, rtol=1e-12, err_msg=plan.planner)


@pytest.mark.slow
@pytest.mark.parametrize(("joule", "watt", "second"), [(10.0, 10.0, 1.0), (1e-6, 1e-6, 1.0), (60.0, 1.0, 60.0)])
@settings(max_examples=20, deadline=None, derandomize=True)
@given(number=numbers)
def test_units_that_round(joule: float, watt: float, second: float, number: int) -> None:
    """Other factors may turn a tie, but not a cost."""
    scenario = random_network(number)
    problem, other = hm.build(scenario), hm.build(in_other_units(scenario, joule, watt, second))
    for planner in ("centralized", "uncoordinated", "skiptrain", "turns", "fixed_fraction"):
        cost, same = (hm.exact_cost(p, hm.plan(p, planner, bound=False).policy) for p in (problem, other))
        assert same == pytest.approx(cost, rel=1e-9), planner
    assert hm.lower_bound(other) == pytest.approx(hm.lower_bound(problem), rel=1e-6)


def check_agreement(scenario: hm.Scenario, relative: float, **place: str) -> None:
    """Bound and costs elsewhere, or in other numbers, are those of the processor in 64 bits."""
    problem, other = hm.build(scenario), hm.build(scenario, **place)
    loose = max(relative, 1e-7)  # an ascent amplifies rounding
    assert hm.lower_bound(other) == pytest.approx(hm.lower_bound(problem), rel=loose, abs=loose)
    for planner, options in variants():
        plan, same = (hm.plan(p, planner, bound=False, **options) for p in (problem, other))
        if not has_exact_cost(plan):
            continue
        cost, cost_there = hm.exact_cost(problem, plan.policy), hm.exact_cost(other, same.policy)
        assert cost_there == pytest.approx(cost, rel=relative, abs=relative), (planner, options)


@few
@given(numbers)
def test_float32_agrees(number: int) -> None:
    check_agreement(random_network(number), 1e-5, dtype="float32")


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(numbers)
def test_float32_agrees_on_many(number: int) -> None:
    check_agreement(random_network(number), 1e-5, dtype="float32")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("dtype", "relative"), [("float64", 1e-9), ("float32", 1e-5)])
@settings(max_examples=10, deadline=None, derandomize=True)
@given(number=numbers)
def test_cuda_agrees(dtype: str, relative: float, number: int) -> None:
    check_agreement(random_network(number), relative, device="cuda", dtype=dtype)
