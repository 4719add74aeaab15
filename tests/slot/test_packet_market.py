"""Joint choices where packets have values: gains are differences of the objective, and nobody regrets a choice."""

from itertools import product

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.slot.packet_market import EdgeTensors, Exchange

CASES = {
    "separate": {"energy.actions": "separate"},
    "coupled": {},
    "half duplex": {"energy.actions": "separate", "link.half_duplex": True},
    "star": {"energy.actions": "separate", "network.topology": "star"},
    "complete": {"energy.actions": "separate", "network.topology": "complete"},
}


def exchange(changes: dict[str, object], devices: int = 4, batch: int = 3) -> Exchange:
    """Random values, prices and fading."""
    problem = hm.build(hm.Scenario.load("tiny").override({"network.devices": devices, **changes}))
    rng, edges = np.random.default_rng(1), problem.topology.num_edges
    fading = torch.from_numpy(rng.exponential(size=(batch, edges)))
    value = torch.from_numpy(rng.normal(0.5, 1, (batch, edges, 2, 2)))
    price = torch.from_numpy(rng.random((batch, devices, len(problem.actions))))
    price[:, 1:, -1] = torch.inf  # some batteries do not pay for everything
    price[..., 0] = 0.0
    return Exchange(EdgeTensors(problem), fading, value, price)


def all_joint(one: Exchange) -> torch.Tensor:
    """Every joint action; (joint, device)."""
    devices, actions = one.price.shape[1:]
    return torch.tensor(list(product(range(actions), repeat=devices)))


@pytest.mark.parametrize("name", CASES)
def test_gains_are_differences_of_the_objective(name):
    one = exchange(CASES[name])
    chosen = torch.zeros(3, 4, dtype=torch.long)
    chosen[:, 0], chosen[:, 2] = len(one.network.problem.actions) - 1, 1
    found = one.price - one.opportunities(chosen)
    for device in range(4):
        cost = []
        for action in range(one.price.shape[-1]):
            moved = chosen.clone()
            moved[:, device] = action
            cost.append(one.total(moved))
        expected = torch.stack(cost, -1) - cost[0].unsqueeze(-1)
        finite = expected.isfinite()
        torch.testing.assert_close((found - found[..., :1])[:, device][finite], expected[finite])


@pytest.mark.parametrize("name", CASES)
def test_an_episode_decides_as_it_does_alone(name):
    """Whoever else is in the batch, and whoever of them is done earlier, changes nothing."""
    one = exchange(CASES[name], devices=9, batch=6)
    chosen = one.decide(rounds=20)
    for episode in range(6):
        some = slice(episode, episode + 1)
        alone = Exchange(one.network, one.fading[some], one.value[some], one.price[some])
        assert torch.equal(alone.decide(rounds=20), chosen[some])


@pytest.mark.parametrize("name", CASES)
def test_nobody_regrets_and_the_best_is_near(name):
    one = exchange(CASES[name])
    chosen = one.decide(rounds=50)
    ours = one.total(chosen)
    assert bool(ours.isfinite().all())
    for device, action in product(range(4), range(one.price.shape[-1])):
        moved = chosen.clone()
        moved[:, device] = action
        assert bool((one.total(moved) >= ours - 1e-9).all())
    joint = all_joint(one)
    costs = torch.stack([one.total(row.expand(3, -1)) for row in joint])
    least, silent = costs.min(0).values, one.total(torch.zeros(3, 4, dtype=torch.long))
    assert bool((ours >= least - 1e-9).all())
    assert bool((ours <= silent + 1e-9).all())


def test_opportunities_are_gains_over_idling():
    one = exchange(CASES["separate"])
    chosen = one.decide(rounds=10)
    found = one.opportunities(chosen)
    assert bool((found[..., 0] == 0).all())
    moved = chosen.clone()
    moved[:, 0] = 0
    loud = chosen.clone()
    loud[:, 0] = 3
    free = Exchange(one.network, one.fading, one.value, torch.zeros_like(one.price))
    torch.testing.assert_close(found[:, 0, 3], free.total(moved) - free.total(loud))


def test_the_packet_that_gains_most_is_sent_whatever_its_number():
    """In a full mesh, where one packet at a time arrives: whoever speaks first would keep the word."""
    changes = {
        "energy.actions": "separate",
        "network.topology": "complete",
        "network.devices": 6,
        "link.waterfall": 9.0,
    }
    problem = hm.build(hm.Scenario.load("tiny").override({**changes, "link.half_duplex": True}))
    network = EdgeTensors(problem)
    sender = torch.from_numpy(problem.topology.edge_sender)
    price = torch.zeros(6, 6, len(problem.actions), dtype=torch.float64)
    value = torch.where(sender == torch.arange(6).unsqueeze(1), 1.2, 1.0).reshape(6, -1, 1, 1)  # by episode
    one = Exchange(network, torch.full((6, len(sender)), 4.0, dtype=torch.float64), value.double(), price)
    sends = problem.actions.power_watt[one.decide(rounds=6)] > 0
    assert torch.equal(sends, torch.eye(6, dtype=torch.bool))
