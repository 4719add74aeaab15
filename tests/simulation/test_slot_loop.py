"""The one loop: against a plain simulator, its energy books, its random numbers, and its limits."""

import itertools
import math
from dataclasses import dataclass, fields

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.common import catalog
from heliomesh.common.streams import stream
from heliomesh.model.policy import Decision, Plan
from heliomesh.model.workload import compute_joule
from heliomesh.planning import PLANNER_CATALOG
from heliomesh.simulation import slot_loop, trace
from heliomesh.simulation.ledger import dark_slots
from heliomesh.simulation.slot_loop import run_slots
from tests.plain_storage import PlainStorage

# options that keep a planner quick; one without an entry is run with its defaults
QUICK = {
    "decentralized": [{"rounds": 1, "hops": 1}, {"form": "literal", "rounds": 1, "hops": 1}],
    "myopic": [
        {"starts": 2, "linearisations": 3},
        {"mode": "exhaustive"},
        {"mode": "continuous", "starts": 2, "linearisations": 3},
    ],
}
PLANNERS = [(name, options) for name in catalog.names(PLANNER_CATALOG) for options in QUICK.get(name, [{}])]
SMALL = {"network.devices": 3, "slots": 10, "energy.battery_levels": 3}
IRREGULAR = {
    "energy.compute_joule": 0.37,
    "energy.powers_watt": [0.0, 0.41, 1.3],
    "energy.capacity_joule": 2.9,
    "energy.initial": "uniform",
    "harvest.joule": [0.0, 0.53, 1.71],
}
WEATHER = {
    "harvest.source": "markov",
    "harvest.kernel": [[0.9, 0.1], [0.4, 0.6]],
    "harvest.joule": [[0.0, 0.8], [0.5, 2.0, 3.0]],
    "harvest.prob": [[0.7, 0.3], [0.2, 0.5, 0.3]],
}
SCENARIOS = {
    "aligned": {},
    "irregular": IRREGULAR,
    "weather": WEATHER,
    "separate": {"energy.actions": "separate", "energy.compute_joule": 1.5},
    "duplex": {"link.half_duplex": True, "energy.train_only": True, "channel.state": "link", **IRREGULAR},
    "unequal": {
        "energy.capacity_joule": [1.0, 2.5, 7.1],
        "energy.compute_joule": [0.1, 0.9, 1.3],
        "harvest.scale": [0.3, 1.0, 2.2],
    },
    "floods": {"harvest.joule": [0.0, 5.0, 90.0], "energy.initial": 0.0},
    "no harvest": {"harvest.joule": [0.0], "harvest.prob": [1.0]},
}


LISTENING = {
    "energy.receive_watt": 0.06,
    "energy.listen_second": 0.5,
    "energy.sleep_watt": 0.004,
    "energy.wake_joule": 0.01,
}
LOSSY = {
    "li-ion": {"energy.storage": "li-ion", **LISTENING},
    "supercapacitor": {"energy.storage": "supercapacitor", "energy.sleep_watt": 0.4, "energy.wake_joule": 0.07},
    "own numbers": {
        **LISTENING,
        "energy.charge_efficiency": 0.7,
        "energy.leak_per_day": 0.999,
        "energy.slot_second": 3600.0,
        "energy.converter_efficiency": [[0.01, 0.5], [0.5, 0.8], [1.5, 0.6]],
        "energy.sleep_watt": 0.0001,
    },
}


def problem_of(**changes):
    return hm.build(hm.Scenario.load("tiny").override(changes))


def simulated(problem, policy, **options):
    return hm.simulate(problem, Plan("test", policy), **options)


def greedy(problem):
    return hm.plan(problem, "uncoordinated").policy


@dataclass(frozen=True)
class Constant:
    """The same powers in every slot, whatever the batteries hold."""

    power_watt: tuple
    trained: tuple | None = None

    def decide(self, slot, seen):
        power = torch.tensor(self.power_watt, dtype=torch.float64).expand_as(seen.battery_joule)
        trained = power > 0 if self.trained is None else torch.tensor(self.trained).expand_as(power)
        return Decision(power, trained)


