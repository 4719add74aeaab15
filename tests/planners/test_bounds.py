"""Lower bound ≤ exact optimum ≤ every planner's exact cost, on generated networks of every mode."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.planners import centralized
from heliomesh.problem.best_response import descend
from heliomesh.problem.cost import part_factors
from heliomesh.problem.factor import Factor, action, total
from heliomesh.problem.policy import untracked
from heliomesh.problem.problem import optimistic
from heliomesh.problem.product_form import ProductForm

NETWORKS = 216
PLANNERS: list[tuple[str, dict[str, Any]]] = [
    ("receiver", {}),
    ("receiver", {"largest_table": 0, "steps": 5, "channel_steps": 4}),  # every receiver by prices
    ("receiver", {"largest_table": 100, "steps": 3, "channel_steps": 2}),  # some by tables, some by prices
    ("prices", {}),
    ("prices", {"coordinate": False}),
    ("decentralized", {"rounds": 2}),
    ("decentralized", {"form": "literal", "rounds": 2}),
    ("myopic", {"mode": "exhaustive"}),
    ("uncoordinated", {}),
    ("battery_threshold", {}),
    ("skiptrain", {"train_rounds": 1, "sync_rounds": 1}),
]
DUPLEX, CHANNELS, TRAINING = (False, True), ("receiver", "link", "reciprocal"), (False, True)


def random_network(number: int) -> hm.Scenario:
    """A small random network; all twelve combinations of modes come in turn."""
    rng = np.random.default_rng(number)
    devices = int(rng.integers(2, 4))
    pairs = [[i, j] for i in range(devices) for j in range(i)]
    edges = [pair for pair in pairs if rng.random() < 0.8] or pairs[:1]
    atoms = rng.integers(0, 3, size=2)
    kernel = rng.dirichlet([2.0, 1.0], size=2)
    return hm.Scenario.parse(
        {
            "slots": 4,
            "network": {
                "topology": "edges",
                "devices": devices,
                "edges": edges,
                "allow_disconnected": True,
                "mixing": ["metropolis", "lazy-metropolis"][number % 2],
            },
            "channel": {
                "source": "table",
                "state": CHANNELS[number % 3],
                "gains": [float(g) for g in np.cumsum(rng.random(2) + 0.1)],
                "kernel": kernel.tolist(),
                "gain": rng.uniform(0.5, 2.0, devices).tolist(),
            },
            "link": {
                "waterfall": float(rng.choice([0.1, 0.5, 1.5])),
                "noise_watt": rng.uniform(0.05, 1.0, devices).tolist(),
                "half_duplex": DUPLEX[number // 3 % 2],
            },
            "energy": {
                "powers_watt": [0.0, 1.0, 2.0] if devices == 2 else [0.0, 1.5],
                "transmit_second": 1.0,
                "slot_second": 1.0,
                "compute_joule": rng.uniform(0.1, 1.5, devices).tolist(),
                "train_only": TRAINING[number // 6 % 2],
                "capacity_joule": rng.uniform(1.5, 4.0, devices).tolist(),
                "battery_levels": 3,
                "initial": ["uniform-grid", "uniform"][number % 2],
            },
            "harvest": {
                "source": "trace" if number % 4 == 0 else "table",
                **(
                    {"joule": rng.random(5).tolist(), "start": 0}  # a law that changes from slot to slot
                    if number % 4 == 0
                    else {"joule": [float(atoms[0]), float(atoms[1]) + 0.3], "prob": [0.6, 0.4]}
                ),
                "scale": rng.uniform(0.2, 1.5, devices).tolist(),
            },
            "cost": {"idle_penalty": float(rng.choice([0.0, 0.5, 1.0]))},
        }
    )


# numbers repeat their modes after twelve: each half of the batches has all of them
@pytest.mark.parametrize(
    "batch", [*range(12), *(pytest.param(batch, marks=pytest.mark.slow) for batch in range(12, 24))]
)
def test_bound_optimum_cost(batch: int) -> None:
    for number in range(batch, NETWORKS, 24):
        problem = hm.build(random_network(number))
        optimum = hm.plan(problem, "centralized").expected_cost
        assert optimum is not None
        for planner, options in PLANNERS:
            plan = hm.plan(problem, planner, **options)
            assert plan.lower_bound is not None
            assert plan.lower_bound <= optimum + 1e-9, (number, planner, options)
            assert hm.exact_cost(problem, plan.policy) >= optimum - 1e-9, (number, planner, options)


@pytest.mark.parametrize("number", range(12))
def test_product_form_is_exact(number: int) -> None:
    problem = hm.build(random_network(number))
    rng = np.random.default_rng(number)
    shape = (2, problem.num_devices, len(problem.actions))
    law = torch.from_numpy(rng.dirichlet(np.ones(shape[-1]), size=shape[:2]))
    receivers = tuple(i for i in range(problem.num_devices) if problem.topology.neighbours[i])
    cost = total(part_factors(problem, tuple(range(problem.num_devices)), receivers))
    for variable in cost.scope:
        if variable.kind == "site":
            cost = cost.average(Factor((variable,), problem.channel.stationary), over=[variable])
    form = ProductForm(problem)
    for slot in range(2):
        laws = {j: Factor((action(j),), law[slot, j]) for j in range(problem.num_devices)}
        mean = cost.average(*laws.values(), over=[action(j) for j in laws])
        assert float(form.cost(law)[slot]) == pytest.approx(float(mean.table), abs=1e-12)
        for device in laws:
            others = {j: factor for j, factor in laws.items() if j != device}
            given = cost.average(*others.values(), over=[action(j) for j in others]).table
            difference = given - form.action_cost(law)[slot, device]
            torch.testing.assert_close(difference, difference.mean().expand_as(difference), atol=1e-12, rtol=0)


def test_best_responses_only_lower_the_cost_and_know_it_exactly() -> None:
    problem = hm.build(hm.Scenario.load("tiny"))
    form = ProductForm(problem)
    start = torch.full((problem.slots, 5, 3), 1 / 3, dtype=torch.float64)
    costs = [descend(problem, form, start, sweeps, untracked, "").cost for sweeps in (1, 2, 3, 5)]
    assert costs == sorted(costs, reverse=True)
    plan = hm.plan(problem, "prices", coordinate=False)
    assert hm.exact_cost(problem, plan.policy) == pytest.approx(plan.expected_cost, abs=1e-12)
    assert plan.gap is not None
    assert plan.gap > 0


def test_tables_beat_prices_and_both_certify_on_a_ring() -> None:
    changes = {"network.devices": 10, "network.mixing": "lazy-metropolis"}
    problem = hm.build(hm.Scenario.load("tiny").override(changes))
    optimum = hm.plan(problem, "centralized").expected_cost
    assert optimum is not None
    tables = hm.plan(problem, "receiver")
    prices = hm.plan(problem, "receiver", largest_table=0)
    assert 0.99 * optimum <= float(tables.lower_bound or 0) <= optimum
    assert 0.95 * optimum <= float(prices.lower_bound or 0) <= float(tables.lower_bound or 0)
    # the grid is exact here, so the simulated optimum meets its expectation and the planner meets the optimum
    assert problem.grid_is_exact
    best = hm.simulate(problem, hm.plan(problem, "centralized"), episodes=400)
    mine = hm.simulate(problem, tables, episodes=400)
    difference = (mine.cost - best.cost) / optimum
    assert abs(difference.mean()) < 0.002 + 3 * difference.std() / 20


def test_early_stop_keeps_the_bound_valid() -> None:
    problem = hm.build(hm.Scenario.load("tiny").override({"network.devices": 4, "slots": 60}))
    exact = hm.plan(problem, "receiver", tolerance=1e-13)
    early = hm.plan(problem, "receiver", tolerance=1e-3)
    assert float(early.lower_bound or 0) <= float(exact.lower_bound or 0) + 1e-12
    assert early.lower_bound == pytest.approx(exact.lower_bound, rel=1e-3)
    assert early.policy.tables[0].shape[0] < exact.policy.tables[0].shape[0]


def test_continuous_batteries_have_a_bound_of_their_own() -> None:
    changes = {"energy.compute_joule": 0.73, "energy.capacity_joule": 3.1, "energy.initial": "uniform", "slots": 8}
    off_grid = hm.build(
        hm.Scenario.load("tiny").override(changes | {"network.devices": 2, "network.topology": "star"})
    )
    assert not off_grid.grid_is_exact
    coarse, fine = (hm.plan(optimistic(off_grid, n), "centralized", bound=False).expected_cost for n in (1, 4))
    bound = hm.continuous_bound(off_grid)
    assert bound is not None
    assert coarse is not None
    assert fine is not None
    assert coarse < fine  # a finer optimistic grid promises less
    assert bound <= hm.simulate_costs(off_grid, hm.plan(off_grid, "centralized"), 4000).mean()
    # plans on ever finer pessimistic grids cost ever less in simulation, but never less than the bound
    finest = hm.build(off_grid.scenario.override({"energy.battery_levels": 63, "energy.initial": "uniform"}))
    assert fine <= float(hm.simulate_costs(finest, hm.plan(finest, "centralized"), 4000).mean())
    on_grid = hm.build(hm.Scenario.load("tiny"))
    assert hm.continuous_bound(on_grid) == hm.lower_bound(on_grid)
    replayed = {"harvest": {"source": "trace", "joule": [0.0, 1.0, 2.0]}}
    assert hm.continuous_bound(hm.build(hm.Scenario.parse(on_grid.scenario.as_dict() | replayed))) is None


def test_spending_just_above_a_grid_step_leaves_the_grid() -> None:
    """2.00001 steps round up to 3, so the bound of the grid would lie above what the simulator pays."""
    changes = {"energy.compute_joule": 1.00001, "network.devices": 2, "network.topology": "star"}
    problem = hm.build(hm.Scenario.load("tiny").override(changes))
    assert problem.actions.quanta[0, 1] == 3
    assert not problem.grid_is_exact
    bound = hm.continuous_bound(problem)
    assert bound is not None
    assert bound <= hm.simulate_costs(problem, hm.plan(problem, "uncoordinated", bound=False), 2000).mean()


def test_a_split_harvest_can_make_the_grid_optimistic() -> None:
    """Half a step by the second slot pays for nothing; on the grid it is a whole step half of the time."""
    changes: dict[str, Any] = {"network.devices": 2, "network.topology": "star", "slots": 2, "energy.initial": 0.0}
    energies = {"energy.powers_watt": [0.0, 1.0], "energy.compute_joule": 0.0}
    harvest = {"harvest.joule": [0.5], "harvest.prob": [1.0]}
    problem = hm.build(hm.Scenario.load("tiny").override(changes | energies | harvest))
    plan = hm.plan(problem, "centralized")
    reached = hm.simulate_costs(problem, hm.plan(problem, "uncoordinated"), 4)
    assert reached.tolist() == [2.0] * 4  # no policy can ever act
    assert float(plan.expected_cost or 0) < 1.9
    assert float(hm.continuous_bound(problem) or 0) <= 2.0


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"network.mixing": "lazy-metropolis", "network.devices": 4},
        {"link.half_duplex": True},
        {"channel.state": "link"},
        {"energy.compute_joule": 0.73, "network.devices": 2, "network.topology": "star", "slots": 40},  # off the grid
    ],
)
def test_float32_does_not_round_a_bound_upward(changes: dict[str, Any]) -> None:
    """Over 200 slots rounding to the nearest adds up; bounds are certified in float64 and so do not see it."""
    scenario = hm.Scenario.load("tiny").override({"network.devices": 3, "slots": 200} | changes)
    wide, narrow = hm.build(scenario), hm.build(scenario, dtype="float32")
    by_prices = {"largest_table": 0, "steps": 3, "channel_steps": 2}
    bounds: dict[str, Callable[[hm.Problem], float | None]] = {
        "tables": lambda problem: hm.plan(problem, "receiver").lower_bound,
        "prices": lambda problem: hm.plan(problem, "receiver", **by_prices).lower_bound,
        "optimum": lambda problem: hm.plan(problem, "centralized").lower_bound,
        "any plan": lambda problem: hm.plan(problem, "uncoordinated").lower_bound,
        "continuous": hm.continuous_bound,
    }
    for name, bound in bounds.items():
        exact, rounded = bound(wide), bound(narrow)
        assert exact is not None, name
        assert rounded is not None, name
        assert (1 - 1e-4) * exact <= rounded <= exact, name
    assert hm.plan(narrow, "receiver").policy.tables[0].dtype == torch.float32


def test_an_optimum_that_fits_only_in_float32_is_no_bound() -> None:
    scenario = hm.Scenario.load("tiny").override({"network.devices": 4})
    wide, narrow = hm.build(scenario), hm.build(scenario, dtype="float32")
    memory_gib = (centralized.estimate_bytes(wide) + centralized.estimate_bytes(narrow)) / 2 / 2**30
    with pytest.raises(hm.TooLargeError):
        hm.plan(wide, "centralized", memory_gib=memory_gib)
    plan = hm.plan(narrow, "centralized", memory_gib=memory_gib, bound=False)
    assert plan.lower_bound is None
    assert plan.expected_cost == pytest.approx(hm.plan(wide, "centralized").expected_cost, rel=1e-5)


@pytest.mark.parametrize("mode", [{}, {"channel.state": "link"}, {"link.half_duplex": True}])
def test_a_hub_of_twenty_devices_is_pruned_and_bounded(mode: dict[str, Any]) -> None:
    changes = {"network.topology": "star", "network.devices": 21, "slots": 2}
    problem = hm.build(hm.Scenario.load("tiny").override(changes | mode))
    with pytest.raises(hm.TooLargeError, match="coordinate = false"):
        hm.plan(problem, "receiver")
    alone = hm.plan(problem, "prices", coordinate=False, bound=True)
    assert alone.lower_bound is not None
    assert alone.expected_cost is not None
    assert 0 < alone.lower_bound <= alone.expected_cost
