"""Fading: the Rayleigh chain against its formulas, sampling against plain loops, and the sites of links."""

import itertools
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

import heliomesh as hm
from heliomesh.physics.chain import draw, stationary_law
from heliomesh.physics.channels import rayleigh
from heliomesh.scenario.errors import ScenarioError

LEVELS = [1, 2, 3, 4, 8, 16, 64]


def chain(levels, doppler_slot):
    settings = rayleigh.Settings(levels=levels, doppler_slot=doppler_slot)
    return rayleigh.build(settings, hm.Scenario.load("tiny"))


def threshold(k, levels):
    """Γ_{k+1} of equally likely levels."""
    return math.inf if k == levels else -math.log(1 - k / levels)


def crossings(k, levels):
    """Z(Γ_{k+1}) / f_d; nobody crosses 0 or infinity."""
    gamma = threshold(k, levels)
    return 0.0 if k in (0, levels) else math.sqrt(2 * math.pi * gamma) * math.exp(-gamma)


def fastest_doppler(levels):
    """Largest f_d·T_slot at which every level can be left with probability at most one."""
    return 1 / max((crossings(k, levels) + crossings(k + 1, levels)) * levels for k in range(levels))


def channel_of(**changes):
    return hm.build(hm.Scenario.load("tiny").override(changes)).channel


# Rayleigh fading


def test_four_gains_of_the_paper():
    gain, _ = chain(4, 0.05)
    np.testing.assert_allclose(gain, [0.137, 0.477, 1.000, 2.386], atol=1e-3)


@pytest.mark.parametrize("levels", LEVELS)
def test_gains_are_conditional_means_of_exponential_power(levels):
    gain, _ = chain(levels, 0.001)
    for k in range(levels):
        low, high = threshold(k, levels), threshold(k + 1, levels)
        mean, _ = integrate.quad(lambda g: g * math.exp(-g), low, high)
        assert gain[k] == pytest.approx(levels * mean, rel=1e-6)
    assert gain.mean() == pytest.approx(1)
    assert (np.diff(gain) > 0).all()


@pytest.mark.parametrize("levels", LEVELS)
def test_rayleigh_kernel_equals_level_crossings_in_a_plain_loop(levels):
    doppler = 0.9 * fastest_doppler(levels) if levels > 1 else 0.3
    _, kernel = chain(levels, doppler)
    for k, other in itertools.product(range(levels), repeat=2):
        if other == k + 1:
            expected = crossings(k + 1, levels) * doppler * levels
        elif other == k - 1:
            expected = crossings(k, levels) * doppler * levels
        elif other == k:
            expected = 1 - (crossings(k, levels) + crossings(k + 1, levels)) * doppler * levels
        else:
            expected = 0
        assert kernel[k, other] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("levels", LEVELS)
def test_rayleigh_chain_is_reversible_birth_death_with_equal_law(levels):
    _, kernel = chain(levels, 0.9 * fastest_doppler(levels) if levels > 1 else 0.3)
    assert kernel.min() >= 0
    np.testing.assert_allclose(kernel.sum(1), 1, atol=1e-12)
    far = np.abs(np.subtract.outer(np.arange(levels), np.arange(levels))) > 1
    assert (kernel[far] == 0).all()
    np.testing.assert_allclose(kernel, kernel.T, atol=1e-15)  # detailed balance under the equal law
    np.testing.assert_allclose(stationary_law(kernel), 1 / levels, atol=1e-12)


@pytest.mark.parametrize(("levels", "limit"), [(2, 0.48), (3, 0.17), (4, 0.12), (8, 0.059)])
def test_fastest_doppler(levels, limit):
    exact = fastest_doppler(levels)
    assert float(f"{exact:.2g}") == limit
    _, kernel = chain(levels, exact * (1 - 1e-9))
    assert kernel.diagonal().min() >= 0
    with pytest.raises(ScenarioError, match=f"for {levels} levels") as caught:
        chain(levels, exact * (1 + 1e-6))
    assert caught.value.field == "channel.doppler_slot"
    named = float(re.search(r"at most ([\d.]+)", str(caught.value))[1])
    assert named <= exact < named + 0.001
    chain(levels, named)


