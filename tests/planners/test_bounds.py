"""The grid's exact optimum ≤ every planner's exact cost, on generated networks of every mode; bounds by hand."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh import planning
from heliomesh.bounds import cells, dual
from heliomesh.bounds.dual import Effort, raise_bound
from heliomesh.bounds.receiver_floor import receiver_floor
from heliomesh.grid.best_response import descend
from heliomesh.grid.exact import small_average, small_optimum
from heliomesh.model.cost import part_factors
from heliomesh.model.factor import Factor, action, total
from heliomesh.model.policy import untracked
from heliomesh.planners import centralized
from heliomesh.slot.enumerated_cost import EnumeratedCost, cost_form
from heliomesh.slot.independent_cost import IndependentCost

NETWORKS = 216


def module_of(function: Any) -> Any:
    return sys.modules[function.__module__]


PLANNERS: list[tuple[str, dict[str, Any]]] = [
    ("receiver", {}),
    ("receiver", {"interpolate": False}),
    ("receiver", {"largest_table": 0}),  # devices' own values
    ("prices", {}),
    ("prices", {"coordinate": False}),
    ("decentralized", {"rounds": 2}),
    ("decentralized", {"form": "literal", "rounds": 2}),
    ("myopic", {"mode": "exhaustive"}),
    ("uncoordinated", {}),
    ("battery_threshold", {}),
    ("skiptrain", {"train_rounds": 1, "sync_rounds": 1}),
    ("turns", {}),
    ("fixed_fraction", {}),
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
def test_no_plan_costs_less_than_the_optimum(batch: int) -> None:
    for number in range(batch, NETWORKS, 24):
        problem = hm.build(random_network(number))
        optimum = hm.plan(problem, "centralized", bound=False).expected_cost
        assert optimum is not None
        for planner, options in PLANNERS[number // 24 % 2 :: 2]:  # each meets every mode in four networks or five
            plan = hm.plan(problem, planner, bound=False, **options)
            assert hm.exact_cost(problem, plan.policy) >= optimum - 1e-9, (number, planner, options)


@pytest.mark.parametrize(
    "number", [*range(12), *(pytest.param(number, marks=pytest.mark.slow) for number in range(12, 48))]
)
def test_bound_optimum_and_costs_are_in_order_with_separate_actions(number: int) -> None:
    separate = {"energy.actions": "separate", "energy.train_only": False}
    problem = hm.build(random_network(number).override(separate))
    optimum = hm.plan(problem, "centralized").expected_cost
    assert optimum is not None
    for planner, options in [*PLANNERS, ("myopic", {})]:
        plan = hm.plan(problem, planner, **options)
        assert hm.exact_cost(problem, plan.policy) >= optimum - 1e-9, (planner, options)
        if plan.expected_cost is not None and planner == "battery_threshold":
            assert hm.exact_cost(problem, plan.policy) == pytest.approx(plan.expected_cost, abs=1e-9)


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("kind", ["waterfall", "waterfall, listed", "table"])
def test_expected_costs_are_exact(number: int, kind: str, tmp_path: Path) -> None:
    scenario = random_network(number)
    if kind == "table":
        (tmp_path / "errors.csv").write_text("sinr_db,error\n-6,0.9\n0,0.5\n3,0.4\n9,0.01\n", encoding="utf-8")
        scenario = scenario.override({"link.error": "table", "link.table": str(tmp_path / "errors.csv")})
    problem = hm.build(scenario)
    rng = np.random.default_rng(number)
    shape = (2, problem.num_devices, len(problem.actions))
    law = torch.from_numpy(rng.dirichlet(np.ones(shape[-1]), size=shape[:2]))
    receivers = tuple(i for i in range(problem.num_devices) if problem.topology.neighbours[i])
    cost = total(part_factors(problem, tuple(range(problem.num_devices)), receivers))
    for variable in cost.scope:
        if variable.kind == "site":
            cost = cost.average(Factor((variable,), problem.channel.stationary), over=[variable])
    form = EnumeratedCost(problem) if kind == "waterfall, listed" else cost_form(problem)
    assert isinstance(form, IndependentCost) == (kind == "waterfall")
    everybody = torch.arange(problem.num_devices)
    touched = form.of(everybody).action_cost(law)
    for turn in range(max(problem.colour) + 1):
        movers = (torch.tensor(problem.colour) == turn).nonzero().squeeze(1)
        torch.testing.assert_close(form.of(movers).action_cost(law), touched[:, movers], atol=1e-14, rtol=0)
    for slot in range(2):
        laws = {j: Factor((action(j),), law[slot, j]) for j in range(problem.num_devices)}
        mean = cost.average(*laws.values(), over=[action(j) for j in laws])
        assert float(form.cost(law)[slot]) == pytest.approx(float(mean.table), abs=1e-12)
        for device in laws:
            others = {j: factor for j, factor in laws.items() if j != device}
            given = cost.average(*others.values(), over=[action(j) for j in others]).table
            difference = given - touched[slot, device]
            torch.testing.assert_close(difference, difference.mean().expand_as(difference), atol=1e-12, rtol=0)


def test_best_responses_only_lower_the_cost_and_know_it_exactly() -> None:
    problem = hm.build(hm.Scenario.load("tiny"))
    form = IndependentCost(problem)
    start = torch.full((problem.slots, 5, 3), 1 / 3, dtype=torch.float64)
    costs = [descend(problem, form, start, sweeps, untracked, "").cost for sweeps in (1, 2, 3, 5)]
    assert costs == sorted(costs, reverse=True)
    plan = hm.plan(problem, "prices", coordinate=False, bound=True)
    assert hm.exact_cost(problem, plan.policy) == pytest.approx(plan.expected_cost, abs=1e-12)
    assert plan.gap is not None
    assert plan.gap > 0


def test_tables_and_prices_both_certify_on_a_ring() -> None:
    changes = {"network.devices": 10, "network.mixing": "lazy-metropolis"}
    problem = hm.build(hm.Scenario.load("tiny").override(changes))
    optimum = hm.plan(problem, "centralized").expected_cost
    assert optimum is not None
    tables, prices = receiver_floor(problem), raise_bound(problem, Effort(), untracked)
    assert tables is not None
    assert 0.99 * optimum <= tables / problem.slots <= optimum
    assert 0.95 * optimum <= prices / problem.slots <= optimum
    assert hm.lower_bound(problem) == pytest.approx(optimum, abs=1e-12)  # small enough to be solved whole
    # the grid is exact here, so the simulated optimum meets its expectation and the planner meets the optimum
    assert problem.grid_is_exact
    best = hm.simulate(problem, hm.plan(problem, "centralized"), episodes=400)
    mine = hm.simulate(problem, hm.plan(problem, "receiver"), episodes=400)
    difference = (mine.cost - best.cost) / optimum
    assert abs(difference.mean()) < 0.002 + 3 * difference.std() / 20


def test_a_cell_sees_an_odd_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a ring of six, three devices share three receivers two by two: not all can have what each pair wants."""
    problem = hm.build(hm.Scenario.load("ring10").override({"network.devices": 6, "slots": 60}))
    joined = raise_bound(problem, Effort(), untracked)
    monkeypatch.setattr(cells, "_MERGED_RECEIVERS", 0)
    assert joined > 1.02 * raise_bound(problem, Effort(), untracked)


