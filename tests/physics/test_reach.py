"""Links between given places: by distance, by link budget, or as listed; and random graphs without places."""

import itertools
import math

import numpy as np
import pytest
import torch

from heliomesh.model.problem import build
from heliomesh.physics.link import build_link, waterfall_error
from heliomesh.physics.topology import build_topology
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.scenario import Scenario

RNG = np.random.default_rng(3)
FIELD = (RNG.random((25, 2)) * 600).round(1).tolist()  # 25 devices in a square of 600 m


def placed(positions=FIELD, **changes):
    network = {"positions_metre": positions, "allow_disconnected": True}
    network |= {key: changes.pop(key) for key in ("links", "link_metre", "budget_error", "edges") if key in changes}
    return Scenario.load("geometric30").override({"network": network, **changes})


def links_of(topology):
    ends = zip(topology.edge_receiver.tolist(), topology.edge_sender.tolist(), strict=True)
    return {(i, j) for i, j in ends if i < j}


@pytest.mark.parametrize("metre", [0.1, 130.0, 250.0, 1e4])
def test_a_radius_links_exactly_the_short_distances(metre):
    found = links_of(build_topology(placed(links="radius", link_metre=metre)))
    expected = {(i, j) for i, j in itertools.combinations(range(25), 2) if math.dist(FIELD[i], FIELD[j]) <= metre}
    assert found == expected


@pytest.mark.parametrize("error", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("spread", [False, True])
def test_a_budget_links_exactly_the_pairs_that_hear_each_other(error, spread):
    """The plain definition: the error rate at the largest power and the mean gain, in both directions."""
    noise = np.linspace(1e-14, 2e-13, 25).tolist() if spread else 2e-14
    gain = np.linspace(0.5, 2.0, 25).tolist() if spread else 1.0
    scenario = placed(
        links="budget", budget_error=error, **{"link.noise_watt": noise, "channel.gain": gain, "link.waterfall": 0.5}
    )
    everyone = build_topology(scenario.override({"network.links": "radius", "network.link_metre": 1e6}))
    radio = build_link(scenario, everyone)
    receiver = torch.from_numpy(everyone.edge_receiver)
    signal = scenario.energy.powers_watt[-1] * radio.path_gain
    heard = waterfall_error(signal, radio.noise_watt[receiver], radio.waterfall) <= error
    both = (heard & heard[torch.from_numpy(everyone.reverse_edge)]).numpy()
    ends = zip(everyone.edge_receiver[both].tolist(), everyone.edge_sender[both].tolist(), strict=True)
    expected = {(i, j) for i, j in ends if i < j}
    assert links_of(build_topology(scenario)) == expected
    assert 0 < len(expected) < 300


def test_a_budget_counts_the_mean_gain_of_the_channel():
    weak = {"channel.source": "table", "channel.gains": [0.05, 0.15], "channel.kernel": [[0.5, 0.5], [0.5, 0.5]]}
    plain, faded = (len(links_of(build_topology(placed(links="budget", **more)))) for more in ({}, weak))
    quieter = len(links_of(build_topology(placed(links="budget", **{"link.noise_watt": 2e-13}))))
    assert faded == quieter < plain  # a tenth of the gain is ten times the noise


def test_a_budget_without_path_loss_is_refused():
    with pytest.raises(ScenarioError) as caught:
        build_topology(placed(links="budget", **{"link.path_loss": "none"}))
    assert caught.value.field == "network.links"
    assert "expected link.path_loss = 'log-distance' for a link budget, actual value 'none'" in str(caught.value)


def test_a_loss_that_does_not_grow_links_all_or_nobody():
    flat = {"link.loss_per_decade_db": 0.0}
    assert len(links_of(build_topology(placed(links="budget", **flat, **{"link.loss_at_km_db": 60.0})))) == 300
    assert not links_of(build_topology(placed(links="budget", **flat, **{"link.loss_at_km_db": 200.0})))


def test_listed_links_have_their_true_lengths_and_losses():
    problem = build(placed([[0, 0], [30, 40], [0, 1000]], edges=[[0, 1], [0, 2]]))
    assert problem.topology.edge_metre.tolist() == [50.0, 1000.0, 50.0, 1000.0]
    loss_db = -10 * np.log10(problem.link.path_gain.numpy())
    np.testing.assert_allclose(loss_db, [148 + 40 * math.log10(0.05), 148.0] * 2)


def test_places_that_do_not_reach_each_other_are_refused():
    scenario = placed([[0, 0], [10, 0], [900, 0]], link_metre=50.0).override({"network.allow_disconnected": False})
    with pytest.raises(ScenarioError) as caught:
        build_topology(scenario)
    assert caught.value.field == "network.topology"
    assert "actual number of components 2" in str(caught.value)


def test_too_many_links_are_refused_before_they_are_listed():
    crowd = np.stack(np.divmod(np.arange(8000), 100), axis=1).tolist()
    with pytest.raises(ScenarioError) as caught:
        build_topology(placed(crowd, link_metre=1e5))
    assert caught.value.field == "network.link_metre"
    assert "at most 20000000 links, actual number 31996000" in str(caught.value)


def erdos_renyi(seed, **network):
    changes = {f"network.{key}": value for key, value in network.items()}
    return build_topology(
        Scenario.load("ring10").override({"seed": seed, "network.topology": "erdos-renyi", **changes})
    )


def test_an_erdos_renyi_graph_has_its_mean_degree_and_is_connected():
    graphs = [erdos_renyi(seed, devices=40, mean_degree=8.0) for seed in range(40)]
    degrees = np.array([[len(near) for near in graph.neighbours] for graph in graphs])
    # the standard error of the mean over 40 graphs of 160 links is 1.6 / √40 / 20 · 8 ≈ 0.1
    assert degrees.mean() == pytest.approx(8.0, abs=0.4)
    assert degrees.var() == pytest.approx(8 * (1 - 8 / 39), rel=0.2)  # of a binomial
    assert all(graph.diameter < 40 for graph in graphs)
    assert len({tuple(graph.edge_sender.tolist()) for graph in graphs}) == 40


def test_an_erdos_renyi_graph_of_more_degree_than_devices_is_complete():
    assert erdos_renyi(0, devices=5, mean_degree=50.0).num_edges == 20


def test_links_of_an_erdos_renyi_graph_have_one_length():
    assert set(erdos_renyi(0, devices=20, link_metre=70.0).edge_metre.tolist()) == {70.0}


def test_an_erdos_renyi_graph_that_never_connects_is_refused():
    with pytest.raises(ScenarioError) as caught:
        erdos_renyi(0, devices=60, mean_degree=0.5)
    assert caught.value.field == "network.mean_degree"
    assert "connected" in str(caught.value)
    assert erdos_renyi(0, devices=60, mean_degree=0.5, allow_disconnected=True).num_edges < 60
    with pytest.raises(ScenarioError):
        erdos_renyi(0, devices=60, mean_degree=8.0, max_degree=8)