def arrays(record):
    return {
        field.name: value for field in fields(record) if isinstance(value := getattr(record, field.name), np.ndarray)
    }


def assert_equal(first, second):
    for name, value in arrays(first).items():
        np.testing.assert_array_equal(value, getattr(second, name), err_msg=name)


# fast equals slow


def naive_pick(prob, u):
    total = 0.0
    for outcome, share in enumerate(prob):
        total += share
        if u < total:
            return outcome
    return len(prob) - 1


def naive_episode(problem, episode, seed):
    """Who can train does, then the largest power left, every slot; one device and one packet at a time."""
    scenario, graph, law = problem.scenario, problem.topology, problem.harvest.law
    channel, devices = problem.channel, range(problem.num_devices)
    storage, compute = PlainStorage(scenario), compute_joule(scenario)
    powers, capacity = scenario.energy.powers_watt, problem.battery.capacity_joule.tolist()
    separate = scenario.energy.actions == "separate"
    actions = [(train, p) for train in (False, True) for p in powers if separate or train == (p > 0)]
    gains, site = channel.gain.tolist(), channel.site_of_edge.tolist()
    ends = list(zip(graph.edge_receiver.tolist(), graph.edge_sender.tolist(), strict=True))
    path_gain = problem.link.path_gain.tolist()
    drawn = {purpose: stream(seed, purpose, episode) for purpose in ("channel", "harvest", "link")}

    first = drawn["harvest"].random((len(devices), 2))
    drawn["link"].random(len(ends))
    level = [naive_pick(channel.stationary, u) for u in drawn["channel"].random(channel.num_sites)]
    weather = [naive_pick(law.stationary, first[i, 0]) for i in devices]
    battery = [first[i, 1] * capacity[i] for i in devices]
    for slot in range(problem.slots):
        moves, suns = drawn["channel"].random(channel.num_sites), drawn["harvest"].random((len(devices), 2))
        trained, power, left = [], [], []
        for i in devices:
            due = {(t, p): t * storage.training(i, compute[i]) + storage.sending(i, p) for t, p in actions}
            due = {action: joule + storage.drain(i) for action, joule in due.items()}
            chosen = max((action for action in actions if due[action] <= battery[i] + 1e-9), default=(False, 0.0))
            trained.append(chosen[0])
            power.append(chosen[1])
            left.append(max(battery[i] - due[chosen], 0.0))
        dark = [storage.drain(i) > battery[i] + 1e-9 for i in devices]
        gain = {edge: gains[level[site[number]]] * path_gain[number] for number, edge in enumerate(ends)}
        error, loss = [], [scenario.cost.idle_penalty * graph.self_weight[i] * (not trained[i]) for i in devices]
        for i, j in ends:
            rivals = sum(power[k] * gain[i, k] for k in graph.neighbours[i] if k != j)
            disturbance = rivals + float(problem.link.noise_watt[i])
            deaf = dark[i] or (scenario.link.half_duplex and power[i] > 0)
            silent = power[j] == 0
            ratio = math.inf if silent or deaf else disturbance / (power[j] * gain[i, j])
            error.append(1 - math.exp(-scenario.link.waterfall * ratio))
            loss[j] += graph.mixing[i, j] * error[-1]
        delivered = [u >= q for u, q in zip(drawn["link"].random(len(ends)), error, strict=True)]
        spent = [battery[i] - left[i] for i in devices]
        phase, harvested, after, overflow = law.phase_of_slot[slot], [], [], []
        for i in devices:
            atom = naive_pick(law.prob[phase, weather[i]], suns[i, 0])
            harvested.append(float(law.scale[i] * law.joule[phase, weather[i], atom]))
            stored, lost, _, _ = storage.after(i, left[i], harvested[i], capacity[i])
            after.append(stored)
            overflow.append(lost)
        yield {
            "channel_level": level,
            "power_watt": power,
            "scheduled": trained,
            "error_prob": error,
            "delivered": delivered,
            "update_loss": loss,
            "spent_joule": spent,
            "harvested_joule": harvested,
            "overflow_joule": overflow,
            "battery_joule": battery,
        }
        battery = after
        weather = [naive_pick(law.kernel[weather[i]], suns[i, 1]) for i in devices]
        level = [naive_pick(channel.kernel[now], u) for now, u in zip(level, moves, strict=True)]


