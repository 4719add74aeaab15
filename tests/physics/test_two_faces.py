"""One model, two faces: what the simulator samples follows the law that planners use, for every random model.

Seeds are fixed, and every bound is about five standard deviations wide.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

import heliomesh as hm
from heliomesh.common import catalog
from heliomesh.model.factor import energy
from heliomesh.physics.battery import Battery, initial_battery, initial_level_law
from heliomesh.physics.harvesting import HarvestLaw
from heliomesh.physics.storage import Losses
from heliomesh.scenario.schema import HARVEST_CATALOG, STORAGE_CATALOG
from heliomesh.simulation.slot_loop import run_slots

SOURCES = catalog.names(HARVEST_CATALOG)
DRAWS = 20_000
FIVE_SIGMA = 6e-7  # two-sided tail probability

# settings of every harvest source; a new source needs an entry here, online data are not for tests
WEATHER = {
    "kernel": [[0.9, 0.1], [0.4, 0.6]],
    "joule": [[0.0, 1.0], [0.5, 2.0, 3.0]],
    "prob": [[0.7, 0.3], [0.2, 0.5, 0.3]],
}
EXAMPLES = {
    "table": [
        {"joule": [0.0, 1.0, 2.0], "prob": [0.4, 0.4, 0.2]},
        {"joule": [0.7], "prob": [1.0]},
        {"joule": [0.0, 1.0, 5.0], "prob": [0.5, 0.5, 0.0], "scale": [0.0, 0.5, 1.0, 2.0, 3.0]},
    ],
    "markov": [WEATHER, {"kernel": [[1.0]], "joule": [[1.0, 2.0]], "prob": [[0.25, 0.75]]}],
    "trace": [
        {"joule": [0.0, 1.0, 1.0, 3.0]},
        {"joule": [0.0, 1.0, 2.0], "start": 1, "scale": 0.5},
        {"joule": [math.sqrt(k) for k in range(300)]},
    ],
    "solar": [
        {},
        {"law": "time-of-day", "panel_cm2": [5.0, 10.0, 15.0, 20.0, 25.0]},
        {"law": "trace"},
        {"law": "trace", "start": 700},
        {"law": "weather", "hours": [0, 24], "start": "09:00"},
        {"data": "clear-sky", "latitude": 36.3, "longitude": -76.2},
    ],
}
HARVESTS = [
    pytest.param(source, settings, id=f"{source}{number}")
    for source in SOURCES
    for number, settings in enumerate(EXAMPLES.get(source, []))
]


def uniform(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).random(shape))


def assert_follows(outcomes, prob):
    """Chi-square test of outcome indices against probabilities; the impossible never happens."""
    counts = np.bincount(np.asarray(outcomes).ravel(), minlength=len(prob))
    prob = np.asarray(prob, dtype=np.float64)
    assert len(counts) == len(prob)
    assert counts[prob <= 1e-15].sum() == 0
    possible = prob > 1e-15
    if possible.sum() > 1:
        expected = prob[possible] / prob[possible].sum() * counts.sum()
        assert stats.chisquare(counts[possible], expected).pvalue > FIVE_SIGMA


def assert_mean(samples, mean):
    samples = np.asarray(samples, dtype=np.float64)
    spread = samples.std() / math.sqrt(samples.size)
    assert abs(samples.mean() - mean) <= 5 * spread + 1e-9 * max(1.0, abs(mean))


def problem_of(**changes):
    return hm.build(hm.Scenario.load("tiny").override(changes))


def harvest_of(source, settings, **changes):
    section = {f"harvest.{key}": value for key, value in settings.items()}
    return problem_of(**{"harvest.source": source, **section, **changes}).harvest


def grouped_law(harvest, slot, weather, device):
    """Distinct energies [J] of a device in a slot and their probabilities."""
    law = harvest.law
    phase = law.phase_of_slot[slot]
    joule = (law.scale[device] * law.joule[phase, weather]).numpy()
    values, which = np.unique(joule, return_inverse=True)
    return values, np.bincount(which, weights=law.prob[phase, weather].numpy())


# channel


@pytest.mark.parametrize("state", ["receiver", "link", "reciprocal"])
@pytest.mark.parametrize(
    "source",
    [
        {"channel.source": "rayleigh", "channel.levels": 4, "channel.doppler_slot": 0.1},
        {"channel.source": "rayleigh", "channel.levels": 1},
        {"channel.gains": [0.1, 0.5, 2.0], "channel.kernel": [[0.6, 0.3, 0.1], [0.0, 0.9, 0.1], [0.5, 0.5, 0.0]]},
    ],
    ids=["rayleigh", "one level", "table"],
)
def test_channel_steps_follow_the_kernel(source, state):
    channel = problem_of(**source, **{"channel.state": state}).channel
    drawn = uniform(3, DRAWS // 5, channel.num_sites)
    level = channel.initial(drawn[0])
    assert_follows(level, channel.stationary)
    for now in range(channel.levels):
        start = torch.full_like(level, now)
        after = channel.step(start, drawn[1])
        assert_follows(after, channel.kernel[now])
    again = channel.step(channel.step(level, drawn[1]), drawn[2])
    assert_follows(again, channel.stationary)


@pytest.mark.parametrize("state", ["receiver", "link", "reciprocal"])
def test_channel_inside_the_slot_loop_follows_the_kernel(state):
    problem = problem_of(slots=100, **{"channel.state": state})
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated"), episodes=100)
    level = trace.channel_level
    assert level.shape == (100, 100, problem.channel.num_sites)
    for now in range(problem.channel.levels):
        assert_follows(level[:, 1:][level[:, :-1] == now], problem.channel.kernel[now])
    assert_follows(level[:, 0], problem.channel.stationary)
    for a, b in itertools.combinations(range(min(problem.channel.num_sites, 4)), 2):
        together = level[:, 0, a] == level[:, 0, b]  # two levels of equal probability, independent sites
        assert abs(together.mean() - 0.5) <= 5 * 0.5 / math.sqrt(100)


# harvest: contracts of every source


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_has_settings_build_and_example(source):
    module = catalog.find(HARVEST_CATALOG, source)
    assert module.Settings.model_fields["source"].annotation.__args__ == (source,)
    assert callable(module.build)
    assert module.__doc__
    assert source in EXAMPLES, f"add example settings of harvest source {source!r} to this file"


@pytest.mark.parametrize(("source", "settings"), HARVESTS)
def test_every_law_is_one(source, settings):
    law = harvest_of(source, settings, slots=30).law
    assert isinstance(law, HarvestLaw)
    phases, weathers, _ = law.joule.shape
    assert law.prob.shape == law.joule.shape
    assert law.kernel.shape == (weathers, weathers)
    assert law.scale.shape == (5,)
    assert law.phase_of_slot.shape == (30,)
    assert set(law.phase_of_slot.tolist()) <= set(range(phases))
    for values in (law.joule, law.prob, law.kernel, law.scale):
        assert torch.isfinite(values).all()
        assert (values >= 0).all()
    np.testing.assert_allclose(law.prob.sum(-1), 1, atol=1e-9)
    np.testing.assert_allclose(law.kernel.sum(-1), 1, atol=1e-9)


@pytest.mark.parametrize(("source", "settings"), HARVESTS)
def test_harvest_steps_follow_the_law(source, settings):
    slots = 40
    harvest = harvest_of(source, settings, slots=slots, **{"energy.slot_second": 900.0})
    devices = 5
    for slot in (0, 1, slots - 1):
        hidden = harvest.start(uniform(DRAWS, devices, seed=1))
        if not isinstance(harvest, HarvestLaw):  # a replay moves along its series
            for before in range(slot):
                _, hidden = harvest.step(before, hidden, uniform(1, 1, 2))
        weather = harvest.weather(hidden)
        assert_follows(weather, harvest.law.stationary)
        joule, after = harvest.step(slot, hidden, uniform(DRAWS, devices, 2, seed=2))
        assert joule.shape == after.shape == (DRAWS, devices)
        for now, device in itertools.product(range(harvest.law.num_weather), (0, devices - 1)):
            seen = weather[:, device] == now
            values, prob = grouped_law(harvest, slot, now, device)
            assert_samples(joule[seen, device].numpy(), values, prob)
            assert_follows(harvest.weather(after)[seen, device], harvest.law.kernel[now])


def assert_samples(samples, values, prob):
    """Samples follow a finite law, or one whose equal shares of 1/64 the law represents by their means."""
    assert_mean(samples, float(values @ prob))
    index = np.clip(np.searchsorted(values, samples), 0, len(values) - 1)
    if np.allclose(values[index], samples, rtol=0, atol=1e-12):
        assert_follows(index, prob)
        return
    below = np.searchsorted(np.sort(samples), values, side="right") / len(samples)
    assert np.abs(below - np.cumsum(prob)).max() <= 1 / 64 + 2.7 / math.sqrt(len(samples))


@pytest.mark.parametrize(("source", "settings"), HARVESTS)
def test_mean_over_the_horizon(source, settings):
    slots = 60
    harvest = harvest_of(source, settings, slots=slots, **{"energy.slot_second": 600.0})
    hidden, total = harvest.start(uniform(4000, 5, seed=3)), torch.zeros(4000, 5, dtype=torch.float64)
    for slot in range(slots):
        joule, hidden = harvest.step(slot, hidden, uniform(4000, 5, 2, seed=10 + slot))
        total += joule
    for device in range(5):
        assert_mean(total[:, device] / slots, float(harvest.law.mean_joule()[device]))


def test_harvest_and_next_weather_are_independent_given_the_weather():
    harvest = harvest_of("markov", WEATHER)
    joule, after = harvest.step(0, torch.ones(DRAWS, 5, dtype=torch.long), uniform(DRAWS, 5, 2, seed=4))
    for value, prob in zip(*grouped_law(harvest, 0, 1, 0), strict=True):
        if prob > 0:
            assert_follows(after[joule == value], harvest.law.kernel[1])


def test_devices_harvest_independently():
    harvest = harvest_of("table", EXAMPLES["table"][0])
    joule, _ = harvest.step(0, torch.zeros(DRAWS, 5, dtype=torch.long), uniform(DRAWS, 5, 2, seed=5))
    correlation = np.corrcoef(joule.numpy().T) - np.eye(5)
    assert np.abs(correlation).max() < 5 / math.sqrt(DRAWS)


# battery

ALIGNED = [
    ("table", EXAMPLES["table"][0]),
    ("table", {"joule": [0.0, 1.0, 4.0], "prob": [0.3, 0.3, 0.4], "scale": 2.0}),
    ("markov", {**WEATHER, "joule": [[0.0, 1.0], [1.0, 2.0, 3.0]]}),
    ("trace", {"joule": [0.0, 1.0, 1.0, 3.0]}),
]


def ideal(capacity, levels):
    """Five equal batteries that lose nothing."""
    one = torch.ones(5, dtype=torch.float64)
    return Battery(capacity * one, Losses(one, one, 0 * one), levels)


@pytest.mark.parametrize(("source", "settings"), ALIGNED, ids=str)
@pytest.mark.parametrize("levels", [1, 4, 7])
def test_battery_steps_follow_the_kernel_on_the_grid(source, settings, levels):
    harvest = harvest_of(source, settings)
    battery = ideal(max(levels - 1, 1), levels)  # steps of 1 J
    kernel = battery.kernel(harvest.law, 0)
    hidden = harvest.start(uniform(DRAWS // 5, 5, seed=6))
    joule, _ = harvest.step(0, hidden, uniform(DRAWS // 5, 5, 2, seed=7))
    weather = harvest.weather(hidden)
    for left, spent in itertools.product(range(levels), (0.0, 1.0)):
        now = torch.full_like(joule, left + spent)
        _, after, _ = battery.step(now, torch.full_like(joule, spent), joule)
        for seen in range(harvest.law.num_weather):
            assert_follows(battery.level(after)[weather == seen], kernel[0, seen, left])


@pytest.mark.parametrize("capacity", [2.9, 7.3])
def test_grid_keeps_the_mean_of_the_continuous_battery(capacity):
    harvest = harvest_of("table", {"joule": [0.0, 0.37, 0.61], "prob": [0.3, 0.5, 0.2]})
    battery = ideal(capacity, 4)
    joule, _ = harvest.step(0, torch.zeros(DRAWS, 5, dtype=torch.long), uniform(DRAWS, 5, 2, seed=8))
    grid = torch.arange(4, dtype=torch.float64) * battery.step_joule[0]
    for left in range(3):  # from the top it overflows
        _, after, _ = battery.step(grid[left].expand(DRAWS, 5), torch.zeros(DRAWS, 5), joule)
        assert_mean(after, float(battery.kernel(harvest.law, 0)[0, 0, left] @ grid))


@pytest.mark.parametrize("initial", ["uniform", "uniform-grid", 1.7, [0.0, 1.0, 2.9, 3.0, 0.5]])
@pytest.mark.parametrize("levels", [1, 2, 4, 9])
def test_first_battery_follows_its_law(initial, levels):
    problem = problem_of(**{"energy.initial": initial, "energy.battery_levels": levels})
    joule = initial_battery(problem.scenario, problem.battery, uniform(DRAWS, 5, seed=9))
    assert ((joule >= 0) & (joule <= problem.battery.capacity_joule * (1 + 1e-12))).all()
    law = initial_level_law(problem.scenario, problem.battery)
    for device in range(5):
        assert_follows(problem.battery.level(joule)[:, device], law[device])


def test_energy_inside_the_slot_loop_follows_the_problem_kernel():
    """Weather and battery together, as planners see them, against simulated slots."""
    weather = {f"harvest.{key}": value for key, value in ALIGNED[2][1].items()}
    problem = problem_of(slots=50, **{"harvest.source": "markov", **weather})
    levels, moves = problem.battery.levels, [[] for _ in range(problem.num_energy)]
    slots = list(run_slots(problem, hm.plan(problem, "uncoordinated").policy, list(range(200)), seed=0))
    for now, then in itertools.pairwise(slots):
        left = now.weather * levels + problem.battery.level(now.battery_joule - now.spent_joule)
        after = then.weather * levels + problem.battery.level(then.battery_joule)
        for state in range(problem.num_energy):
            moves[state].append(after[left == state].numpy())
    for state, after in enumerate(map(np.concatenate, moves)):
        if len(after) > 100:
            assert_follows(after, problem.kernel(energy(0), 0)[state])
    start = slots[0].weather * levels + problem.battery.level(slots[0].battery_joule)
    assert_follows(start, problem.initial_law(energy(0)))


# storage: contracts of every law

STORAGE_LAWS = catalog.names(STORAGE_CATALOG)
LEAKY = {"energy.leak_per_day": 0.6, "energy.charge_efficiency": 0.8, "energy.slot_second": 43200.0}
TABLE = {f"harvest.{key}": value for key, value in EXAMPLES["table"][0].items()}


def leaking(law, **changes):
    drain = {"energy.sleep_watt": 0.2 / 43200}
    return problem_of(**{"storage.source": law, "harvest.source": "table", **LEAKY, **TABLE, **drain, **changes})


@pytest.mark.parametrize("law", STORAGE_LAWS)
def test_every_storage_law_has_settings_and_build(law):
    module = catalog.find(STORAGE_CATALOG, law)
    assert module.Settings.model_fields["source"].annotation.__args__ == (law,)
    assert callable(module.build)
    assert module.__doc__


@pytest.mark.parametrize("law", STORAGE_LAWS)
@pytest.mark.parametrize("levels", [2, 5])
def test_the_grid_keeps_the_mean_of_every_storage_law(law, levels):
    problem = leaking(law, **{"energy.capacity_joule": 7.3, "energy.battery_levels": levels})
    battery, kernel = problem.battery, problem.battery.kernel(problem.harvest.law, 0)
    joule, _ = problem.harvest.step(0, torch.zeros(DRAWS, 5, dtype=torch.long), uniform(DRAWS, 5, 2, seed=8))
    grid = torch.arange(levels, dtype=torch.float64) * battery.step_joule[0]
    for left in range(levels - 1):  # from the top it overflows
        _, after, overflow = battery.step(grid[left].expand(DRAWS, 5), battery.losses.drain_joule, joule)
        if not overflow.any():
            assert_mean(after, float(kernel[0, 0, left] @ grid))


@pytest.mark.parametrize("law", STORAGE_LAWS)
def test_every_storage_law_leaves_more_of_more_and_at_most_what_its_linear_law_leaves(law):
    battery = leaking(law).battery
    now = (battery.capacity_joule * torch.linspace(0, 1, 200, dtype=torch.float64).unsqueeze(1)).contiguous()
    nothing = torch.zeros_like(now)
    _, after, _ = battery.step(now, nothing, nothing)
    _, most, _ = dataclasses.replace(battery, losses=battery.losses.linear).step(now, nothing, nothing)
    assert (after.diff(dim=0) > 0).all()
    assert ((after >= 0) & (after <= most)).all()
    by_array = battery.step(now.numpy(), nothing.numpy(), nothing.numpy())
    for one, other in zip(by_array, battery.step(now, nothing, nothing), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("law", STORAGE_LAWS)
def test_books_balance_under_every_storage_law_and_no_plan_is_below_the_bound(law):
    problem = leaking(law, slots=20)
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated"), episodes=40)
    ledger = hm.energy_ledger(trace)
    assert np.abs(ledger.imbalance_joule).max() < 1e-9
    assert (ledger.leaked_joule > 0).all()
    assert trace.cost.mean() > hm.lower_bound(problem)
    assert hm.Scenario.from_toml(trace.scenario_toml) == problem.scenario


# link


@pytest.mark.parametrize("half_duplex", [False, True])
def test_delivered_frequency_is_one_minus_the_error(half_duplex):
    problem = problem_of(slots=100, **{"link.half_duplex": half_duplex, "link.waterfall": 0.3})
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated"), episodes=200)
    arrived, error = trace.delivered, trace.error_prob
    assert not arrived[error == 1].any()
    values = np.unique(error.round(12))
    assert len(values) > 3
    for value in values:
        chosen = np.abs(error - value) < 1e-9
        surprise = (arrived[chosen] - (1 - error[chosen])).sum()
        spread = math.sqrt((error[chosen] * (1 - error[chosen])).sum())
        assert abs(surprise) <= 5 * spread + 1e-6


def test_packets_are_independent_given_their_errors():
    problem = problem_of(slots=100, **{"link.waterfall": 0.3})
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated"), episodes=200)
    residual = (trace.delivered - (1 - trace.error_prob)).reshape(-1, problem.topology.num_edges)
    variance = (trace.error_prob * (1 - trace.error_prob)).reshape(residual.shape)
    for e, f in itertools.combinations(range(problem.topology.num_edges), 2):
        spread = math.sqrt((variance[:, e] * variance[:, f]).sum())
        assert abs((residual[:, e] * residual[:, f]).sum()) <= 5 * spread
