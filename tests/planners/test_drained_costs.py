"""Costs of networks whose storage loses and drains energy: exact evaluation, simulation, an independent optimum."""

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.grid.evaluation import exact_cost
from heliomesh.model.planner_context import PlannerContext
from heliomesh.planners import centralized
from heliomesh.planning import lower_bound
from heliomesh.simulation.ledger import dark_slots
from tests.planners.test_certificate import UNIT, lattice_optimum, lossy

# energies in whole grid steps, so that batteries never leave the grid
ALIGNED = {
    "network.devices": 3,
    "slots": 6,
    "energy.capacity_joule": 6.0,
    "energy.battery_levels": 7,
    "energy.sleep_watt": 0.5,
    "energy.converter_efficiency": 0.5,  # 1 J a slot; actions of 4 and 6 J, or with one power of 4 J
    "energy.powers_watt": [0.0, 1.0],
    "energy.charge_efficiency": 0.5,
    "harvest.joule": [0.0, 4.0, 8.0],
}
EPISODES = 4000


def aligned(**changes: object) -> hm.Problem:
    return hm.build(hm.Scenario.load("tiny").override({**ALIGNED, **changes}))


@pytest.mark.parametrize("planner", ["uncoordinated", "centralized", "prices", "battery_threshold"])
@pytest.mark.parametrize("changes", [{}, {"link.half_duplex": True, "network.topology": "complete"}])
def test_exact_costs_are_simulated_costs(planner: str, changes: dict[str, object]) -> None:
    problem = aligned(**changes)
    assert problem.grid_is_exact
    plan = hm.plan(problem, planner)
    assert plan.expected_cost is None  # planners do not count what is lost in darkness
    exact, trace = exact_cost(problem, plan), hm.simulate(problem, plan, EPISODES)
    spread = trace.cost.std() / np.sqrt(EPISODES)
    assert abs(trace.cost.mean() - exact) <= 4 * spread
    assert dark_slots(trace).mean() > 0.1
    bound = lower_bound(problem)
    assert bound is not None
    assert bound <= exact + 1e-9


def test_darkness_is_in_exact_costs_and_not_in_bounds() -> None:
    """The same devices without a drain for their receivers would hear more."""
    problem = aligned()
    plan = hm.plan(problem, "centralized")
    assert plan.lower_bound is not None
    assert exact_cost(problem, plan) > plan.lower_bound + 0.01


@pytest.mark.parametrize("number", [*range(0, 40, 3), *range(1, 40, 7)])
def test_the_exact_planner_finds_the_lattice_optimum(number: int) -> None:
    """Its grid is the lattice here: what it says is the optimum of devices that hear in the dark."""
    scenario = lossy(number)
    if scenario.network.devices > 2:
        scenario = scenario.override({"slots": 2})
    capacity = max(scenario.energy.capacity_joule)  # type: ignore[arg-type]
    grid = {"energy.capacity_joule": capacity, "energy.battery_levels": round(capacity / UNIT) + 1}
    scenario = scenario.override(grid)
    problem = hm.build(scenario)
    plan = centralized.plan(PlannerContext(problem, centralized.Options()))
    assert plan.expected_cost == pytest.approx(lattice_optimum(scenario, deaf=False), abs=1e-9)