def test_too_fast_a_channel_is_refused_at_the_door():
    with pytest.raises(ScenarioError, match=r"channel.doppler_slot: expected at most 0\.121.*actual value 0\.2"):
        channel_of(**{"channel.source": "rayleigh", "channel.doppler_slot": 0.2})


@pytest.mark.parametrize("levels", LEVELS)
def test_without_motion_the_channel_stays(levels):
    _, kernel = chain(levels, 0.0)
    np.testing.assert_array_equal(kernel, np.eye(levels))


def test_one_level_is_the_mean_gain():
    gain, kernel = chain(1, 3.0)
    np.testing.assert_allclose(gain, [1])
    np.testing.assert_array_equal(kernel, [[1]])


# tables and sites


def test_table_is_taken_as_given():
    channel = channel_of(
        **{"channel.gains": [0.0, 2.0, 5.0], "channel.kernel": [[0, 1, 0], [0.5, 0, 0.5], [0, 1, 0]]}
    )
    assert channel.levels == 3
    assert channel.gain.tolist() == [0, 2, 5]
    assert channel.kernel.tolist() == [[0, 1, 0], [0.5, 0, 0.5], [0, 1, 0]]
    np.testing.assert_allclose(channel.stationary, [0.25, 0.5, 0.25], atol=1e-12)


@pytest.mark.parametrize("kind", ["ring", "star", "complete"])
@pytest.mark.parametrize("state", ["receiver", "link", "reciprocal"])
def test_sites_of_links(kind, state):
    problem = hm.build(hm.Scenario.load("tiny").override({"network.topology": kind, "channel.state": state}))
    topology, channel = problem.topology, problem.channel
    site = channel.site_of_edge.tolist()
    for e, f in itertools.product(range(topology.num_edges), repeat=2):
        same_receiver = topology.edge_receiver[e] == topology.edge_receiver[f]
        shared = {
            "receiver": same_receiver,
            "link": e == f,
            "reciprocal": f in (e, topology.reverse_edge[e]),
        }[state]
        assert (site[e] == site[f]) == shared
    links = topology.num_edges // 2
    assert channel.num_sites == {"receiver": 5, "link": 2 * links, "reciprocal": links}[state]
    assert sorted(set(site)) == list(range(channel.num_sites))


@pytest.mark.parametrize(("state", "sites"), [("receiver", 1), ("link", 0), ("reciprocal", 0)])
def test_one_device_has_no_links(state, sites):
    channel = channel_of(**{"network.devices": 1, "channel.state": state})
    assert channel.num_sites == sites
    assert len(channel.site_of_edge) == 0


# chains


def test_boundaries_of_inverse_transform_sampling():
    prob = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
    uniform = torch.tensor([0.0, 0.2499, 0.25, 0.4999, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert draw(prob.expand(6, -1), uniform).tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    "prob", [[0.1] * 10 + [0.0], [0.5, 0.5 - 1e-10, 0.0, 0.0], [0.0, 1.0, 0.0], [1 - 1e-12, 0.0]]
)
def test_impossible_outcomes_are_never_drawn(prob):
    law = torch.tensor(prob, dtype=torch.float64)
    uniform = torch.tensor([0.0, 1e-300, 0.5, 1 - 1e-11, 1 - 2**-53], dtype=torch.float64)
    assert (law[draw(law.expand(5, -1), uniform)] > 0).all()


@settings(max_examples=60, deadline=None)
@given(weights=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any), u=st.floats(0, 1, exclude_max=True))
def test_drawing_equals_a_plain_loop(weights, u):
    law = [weight / sum(weights) for weight in weights]
    total, expected = 0.0, 0
    for k, share in enumerate(law):
        total += share
        if u < total - 1e-12:
            expected = k
            break
        if abs(u - total) <= 1e-12:
            return  # on the boundary either side is right
    drawn = draw(torch.tensor(law, dtype=torch.float64), torch.tensor(u, dtype=torch.float64))
    assert int(drawn) == expected