@pytest.mark.parametrize(
    "changes",
    [
        {"energy.initial": "uniform"},
        IRREGULAR,
        {**WEATHER, "energy.initial": "uniform", "link.half_duplex": True},
        {**IRREGULAR, "channel.state": "reciprocal", "network.topology": "star", "cost.idle_penalty": 0.25},
        {**IRREGULAR, "channel.state": "link", "network.topology": "complete", "link.waterfall": 0.1},
        {**IRREGULAR, "energy.actions": "separate", "energy.compute_joule": 1.0, "link.half_duplex": True},
        {**IRREGULAR, **LOSSY["li-ion"]},
        {**IRREGULAR, **LOSSY["supercapacitor"], "energy.actions": "separate"},
        {**WEATHER, **LOSSY["own numbers"], "energy.initial": "uniform", "link.half_duplex": True},
    ],
)
def test_loop_equals_a_plain_simulator(changes):
    problem = problem_of(**changes, slots=70)
    record = simulated(problem, greedy(problem), episodes=[2, 3, 4], seed=5)
    for episode in range(3):
        for slot, expected in enumerate(naive_episode(problem, 2 + episode, seed=5)):
            for name, values in expected.items():
                actual = getattr(record, name)[episode, slot]
                np.testing.assert_allclose(actual, values, rtol=1e-9, atol=1e-9, err_msg=f"{name}, slot {slot}")


def test_loop_is_a_generator_that_can_be_stepped():
    problem = problem_of()
    steps = run_slots(problem, greedy(problem), [0, 1], seed=0)
    first, second = next(steps), next(steps)
    assert torch.equal(first.battery_after_joule, second.battery_joule)
    assert len(list(steps)) == problem.slots - 2


# energy


@pytest.mark.parametrize("changes", SCENARIOS.values(), ids=SCENARIOS)
@pytest.mark.parametrize(("planner", "options"), PLANNERS, ids=str)
def test_books_balance_for_every_planner(planner, options, changes):
    problem = problem_of(**{**SMALL, **changes})
    record = hm.simulate(problem, hm.plan(problem, planner, **options), episodes=4, seed=1)
    assert np.abs(hm.energy_ledger(record).imbalance_joule).max() <= 1e-9
    assert_lawful(problem, record)


