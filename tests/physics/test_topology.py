"""The graph: every kind against plain loops, analytic degrees and distances, and the algebra of mixing."""

import itertools
import math
from collections import deque
from typing import get_args

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliomesh.physics.topology import build_topology, spectral_gap
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import Network

KINDS = get_args(Network.model_fields["topology"].annotation)
EXAMPLES = {
    "ring": [{"devices": m} for m in (1, 2, 3, 7, 10)],
    "grid": [{"devices": 1}, {"devices": 7}, {"devices": 12}, {"devices": 12, "rows": 2}, {"devices": 25}],
    "geometric": [
        {"devices": 1},
        {"devices": 2},
        {"devices": 30, "mean_degree": 5.0},
        {"devices": 40, "mean_degree": 6.0, "max_degree": 12},
    ],
    "regular": [{"devices": 2, "degree": 1}, {"devices": 10, "degree": 3}, {"devices": 12, "degree": 4}],
    "star": [{"devices": m} for m in (1, 2, 3, 8)],
    "complete": [{"devices": m} for m in (1, 2, 6)],
    "edges": [
        {"devices": 1, "edges": []},
        {"devices": 4, "edges": [[0, 1], [1, 2], [2, 3]]},
        {"devices": 5, "edges": [[4, 0], [0, 2], [2, 4], [2, 1], [3, 1]]},
        {"devices": 4, "edges": [[0, 1], [2, 3]], "allow_disconnected": True},
    ],
    "erdos-renyi": [{"devices": 1}, {"devices": 2}, {"devices": 30, "mean_degree": 5.0}],
    "places": [
        {"devices": 1, "positions_metre": [[3.0, 4.0]]},
        {"devices": 4, "positions_metre": [[0, 0], [100, 0], [100, 100], [220, 90]]},
        {"devices": 3, "positions_metre": [[0, 0], [900, 0], [0, 400]], "links": "list", "edges": [[0, 1], [2, 1]]},
    ],
}
CASES = [{"topology": kind, **network} for kind in KINDS for network in EXAMPLES.get(kind, [])]
RANDOM = [
    case for case in CASES if case["topology"] in ("geometric", "regular", "erdos-renyi") and case["devices"] > 2
]


def topology_of(seed=0, **network):
    harvest = {"source": "table", "joule": [1.0], "prob": [1.0]}
    return build_topology(Scenario.parse({"seed": seed, "network": network, "harvest": harvest}))


def links_of(topology):
    ends = zip(topology.edge_receiver.tolist(), topology.edge_sender.tolist(), strict=True)
    return {(i, j) for i, j in ends if i < j}


def lengths_of(topology):
    position = topology.position_metre
    return np.linalg.norm(position[topology.edge_receiver] - position[topology.edge_sender], axis=1)


def refused(field, *parts, **network):
    with pytest.raises(ScenarioError) as caught:
        topology_of(**network)
    assert caught.value.field == field
    for part in parts:
        assert part in str(caught.value)


# contracts: every kind of graph


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_an_example(kind):
    assert kind in EXAMPLES, f"add an example of topology {kind!r} to this file"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_edges_are_sorted_unique_and_paired(case):
    topology = topology_of(**case)
    pairs = list(zip(topology.edge_receiver.tolist(), topology.edge_sender.tolist(), strict=True))
    assert pairs == sorted(set(pairs))
    assert all(i != j for i, j in pairs)
    assert topology.num_edges == len(pairs)
    for edge, (i, j) in enumerate(pairs):
        assert pairs[topology.reverse_edge[edge]] == (j, i)
        assert topology.edge(receiver=i, sender=j) == edge


