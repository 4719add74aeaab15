"""The one-slot planner: monotone SCA, a convex step that an independent solver confirms, exhaustive search."""

import itertools
from collections.abc import Callable

import cvxpy
import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.model.cost import part_factors
from heliomesh.model.factor import action, site, total
from heliomesh.model.policy import Observation
from heliomesh.planners.myopic import Options, build_solver

Make = Callable[..., hm.Problem]


def _network(tiny: Make, half_duplex: bool = False) -> hm.Problem:
    return tiny(
        {
            "network.topology": "edges",
            "network.devices": 6,
            "network.edges": [[0, 1], [1, 2], [2, 3], [3, 4], [4, 0], [4, 5], [1, 3]],
            "link.half_duplex": half_duplex,
            "link.waterfall": 0.4,
        }
    )


def _instance(problem: hm.Problem, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(1)
    gain = torch.from_numpy(rng.exponential(size=(batch, problem.topology.num_edges)))
    limit = torch.from_numpy(rng.uniform(0.2, 2.0, size=(batch, problem.num_devices)))
    return gain, limit


@pytest.mark.parametrize("seed", range(3))
def test_convex_step_agrees_with_cvxpy(tiny: Make, seed: int) -> None:
    problem = _network(tiny)
    solver = build_solver(problem, Options(), np.random.default_rng(0))
    rng = np.random.default_rng(seed)
    gain, limit = _instance(problem, 1)
    start = limit * torch.from_numpy(rng.uniform(0.1, 1.0, size=limit.shape))
    weight = solver.tangent(gain, start)
    found = solver.convex_step(gain, limit, start, weight, passes=400)

    log_gain = np.log(gain[0].numpy())
    log_power = cvxpy.Variable(problem.num_devices)
    receiver, sender = problem.topology.edge_receiver, problem.topology.edge_sender
    terms = []
    for edge in range(problem.topology.num_edges):
        own = log_power[sender[edge]] + log_gain[edge]
        noise = np.log(float(problem.link.noise_watt[receiver[edge]]))
        loads = [cvxpy.exp(noise - own)]
        for other in range(problem.topology.num_edges):
            if receiver[other] == receiver[edge] and other != edge:
                loads.append(cvxpy.exp(log_power[sender[other]] + log_gain[other] - own))
        terms.append(float(weight[0, edge]) * problem.link.waterfall * sum(loads))
    program = cvxpy.Problem(cvxpy.Minimize(sum(terms)), [log_power <= np.log(limit[0].numpy())])
    best = program.solve(solver=cvxpy.CLARABEL)
    np.testing.assert_allclose(found[0].numpy(), np.exp(log_power.value), atol=1e-3)
    log_power.value = np.log(found[0].numpy())
    assert program.objective.value == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("half_duplex", [False, True])
def test_true_cost_never_rises(tiny: Make, half_duplex: bool) -> None:
    problem = _network(tiny, half_duplex)
    solver = build_solver(problem, Options(), np.random.default_rng(0))
    gain, limit = _instance(problem, 40)
    limit[:, 2] = 0.0  # a silent device
    power, previous = limit, solver.device_costs(gain, limit).sum(1)
    for _ in range(15):
        power = solver.convex_step(gain, limit, power, solver.tangent(gain, power), passes=1)
        cost = solver.device_costs(gain, power).sum(1)
        assert bool((cost <= previous + 1e-12).all())
        assert bool((power <= limit).all())
        assert bool((power[:, 2] == 0).all())
        previous = cost


def test_silent_starts_pay_where_taking_turns_does(tiny: Make) -> None:
    """Two senders, one receiver, φ > ln 2: one alone loses less than both together."""
    problem = tiny(
        {
            "network.topology": "edges",
            "network.devices": 3,
            "network.edges": [[0, 1], [1, 2]],
            "link.waterfall": 2.0,
            "link.noise_watt": 0.01,
            "cost.idle_penalty": 0.0,
        }
    )
    solver = build_solver(problem, Options(), np.random.default_rng(0))
    gain = torch.ones(1, problem.topology.num_edges, dtype=torch.float64)
    power = solver.powers(gain, torch.ones(1, 3, dtype=torch.float64))
    assert int((power[0, [0, 2]] > 1e-6).sum()) == 1


def _all_observations(problem: hm.Problem) -> Observation:
    levels = itertools.product(range(problem.channel.levels), repeat=problem.num_devices)
    states = [
        (h, b) for h in levels for b in itertools.product(range(problem.battery.levels), repeat=problem.num_devices)
    ]
    batch = len(states)
    return Observation(
        torch.tensor([h for h, _ in states]),
        torch.tensor([b for _, b in states]) * problem.battery.step_joule,
        torch.zeros(batch, problem.num_devices, dtype=torch.long),
        torch.zeros(batch, problem.num_devices, dtype=torch.float64),
    )


def _slot_cost(problem: hm.Problem, seen: Observation, chosen: torch.Tensor) -> torch.Tensor:
    receivers = tuple(i for i in range(problem.num_devices) if problem.topology.neighbours[i])
    factors = part_factors(problem, tuple(range(problem.num_devices)), receivers)
    assignment = {site(i): seen.channel_level[:, i] for i in range(problem.num_devices)}
    assignment |= {action(j): chosen[:, j] for j in range(problem.num_devices)}
    return total(factors).at(assignment)


MODES = {
    "coupled": {},
    "train only": {"energy.train_only": True},
    "separate": {"energy.actions": "separate", "energy.powers_watt": [0.0, 1.0]},
}


@pytest.mark.parametrize("half_duplex", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_exhaustive_search_is_exhaustive_and_rounding_is_close(tiny: Make, half_duplex: bool, mode: str) -> None:
    problem = tiny(
        {"network.devices": 3, "link.half_duplex": half_duplex, "link.waterfall": 0.5, **MODES[mode]},
    )
    seen = _all_observations(problem)
    best = torch.full((len(seen.weather),), torch.inf, dtype=torch.float64)
    level = problem.battery.level(seen.battery_joule)
    for joint in itertools.product(range(len(problem.actions)), repeat=3):
        chosen = torch.tensor(joint).expand(len(best), 3)
        allowed = (problem.actions.steps_up[torch.arange(3), chosen] <= level).all(1)
        cost = _slot_cost(problem, seen, chosen).masked_fill(~allowed, torch.inf)
        best = torch.minimum(best, cost)
    exhaustive = hm.plan(problem, "myopic", mode="exhaustive").policy.action(0, seen)
    torch.testing.assert_close(_slot_cost(problem, seen, exhaustive), best)
    rounded = hm.plan(problem, "myopic").policy.action(0, seen)
    assert bool((problem.actions.steps_up[torch.arange(3), rounded] <= level).all())
    excess = _slot_cost(problem, seen, rounded) / best - 1
    assert float(excess.min()) >= -1e-12
    assert float(excess.mean()) < (
        0.05 if mode == "separate" else 0.02
    )  # six actions: single moves get stuck more often


def test_continuous_powers_are_affordable_and_no_worse_than_rounded(tiny: Make) -> None:
    problem = tiny({"link.waterfall": 0.3, "energy.compute_joule": 0.37, "energy.capacity_joule": 2.9})
    continuous = hm.simulate(problem, hm.plan(problem, "myopic", mode="continuous"), episodes=20)
    assert bool((continuous.spent_joule <= continuous.battery_joule[:, :-1] + 1e-9).all())
    first = [
        hm.simulate(problem, hm.plan(problem, "myopic", mode=mode), 20).update_loss[:, 0].sum(-1)
        for mode in ("continuous", "rounded")
    ]
    assert first[0].mean() <= first[1].mean() + 1e-3


def test_separate_actions_send_what_training_leaves(tiny: Make) -> None:
    """A battery below the energy of training still sends; one above it trains first."""
    pair = {"network.devices": 2, "network.topology": "complete"}  # nobody disturbs anybody
    changes = {"energy.actions": "separate", "energy.compute_joule": 1.0, "energy.initial": [0.5, 2.25], "slots": 1}
    problem = tiny({**pair, **changes})
    trace = hm.simulate(problem, hm.plan(problem, "myopic", mode="continuous"), 3)
    assert (trace.scheduled == [False, True]).all()
    np.testing.assert_allclose(trace.power_watt, np.broadcast_to([0.5, 1.25], trace.power_watt.shape), rtol=1e-6)


def test_a_bound_on_the_power_set_is_not_said_of_any_power(tiny: Make) -> None:
    problem = tiny()
    for mode, bounded in (("rounded", True), ("exhaustive", True), ("continuous", False)):
        assert hm.plan(problem, "myopic", mode=mode).lower_bound is None
        assert (hm.plan(problem, "myopic", mode=mode, bound=True).lower_bound is not None) == bounded