@pytest.mark.parametrize("lossy", LOSSY.values(), ids=LOSSY)
@pytest.mark.parametrize(("planner", "options"), PLANNERS, ids=str)
def test_books_balance_with_losses_for_every_planner(planner, options, lossy):
    """Every joule is somewhere; nobody acts or hears in the dark, nor spends what the drain needs."""
    problem = problem_of(**{**SMALL, **IRREGULAR, "energy.compute_joule": 0.1, **lossy})
    record = hm.simulate(problem, hm.plan(problem, planner, **options), episodes=6, seed=1)
    storage, compute = PlainStorage(problem.scenario), compute_joule(problem.scenario)
    capacity = problem.battery.capacity_joule.tolist()
    leaked, charging, converter = np.zeros((3, *record.spent_joule.shape))
    for place in np.ndindex(record.spent_joule.shape):
        device, power, trained = place[2], record.power_watt[place], record.scheduled[place]
        due = trained * storage.training(device, compute[device]) + storage.sending(device, power)
        active = power > 0 or trained
        assert not active or due + storage.drain(device) <= record.battery_joule[place] + 1e-8
        spent = min(due + storage.drain(device), record.battery_joule[place])
        assert record.spent_joule[place] == pytest.approx(spent, abs=1e-8)
        left = record.battery_joule[place] - record.spent_joule[place]
        after, overflow, leaked[place], charging[place] = storage.after(
            device, left, record.harvested_joule[place], capacity[device]
        )
        assert record.battery_joule[place[0], place[1] + 1, device] == pytest.approx(after, abs=1e-9)
        assert record.overflow_joule[place] == pytest.approx(overflow, abs=1e-9)
        converter[place] = spent - trained * compute[device] - problem.scenario.energy.transmit_second * power
    ledger = hm.energy_ledger(record)
    assert np.abs(ledger.imbalance_joule).max() <= 1e-9
    np.testing.assert_allclose(ledger.leaked_joule, leaked.sum(1), atol=1e-9)
    np.testing.assert_allclose(ledger.charging_joule, charging.sum(1), atol=1e-9)
    parts = ledger.training_joule + ledger.sending_joule + ledger.standby_joule + ledger.converter_joule
    np.testing.assert_allclose(parts, ledger.spent_joule, atol=1e-9)
    assert (ledger.converter_joule >= -1e-8).all()
    assert (ledger.converter_joule <= converter.sum(1) + 1e-8).all()  # the rest of it was standing by
    dark = dark_slots(record)
    assert not record.delivered[dark[:, :, record.edge_receiver]].any()
    assert (record.error_prob[dark[:, :, record.edge_receiver]] == 1).all()


def test_a_dark_device_loses_the_packets_of_its_neighbours():
    """Device 1 has no energy at all; its neighbours, near and without noise, send to it in vain."""
    changes = {"network.devices": 3, "network.topology": "complete", "slots": 1, "link.noise_watt": 1e-9}
    energy = {"energy.initial": [3.0, 0.0, 3.0], "energy.sleep_watt": 0.5, "harvest.joule": [0.0, 0.0, 0.0]}
    problem = problem_of(**changes, **energy)
    record = simulated(problem, Constant((1.0, 0.0, 0.0)), episodes=4)
    heard = {(i, j): e for e, (i, j) in enumerate(zip(record.edge_receiver, record.edge_sender, strict=True))}
    assert not record.delivered[:, 0, heard[1, 0]].any()
    assert record.delivered[:, 0, heard[2, 0]].all()
    awake = problem_of(**{**changes, **energy, "energy.initial": [3.0, 0.5, 3.0]})  # just enough to listen
    heard_by_all = simulated(awake, Constant((1.0, 0.0, 0.0)), episodes=4)
    assert heard_by_all.delivered[:, 0, heard[1, 0]].all()
    lost = record.update_loss[:, 0, 0] - heard_by_all.update_loss[:, 0, 0]
    np.testing.assert_allclose(lost, problem.topology.edge_weight[heard[1, 0]], atol=1e-6)


def test_a_policy_that_acts_in_the_dark_is_caught():
    problem = problem_of(**{"energy.initial": 2.0, "energy.compute_joule": 1.0, "energy.sleep_watt": 0.1})
    with pytest.raises(
        hm.ScenarioError, match=r"Constant: expected to spend at most the 2 J .* actual spending 2.1 J"
    ):
        simulated(problem, Constant((1.0,) * 5), episodes=1)


def assert_lawful(problem, record):
    """No battery below zero, above capacity or overdrawn; every slot follows from the one before."""
    capacity = problem.battery.capacity_joule.numpy()
    dust = 3e-9 * capacity
    before, after = record.battery_joule[:, :-1], record.battery_joule[:, 1:]
    asked = record.scheduled * problem.compute_joule.numpy()
    asked = asked + record.power_watt * problem.scenario.energy.transmit_second
    assert (asked <= before + dust).all()
    assert (np.abs(asked - record.spent_joule) <= dust).all()
    assert (record.spent_joule <= before).all()
    assert record.battery_joule.min() >= 0
    assert (record.battery_joule <= capacity + dust).all()
    assert record.overflow_joule.min() >= 0
    filled = before - record.spent_joule + record.harvested_joule
    np.testing.assert_allclose(after, np.minimum(filled, capacity), atol=1e-12)
    np.testing.assert_allclose(record.overflow_joule, filled - after, atol=1e-9)