@pytest.mark.parametrize("case", CASES, ids=str)
def test_neighbours_and_edge_ranges_equal_a_plain_search(case):
    topology = topology_of(**case)
    links = links_of(topology)
    for i in range(topology.num_devices):
        expected = sorted(j for j in range(topology.num_devices) if (min(i, j), max(i, j)) in links)
        assert list(topology.neighbours[i]) == expected
        start, stop = topology.edge_start[i : i + 2]
        assert topology.edge_sender[start:stop].tolist() == expected
        assert (topology.edge_receiver[start:stop] == i).all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_hops_and_diameter_equal_breadth_first_search(case):
    topology = topology_of(**case)
    farthest = 0
    for source in range(topology.num_devices):
        distance, queue = {source: 0}, deque([source])
        while queue:
            i = queue.popleft()
            for j in topology.neighbours[i]:
                if j not in distance:
                    distance[j] = distance[i] + 1
                    queue.append(j)
        farthest = max(farthest, *distance.values())
        if not case.get("allow_disconnected"):
            assert len(distance) == topology.num_devices
        for hops in range(4):
            assert topology.within(source, hops) == {j: d for j, d in distance.items() if d <= hops}
    assert topology.diameter == farthest


@pytest.mark.parametrize("case", CASES, ids=str)
def test_mixing_is_symmetric_doubly_stochastic_and_metropolis(case):
    topology = topology_of(**case)
    mixing, degree = topology.mixing, [len(near) for near in topology.neighbours]
    np.testing.assert_array_equal(mixing, mixing.T)
    np.testing.assert_allclose(mixing.sum(0), 1, atol=1e-12)
    for i, j in itertools.permutations(range(topology.num_devices), 2):
        expected = 1 / (1 + max(degree[i], degree[j])) if j in topology.neighbours[i] else 0
        assert mixing[i, j] == pytest.approx(expected, abs=1e-15)
    assert mixing.diagonal().min() > 0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_lazy_mixing_is_halfway_to_the_identity_and_has_no_negative_eigenvalue(case):
    plain, lazy = topology_of(**case).mixing, topology_of(**case, mixing="lazy-metropolis").mixing
    np.testing.assert_allclose(lazy, (np.eye(len(plain)) + plain) / 2, atol=1e-15)
    eigenvalues = np.linalg.eigvalsh(lazy)
    assert eigenvalues[0] > -1e-12
    assert eigenvalues[-1] == pytest.approx(1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_positions_are_finite_and_belong_to_devices(case):
    position = topology_of(**case).position_metre
    assert position.shape == (case["devices"], 2)
    assert np.isfinite(position).all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_same_seed_same_graph(case):
    first, second = topology_of(seed=3, **case), topology_of(seed=3, **case)
    np.testing.assert_array_equal(first.edge_sender, second.edge_sender)
    np.testing.assert_array_equal(first.edge_receiver, second.edge_receiver)
    np.testing.assert_array_equal(first.position_metre, second.position_metre)


@pytest.mark.parametrize("case", RANDOM, ids=str)
def test_another_seed_another_graph(case):
    assert links_of(topology_of(seed=1, **case)) != links_of(topology_of(seed=2, **case))


# analytic


@pytest.mark.parametrize(
    ("kind", "devices", "degrees", "diameter"),
    [
        ("ring", 1, [0], 0),
        ("ring", 2, [1, 1], 1),
        ("ring", 3, [2] * 3, 1),
        ("ring", 10, [2] * 10, 5),
        ("complete", 6, [5] * 6, 1),
        ("star", 2, [1, 1], 1),
        ("star", 6, [5, 1, 1, 1, 1, 1], 2),
        ("grid", 9, [2, 3, 2, 3, 4, 3, 2, 3, 2], 4),
        ("grid", 6, [2, 3, 2, 2, 3, 2], 3),
        ("grid", 5, [1, 2, 2, 2, 1], 4),
    ],
)
def test_degrees_by_hand(kind, devices, degrees, diameter):
    topology = topology_of(topology=kind, devices=devices)
    assert [len(near) for near in topology.neighbours] == degrees
    assert topology.diameter == diameter


@pytest.mark.parametrize(("devices", "degree"), [(2, 1), (10, 3), (30, 6), (6, 5)])
def test_regular_graph_has_one_degree(devices, degree):
    topology = topology_of(topology="regular", devices=devices, degree=degree)
    assert {len(near) for near in topology.neighbours} == {degree}


@pytest.mark.parametrize(("devices", "rows", "columns"), [(12, None, 4), (12, 2, 6), (7, None, 7), (25, None, 5)])
def test_grid_links_by_hand(devices, rows, columns):
    chosen = {} if rows is None else {"rows": rows}
    topology = topology_of(topology="grid", devices=devices, **chosen)
    expected = nx.convert_node_labels_to_integers(nx.grid_2d_graph(devices // columns, columns), ordering="sorted")
    assert links_of(topology) == {(min(a, b), max(a, b)) for a, b in expected.edges}


def test_links_given_twice_count_once():
    topology = topology_of(topology="edges", devices=3, edges=[[0, 1], [1, 0], [0, 1], [1, 2]])
    assert links_of(topology) == {(0, 1), (1, 2)}
    assert topology.num_edges == 4


@pytest.mark.parametrize("devices", [3, 4, 9, 10])
def test_ring_mixing_has_the_spectrum_of_a_circulant(devices):
    eigenvalues = np.linalg.eigvalsh(topology_of(topology="ring", devices=devices).mixing)
    expected = [(1 + 2 * math.cos(2 * math.pi * k / devices)) / 3 for k in range(devices)]
    np.testing.assert_allclose(np.sort(eigenvalues), np.sort(expected), atol=1e-12)


def test_plain_mixing_may_have_a_negative_eigenvalue_and_lazy_never():
    plain = topology_of(topology="ring", devices=4)
    lazy = topology_of(topology="ring", devices=4, mixing="lazy-metropolis")
    assert np.linalg.eigvalsh(plain.mixing)[0] == pytest.approx(-1 / 3)
    assert np.linalg.eigvalsh(lazy.mixing)[0] == pytest.approx(1 / 3)


@pytest.mark.parametrize("kind", ["ring", "grid", "star"])
@pytest.mark.parametrize("devices", [2, 3, 6, 12])
def test_linked_devices_are_one_link_length_apart(kind, devices):
    topology = topology_of(topology=kind, devices=devices, link_metre=120.0)
    np.testing.assert_allclose(lengths_of(topology), 120, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_one_device_has_nobody_to_talk_to(kind):
    if kind == "regular":
        refused("network.degree", "actual value 4", topology=kind, devices=1)
        return
    needed = {"edges": {"edges": []}, "places": {"positions_metre": [[1.0, 2.0]]}}
    topology = topology_of(topology=kind, devices=1, **needed.get(kind, {}))
    assert topology.num_edges == 0
    assert topology.neighbours == ((),)
    assert topology.diameter == 0
    np.testing.assert_array_equal(topology.mixing, [[1]])


# geometric graphs


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("devices", "mean_degree"), [(20, 3.5), (50, 6.0), (100, 8.0)])
def test_geometric_graph_reaches_its_mean_degree(seed, devices, mean_degree):
    topology = topology_of(seed=seed, topology="geometric", devices=devices, mean_degree=mean_degree)
    assert mean_degree <= topology.num_edges / devices <= 1.25 * mean_degree


@pytest.mark.parametrize("seed", range(3))
def test_geometric_links_are_exactly_the_short_distances(seed):
    topology = topology_of(seed=seed, topology="geometric", devices=30, mean_degree=5.0, link_metre=80.0)
    short = {
        (i, j)
        for i, j in itertools.combinations(range(30), 2)
        if math.dist(topology.position_metre[i], topology.position_metre[j]) <= 80
    }
    assert links_of(topology) == short


@pytest.mark.parametrize("seed", range(5))
def test_geometric_graph_respects_the_largest_degree(seed):
    topology = topology_of(seed=seed, topology="geometric", devices=30, mean_degree=5.0, max_degree=9)
    assert max(len(near) for near in topology.neighbours) <= 9


def test_geometric_graph_of_more_degree_than_devices_is_complete():
    topology = topology_of(topology="geometric", devices=5, mean_degree=50.0)
    assert len(links_of(topology)) == 10


def test_impossible_geometric_graph_is_refused():
    refused(
        "network.mean_degree",
        "network.max_degree = 2",
        "1000 draws",
        topology="geometric",
        devices=40,
        mean_degree=4.0,
        max_degree=2,
    )


# refusals


@pytest.mark.parametrize(
    ("field", "part", "network"),
    [
        ("network.rows", "actual value 5", {"topology": "grid", "devices": 12, "rows": 5}),
        ("network.degree", "actual value 3", {"topology": "regular", "devices": 5, "degree": 3}),
        ("network.degree", "actual value 6", {"topology": "regular", "devices": 6, "degree": 6}),
        ("network.topology", "components 2", {"topology": "edges", "devices": 3, "edges": [[0, 1]]}),
        ("network.topology", "components 2", {"topology": "regular", "devices": 4, "degree": 1}),
        ("network.edges.1", "[1, 1]", {"topology": "edges", "devices": 2, "edges": [[0, 1], [1, 1]]}),
        ("network.edges.0", "[0, 2]", {"topology": "edges", "devices": 2, "edges": [[0, 2]]}),
        ("network.edges.0", "[-1, 0]", {"topology": "edges", "devices": 2, "edges": [[-1, 0]]}),
    ],
)
def test_networks_that_cannot_be_built(field, part, network):
    refused(field, part, **network)


def test_disconnected_on_request():
    topology = topology_of(topology="edges", devices=4, edges=[[0, 1], [1, 2]], allow_disconnected=True)
    assert topology.neighbours[3] == ()
    assert topology.mixing[3, 3] == 1
    assert topology.diameter == 2


# any graph


@settings(max_examples=60, deadline=None)
@given(devices=st.integers(1, 8), data=st.data())
def test_any_edge_list_gives_a_doubly_stochastic_mixing(devices, data):
    pairs = list(itertools.combinations(range(devices), 2))
    chosen = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    turned = [pair if data.draw(st.booleans()) else pair[::-1] for pair in chosen]
    topology = topology_of(topology="edges", devices=devices, edges=turned, allow_disconnected=True)
    assert links_of(topology) == set(chosen)
    mixing = topology.mixing
    np.testing.assert_array_equal(mixing, mixing.T)
    np.testing.assert_allclose(mixing.sum(1), 1, atol=1e-12)
    assert mixing.min() >= 0
    np.testing.assert_array_equal(topology.edge_sender[topology.reverse_edge], topology.edge_receiver)
    np.testing.assert_array_equal(topology.edge_weight[topology.reverse_edge], topology.edge_weight)


def test_the_gap_of_a_ring_is_known():
    ring = build_topology(Scenario.load("tiny").override({"network.devices": 6}))
    eigenvalues = [(1 + 2 * np.cos(2 * np.pi * k / 6)) / 3 for k in range(1, 6)]
    assert spectral_gap(ring.mixing) == pytest.approx(1 - max(map(abs, eigenvalues)))


@pytest.mark.parametrize("keep_gap", [0.0, 0.3, 0.6, 1.0])
def test_weak_links_lose_their_weight_and_the_rest_stays(keep_gap):
    noise = {"network.topology": "complete", "link.noise_watt": [0.1, 5.0, 0.3, 0.2, 0.4]}
    scenario = Scenario.load("tiny").override(noise)
    whole, pruned = (build_topology(scenario.override({"network.keep_gap": keep})) for keep in (None, keep_gap))
    assert pruned.neighbours == whole.neighbours  # they still disturb
    np.testing.assert_allclose(pruned.mixing.sum(1), 1)
    np.testing.assert_array_equal(pruned.mixing, pruned.mixing.T)
    assert spectral_gap(pruned.mixing) >= keep_gap * spectral_gap(whole.mixing) - 1e-12
    linked = nx.from_numpy_array(pruned.mixing > 0)
    assert nx.is_connected(linked)
    if keep_gap == 0:
        linked.remove_edges_from(nx.selfloop_edges(linked))
        assert nx.is_tree(linked)
        assert linked.degree(1) == 1  # the noisiest keeps one link, without which it would be alone
