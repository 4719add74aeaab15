"""No bound lies above the true optimum of continuous batteries, found independently on a fine lattice.

All energies of a generated problem are whole numbers of a lattice unit, so its continuous batteries never leave the
lattice and a plain dynamic program over it is exact. The bounds know nothing of it: their grids are coarse here.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.bounds import dual, minorant, receiver_floor
from heliomesh.bounds.dual import Effort, raise_bound
from heliomesh.model.policy import untracked
from tests.plain_storage import PlainStorage

SlotCost = Callable[[tuple[int, ...], tuple[int, ...], tuple[bool, ...]], float]
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


def separate(number: int) -> hm.Scenario:
    """Such a network with separate actions."""
    return drawn(number).override({"energy.actions": "separate", "energy.train_only": False})


def lossy(number: int) -> hm.Scenario:
    """Such a network with drains, chargers and converters whose energies are multiples of the unit as well."""
    scenario, rng = drawn(number), np.random.default_rng([number, 13])
    drain = rng.integers(0, 4, scenario.network.devices) * UNIT
    changes: dict[str, Any] = {"energy.sleep_watt": drain.tolist()}
    if number % 2:
        changes |= {"energy.converter_efficiency": 0.5, "energy.sleep_watt": (drain / 2).tolist()}
    if number % 3:
        double = np.array(scenario.as_dict()["harvest"]["joule"]) * 2
        changes |= {"energy.charge_efficiency": 0.5, "harvest.joule": double.tolist()}
    return scenario.override(changes)


def lattice_optimum(scenario: hm.Scenario, deaf: bool = True) -> float:
    """Least expected cost per slot, by plain loops over joint actions on tables over joint lattice states.

    ``deaf``: whether dark devices hear nothing; bounds do not count what they miss.
    """
    problem = hm.build(scenario)
    slot_cost = slot_costs(problem)
    law, channel = problem.harvest.law, problem.channel
    devices, sites, weathers = problem.num_devices, channel.num_sites, law.num_weather
    top = np.rint(problem.battery.capacity_joule.numpy() / UNIT).astype(int)
    spent = np.rint(problem.actions.spent_joule.numpy() / UNIT).astype(int)
    storage, each = PlainStorage(scenario), range(devices)
    drain = np.rint([storage.drain(device) / UNIT for device in each]).astype(int)
    efficiency = scenario.energy.charge_efficiency or 1.0
    gained = np.rint(law.joule[0].numpy() * efficiency / UNIT).astype(int)  # (weather, atom)
    prob, moves = law.prob[0].numpy(), law.kernel.numpy()
    shared = law.sky != "independent"
    shape = (channel.levels,) * sites + ((weathers,) if shared else ())
    shape += sum((((t + 1,) if shared else (weathers, t + 1)) for t in top), ())
    battery = [sites + 1 + device if shared else sites + 2 * device + 1 for device in range(devices)]
    value = np.zeros(shape)
    actions = len(problem.actions)
    for _ in range(scenario.slots):
        future = value
        for axis in range(sites):
            future = along(channel.kernel.numpy(), future, axis)
        if shared:
            future = along(moves, future, sites)
            future = filled_together(future, sites, battery, (gained, prob), (top, drain), law.sky)
        else:
            for device, axis in enumerate(battery):
                kept = np.maximum(np.arange(top[device] + 1) - drain[device], 0)
                future = filled_alone(along(moves, future, axis - 1), axis, (gained, prob), kept, top[device])
        best = np.full(shape, np.inf)
        for joint, dark in itertools.product(
            itertools.product(range(actions), repeat=devices), itertools.product((False, True), repeat=devices)
        ):
            cost = [spent[i, joint[i]] for i in each]
            begin = [0 if dark[i] else cost[i] + drain[i] for i in each]
            end = [min(drain[i], top[i] + 1) if dark[i] else top[i] + 1 for i in each]
            if any(begin[i] >= end[i] or (dark[i] and joint[i]) for i in each):
                continue  # no battery pays for it; in the dark there is only idling
            left, target = [slice(None)] * future.ndim, [slice(None)] * future.ndim
            for i, axis in enumerate(battery):
                left[axis], target[axis] = slice(begin[i] - cost[i], end[i] - cost[i]), slice(begin[i], end[i])
            paid = future[tuple(left)]
            for levels in itertools.product(range(channel.levels), repeat=sites):
                here = (*levels, *target[sites:])
                candidate = slot_cost(levels, joint, dark if deaf else ()) + paid[levels]
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


def filled_alone(table: Any, axis: int, law: tuple[Any, Any], kept: Any, top: int) -> Any:
    """E[table after one device's harvest], its weather on the axis before its battery; kept (level,) of the drain."""
    (gained, prob), filled = law, np.zeros_like(table)
    for weather, atom in itertools.product(*map(range, gained.shape)):
        after = np.minimum(kept + gained[weather, atom], top)
        where = [slice(None)] * filled.ndim
        where[axis - 1] = slice(weather, weather + 1)
        filled[tuple(where)] += prob[weather, atom] * np.take(table[tuple(where)], after, axis=axis)
    return filled


def filled_together(
    table: Any, at: int, battery: list[int], law: tuple[Any, Any], tops: tuple[Any, Any], sky: str
) -> Any:
    """E[table after all devices' drains and harvests] given the weather on axis ``at`` that they share."""
    (gained, prob), (top, drain), filled = law, tops, np.zeros_like(table)
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
                kept = np.maximum(np.arange(top[device] + 1) - drain[device], 0)
                after = np.minimum(kept + gained[weather, drawn_atoms[device]], top[device])
                part = np.take(part, after, axis=axis)
            filled[where] += share * part
    return filled


def slot_costs(problem: hm.Problem) -> SlotCost:
    """Σ_j Σ_i a_ij q_ij and what idling costs for one joint action, link by link, on plain numbers."""
    topology, link, actions = problem.topology, problem.link, problem.actions
    watt, trained = actions.power_watt.tolist(), actions.trained.tolist()
    gain, site, path = problem.channel.gain.tolist(), problem.channel.site_of_edge.tolist(), link.path_gain.tolist()
    senders, receivers = topology.edge_sender.tolist(), topology.edge_receiver.tolist()
    weight, noise, own_weight = topology.edge_weight.tolist(), link.noise_watt.tolist(), topology.self_weight.tolist()

    @functools.cache
    def lost(levels: tuple[int, ...], joint: tuple[int, ...], dark: tuple[bool, ...]) -> float:
        """Σ_j Σ_i a_ij q_ij, the same in every slot."""
        power = [watt[chosen] for chosen in joint]
        received = [power[j] * path[e] * gain[levels[site[e]]] for e, j in enumerate(senders)]
        cost = 0.0
        for edge, (i, own) in enumerate(zip(receivers, received, strict=True)):
            others = sum(r for e, r in enumerate(received) if receivers[e] == i and e != edge)
            silent = own == 0 or any(dark[i : i + 1]) or (link.half_duplex and power[i] > 0)
            error = 1.0 if silent else 1 - math.exp(-link.waterfall * (others + noise[i]) / own)
            cost += weight[edge] * error
        return cost

    def cost(levels: tuple[int, ...], joint: tuple[int, ...], dark: tuple[bool, ...]) -> float:
        idle = sum(own_weight[j] for j, chosen in enumerate(joint) if not trained[chosen])
        return lost(levels, joint, dark) + problem.scenario.cost.idle_penalty * idle

    return cost


# the slow batches go on where the others end
@pytest.mark.parametrize(
    "batch", [*range(5), *(pytest.param(batch, marks=pytest.mark.slow) for batch in range(5, 42))]
)
def test_no_bound_lies_above_the_optimum(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(batch, PROBLEMS, 42):
        check_bounds(drawn(number), number, monkeypatch)


# those of separate actions are as many again, and have all modes of the others
@pytest.mark.parametrize(
    "batch", [*range(2), *(pytest.param(batch, marks=pytest.mark.slow) for batch in range(2, 42))]
)
def test_no_bound_lies_above_the_optimum_of_separate_actions(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    planners = ("receiver", "uncoordinated", "myopic")
    excess, variance = np.zeros(len(planners)), np.zeros(len(planners))
    for number in range(batch, PROBLEMS, 42):
        scenario = separate(number)
        optimum = check_bounds(scenario, number, monkeypatch)
        problem = hm.build(scenario)
        costs = np.stack([hm.simulate_costs(problem, hm.plan(problem, planner), EPISODES) for planner in planners])
        excess += costs.mean(1) - optimum
        variance += costs.var(1) / EPISODES
    # of all networks together: on a single one a rare event, such as an empty battery, may not be among the episodes
    assert (excess >= -4 * np.sqrt(variance)).all(), dict(zip(planners, excess, strict=True))


@pytest.mark.parametrize(
    "batch", [*range(1), *(pytest.param(batch, marks=pytest.mark.slow) for batch in range(1, 42))]
)
def test_no_bound_lies_above_the_optimum_with_losses_and_drains(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    planners = ("receiver", "uncoordinated", "myopic")
    excess, variance = np.zeros(len(planners)), np.zeros(len(planners))
    for number in range(batch, PROBLEMS, 42):
        scenario = lossy(number)
        bounded = check_bounds(scenario, number, monkeypatch)
        problem, optimum = hm.build(scenario), lattice_optimum(scenario)
        assert bounded <= optimum + 1e-12
        costs = np.stack([hm.simulate_costs(problem, hm.plan(problem, planner), EPISODES) for planner in planners])
        excess += costs.mean(1) - optimum
        variance += costs.var(1) / EPISODES
    assert (excess >= -4 * np.sqrt(variance)).all(), dict(zip(planners, excess, strict=True))


def test_drains_and_losses_are_among_the_problems() -> None:
    problems = [hm.build(lossy(number)) for number in range(0, PROBLEMS, 4)]
    assert sum(problem.battery.drains for problem in problems) >= 90
    assert sum(float(problem.battery.losses.charge_efficiency[0]) < 1 for problem in problems) >= 60


def check_bounds(
    scenario: hm.Scenario, number: int, monkeypatch: pytest.MonkeyPatch, known_optimum: float | None = None
) -> float:
    """Both bounds on grids as coarse as the number says lie below the optimum of devices that hear in the dark.

    It is returned; without drains nobody is in the dark.
    """
    rng = np.random.default_rng(number)
    monkeypatch.setattr(receiver_floor, "_FEWEST_LEVELS", 2)
    monkeypatch.setattr(minorant, "_LEVELS", int(rng.integers(4, 14)))  # coarse: what is taken off matters
    monkeypatch.setattr(receiver_floor, "_MOST_LEVELS", int(rng.integers(3, 10)))
    monkeypatch.setattr(dual, "_ROUGH_LEVELS", 5)
    problem = hm.build(scenario)
    optimum = lattice_optimum(scenario, deaf=False) if known_optimum is None else known_optimum
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


def leaky(number: int) -> hm.Scenario:
    """A network of one or two devices whose batteries leak, so that they leave every lattice."""
    scenario, rng = drawn(number), np.random.default_rng([number, 17])
    devices, day = min(scenario.network.devices, 2), 86400.0
    energy = scenario.energy
    changes: dict[str, Any] = {
        "slots": 3,
        "network.devices": devices,
        "network.edges": [[1, 0]] if devices == 2 else [],
        "energy.slot_second": day,
        "energy.powers_watt": [0.0, 0.2],
        "energy.leak_per_day": rng.uniform(0.05, 0.8, devices).tolist(),
        "energy.charge_efficiency": rng.uniform(0.4, 1.0, devices).tolist(),
        "energy.converter_efficiency": 0.8,
        "energy.sleep_watt": (rng.choice([0.0, 0.03, 0.11], devices) / day).tolist(),
        "link.noise_watt": scenario.link.noise_watt[:devices],  # type: ignore[index]
    }
    for name in ("compute_joule", "capacity_joule", "initial"):
        changes[f"energy.{name}"] = getattr(energy, name)[:devices]
    return scenario.override(changes)


def tree_optimum(scenario: hm.Scenario, deaf: bool) -> float:
    """Least expected cost per slot of continuous batteries, by recursion over all that can happen."""
    problem, storage = hm.build(scenario), PlainStorage(scenario)
    law, channel, each = problem.harvest.law, problem.channel, range(problem.num_devices)
    spent, capacity = problem.actions.spent_joule.tolist(), problem.battery.capacity_joule.tolist()
    drain, gain = [storage.drain(i) for i in each], law.joule[0].tolist()
    moves, weathers, prob = channel.kernel.tolist(), law.kernel.tolist(), law.prob[0].tolist()
    actions, slot_cost = range(len(problem.actions)), slot_costs(problem)

    @functools.cache
    def least(slot: int, levels: tuple[int, ...], weather: tuple[int, ...], battery: tuple[float, ...]) -> float:
        if slot == scenario.slots:
            return 0.0
        dark = tuple(drain[i] > battery[i] + 1e-9 for i in each)
        payable = [[a for a in actions if not a or spent[i][a] + drain[i] <= battery[i] + 1e-9] for i in each]
        return min(
            slot_cost(levels, joint, dark if deaf else ())
            + following(
                slot + 1,
                levels,
                weather,
                tuple(max(battery[i] - spent[i][joint[i]] - drain[i], 0.0) for i in each),
            )
            for joint in itertools.product(*payable)
        )

    def following(slot: int, levels: Any, weather: Any, left: Any) -> float:
        """Mean over channels, weathers and harvests."""
        if slot == scenario.slots:
            return 0.0
        total = 0.0
        for shares, then in outcomes([moves[level] for level in levels]):
            for chances, atoms in drawn_atoms(weather):
                for odds, skies in next_weathers(weather):
                    after = tuple(
                        round(storage.after(i, left[i], gain[weather[i]][atoms[i]], capacity[i])[0], 10) for i in each
                    )
                    total += shares * chances * odds * least(slot, then, skies, after)
        return total

    def drawn_atoms(weather: Any) -> list[tuple[float, tuple[int, ...]]]:
        if law.sky == "common":
            return [(share, (k,) * len(each)) for k, share in enumerate(prob[weather[0]])]
        return outcomes([prob[sky] for sky in weather])

    def next_weathers(weather: Any) -> list[tuple[float, tuple[int, ...]]]:
        if law.sky == "independent":
            return outcomes([weathers[sky] for sky in weather])
        return [(share, (sky,) * len(each)) for sky, share in enumerate(weathers[weather[0]])]

    first = tuple(np.broadcast_to(np.array(scenario.energy.initial), len(each)).tolist())
    stationary = law.stationary.tolist()
    skies = outcomes([stationary] * len(each))
    if law.sky != "independent":
        skies = [(share, (sky,) * len(each)) for sky, share in enumerate(stationary)]
    starts = outcomes([channel.stationary.tolist()] * channel.num_sites)
    total = sum(share * odds * least(0, levels, sky, first) for share, levels in starts for odds, sky in skies)
    return total / scenario.slots


def outcomes(laws: list[list[float]]) -> list[tuple[float, tuple[int, ...]]]:
    """Joint outcomes of independent draws, with their probabilities."""
    joint = itertools.product(*(range(len(law)) for law in laws))
    return [(float(np.prod([law[k] for law, k in zip(laws, drawn, strict=True)])), drawn) for drawn in joint]


# all modes of the networks come within 42 numbers
@pytest.mark.parametrize(
    "batch", [*range(1), *(pytest.param(batch, marks=pytest.mark.slow) for batch in range(1, 20))]
)
def test_no_bound_lies_above_the_optimum_of_leaking_batteries(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    excess = []
    for number in range(batch, 210, 20):
        scenario = leaky(number)
        optimum = tree_optimum(scenario, deaf=False)
        check_bounds(scenario, number, monkeypatch, optimum)
        problem, deaf_optimum = hm.build(scenario), tree_optimum(scenario, deaf=True)
        assert optimum <= deaf_optimum + 1e-12
        excess.append(hm.simulate_costs(problem, hm.plan(problem, "receiver"), EPISODES) - deaf_optimum)
    mean, variance = np.mean(excess), np.mean([one.var() for one in excess]) / (EPISODES * len(excess))
    assert mean >= -4 * np.sqrt(variance)
    assert mean <= 0.05  # fine grids see leakage and drain: plans are near the optimum


def test_fine_grids_are_tight_for_leaking_batteries(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device alone: only the grid stands between bound and optimum."""
    lonely = [s for s in map(leaky, range(60)) if s.network.devices == 1]
    assert len(lonely) >= 10
    monkeypatch.setattr(minorant, "_LEVELS", 201)
    optima = np.array([tree_optimum(scenario, deaf=False) for scenario in lonely])
    bounds = np.array([raise_bound(hm.build(s), Effort(20), untracked) / s.slots for s in lonely])
    assert (bounds <= optima + 1e-9).all()
    assert bounds.mean() >= 0.99 * optima.mean()  # batteries just below what an action needs make the difference