def test_nobody_overdraws_in_a_million_device_slots():
    device_slots = 0
    for planner, options, devices, episodes in (
        ("uncoordinated", {}, 5, 500),
        ("myopic", {"mode": "exhaustive"}, 3, 300),
        ("centralized", {}, 3, 300),
        ("decentralized", {"rounds": 1, "hops": 1}, 3, 300),
    ):
        problem = problem_of(slots=200, **{**IRREGULAR, "network.devices": devices})
        record = hm.simulate(problem, hm.plan(problem, planner, **options), episodes=episodes)
        assert_lawful(problem, record)
        assert record.scheduled.any()
        device_slots += record.spent_joule.size
    assert device_slots >= 1_000_000


def test_a_policy_that_overdraws_is_caught():
    problem = problem_of(**{"energy.initial": 1.0})
    with pytest.raises(hm.ScenarioError, match=r"Constant: expected to spend at most the 1 J .* actual spending"):
        simulated(problem, Constant((2.0,) * 5), episodes=1)


def test_dust_of_two_roundings_is_no_overdraft():
    """A battery just below a grid point and a spending just above it: both within the grid's tolerance."""
    changes = {
        "network.devices": 3,
        "slots": 2,
        "energy.capacity_joule": 1.0,
        "energy.battery_levels": 2,
        "energy.powers_watt": [0.0, 0.5],
        "energy.compute_joule": 0.5 + 0.9e-12,
        "energy.initial": 1 - 0.9e-9,
        "harvest.joule": [0.0],
        "harvest.prob": [1.0],
    }
    problem = problem_of(**changes)
    record = hm.simulate(problem, hm.plan(problem, "centralized"), episodes=1)
    assert record.scheduled[0, 0].any()
    assert_lawful(problem, record)


# random numbers


def test_every_planner_meets_the_same_weather():
    problem = problem_of(**SMALL, **WEATHER)
    records = [
        hm.simulate(problem, hm.plan(problem, planner, **options), episodes=3, seed=4)
        for planner, options in PLANNERS
    ]
    for record in records[1:]:
        np.testing.assert_array_equal(record.channel_level, records[0].channel_level)
        np.testing.assert_array_equal(record.harvested_joule, records[0].harvested_joule)
        np.testing.assert_array_equal(record.battery_joule[:, 0], records[0].battery_joule[:, 0])
    assert any((record.power_watt != records[0].power_watt).any() for record in records[1:])


def test_packets_meet_the_same_luck():
    """Where a packet's error rate is lower under another policy, whatever arrived still arrives."""
    problem = problem_of(slots=100, **{"harvest.joule": [4.0], "harvest.prob": [1.0], "energy.initial": 3.0})
    everyone = simulated(problem, Constant((2.0,) * 5), episodes=5)
    one = simulated(problem, Constant((0.0, 2.0, 0.0, 0.0, 0.0)), episodes=5)
    sent = one.edge_sender == 1
    assert (one.error_prob[..., sent] <= everyone.error_prob[..., sent]).all()
    assert everyone.delivered[..., sent].sum() < one.delivered[..., sent].sum()
    assert one.delivered[..., sent][everyone.delivered[..., sent]].all()


@pytest.mark.parametrize("changes", [IRREGULAR, WEATHER], ids=["irregular", "weather"])
def test_same_seed_same_trace_and_another_seed_another(changes):
    problem = problem_of(**changes)
    first, again, other = (simulated(problem, greedy(problem), episodes=6, seed=seed) for seed in (7, 7, 8))
    assert_equal(first, again)
    for name in ("channel_level", "harvested_joule", "battery_joule", "delivered"):
        assert (getattr(first, name) != getattr(other, name)).any()


def test_random_policy_is_repeatable():
    problem = problem_of(**SMALL)
    plan = hm.plan(problem, "decentralized", form="literal", rounds=1, hops=1)
    assert_equal(hm.simulate(problem, plan, episodes=5, seed=2), hm.simulate(problem, plan, episodes=5, seed=2))


