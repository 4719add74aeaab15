"""Algorithm 1: the literal form against a slow reference, the default form against the optimum."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.model.factor import Factor, action, energy, site
from heliomesh.model.policy import Observation
from heliomesh.planners.decentralized import shares
from heliomesh.planners.decentralized.planner import theorem_gamma
from tests.reference_algorithm1 import reference_algorithm1

from .conftest import RINGS

Make = Callable[..., hm.Problem]

GRAPHS = {
    "path": (3, [[0, 1], [1, 2]]),
    "triangle": (3, [[0, 1], [1, 2], [2, 0]]),
    "ring": (4, [[0, 1], [1, 2], [2, 3], [3, 0]]),
    "long path": (4, [[0, 1], [1, 2], [2, 3]]),
}
SETTINGS = [
    {"hops": 0, "rounds": 2, "gamma": 5.0},
    {"hops": 1, "rounds": 3, "gamma": 20.0, "default_action": 1},
    {"hops": 1, "rounds": 5, "gamma": 100.0, "bellman": "open-loop"},
    {"hops": 1, "rounds": 3, "gamma": 20.0, "default_battery": "empty", "default_gain": "best"},
    {"hops": 2, "rounds": 0, "gamma": 1.0},
    {"hops": 2, "rounds": 1, "gamma": 50.0, "bellman": "open-loop"},
    {"hops": 2, "rounds": 4, "gamma": 10.0},
]
SMALL = {
    "slots": 3,
    "energy.battery_levels": 3,
    "energy.capacity_joule": 2.0,
    "energy.powers_watt": [0.0, 1.0],
}
UNEVEN = {"link.half_duplex": True, "network.mixing": "lazy-metropolis", "cost.idle_penalty": 0.4}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("extra", [{}, UNEVEN], ids=["full duplex", "half duplex"])
def test_literal_form_equals_the_slow_reference(
    tiny: Make, graph: str, settings: dict[str, Any], extra: dict[str, Any]
) -> None:
    devices, edges = GRAPHS[graph]
    problem = tiny(SMALL | extra | {"network.topology": "edges", "network.devices": devices, "network.edges": edges})
    plan = hm.plan(problem, "decentralized", form="literal", **settings)
    policies, neighbourhoods = reference_algorithm1(problem, **settings)
    for slot in range(problem.slots):
        for device in range(devices):
            full = [v for member in neighbourhoods[device] for v in (site(member), energy(member))]
            own = Factor((*plan.policy.scopes[device], action(device)), plan.policy.tables[device][slot])
            expected = policies[slot][device]
            found = own.aligned((*full, action(device))).expand(expected.shape).numpy()
            np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("form", ["default", "literal"])
@pytest.mark.parametrize("overrides", [{"network.devices": 6}, {"network.topology": "grid", "network.devices": 6}])
def test_shared_tables_change_nothing(tiny: Make, form: str, overrides: dict[str, Any]) -> None:
    problem = tiny(overrides | {"slots": 3})
    plans = [
        hm.plan(problem, "decentralized", form=form, rounds=3, hops=1, share_tables=share) for share in (True, False)
    ]
    costs = [hm.exact_cost(problem, plan.policy) for plan in plans]
    assert costs[0] == pytest.approx(costs[1], abs=1e-12)
    shared = {id(table) for table in plans[0].policy.tables}
    assert len(shared) < problem.num_devices


def _costs(problem: hm.Problem) -> tuple[float, float, float, float]:
    optimum = hm.plan(problem, "centralized").expected_cost
    assert optimum is not None
    proposal = hm.plan(problem, "decentralized")
    others = [hm.plan(problem, "myopic", mode="exhaustive"), hm.plan(problem, "uncoordinated")]
    return (optimum, *(hm.exact_cost(problem, plan.policy) for plan in (proposal, *others)))  # type: ignore[return-value]


@pytest.mark.slow  # odd rings do not split; the larger even ones below are quicker
@pytest.mark.parametrize("ring", RINGS)
def test_default_form_is_near_optimal_on_the_five_ring(tiny: Make, ring: str) -> None:
    optimum, proposal, myopic, greedy = _costs(tiny(RINGS[ring] | {"cost.idle_penalty": 0.0}))
    assert optimum <= proposal < min(myopic, greedy)
    assert proposal <= 1.005 * optimum


@pytest.mark.parametrize("devices", [8, 10])
@pytest.mark.parametrize("ring", RINGS)
def test_default_form_is_near_optimal_beyond_its_sight(tiny: Make, ring: str, devices: int) -> None:
    problem = tiny(RINGS[ring] | {"cost.idle_penalty": 0.0, "network.devices": devices})
    optimum, proposal, myopic, greedy = _costs(problem)
    assert optimum <= proposal < min(myopic, greedy)
    assert proposal <= 1.02 * optimum


def _random_observation(problem: hm.Problem, batch: int, rng: np.random.Generator) -> Observation:
    level = rng.integers(problem.channel.levels, size=(batch, problem.channel.num_sites))
    battery = rng.random((batch, problem.num_devices)) * problem.battery.capacity_joule.numpy()
    return Observation(
        torch.from_numpy(level),
        torch.from_numpy(battery),
        torch.zeros(batch, problem.num_devices, dtype=torch.long),
        torch.from_numpy(rng.random((batch, problem.num_devices))),
    )


@pytest.mark.parametrize("form", ["default", "literal"])
@pytest.mark.parametrize("hops", [0, 1, 2, 3])
def test_states_beyond_k_hops_never_change_an_action(tiny: Make, form: str, hops: int) -> None:
    problem = tiny(
        {"network.devices": 9, "slots": 3, "network.topology": "grid", "energy.powers_watt": [0.0, 1.0]}
        if hops < 2
        else {"network.devices": 8, "slots": 3}
    )
    plan = hm.plan(problem, "decentralized", form=form, hops=hops, rounds=2)
    rng = np.random.default_rng(hops)
    seen, other = _random_observation(problem, 200, rng), _random_observation(problem, 200, rng)
    for device in range(problem.num_devices):
        near = list(problem.topology.within(device, hops))
        level, battery = other.channel_level.clone(), other.battery_joule.clone()
        level[:, near], battery[:, near] = seen.channel_level[:, near], seen.battery_joule[:, near]
        changed = Observation(level, battery, seen.weather, seen.uniform)
        for slot in range(problem.slots):
            before, after = plan.policy.action(slot, seen), plan.policy.action(slot, changed)
            assert torch.equal(before[:, device], after[:, device])


def test_rounds_zero_keeps_the_uniform_policy(tiny: Make) -> None:
    problem = tiny({"slots": 3})
    for form in ("default", "literal"):
        plan = hm.plan(problem, "decentralized", form=form, rounds=0)
        assert plan.overhead.offline_bytes == 0
        prob = plan.policy.action_prob(0, _random_observation(problem, 50, np.random.default_rng(0)))
        allowed = (prob > 0).sum(-1, keepdim=True)
        assert torch.allclose(prob, (prob > 0).double() / allowed)


def test_theorem_gamma_makes_the_policy_uniform(tiny: Make) -> None:
    problem = tiny({"network.devices": 4})
    assert theorem_gamma(problem) == pytest.approx(1 / (8 * 4 * 12 * 9))
    literal = hm.plan(problem, "decentralized", form="literal", gamma="theorem", rounds=5)
    uniform = hm.plan(problem, "decentralized", form="literal", rounds=0)
    seen = _random_observation(problem, 200, np.random.default_rng(0))
    for slot in range(problem.slots):
        difference = literal.policy.action_prob(slot, seen) - uniform.policy.action_prob(slot, seen)
        assert float(difference.abs().max()) < 2e-3
    greedy = hm.exact_cost(problem, hm.plan(problem, "uncoordinated").policy)
    assert hm.exact_cost(problem, literal.policy) > greedy


@pytest.mark.parametrize(
    "overrides",
    [
        {"channel.state": "link", "network.devices": 4, "network.topology": "star"},
        {"channel.state": "reciprocal", "network.devices": 4},
        {"energy.train_only": True, "network.devices": 4},
        {"energy.actions": "separate", "network.devices": 4},
        {"link.half_duplex": True, "network.devices": 4},
        {"energy.capacity_joule": [2.0, 3.0, 4.5, 3.0, 2.0]},
    ],
    ids=str,
)
def test_default_form_beats_greedy_in_every_mode(tiny: Make, overrides: dict[str, Any]) -> None:
    problem = tiny({"slots": 6, "energy.battery_levels": 3, "energy.powers_watt": [0.0, 1.0]} | overrides)
    optimum = hm.plan(problem, "centralized").expected_cost
    proposal = hm.exact_cost(problem, hm.plan(problem, "decentralized").policy)
    greedy = hm.exact_cost(problem, hm.plan(problem, "uncoordinated").policy)
    assert optimum is not None
    assert optimum - 1e-9 <= proposal <= greedy + 1e-9
    assert proposal <= 1.03 * optimum


def test_refuses_what_does_not_fit_before_any_work(tiny: Make) -> None:
    problem = hm.build(hm.Scenario.load("geometric30"))
    with pytest.raises(hm.TooLargeError, match=r"hops = 2: expected at most .* actual estimate .*; .* 'receiver'$"):
        hm.plan(problem, "decentralized")


@pytest.mark.parametrize("overrides", [{"network.devices": 6}, {"network.topology": "grid", "network.devices": 6}])
@pytest.mark.parametrize("hops", [0, 1, 2])
def test_batches_change_nothing(
    tiny: Make, monkeypatch: pytest.MonkeyPatch, overrides: dict[str, Any], hops: int
) -> None:
    problem = tiny(overrides | {"slots": 3, "energy.powers_watt": [0.0, 1.0]})
    batched = hm.plan(problem, "decentralized", rounds=3, hops=hops)
    monkeypatch.setattr(shares, "BATCHED_ENTRIES", 0)
    alone = hm.plan(problem, "decentralized", rounds=3, hops=hops)
    assert batched.residual == alone.residual
    assert all(map(torch.equal, batched.policy.tables, alone.policy.tables))
