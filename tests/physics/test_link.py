"""Packet errors: the vectorised equation against nested loops, limits and hand-solved links."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heliomesh as hm
from heliomesh.physics.link import Radio, build_link, error_prob, waterfall_error
from heliomesh.physics.topology import build_topology
from heliomesh.scenario.scenario import Scenario


def scenario_of(network, link=None, channel=None):
    harvest = {"source": "table", "joule": [1.0], "prob": [1.0]}
    return Scenario.parse({"network": network, "link": link or {}, "channel": channel or {}, "harvest": harvest})


def graph(devices, edges):
    network = {"topology": "edges", "devices": devices, "edges": edges, "allow_disconnected": True}
    return build_topology(scenario_of(network))


def link_of(topology, waterfall=1.0, noise=0.1, gain=1.0, half_duplex=False):
    def spread(value, count):
        return torch.as_tensor(np.broadcast_to(value, count).copy(), dtype=torch.float64)

    return Radio(waterfall, spread(noise, topology.num_devices), spread(gain, topology.num_edges), half_duplex)


def naive_errors(link, topology, power, fading):
    """q_ij = 1 − exp(−φ (Σ_{j'∈N_i∖j} p_j' h_ij' + σ_i²) / (p_j h_ij)), term by term."""
    gain = {}
    for e in range(topology.num_edges):
        i, j = int(topology.edge_receiver[e]), int(topology.edge_sender[e])
        gain[i, j] = float(fading[e]) * float(link.path_gain[e])
    errors = []
    for i, j in gain:
        signal = power[j] * gain[i, j]
        disturbance = float(link.noise_watt[i])
        for other in topology.neighbours[i]:
            if other != j:
                disturbance += power[other] * gain[i, other]
        if signal == 0 or (link.half_duplex and power[i] > 0):
            errors.append(1.0)
        else:
            errors.append(-math.expm1(-link.waterfall * disturbance / signal))
    return errors


@st.composite
def situations(draw, low=-2.0, high=2.0):
    """A graph with radio constants, and powers and fading for a few episodes."""
    devices = draw(st.integers(1, 6))
    pairs = list(itertools.combinations(range(devices), 2))
    topology = graph(devices, draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else [])
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    link = link_of(
        topology,
        waterfall=draw(st.sampled_from([0.1, 0.7, 2.0])),
        noise=10 ** rng.uniform(low, high, devices),
        gain=10 ** rng.uniform(low, high, topology.num_edges),
        half_duplex=draw(st.booleans()),
    )
    power = rng.choice([0.0, 1.0], (3, devices)) * 10 ** rng.uniform(low, high, (3, devices))
    return link, topology, power, 10 ** rng.uniform(low, high, (3, topology.num_edges))


# fast equals slow


@settings(max_examples=100, deadline=None)
@given(situations())
def test_errors_equal_the_equation_in_plain_loops(situation):
    link, topology, power, fading = situation
    fast = error_prob(link, topology, torch.from_numpy(power), torch.from_numpy(fading))
    assert fast.shape == fading.shape
    for episode in range(3):
        slow = naive_errors(link, topology, power[episode].tolist(), fading[episode])
        np.testing.assert_allclose(fast[episode], slow, rtol=1e-9, atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(situations(low=-12.0, high=12.0))
def test_extreme_gains_stay_probabilities(situation):
    link, topology, power, fading = situation
    error = error_prob(link, topology, torch.from_numpy(power), torch.from_numpy(fading))
    assert torch.isfinite(error).all()
    assert ((error >= 0) & (error <= 1)).all()
    silent = torch.from_numpy(power[:, topology.edge_sender] == 0)
    assert (error[silent] == 1).all()


@pytest.mark.parametrize("signal", [0.0, 5e-324, 1e-300, 1e300])
@pytest.mark.parametrize("disturbance", [5e-324, 1e-300, 1.0, 1e300])
def test_waterfall_at_the_ends_of_the_number_line(signal, disturbance):
    error = waterfall_error(*torch.tensor([[signal], [disturbance]], dtype=torch.float64), waterfall=1.0)
    assert 0 <= error.item() <= 1
    if signal == 0:
        assert error.item() == 1


# analytic


@pytest.mark.parametrize("waterfall", [0.1, 1.0, 2.0])
def test_two_devices_by_hand(waterfall):
    link = link_of(graph(2, [[0, 1]]), waterfall=waterfall, noise=[0.3, 0.5])
    power = torch.tensor([2.0, 0.25], dtype=torch.float64)
    fading = torch.tensor([1.5, 0.8], dtype=torch.float64)  # into 0, into 1
    expected = [1 - math.exp(-waterfall * 0.3 / (0.25 * 1.5)), 1 - math.exp(-waterfall * 0.5 / (2 * 0.8))]
    np.testing.assert_allclose(error_prob(link, graph(2, [[0, 1]]), power, fading), expected, rtol=1e-14)


def test_a_hub_hears_the_sum_of_the_others():
    topology = graph(4, [[0, 1], [0, 2], [0, 3]])
    power = torch.tensor([0.0, 1.0, 2.0, 4.0], dtype=torch.float64)
    error = error_prob(link_of(topology, noise=0.5), topology, power, torch.ones(6, dtype=torch.float64))
    into_hub = [1 - math.exp(-6.5 / 1), 1 - math.exp(-5.5 / 2), 1 - math.exp(-3.5 / 4)]
    np.testing.assert_allclose(error, [*into_hub, 1, 1, 1], rtol=1e-14)


def test_nobody_sends_nothing_arrives():
    topology = graph(3, [[0, 1], [1, 2]])
    error = error_prob(link_of(topology), topology, torch.zeros(3, dtype=torch.float64), torch.ones(4).double())
    assert error.tolist() == [1, 1, 1, 1]


def test_a_dead_channel_delivers_nothing():
    topology = graph(2, [[0, 1]])
    error = error_prob(link_of(topology), topology, torch.ones(2).double(), torch.zeros(2).double())
    assert error.tolist() == [1, 1]


@pytest.mark.parametrize("sending", list(itertools.product([0.0, 1.0], repeat=3)))
def test_half_duplex_deafens_exactly_the_senders(sending):
    topology = graph(3, [[0, 1], [1, 2], [0, 2]])
    power, fading = torch.tensor(sending, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    full = error_prob(link_of(topology), topology, power, fading)
    half = error_prob(link_of(topology, half_duplex=True), topology, power, fading)
    for e in range(6):
        assert half[e] == (1 if sending[topology.edge_receiver[e]] > 0 else full[e])


# limits


def test_perfect_link_without_noise_and_interference():
    topology = graph(2, [[0, 1]])
    error = error_prob(link_of(topology, noise=1e-300), topology, torch.ones(2).double(), torch.ones(2).double())
    assert error.max() < 1e-250


@pytest.mark.parametrize("rivals", [1, 2, 3])
def test_zero_noise_limit_is_the_ratio_of_powers(rivals):
    """Equal senders without noise: q → 1 − exp(−φ · number of rivals)."""
    topology = graph(rivals + 2, [[0, i] for i in range(1, rivals + 2)])
    power = torch.ones(rivals + 2, dtype=torch.float64)
    link = link_of(topology, waterfall=0.7, noise=1e-200)
    error = error_prob(link, topology, power, torch.ones(topology.num_edges, dtype=torch.float64))
    np.testing.assert_allclose(error[: rivals + 1], 1 - math.exp(-0.7 * rivals), rtol=1e-12)


def test_no_neighbours_no_packets():
    topology = graph(3, [])
    power, fading = torch.ones(4, 3, dtype=torch.float64), torch.ones(4, 0, dtype=torch.float64)
    assert error_prob(link_of(topology), topology, power, fading).shape == (4, 0)


def test_own_power_helps_and_a_rival_harms():
    topology = graph(3, [[0, 1], [0, 2]])
    link, fading = link_of(topology), torch.ones(4, dtype=torch.float64)
    power = torch.tensor([[0.0, p, 1.0] for p in (0.1, 0.5, 2.0, 9.0)], dtype=torch.float64)
    error = error_prob(link, topology, power, fading.expand(4, -1))
    assert (error[1:, 0] < error[:-1, 0]).all()
    assert (error[1:, 1] > error[:-1, 1]).all()


@given(st.floats(1e-6, 1e6))
@settings(max_examples=30, deadline=None)
def test_only_ratios_of_power_to_noise_matter(factor):
    topology = graph(4, [[0, 1], [1, 2], [2, 3], [3, 0]])
    fading = torch.linspace(0.2, 2.0, 8, dtype=torch.float64)
    power = torch.tensor([0.1, 0.0, 0.4, 1.0], dtype=torch.float64)
    plain = error_prob(link_of(topology, noise=0.2), topology, power, fading)
    scaled = error_prob(link_of(topology, noise=0.2 * factor), topology, power * factor, fading)
    np.testing.assert_allclose(scaled, plain, rtol=1e-9)


# from a scenario


@pytest.mark.parametrize(("metre", "loss_db"), [(1000.0, 148.0), (100.0, 108.0), (10.0, 68.0), (0.01, 28.0)])
def test_path_loss_by_hand(metre, loss_db):
    scenario = scenario_of({"devices": 2, "link_metre": metre}, {"path_loss": "log-distance"})
    gain = build_link(scenario, build_topology(scenario)).path_gain
    np.testing.assert_allclose(10 * torch.log10(gain), -loss_db, rtol=1e-9)


def test_path_loss_of_a_star_of_two_is_that_of_a_ring_of_two():
    gains = []
    for kind in ("ring", "star"):
        scenario = scenario_of({"topology": kind, "devices": 2}, {"path_loss": "log-distance"})
        gains.append(build_link(scenario, build_topology(scenario)).path_gain)
    np.testing.assert_allclose(gains[0], gains[1], rtol=1e-9)


@pytest.mark.parametrize("kind", ["ring", "complete", "regular", "star", "grid"])
def test_links_of_any_graph_are_link_metre_long(kind):
    scenario = scenario_of({"topology": kind, "devices": 6, "link_metre": 80.0}, {"path_loss": "log-distance"})
    topology = build_topology(scenario)
    np.testing.assert_allclose(topology.edge_metre, 80.0, rtol=1e-12)
    expected = 10 ** (-(148 + 40 * np.log10(0.08)) / 10)
    np.testing.assert_allclose(build_link(scenario, topology).path_gain, expected, rtol=1e-9)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_numbers_of_devices_do_not_decide_path_loss(seed):
    """The same ring, drawn and written as links between renumbered devices."""
    number = np.random.default_rng(seed).permutation(10).tolist()
    edges = [[number[i], number[(i + 1) % 10]] for i in range(10)]
    radio = {"path_loss": "log-distance", "noise_watt": 2e-14}
    ring, renumbered = (
        scenario_of({"devices": 10}, radio),
        scenario_of({"topology": "edges", "devices": 10, "edges": edges}, radio),
    )
    gains = [np.sort(build_link(scenario, build_topology(scenario)).path_gain) for scenario in (ring, renumbered)]
    np.testing.assert_allclose(gains[1], gains[0], rtol=1e-9)
    bounds = [hm.lower_bound(hm.build(scenario.override({"slots": 5}))) for scenario in (ring, renumbered)]
    assert bounds[1] == pytest.approx(bounds[0], rel=1e-9)
    assert 0 < bounds[0] < 9


def test_links_that_noise_drowns():
    """150 m at 148 + 40 log10(d_km) dB lose 115 dB: the default noise of 10 mW drowns everything, 20 fW nothing."""
    drowned = hm.build(scenario_of({"devices": 3}, {"path_loss": "log-distance"}))
    assert drowned.deaf.tolist() == [True] * 6
    heard = hm.build(scenario_of({"devices": 3}, {"path_loss": "log-distance", "noise_watt": 2e-14}))
    assert heard.deaf.tolist() == [False] * 6
    half = hm.build(scenario_of({"devices": 3}, {"path_loss": "log-distance", "noise_watt": [2e-14, 2e-14, 0.01]}))
    assert half.deaf.tolist() == [i == 2 for i in half.topology.edge_receiver]


def test_gain_and_noise_belong_to_receivers():
    scenario = scenario_of({"devices": 3}, {"noise_watt": [0.1, 0.2, 0.3]}, {"gain": [1.0, 2.0, 4.0]})
    topology = build_topology(scenario)
    link = build_link(scenario, topology)
    assert link.noise_watt.tolist() == [0.1, 0.2, 0.3]
    assert link.path_gain.tolist() == [[1.0, 2.0, 4.0][i] for i in topology.edge_receiver]


def test_problem_carries_the_link_of_its_scenario():
    problem = hm.build(hm.Scenario.load("tiny").override({"link.half_duplex": True, "link.waterfall": 0.4}))
    assert problem.link.half_duplex
    assert problem.link.waterfall == 0.4
