"""The truth over time: how changes are read, what the world and the planning problem become under them."""

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.field.living.change import eras
from heliomesh.field.living.conditions import Conditions, links, present, problem_under, weights_under, world_under
from heliomesh.simulation.slot_loop import run_slots


@pytest.fixture(scope="module")
def problem():
    return hm.build(hm.Scenario.load("tiny").override({"slots": 20}))


def test_changes_hold_until_another_touches_the_same_thing(problem):
    texts = ["device.3=alive@12", "harvest=0.5@5", "device.3=dead@5", "harvest.2=2@8", "link.1-0=off@8"]
    truth = eras(problem, texts)
    assert list(truth) == [0, 5, 8, 12]
    assert truth[0] == Conditions()
    assert truth[5].harvest_factor(5) == [0.5, 0.5, 0.5, 0.0, 0.5]
    assert truth[8].harvest_factor(5) == [0.5, 0.5, 2.0, 0.0, 0.5]
    assert truth[12].harvest_factor(5) == [0.5, 0.5, 2.0, 0.5, 0.5]
    assert truth[8].links_off == {(0, 1)} == truth[12].links_off


def test_what_is_taken_back_leaves_no_trace(problem):
    texts = ["harvest=0.5@5", "harvest=1@6", "link.0-1=off@5", "link.0-1=on@6"]
    assert eras(problem, texts)[6] == Conditions()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("harvest=0.5", "WHAT=VALUE@SLOT"),
        ("harvest@5", "WHAT=VALUE@SLOT"),
        ("harvest=0.5@20", "slot below slots = 20"),
        ("harvest=-1@5", "factor on the harvest of at least 0"),
        ("harvest=nan@5", "factor on the harvest of at least 0"),
        ("harvest.9=1@5", "device in 0..4"),
        ("device.2=ill@5", "device.J=dead|alive"),
        ("link.0-2=off@5", "link of the network such as 0-1"),
        ("channel=[[1.0]]@5", "2 rows"),
        ("channel=[[0.5, 0.6], [1.0, 0.0]]@5", "sum to 1"),
        ("channel=fast@5", "rows of probabilities"),
        ("noise=3@5", "expected harvest=F"),
    ],
)
def test_a_wrong_change_is_one_sentence(problem, text, said):
    with pytest.raises(hm.ScenarioError) as caught:
        eras(problem, [text])
    assert said in str(caught.value)
    assert str(caught.value).startswith("changes")


def test_a_truth_that_stays_the_same_changes_nothing(problem):
    policy = hm.plan(problem, "prices", bound=False).policy
    plain = list(run_slots(problem, policy, [0, 1, 2], 0))
    told = list(run_slots(problem, policy, [0, 1, 2], 0, {0: world_under(problem, Conditions()), 7: problem}))
    for one, other in zip(plain, told, strict=True):
        assert torch.equal(one.update_loss, other.update_loss)
        assert torch.equal(one.battery_after_joule, other.battery_after_joule)


def test_a_dead_device_neither_harvests_nor_sends_nor_gets_anything(problem):
    policy = hm.plan(problem, "uncoordinated", bound=False).policy
    dead = Conditions(away=frozenset([2]))
    slots = list(run_slots(problem, policy, list(range(8)), 0, {9: world_under(problem, dead)}))
    edges = (problem.topology.edge_receiver == 2) | (problem.topology.edge_sender == 2)
    before = torch.stack([slot.power_watt[:, 2] for slot in slots[:9]])
    assert bool((before > 0).any())
    for slot in slots[9:]:
        assert not bool(
            slot.power_watt[:, 2].any() or slot.harvested_joule[:, 2].any() or slot.battery_joule[:, 2].any()
        )
        assert not bool(slot.delivered[:, edges].any())
    assert bool(torch.stack([slot.delivered[:, ~edges] for slot in slots[9:]]).any())
    assert present(problem, dead).tolist() == [True, True, False, True, True]


def test_a_plan_for_fewer_links_mixes_over_those_alone(problem):
    lost = Conditions(links_off=frozenset([(0, 1)]), away=frozenset([3]))
    smaller = problem_under(problem, lost)
    assert links(smaller.topology) == [(0, 4), (1, 2)]
    mixing = smaller.topology.mixing
    np.testing.assert_allclose(mixing, mixing.T)
    np.testing.assert_allclose(mixing.sum(1), 1)
    assert mixing[3, 3] == 1
    weights = weights_under(problem, lost)
    dense = np.diag(weights.own.numpy())
    dense[problem.topology.edge_receiver, problem.topology.edge_sender] = weights.edge.numpy()
    np.testing.assert_array_equal(dense, mixing)


@pytest.mark.parametrize("state", ["link", "reciprocal"])
def test_sites_keep_their_chains_when_links_go(state):
    problem = hm.build(hm.Scenario.load("tiny").override({"channel.state": state}))
    smaller = problem_under(problem, Conditions(links_off=frozenset([(0, 1)])))
    for edge, (i, j) in enumerate(zip(smaller.topology.edge_receiver, smaller.topology.edge_sender, strict=True)):
        known = problem.channel.site_of_edge[problem.topology.edge(int(i), int(j))]
        assert smaller.channel.site_of_edge[edge] == known
    assert float(hm.simulate_costs(smaller, hm.plan(smaller, "receiver", bound=False), 2).mean()) > 0