@pytest.mark.parametrize("changes", [{}, {"energy.compute_joule": 0.73, "energy.capacity_joule": 3.1}])
def test_early_stop_keeps_the_bound_valid(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    problem = hm.build(hm.Scenario.load("tiny").override({"network.devices": 4, "slots": 90} | changes))
    found = []
    for steady, tolerance in ((1e-3, 1e-3), (-1.0, -1.0)):  # the latter never stops early
        monkeypatch.setattr(dual, "_STEADY", steady)
        monkeypatch.setattr(module_of(receiver_floor), "_TOLERANCE", tolerance)
        found.append((raise_bound(problem, Effort(20), untracked), float(receiver_floor(problem) or 0)))
    for early, whole in zip(*found, strict=True):
        assert early <= whole + 1e-9
        assert early == pytest.approx(whole, rel=2e-3)


def test_early_stop_of_a_plan_stores_fewer_slots() -> None:
    problem = hm.build(hm.Scenario.load("tiny").override({"network.devices": 4, "slots": 60}))
    exact, early = (hm.plan(problem, "receiver", tolerance=tolerance) for tolerance in (1e-13, 1e-3))
    assert early.policy.tables[0].shape[0] < exact.policy.tables[0].shape[0]


def test_replayed_harvests_from_a_random_start_have_no_bound() -> None:
    replayed = {"harvest": {"source": "trace", "joule": [0.0, 1.0, 2.0]}}
    on_grid = hm.Scenario.load("tiny").as_dict()
    assert hm.lower_bound(hm.build(hm.Scenario.parse(on_grid | replayed))) is None


def test_networks_with_more_states_than_a_float_holds_are_bounded() -> None:
    problem = hm.build(hm.Scenario.load("tiny").override({"network.devices": 1000, "slots": 2}))
    assert small_optimum(problem) is None
    assert small_average(problem) is None


def test_spending_just_above_a_grid_step_leaves_the_grid() -> None:
    """2.00001 steps round up to 3, so the bound of the grid would lie above what the simulator pays."""
    changes = {"energy.compute_joule": 1.00001, "network.devices": 2, "network.topology": "star"}
    problem = hm.build(hm.Scenario.load("tiny").override(changes))
    assert problem.actions.steps_up[0, 1] == 3
    assert not problem.grid_is_exact
    bound = hm.lower_bound(problem)
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
    assert float(hm.lower_bound(problem) or 0) <= 2.0


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
    bounds: dict[str, Callable[[hm.Problem], float | None]] = {
        "optimum": lambda problem: hm.plan(problem, "centralized").lower_bound,
        "any plan": lambda problem: hm.plan(problem, "uncoordinated", bound=True).lower_bound,
        "bound": hm.lower_bound,
    }
    for name, bound in bounds.items():
        if name == "optimum" and not wide.grid_is_exact:
            continue  # the grid's optimum is no bound there
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


@pytest.mark.parametrize(
    "mode", [{}, {"channel.state": "link"}, pytest.param({"link.half_duplex": True}, marks=pytest.mark.slow)]
)
def test_a_hub_of_twenty_devices_is_pruned_and_bounded(mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        planning, "usual_effort", lambda problem: Effort(12, dual.usual_effort(problem).channel_steps // 5)
    )
    changes = {"network.topology": "star", "network.devices": 21, "slots": 2}
    problem = hm.build(hm.Scenario.load("tiny").override(changes | mode))
    with pytest.raises(hm.TooLargeError, match="coordinate = false"):
        hm.plan(problem, "receiver")
    alone = hm.plan(problem, "prices", coordinate=False, bound=True)
    assert alone.lower_bound is not None
    assert alone.expected_cost is not None
    assert 0 < alone.lower_bound <= alone.expected_cost
