"""Parts of a network: of equal size, and joined by few links."""

import numpy as np
import pytest

from heliomesh.engine.graph_cut import cut_into_parts, num_cut_links
from heliomesh.physics.topology import build_topology
from heliomesh.scenario.scenario import Scenario


def topology_of(kind, devices, **changes):
    return build_topology(
        Scenario.load("ring10").override({"network.topology": kind, "network.devices": devices, **changes})
    )


def naive(devices, parts):
    """Consecutive devices together."""
    return np.arange(devices) * parts // devices


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize(("kind", "devices"), [("ring", 7), ("geometric", 50), ("star", 20), ("complete", 9)])
def test_sizes_differ_by_at_most_one(kind, devices, parts):
    sizes = np.bincount(cut_into_parts(topology_of(kind, devices), parts), minlength=parts)
    assert sizes.sum() == devices
    assert sizes.max() - sizes.min() <= 1


def test_a_ring_is_cut_into_arcs():
    ring = topology_of("ring", 300)
    for parts in (2, 3, 8):
        assert num_cut_links(ring, cut_into_parts(ring, parts)) == parts


def test_two_cliques_are_found_whatever_their_numbers_are():
    ends = [(i, j) for start in (0, 1) for i in range(start, 20, 2) for j in range(start, i, 2)]
    cliques = topology_of("edges", 20, **{"network.edges": [*ends, (0, 1)]})
    part = cut_into_parts(cliques, 2)
    assert num_cut_links(cliques, part) == 1
    assert len(set(part[::2])) == len(set(part[1::2])) == 1


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_far_fewer_links_are_cut_than_by_numbers(parts):
    network = topology_of("geometric", 600, **{"network.mean_degree": 8.0})
    ours, theirs = cut_into_parts(network, parts), naive(600, parts)
    assert num_cut_links(network, ours) < num_cut_links(network, theirs) / 5


def test_separate_networks_are_cut_too():
    apart = topology_of("edges", 6, **{"network.edges": [(0, 3), (1, 4), (2, 5)], "network.allow_disconnected": True})
    assert num_cut_links(apart, cut_into_parts(apart, 3)) == 0