def test_an_episode_is_the_same_alone_and_in_company():
    problem = problem_of(**WEATHER)
    together = simulated(problem, greedy(problem), episodes=6, seed=3)
    for episode in range(6):
        alone = simulated(problem, greedy(problem), episodes=[episode], seed=3)
        for name in ("channel_level", "harvested_joule", "battery_joule", "delivered", "update_loss"):
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(together, name)[episode])


def test_episodes_differ():
    record = simulated(problem := problem_of(**WEATHER), greedy(problem), episodes=20)
    for a, b in itertools.combinations(range(20), 2):
        assert (record.channel_level[a] != record.channel_level[b]).any()
        assert (record.harvested_joule[a] != record.harvested_joule[b]).any()


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_block_size_of_luck_does_not_matter(monkeypatch, block):
    problem = problem_of(slots=150, **WEATHER)
    expected = simulated(problem, greedy(problem), episodes=3)
    monkeypatch.setattr(slot_loop, "_BLOCK_SLOTS", block)
    assert_equal(simulated(problem, greedy(problem), episodes=3), expected)


@pytest.mark.parametrize("at_once", [1, 3, 5])
def test_episodes_at_once_do_not_matter(monkeypatch, at_once):
    problem = problem_of(**IRREGULAR)
    expected = simulated(problem, greedy(problem), episodes=5)
    monkeypatch.setattr(trace, "_EPISODES_AT_ONCE", at_once)
    assert_equal(simulated(problem, greedy(problem), episodes=5), expected)


# limits


def test_without_harvest_the_first_battery_is_all_there_is():
    problem = problem_of(slots=20, **{"harvest.joule": [0.0], "harvest.prob": [1.0]})
    record = simulated(problem, greedy(problem), episodes=20)
    assert (record.spent_joule.sum(1) <= record.battery_joule[:, 0]).all()
    assert not record.scheduled[:, 2:].any()  # three joules at most: one action, at the cost of two or three
    assert record.update_loss[:, 2:] == pytest.approx(1)


def test_with_plenty_everyone_always_sends_at_full_power():
    problem = problem_of(**{"harvest.joule": [3.0], "harvest.prob": [1.0], "energy.initial": 3.0})
    record = simulated(problem, greedy(problem), episodes=4)
    assert (record.power_watt == 2).all()
    assert (record.battery_joule == 3).all()


def test_perfect_links_lose_nothing():
    """Two devices hear nobody but each other; without noise every packet arrives and only idling costs."""
    problem = problem_of(**{"network.devices": 2, "link.noise_watt": 1e-300})
    record = simulated(problem, greedy(problem), episodes=50)
    sent = record.scheduled[..., record.edge_sender]
    np.testing.assert_array_equal(record.delivered, sent)
    np.testing.assert_allclose(record.update_loss, ~record.scheduled, atol=1e-12)


def test_overwhelming_noise_loses_everything_but_ones_own():
    problem = problem_of(**{"link.noise_watt": 1e300, "harvest.joule": [3.0], "harvest.prob": [1.0]})
    record = simulated(problem, greedy(problem), episodes=4)
    assert not record.delivered.any()
    np.testing.assert_allclose(record.update_loss[record.scheduled], 2 / 3)
    np.testing.assert_allclose(record.update_loss[~record.scheduled], 1)


@pytest.mark.parametrize(("penalty", "cost"), [(1.0, 5.0), (0.5, 5 * 5 / 6), (0.0, 5 * 2 / 3)])
def test_idle_network_pays_the_whole_weight(penalty, cost):
    record = simulated(problem_of(**{"cost.idle_penalty": penalty}), Constant((0.0,) * 5), episodes=3)
    np.testing.assert_allclose(record.cost, cost)
    assert not record.delivered.any()
    assert not record.spent_joule.any()


