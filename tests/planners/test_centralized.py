"""The exact planner against published values, exhaustive enumeration and an independent solver."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import quantecon
import scipy.sparse

import heliomesh as hm
from heliomesh.model.cost import part_factors
from heliomesh.model.factor import action, energy, site, total

from .conftest import RINGS

Make = Callable[..., hm.Problem]


@pytest.mark.parametrize(
    ("ring", "optimum", "greedy"),
    [("φ=.3", 2.27254, 2.38807), ("φ=1", 2.59177, 2.73769), ("φ=.3, rich", 1.74966, 1.87022)],
)
def test_five_ring_has_the_known_optimum(tiny: Make, ring: str, optimum: float, greedy: float) -> None:
    problem = tiny(RINGS[ring] | {"cost.idle_penalty": 0.0})
    plan = hm.plan(problem, "centralized")
    assert plan.expected_cost == pytest.approx(optimum, abs=5e-6)
    assert hm.exact_cost(problem, plan.policy) == pytest.approx(plan.expected_cost, abs=1e-12)
    assert hm.exact_cost(problem, hm.plan(problem, "uncoordinated").policy) == pytest.approx(greedy, abs=5e-6)


@pytest.mark.parametrize(("ring", "optimum"), [("φ=.3", 3.12482), ("φ=1", 3.31973), ("φ=.3, rich", 1.93349)])
def test_five_ring_with_lazy_mixing_and_idle_penalty(tiny: Make, ring: str, optimum: float) -> None:
    problem = tiny(RINGS[ring] | {"network.mixing": "lazy-metropolis"})
    assert hm.plan(problem, "centralized").expected_cost == pytest.approx(optimum, abs=5e-6)


SMALL = [
    {"network.devices": 2, "network.topology": "complete"},
    {"network.devices": 3},
    {"network.devices": 3, "network.topology": "star", "link.half_duplex": True},
    {"network.devices": 3, "network.topology": "star", "channel.state": "reciprocal"},
    {
        "network.devices": 2,
        "network.topology": "complete",
        "channel.state": "link",
        "energy.train_only": True,
    },
    {"network.devices": 3, "energy.capacity_joule": [2.0, 3.0, 4.5], "link.noise_watt": [0.1, 0.3, 2.0]},
    {"network.devices": 3, "energy.compute_joule": [0.2, 1.0, 1.7], "harvest.scale": [1.0, 0.0, 0.6]},
    {"network.devices": 3, "energy.battery_levels": 1},
    {"network.devices": 1, "network.topology": "edges", "network.edges": []},
    {"network.devices": 2, "network.topology": "complete", "energy.actions": "separate"},
]
MARKOV = {
    "source": "markov",
    "kernel": [[0.9, 0.1], [0.3, 0.7]],
    "joule": [[0.0, 1.0], [1.0, 2.5]],
    "prob": [[0.7, 0.3], [0.5, 0.5]],
}


def _explicit(
    problem: hm.Problem,
) -> tuple[list[Any], list[Any], np.ndarray, dict[Any, np.ndarray], dict[Any, float]]:
    """States, actions, initial law, transition rows and costs of the whole network, without any product structure."""
    sites = [site(s) for s in range(problem.channel.num_sites)]
    energies = [energy(j) for j in range(problem.num_devices)]
    variables = sites + energies
    states = list(itertools.product(*(range(problem.size(v)) for v in variables)))
    actions = list(itertools.product(range(len(problem.actions)), repeat=problem.num_devices))
    receivers = tuple(i for i in range(problem.num_devices) if problem.topology.neighbours[i])
    factors = part_factors(problem, tuple(range(problem.num_devices)), receivers)
    scope = (*sites, *(action(j) for j in range(problem.num_devices)))
    cost_table = total(factors).aligned(scope).expand(problem.sizes(scope)).numpy()
    initial = np.array([1.0])
    for variable in variables:
        initial = np.multiply.outer(initial, problem.initial_law(variable).numpy()).ravel()
    rows, costs = {}, {}
    for number, state in enumerate(states):
        levels, stored = state[: len(sites)], state[len(sites) :]
        for index, joint in enumerate(actions):
            spent = [int(problem.actions.steps_up[j, a]) for j, a in enumerate(joint)]
            if any(q > b % problem.battery.levels for q, b in zip(spent, stored, strict=True)):
                continue
            row = np.array([1.0])
            for level in levels:
                row = np.multiply.outer(row, problem.channel.kernel[level].numpy()).ravel()
            for j, (b, q) in enumerate(zip(stored, spent, strict=True)):
                row = np.multiply.outer(row, problem.kernel(energy(j), 0)[b - q].numpy()).ravel()
            rows[number, index] = row
            costs[number, index] = float(cost_table[(*levels, *joint)])
    return states, actions, initial, rows, costs


@pytest.mark.parametrize("overrides", SMALL, ids=str)
@pytest.mark.parametrize("weather", [False, True])
def test_equals_exhaustive_enumeration(tiny: Make, overrides: dict[str, Any], weather: bool) -> None:
    changes = {"slots": 3, "energy.battery_levels": 3} | overrides
    scenario = hm.Scenario.load("tiny").override(changes)
    if weather:
        if scenario.network.devices > 2:
            changes |= {"channel.source": "rayleigh", "channel.levels": 1, "energy.powers_watt": [0.0, 1.5]}
        data = scenario.as_dict() | {"harvest": MARKOV}
        scenario = hm.Scenario.parse(data).override({k: v for k, v in changes.items() if not k.startswith("harvest")})
    problem = hm.build(scenario)
    states, _, initial, rows, costs = _explicit(problem)
    value = np.zeros(len(states))
    for _ in range(problem.slots):
        following = np.full(len(states), np.inf)
        for (state, index), row in rows.items():
            following[state] = min(following[state], costs[state, index] + row @ value)
        value = following
    plan = hm.plan(problem, "centralized")
    assert plan.expected_cost == pytest.approx(initial @ value / problem.slots, abs=1e-9)
    assert hm.exact_cost(problem, plan.policy) == pytest.approx(plan.expected_cost, abs=1e-9)


def test_equals_quantecon(tiny: Make) -> None:
    problem = tiny({"network.devices": 3, "slots": 6})
    states, _, initial, rows, costs = _explicit(problem)
    pairs = list(rows)
    kernel = scipy.sparse.csr_matrix(np.array([rows[pair] for pair in pairs]))
    reward = -np.array([costs[pair] for pair in pairs])
    with pytest.warns(UserWarning, match="infinite horizon"):
        process = quantecon.markov.DiscreteDP(reward, kernel, 1.0, [s for s, _ in pairs], [a for _, a in pairs])
    values, _ = quantecon.markov.backward_induction(process, problem.slots, np.zeros(len(states)))
    assert hm.plan(problem, "centralized").expected_cost == pytest.approx(
        -(initial @ values[0]) / problem.slots, abs=1e-9
    )


def test_even_ring_splits_into_two_equal_halves(tiny: Make) -> None:
    problem = tiny({"network.devices": 6})
    assert [part.devices for part in problem.parts] == [(0, 2, 4), (1, 3, 5)]
    plan = hm.plan(problem, "centralized")
    first, second = plan.policy.tables
    assert first.best is second.best  # renamed copies share one table
    uneven = tiny({"network.devices": 6, "link.noise_watt": [0.3, 0.3, 0.3, 0.3, 0.3, 0.31]})
    first, second = hm.plan(uneven, "centralized").policy.tables
    assert first.best is not second.best


def test_split_equals_the_whole(tiny: Make) -> None:
    """An edge of negligible gain joins the halves of a 4-ring without changing the optimum."""
    split = tiny({"network.devices": 4})
    assert len(split.parts) == 2
    plan = hm.plan(split, "centralized")

    class Whole(type(plan.policy)):  # type: ignore[misc]
        def visible(self, device: int) -> None:
            return None

    whole = Whole(plan.policy.problem, plan.policy.tables)
    assert hm.exact_cost(split, whole) == pytest.approx(plan.expected_cost, abs=1e-12)


def test_refuses_what_does_not_fit(tiny: Make) -> None:
    with pytest.raises(hm.TooLargeError, match=r"expected at most 0.001 GiB .* actual estimate .*MiB; lower"):
        hm.plan(tiny({"network.devices": 12}), "centralized", memory_gib=0.001)


def test_float32_is_close(tiny: Make) -> None:
    scenario = tiny({}).scenario
    exact = hm.plan(hm.build(scenario), "centralized").expected_cost
    narrow = hm.build(scenario, dtype="float32")
    plan = hm.plan(narrow, "centralized")
    assert plan.expected_cost == pytest.approx(exact, rel=1e-5)
    assert hm.exact_cost(narrow, plan.policy) == pytest.approx(exact, rel=1e-5)
