"""The battery grid is a planner's own affair: finer ones do no harm, and any capacity can be planned for."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.model.problem import COARSE, with_battery
from heliomesh.studies.compare import compare

EPISODES = 64
RING = hm.Scenario.load("ring10").override({"slots": 60})


def cost(problem: hm.Problem, planner: str, **options: object) -> float:
    """Mean simulated cost; all plans meet the same random numbers."""
    plan = hm.plan(problem, planner, bound=False, **options)
    return float(hm.simulate_costs(problem, plan, EPISODES).mean())


@pytest.mark.parametrize("planner", ["receiver", "prices"])
def test_a_finer_grid_costs_no_more(planner: str) -> None:
    problem = hm.build(RING)
    coarse, fine = (cost(problem, planner, levels=levels) for levels in (5, 11))
    assert fine <= 1.01 * coarse


def test_named_levels_are_those_of_the_plan() -> None:
    problem = hm.build(RING)
    prices = hm.plan(problem, "prices", bound=False, levels=7, sweeps=1, restarts=0)
    assert prices.policy.alone.futures.shape[2] == problem.harvest.law.num_weather * 7
    receiver = hm.plan(problem, "receiver", bound=False, levels=7)
    assert {grid.battery.levels for grid in receiver.policy.grids.values()} == {7}
    assert {grid.battery.rounding for grid in receiver.policy.grids.values()} == {"mean"}
    rounded = hm.plan(problem, "receiver", bound=False, levels=7, interpolate=False)
    assert {grid.battery.rounding for grid in rounded.policy.grids.values()} == {"up"}
    named = hm.build(RING.override({"energy.battery_levels": 6}))
    followed = hm.plan(named, "receiver", bound=False)
    assert {grid.battery.levels for grid in followed.policy.grids.values()} == {6}


@pytest.mark.parametrize(("planner", "options"), [("receiver", {}), ("prices", {"sweeps": 5, "restarts": 0})])
def test_more_battery_costs_no_more(planner: str, options: dict[str, int]) -> None:
    """No capacity is a whole number of what an action spends."""
    found = []
    for capacity in (3.3, 5.0, 8.0, 16.0):
        problem = hm.build(RING.override({"energy.capacity_joule": capacity}))
        found.append(cost(problem, planner, **options))
        assert found[-1] < cost(problem, "uncoordinated")
    for smaller, larger in pairwise(found):
        assert larger <= 1.005 * smaller


@pytest.mark.parametrize(("name", "episodes", "tightest"), [("tiny", 400, 0.15), ("ring10", 64, 0.012)])
def test_compare_certifies_small_networks_unasked(name: str, episodes: int, tightest: float) -> None:
    problem = hm.build(hm.Scenario.load(name))
    asked = ["receiver", "myopic", "uncoordinated"]
    compared = compare(problem, asked, episodes)
    assert compared.reference == "the certified bound"
    assert compared.lower_bound is not None
    for row in compared.rows:
        assert row.cost is not None
        assert row.gap is not None
        noise = 3 * row.cost.std() / np.sqrt(episodes)
        assert compared.lower_bound <= row.cost.mean() + noise
        assert row.gap.mean == pytest.approx(row.cost.mean() / compared.lower_bound - 1)
    gaps = {row.planner: row.gap.mean for row in compared.rows if row.gap is not None}
    assert gaps["receiver"] == min(gaps.values()) <= tightest
    unasked = compare(problem, asked[-1:], 2, certify=False)
    assert unasked.lower_bound is None
    assert unasked.reference == "the best planner (uncoordinated)"


def test_where_the_grid_is_exact_the_optimum_is_the_bound() -> None:
    problem = hm.build(hm.Scenario.load("tiny"))
    assert problem.grid_is_exact
    compared = compare(problem, ["centralized"], 2)
    assert compared.rows[0].plan is not None
    assert compared.lower_bound == compared.rows[0].plan.expected_cost
    off = hm.build(hm.Scenario.load("tiny").override({"energy.capacity_joule": 3.3, "network.devices": 3}))
    assert compare(off, ["centralized"], 2).lower_bound == hm.lower_bound(off)


# the default grid of `centralized`


def of_random_energies(number: int) -> hm.Scenario:
    """Two devices or three with random capacities, actions and harvests, every other time in whole half joules."""
    rng = np.random.default_rng(number)
    capacity = float(rng.integers(2, 9)) if number % 2 else float(np.round(rng.uniform(2, 8), 3))

    def joule(least: float, most: float) -> float:
        found = rng.uniform(least, most) * capacity
        return float(max(round(found * 2) / 2, 0.5)) if number % 2 else round(found, 3)

    powers = np.cumsum([joule(0.05, 0.4) for _ in range(rng.integers(1, 3))]).tolist()
    harvests = sorted({0.0, joule(0.05, 0.6), joule(0.05, 0.6)})
    changes = {
        "network.devices": int(rng.integers(2, 4)),
        "network.topology": "complete",
        "slots": int(rng.integers(4, 9)),
        "energy.capacity_joule": capacity,
        "energy.battery_levels": None,
        "energy.compute_joule": joule(0.05, 0.5),
        "energy.powers_watt": [0.0, *powers],
        "energy.train_only": bool(rng.integers(0, 2)),
        "harvest.joule": harvests,
        "harvest.prob": [1 / len(harvests)] * len(harvests),
    }
    return hm.Scenario.load("tiny").override(changes)


@pytest.mark.parametrize("number", range(4, 14))
def test_no_smaller_grid_is_better_than_the_default(number: int) -> None:
    problem = hm.build(of_random_energies(number))
    needed, battery = problem.actions.needed_joule, problem.battery
    representable = problem.actions.needed_steps_up < battery.levels
    assert torch.equal(representable, needed <= battery.capacity_joule.unsqueeze(1))

    def cost(on: hm.Problem, levels: int | None = None) -> np.ndarray:
        return hm.simulate(problem, hm.plan(on, "centralized", levels=levels), 300).cost

    own = cost(problem)
    for levels in range(2, battery.levels + 1):
        plain = with_battery(problem, battery.on_grid(levels, "up"))
        for other in (cost(problem, levels), cost(plain)):
            noise = 3 * float((own - other).std()) / len(own) ** 0.5
            assert own.mean() <= 1.03 * other.mean() + noise, levels


def test_the_optimum_of_a_large_battery_is_interpolated() -> None:
    """Nine levels of 40 J lie 5 J apart; an action of 1 J rounded up to them left devices idle."""
    changes = {"energy.battery_levels": None, "energy.capacity_joule": 40.0, "energy.initial": "uniform", "slots": 20}
    problem = hm.build(hm.Scenario.load("tiny").override(changes))
    assert problem.rounding_excess() > COARSE
    own = hm.simulate_costs(problem, hm.plan(problem, "centralized"), 300)
    rounded = hm.plan(problem, "centralized", levels=problem.battery.levels)
    for other in (rounded, hm.plan(problem, "uncoordinated")):
        assert own.mean() < hm.simulate_costs(problem, other, 300).mean()


def test_the_default_grid_of_tiny_is_its_own() -> None:
    """Steps of 1.0052 J once lost the action of 3 J: the optimum cost more than devices that do not plan."""
    scenario = hm.Scenario.load("tiny")
    free = hm.build(scenario.override({"energy.battery_levels": None, "energy.initial": "uniform"}))
    named = hm.build(scenario.override({"energy.initial": "uniform"}))
    assert torch.equal(free.battery.step_joule, named.battery.step_joule)
    costs = [
        hm.simulate(free, hm.plan(free, planner), 300).cost.mean() for planner in ("centralized", "uncoordinated")
    ]
    assert costs[0] < costs[1]
