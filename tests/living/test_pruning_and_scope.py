"""Fewer links and larger neighbourhoods: what is kept, what is grown, and at both ends the plain plans."""

import networkx as nx
import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.learning.aggregation import aggregate
from heliomesh.living.conditions import links
from heliomesh.living.pruning import applied_mixing, links_to_drop, prune, without_weight
from heliomesh.living.scope import Scope, adapt_scope, device_gains
from heliomesh.problem.overhead import Overhead
from heliomesh.simulation.diagnostics import spectral_gap


def small_ring(slots):
    """Six devices with one power and three battery levels, half of them in the shade."""
    return hm.Scenario.load("tiny").override(
        {
            "slots": slots,
            "network.devices": 6,
            "energy.powers_watt": [0.0, 1.0],
            "energy.capacity_joule": 2.0,
            "energy.battery_levels": 3,
            "harvest.scale": [1.0, 1.0, 1.0, 0.3, 0.3, 0.3],
        }
    )


@pytest.fixture(scope="module", params=["coupled", "separate"])
def dense(request):
    changes = {"network.topology": "complete", "energy.actions": request.param}
    return hm.build(hm.Scenario.load("tiny").override(changes))


def test_the_gap_of_a_ring_is_known():
    ring = hm.build(hm.Scenario.load("tiny").override({"network.devices": 6}))
    eigenvalues = [(1 + 2 * np.cos(2 * np.pi * k / 6)) / 3 for k in range(1, 6)]
    assert spectral_gap(ring.topology.mixing) == pytest.approx(1 - max(map(abs, eigenvalues)))


@pytest.mark.parametrize("keep_gap", [0.0, 0.3, 0.6, 1.0])
def test_dropping_keeps_the_graph_together_and_the_gap_asked_for(dense, keep_gap):
    delivered = {pair: index / 10 for index, pair in enumerate(links(dense.topology))}
    dropped = links_to_drop(dense, delivered, keep_gap)
    graph = dense.topology.graph.copy()
    graph.remove_edges_from(dropped)
    assert nx.is_connected(graph)
    mixing = without_weight(dense, dropped).topology.mixing
    assert spectral_gap(mixing) >= keep_gap * spectral_gap(dense.topology.mixing) - 1e-12
    np.testing.assert_allclose(mixing.sum(1), 1)
    assert all(mixing[pair] == 0 for pair in dropped)
    if keep_gap == 0:
        assert len(dropped) == 6  # a tree is left
        assert dropped[0] == (0, 1)  # the worst first


def test_a_dropped_neighbour_still_disturbs(dense):
    smaller = without_weight(dense, ((0, 1),))
    assert smaller.topology.num_edges == dense.topology.num_edges
    assert torch.equal(smaller.link.path_gain, dense.link.path_gain)


def test_pruning_saves_updates_and_says_what_it_costs(dense):
    found = prune(dense, "uncoordinated", {}, keep_gap=0.4, episodes=16)
    assert found.saved.mean > found.saved.half_width
    assert found.after.links == found.before.links - len(found.dropped)
    assert found.after.gap < found.before.gap
    assert 0 < found.after.real_gap < found.after.gap


@pytest.mark.parametrize("rule", ["model", "renormalized", "reassigned"])
def test_what_is_applied_is_what_averaging_does(dense, rule):
    """The mean of what averaging makes of unit vectors, one for each device."""
    problem = hm.build(dense.scenario.override({"learning.aggregation": rule}))
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated", bound=False), 4)
    unit, applied = torch.eye(problem.num_devices, dtype=torch.float64), []
    for delivered in trace.delivered.reshape(-1, problem.topology.num_edges):
        applied.append(torch.empty_like(unit))
        aggregate(rule, problem.topology, None, unit, delivered, np.ones(len(unit), dtype=bool), applied[-1])
    mean = torch.stack(applied).mean(0).numpy()
    mixing, off = applied_mixing(problem, trace), ~np.eye(len(unit), dtype=bool)
    np.testing.assert_allclose(mixing[off], ((mean + mean.T) / 2)[off])
    np.testing.assert_allclose(mixing.sum(1), 1)


@pytest.mark.parametrize("actions", ["coupled", "separate"])
def test_nobody_and_everybody_grown_are_the_plain_plans(actions):
    problem = hm.build(small_ring(slots=4).override({"energy.actions": actions}))
    everyone = tuple(range(6))
    for grown, hops in (((), 1), (everyone, 1)):
        mixed = hm.plan(problem, "decentralized", hops=hops, grown=grown, bound=False)
        plain = hm.plan(problem, "decentralized", hops=hops + bool(grown), bound=False)
        for one, other in zip(mixed.policy.tables, plain.policy.tables, strict=True):
            assert torch.equal(one, other)
        assert mixed.overhead == plain.overhead


def test_a_grown_device_alone_sees_more():
    problem = hm.build(small_ring(slots=4))
    made = hm.plan(problem, "decentralized", hops=1, grown=[2], bound=False)
    sizes = [len(made.policy.visible(device)) for device in range(6)]
    assert sizes[2] > max(sizes[:2] + sizes[3:])
    small, large = (hm.plan(problem, "decentralized", hops=h, bound=False).overhead for h in (1, 2))
    assert small.offline_bytes < made.overhead.offline_bytes < large.offline_bytes


def test_an_unknown_device_cannot_grow():
    problem = hm.build(hm.Scenario.load("tiny"))
    with pytest.raises(
        hm.ScenarioError, match=r"decentralized option.grown: expected devices in 0..4, actual value 7"
    ):
        hm.plan(problem, "decentralized", grown=[7])


@pytest.mark.slow
def test_scope_grows_until_enough_of_the_gain_is_kept():
    problem = hm.build(small_ring(slots=20))
    found = adapt_scope(problem, 1, {}, keep_gain=0.6, episodes=64)
    assert found.full_gain.mean > found.full_gain.half_width
    assert 0 < len(found.chosen.grown) < 6
    assert found.gain.mean >= 0.6 * found.full_gain.mean
    assert 0 < found.overhead_saved("online_bytes_per_slot") < 1


def test_gains_are_shared_among_neighbours():
    problem = hm.build(hm.Scenario.load("tiny"))
    base = Scope((), np.array([[1.0, 0, 0, 0, 0]]), Overhead())
    full = Scope((), np.array([[0.4, 0, 0, 0, 0]]), Overhead())
    np.testing.assert_allclose(device_gains(problem, base, full), [0.2, 0.2, 0, 0, 0.2])
