"""No bound lies above the true optimum of continuous batteries, found independently on a fine lattice.

All energies of a generated problem are whole numbers of a lattice unit, so its continuous batteries never leave the
lattice and a plain dynamic program over it is exact. The bounds know nothing of it: their grids are coarse here.
"""

import itertools
from typing import Any

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.problem import dual, minorant, receiver_floor
from heliomesh.problem.dual import Effort, raise_bound
from heliomesh.problem.policy import untracked

PROBLEMS = 504
UNIT = 0.05  # joule
EPISODES = 200
CHANNELS = ("receiver", "link", "reciprocal")
SKIES = ("independent", "common", "independent", "mixed", "independent", "common", "independent")


def drawn(number: int) -> hm.Scenario:
    """A small network whose energies are multiples of the unit; all modes come in turn."""
    rng = np.random.default_rng([number, 7])
    devices = int(rng.integers(1, 4))
    pairs = [[i, j] for i in range(devices) for j in range(i)]
    edges = [pair for pair in pairs if rng.random() < 0.85] or pairs[:1]
    top = 30 if devices < 3 else 12
    capacity = rng.integers(top // 2, top, devices)
    weathers = 1 + number % 2
    atoms = rng.integers(0, top // 2, (weathers, 2)) * UNIT
    harvest: dict[str, Any] = {"source": "table", "joule": atoms[0].tolist(), "prob": [0.6, 0.4]}
    if weathers == 2:
        kernel = rng.dirichlet([2.0, 1.0], size=2).tolist()
        harvest = {"source": "markov", "joule": atoms.tolist(), "prob": [[0.6, 0.4], [0.3, 0.7]], "kernel": kernel}
        harvest |= {"forecast": 0.8} if number % 14 == 1 else {}
    harvest["sky"] = SKIES[number % 7]
    return hm.Scenario.parse(
        {
            "slots": int(rng.integers(2, 7)),
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
                "kernel": rng.dirichlet([2.0, 1.0], size=2).tolist(),
            },
            "link": {
                "waterfall": float(rng.choice([0.1, 0.5, 1.5])),
                "noise_watt": rng.uniform(0.05, 1.0, devices).tolist(),
                "half_duplex": number // 3 % 2 == 1,
            },
            "energy": {
                "powers_watt": [0.0, 0.1, 0.3] if devices < 3 else [0.0, 0.2],
                "transmit_second": 1.0,
                "slot_second": 1.0,
                "compute_joule": (rng.integers(1, top // 3, devices) * UNIT).tolist(),
                "train_only": number // 6 % 2 == 1,
                "capacity_joule": (capacity * UNIT).tolist(),
                "initial": (rng.integers(0, capacity + 1) * UNIT).tolist(),
            },
            "harvest": harvest,
            "cost": {"idle_penalty": float(rng.choice([0.0, 0.5, 1.0]))},
        }
    )


def weighted(number: int) -> hm.Scenario:
    """Such a network with separate actions and two or three phases of the cost; in the last, training may be bad."""
    scenario, rng = drawn(number), np.random.default_rng([number, 11])
    borders = sorted(rng.choice(np.arange(1, scenario.slots), min(scenario.slots - 1, 1 + number % 2), replace=False))
    lengths = np.diff([0, *borders, scenario.slots]).tolist()
    phases = [[length, float(rng.uniform(0, 2)), float(rng.uniform(0, 2))] for length in lengths]
    phases[-1][1:] = [float(rng.choice([0.0, -0.5])), float(rng.uniform(2, 4))]
    changes = {"energy.actions": "separate", "energy.train_only": False}
    return scenario.override({**changes, "cost.objective": "learning", "cost.phases": phases})


def lattice_optimum(scenario: hm.Scenario) -> float:
    """Least expected cost per slot, by plain loops over joint actions on tables over joint lattice states."""
    problem = hm.build(scenario)
    law, channel = problem.harvest.law, problem.channel
    devices, sites, weathers = problem.num_devices, channel.num_sites, law.num_weather
    top = np.rint(problem.battery.capacity_joule.numpy() / UNIT).astype(int)
    spent = np.rint(problem.actions.spent_joule.numpy() / UNIT).astype(int)
    gained = np.rint(law.joule[0].numpy() / UNIT).astype(int)  # (weather, atom)
    prob, moves = law.prob[0].numpy(), law.kernel.numpy()
    shared = law.sky != "independent"
    shape = (channel.levels,) * sites + ((weathers,) if shared else ())
    shape += sum((((t + 1,) if shared else (weathers, t + 1)) for t in top), ())
    battery = [sites + 1 + device if shared else sites + 2 * device + 1 for device in range(devices)]
    value = np.zeros(shape)
    actions = len(problem.actions)
    for slot in reversed(range(scenario.slots)):
        future = value
        for axis in range(sites):
            future = along(channel.kernel.numpy(), future, axis)
        if shared:
            future = along(moves, future, sites)
            future = filled_together(future, sites, battery, (gained, prob), top, law.sky)
        else:
            for device, axis in enumerate(battery):
                future = filled_alone(along(moves, future, axis - 1), axis, gained, prob, top[device])
        best = np.full(shape, np.inf)
        for joint in itertools.product(range(actions), repeat=devices):
            left, target = [slice(None)] * future.ndim, [slice(None)] * future.ndim
            for device, chosen in enumerate(joint):
                cost = spent[device, chosen]
                left[battery[device]] = slice(0, max(top[device] + 1 - cost, 0))
                target[battery[device]] = slice(min(cost, top[device] + 1), None)
            paid = future[tuple(left)]
            for levels in itertools.product(range(channel.levels), repeat=sites):
                here = (*levels, *target[sites:])
                candidate = slot_cost(problem, slot, levels, joint) + paid[levels]
                best[here] = np.minimum(best[here], candidate)
        value = best
    for _ in range(sites):
        value = np.tensordot(channel.stationary.numpy(), value, (0, 0))
    first = np.rint(np.array(scenario.energy.initial) / UNIT).astype(int)
    if shared:
        return float(np.tensordot(law.stationary.numpy(), value, (0, 0))[tuple(first)]) / scenario.slots
    for device in range(devices):
        value = np.tensordot(law.stationary.numpy(), value, (0, 0))[first[device]]
    return float(value) / scenario.slots


def along(kernel: Any, table: Any, axis: int) -> Any:
    """Σ_next kernel[now, next] · table[..., next, ...]."""
    return np.moveaxis(np.tensordot(kernel, table, (1, axis)), 0, axis)


def filled_alone(table: Any, axis: int, gained: Any, prob: Any, top: int) -> Any:
    """E[table after one device's harvest], its weather on the axis before its battery."""
    filled = np.zeros_like(table)
    for weather, atom in itertools.product(*map(range, gained.shape)):
        after = np.minimum(np.arange(top + 1) + gained[weather, atom], top)
        where = [slice(None)] * filled.ndim
        where[axis - 1] = slice(weather, weather + 1)
        filled[tuple(where)] += prob[weather, atom] * np.take(table[tuple(where)], after, axis=axis)
    return filled


def filled_together(table: Any, at: int, battery: list[int], law: tuple[Any, Any], top: Any, sky: str) -> Any:
    """E[table after all devices' harvests] given the weather on axis ``at`` that they share."""
    (gained, prob), filled = law, np.zeros_like(table)
    weathers, atoms = gained.shape
    if sky == "common":
        draws = [(k,) * len(battery) for k in range(atoms)]
    else:
        draws = list(itertools.product(range(atoms), repeat=len(battery)))
    for weather in range(weathers):
        where = (slice(None),) * at + (slice(weather, weather + 1),)
        for drawn_atoms in draws:
            part = table[where]
            share = prob[weather, drawn_atoms[0]] if sky == "common" else prob[weather, list(drawn_atoms)].prod()
            for device, axis in enumerate(battery):
                after = np.minimum(np.arange(top[device] + 1) + gained[weather, drawn_atoms[device]], top[device])
                part = np.take(part, after, axis=axis)
            filled[where] += share * part
    return filled


def slot_weights(scenario: hm.Scenario, slot: int) -> tuple[float | None, float]:
    """u and v of a slot; no u where idling costs a share of the device's own weight."""
    if scenario.cost.objective == "update-loss":
        return None, 1.0
    weights = [(u, v) for slots, u, v in scenario.cost.phases or [(scenario.slots, 1.0, 1.0)] for _ in range(slots)]
    return weights[slot]


def slot_cost(problem: hm.Problem, slot: int, levels: tuple[int, ...], joint: tuple[int, ...]) -> float:
    """v Σ_j Σ_i a_ij q_ij and what idling costs for one joint action, link by link."""
    train, deliver = slot_weights(problem.scenario, slot)
    topology, link, actions = problem.topology, problem.link, problem.actions
    gain = problem.channel.gain.numpy()
    power = [float(actions.power_watt[chosen]) for chosen in joint]
    received = [
        power[j] * float(link.path_gain[e]) * gain[levels[int(problem.channel.site_of_edge[e])]]
        for e, j in enumerate(topology.edge_sender)
    ]
    cost = 0.0
    for edge, (i, own) in enumerate(zip(topology.edge_receiver, received, strict=True)):
        others = sum(r for e, r in enumerate(received) if topology.edge_receiver[e] == i and e != edge)
        silent = own == 0 or (link.half_duplex and power[i] > 0)
        noise = float(link.noise_watt[i])
        error = 1.0 if silent else 1 - np.exp(-link.waterfall * (others + noise) / own)
        cost += float(topology.edge_weight[edge]) * error
    idle = [not bool(actions.trained[chosen]) for chosen in joint]
    if train is not None:
        return deliver * cost + train * sum(idle)
    penalty = problem.scenario.cost.idle_penalty
    return cost + penalty * sum(float(topology.self_weight[j]) for j, is_idle in enumerate(idle) if is_idle)


# the slow batches go on where the others end
@pytest.mark.parametrize(
    "batch", [*range(8), *(pytest.param(batch, marks=pytest.mark.slow) for batch in range(8, 42))]
)
def test_no_bound_lies_above_the_optimum(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(batch, PROBLEMS, 42):
        check_bounds(drawn(number), number, monkeypatch)


# weighted networks are as many again, and have all modes of the others
@pytest.mark.parametrize(
    "batch", [*range(3), *(pytest.param(batch, marks=pytest.mark.slow) for batch in range(3, 42))]
)
def test_no_bound_lies_above_the_optimum_of_separate_actions_with_weights_by_phase(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    planners = ("receiver", "uncoordinated", "myopic")
    excess, variance = np.zeros(len(planners)), np.zeros(len(planners))
    for number in range(batch, PROBLEMS, 42):
        scenario = weighted(number)
        optimum = check_bounds(scenario, number, monkeypatch)
        problem = hm.build(scenario)
        costs = np.stack([hm.simulate_costs(problem, hm.plan(problem, planner), EPISODES) for planner in planners])
        excess += costs.mean(1) - optimum
        variance += costs.var(1) / EPISODES
    # of all networks together: on a single one a rare event, such as an empty battery, may not be among the episodes
    assert (excess >= -4 * np.sqrt(variance)).all(), dict(zip(planners, excess, strict=True))


def check_bounds(scenario: hm.Scenario, number: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Both bounds on grids as coarse as the number says lie below the optimum, which is returned."""
    rng = np.random.default_rng(number)
    monkeypatch.setattr(receiver_floor, "_FEWEST_LEVELS", 2)
    monkeypatch.setattr(minorant, "_LEVELS", int(rng.integers(4, 14)))  # coarse: what is taken off matters
    monkeypatch.setattr(receiver_floor, "_MOST_LEVELS", int(rng.integers(3, 10)))
    monkeypatch.setattr(dual, "_ROUGH_LEVELS", 5)
    problem, optimum = hm.build(scenario), lattice_optimum(scenario)
    prices = raise_bound(problem, Effort(20, 10), untracked) / scenario.slots
    tables = receiver_floor.receiver_floor(problem)
    assert prices <= optimum + 1e-9, number
    if tables is not None:
        assert tables / scenario.slots <= optimum + 1e-9, number
    return optimum


def test_skies_and_forecasts_are_among_the_problems() -> None:
    laws = [hm.build(drawn(number)).harvest.law for number in range(PROBLEMS)]
    assert sum(law.sky == "common" for law in laws) >= 100
    assert sum(law.sky == "mixed" for law in laws) >= 50
    assert sum(law.num_weather == 4 for law in laws) >= 10


def test_fine_grids_are_tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device has no neighbours to disagree with: only the grid stands between bound and optimum."""
    scenario = next(s for s in map(drawn, range(100)) if s.network.devices == 1 and s.slots > 3)
    problem, optimum = hm.build(scenario), lattice_optimum(scenario)
    gaps = []
    for levels in (7, 201):
        monkeypatch.setattr(minorant, "_LEVELS", levels)
        gaps.append(optimum - raise_bound(problem, Effort(20), untracked) / scenario.slots)
    assert -1e-9 <= gaps[1] <= gaps[0] + 1e-9
    assert gaps[1] <= 0.02 * max(optimum, 1e-9)