def test_the_cost_of_all_four_kinds_of_action():
    """c_t = Σ_j a_jj (1 − β_j) + Σ_i Σ_j a_ij q_ij, added up by hand."""
    changes = {"energy.actions": "separate", "harvest.joule": [3.0], "harvest.prob": [1.0], "energy.initial": 3.0}
    problem = problem_of(**changes, slots=3)
    policy = Constant((1.0, 0.0, 1.0, 0.0, 0.0), (True, True, False, False, True))
    record, graph = simulated(problem, policy, episodes=2), problem.topology
    missed = (graph.edge_weight * record.error_prob).sum(-1)
    np.testing.assert_allclose(record.update_loss.sum(-1), 2 / 3 + missed, rtol=1e-13)
    np.testing.assert_allclose(record.update_loss[..., 3], 1.0)  # silent and untrained
    np.testing.assert_allclose(record.update_loss[..., 1], 2 / 3)  # trains, does not send


def test_training_without_sending_keeps_ones_own_weight():
    problem = problem_of(**{"harvest.joule": [3.0], "harvest.prob": [1.0], "energy.initial": 3.0})
    record = simulated(problem, Constant((0.0,) * 5, (True,) * 5), episodes=2)
    np.testing.assert_allclose(record.update_loss, 2 / 3)
    assert (record.spent_joule == 1).all()
    assert not record.delivered.any()


def test_half_duplex_with_everyone_sending_delivers_nothing():
    plenty = {"harvest.joule": [3.0], "harvest.prob": [1.0], "energy.initial": 3.0}
    record = simulated(problem_of(**plenty, **{"link.half_duplex": True}), Constant((2.0,) * 5), episodes=2)
    assert (record.error_prob == 1).all()
    assert not record.delivered.any()
    np.testing.assert_allclose(record.update_loss, 2 / 3)


@pytest.mark.parametrize(
    "network",
    [{"network.devices": 1}, {"network.topology": "edges", "network.edges": [], "network.allow_disconnected": True}],
    ids=["one device", "no neighbours"],
)
def test_alone_only_idling_costs(network):
    problem = problem_of(**network)
    record = simulated(problem, greedy(problem), episodes=10)
    assert record.delivered.shape == (10, 12, 0)
    np.testing.assert_array_equal(record.update_loss, (~record.scheduled).astype(float))


def test_one_channel_level_never_changes():
    problem = problem_of(**{"channel.gains": [1.0], "channel.kernel": [[1.0]]})
    record = simulated(problem, greedy(problem), episodes=5)
    assert not record.channel_level.any()
    assert len(np.unique(record.error_prob.round(9))) <= 1 + 2 * 3  # silent, or own power against the rival's


def test_one_battery_level_plans_idling_but_the_battery_stays_continuous():
    problem = problem_of(**{**SMALL, "energy.battery_levels": 1, "energy.initial": "uniform"})
    planned = hm.simulate(problem, hm.plan(problem, "centralized"), episodes=5)
    assert not planned.scheduled.any()
    assert simulated(problem, greedy(problem), episodes=5).scheduled.any()
    assert_lawful(problem, planned)


def test_one_slot():
    problem = problem_of(slots=1)
    record = simulated(problem, greedy(problem), episodes=3)
    assert record.battery_joule.shape == (3, 2, 5)
    np.testing.assert_allclose(record.cost, record.update_loss.sum((1, 2)))


# planner and simulator agree


@pytest.mark.parametrize("planner", ["uncoordinated", "centralized"])
def test_mean_cost_is_the_exact_cost_on_the_grid(planner):
    problem = problem_of(**SMALL, **{"energy.capacity_joule": 2.0})
    plan = hm.plan(problem, planner)
    cost = hm.simulate(problem, plan, episodes=2000, seed=9).cost
    exact = hm.exact_cost(problem, plan.policy)
    assert abs(cost.mean() - exact) <= 5 * cost.std(ddof=1) / math.sqrt(len(cost))
    if plan.expected_cost is not None:
        assert plan.expected_cost == pytest.approx(exact, abs=1e-9)
