"""Exact costs on grids of both kinds, and where there is none."""

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.model.problem import interpolated

UNEVEN = {
    "network.devices": 2,
    "network.topology": "complete",
    "slots": 6,
    "energy.compute_joule": 0.73,
    "energy.capacity_joule": 3.1,
    "energy.battery_levels": None,
    "energy.initial": "uniform",
    "harvest.joule": [0.0, 0.57, 1.91],
}


def uneven(**changes: object) -> hm.Problem:
    """Two devices, or more, whose energies no grid divides."""
    return hm.build(hm.Scenario.load("tiny").override(UNEVEN | {k.replace("__", "."): v for k, v in changes.items()}))


@pytest.mark.parametrize("devices", [2, 3])
def test_exact_costs_on_an_interpolated_grid_are_those_of_its_plan(devices: int) -> None:
    """The planner sums laws of single devices; exact evaluation goes through joint states."""
    plan = hm.plan(uneven(network__devices=devices, slots=4), "prices", coordinate=False, levels=6)
    grid = plan.policy.problem  # type: ignore[attr-defined]
    assert bool(grid.actions.overshoot.any())
    assert hm.exact_cost(grid, plan) == pytest.approx(plan.expected_cost, abs=1e-9)


def test_exact_costs_on_a_fine_interpolated_grid_are_simulated_costs() -> None:
    problem = uneven()
    plan = hm.plan(problem, "uncoordinated")
    cost = hm.simulate_costs(problem, plan, 4000)
    exact = hm.exact_cost(interpolated(problem, 161), hm.plan(interpolated(problem, 161), "uncoordinated"))
    assert abs(exact - cost.mean()) < 4 * cost.std() / len(cost) ** 0.5 + 0.005 * exact


REPLAYED = {"source": "trace", "joule": [0.0, 0.0, 0.0, 2.0, 2.0, 2.0]}
CLOUDED = {"source": "table", "joule": [0.0, 1.0, 2.0], "prob": [0.2, 0.4, 0.4]}


def other_law(harvest: dict[str, object]) -> hm.Problem:
    scenario = hm.Scenario.load("tiny").override({"network.devices": 3, "slots": 6})
    return hm.build(hm.Scenario.parse(scenario.as_dict() | {"harvest": harvest}))


@pytest.mark.parametrize(
    ("harvest", "told"),
    [
        (REPLAYED, "a replay from a random start"),
        (CLOUDED | {"cloudy": [[1, 5, 0.1]], "cloudy_known": False}, "clouds unknown to plans"),
    ],
)
def test_there_is_no_exact_cost_under_another_law_than_the_simulated_one(
    harvest: dict[str, object], told: str
) -> None:
    problem = other_law(harvest)
    for planner, options in (("centralized", {}), ("battery_threshold", {}), ("prices", {"coordinate": False})):
        plan = hm.plan(problem, planner, **options)
        assert plan.expected_cost is None
        with pytest.raises(hm.ScenarioError, match=f"^harvest: expected the law that plans know.*actual {told}$"):
            hm.exact_cost(problem, plan)


@pytest.mark.parametrize("sky", ["independent", "mixed", "common"])
@pytest.mark.parametrize("planner", ["battery_threshold", "prices"])
def test_devices_that_plan_alone_know_their_cost_if_they_share_no_weather(sky: str, planner: str) -> None:
    laws = {"joule": [[0.0, 1.0], [1.0, 2.0]], "prob": [[0.7, 0.3], [0.4, 0.6]], "kernel": [[0.9, 0.1], [0.2, 0.8]]}
    problem = other_law({"source": "markov", "sky": sky, **laws})
    plan = hm.plan(problem, planner, **({"coordinate": False} if planner == "prices" else {}))
    assert (plan.expected_cost is None) == (sky != "independent")
    cost = hm.simulate_costs(problem, plan, 2000)
    assert abs(hm.exact_cost(problem, plan) - cost.mean()) < 4 * cost.std() / np.sqrt(len(cost))