def test_step_and_start_equal_one_site_at_a_time():
    channel = channel_of(**{"channel.source": "rayleigh", "channel.levels": 4})
    uniform = torch.from_numpy(np.random.default_rng(0).random((2, 7, 5)))
    level = channel.initial(uniform[0])
    after = channel.step(level, uniform[1])
    assert level.shape == after.shape == (7, 5)
    for episode, site in itertools.product(range(7), range(5)):
        alone = channel.initial(uniform[0, episode, site])
        assert alone == level[episode, site]
        assert channel.step(alone, uniform[1, episode, site]) == after[episode, site]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_stationary_law_is_the_left_eigenvector(levels, seed):
    kernel = np.random.default_rng(seed).dirichlet(np.ones(levels), size=levels)
    values, vectors = np.linalg.eig(kernel.T)
    vector = vectors[:, np.argmin(np.abs(values - 1))].real
    np.testing.assert_allclose(stationary_law(kernel), vector / vector.sum(), atol=1e-8)


@pytest.mark.parametrize(
    ("kernel", "law"),
    [
        ([[1.0]], [1.0]),
        ([[0.0, 1.0], [1.0, 0.0]], [0.5, 0.5]),  # periodic
        ([[1.0, 0.0], [0.0, 1.0]], [0.5, 0.5]),  # reducible: the start decides, and starts are equally likely
        ([[1.0, 0.0, 0.0], [0.5, 0.0, 0.5], [0.0, 0.0, 1.0]], [0.5, 0.0, 0.5]),  # transient in the middle
        ([[1 - 1e-6, 1e-6], [3e-6, 1 - 3e-6]], [0.75, 0.25]),  # slow
    ],
)
def test_stationary_law_of_awkward_chains(kernel, law):
    np.testing.assert_allclose(stationary_law(np.array(kernel)), law, atol=1e-6)


# sources from outside


def two_state(settings, scenario):
    """A channel source without settings of its own."""
    return [0.5, 2.0], [[0.9, 0.1], [0.3, 0.7]]


def falling(settings, scenario):
    return [2.0, 0.5], [[0.9, 0.1], [0.3, 0.7]]


def no_law(settings, scenario):
    return [0.5, 2.0], [[0.9, 0.2], [0.3, 0.7]]


def no_square(settings, scenario):
    return [0.5, 2.0], [[0.9, 0.1]]


def test_a_function_is_a_channel_source():
    scenario = hm.Scenario.load("tiny").override({"channel.source": two_state, "channel.state": "link"})
    assert scenario.channel.source == f"{__name__}:two_state"
    problem = hm.build(hm.Scenario.parse(scenario.as_dict()))
    assert problem.channel.gain.tolist() == [0.5, 2.0]
    np.testing.assert_allclose(problem.channel.stationary, [0.75, 0.25])
    assert hm.simulate(problem, hm.plan(problem, "uncoordinated"), 2).channel_level.max() == 1


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (falling, "expected rising, finite gains"),
        (no_law, r"rows of the kernel to be at least 0 and sum to 1, actual lowest value .* off 1 by up to 0\.1"),
        (no_square, r"actual shapes \(2,\) and \(1, 2\)"),
        (lambda settings, scenario: None, "Python can import by its name, actual value <function <lambda>"),
    ],
)
def test_what_is_no_channel_is_refused(source, sentence):
    with pytest.raises(ScenarioError, match=sentence) as caught:
        hm.build(hm.Scenario.load("tiny").override({"channel.source": source}))
    assert caught.value.field == "channel.source"
