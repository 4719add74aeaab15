"""What large networks compute by other means is what small ones compute."""

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.bounds import sampled_bound
from heliomesh.bounds.paths import drawn_paths
from heliomesh.model import threads
from heliomesh.simulation import slot_loop
from heliomesh.slot import colour_rounds, coordination, independent_cost
from heliomesh.slot.enumerated_cost import EnumeratedCost
from heliomesh.slot.independent_cost import IndependentCost

_CHANGES = [
    {},
    {"link.half_duplex": True},
    {"channel.state": "link"},
    {"channel.state": "link", "link.half_duplex": True, "energy.actions": "separate"},
]


def _network(devices: int, changes: dict[str, object]) -> hm.Problem:
    scenario = hm.Scenario.load("tiny").override(
        {
            "slots": 12,
            "network": {
                "topology": "geometric",
                "devices": devices,
                "mean_degree": 2.5,
                "max_degree": 4,
                "placement": "jittered",
                "allow_disconnected": True,
            },
            **changes,
        }
    )
    return hm.build(scenario)


@pytest.mark.parametrize("most_bytes", [0, 1 << 30])
@pytest.mark.parametrize("changes", _CHANGES)
def test_costs_from_kept_logarithms_are_those_of_listed_joint_actions(changes, most_bytes, monkeypatch):
    monkeypatch.setitem(independent_cost._KEPT_BYTES, "cpu", most_bytes)
    problem = _network(40, changes)
    fast, plain, colour = IndependentCost(problem), EnumeratedCost(problem), torch.tensor(problem.colour)
    law = torch.rand(12, 40, len(problem.actions), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    law /= law.sum(-1, keepdim=True)
    for turn in [*range(int(colour.max()) + 1), 0, 1]:
        movers = (colour == turn).nonzero().squeeze(1)
        for first, end in ((0, 5), (5, 11), (11, 12)):
            found, expected = (form.of(movers).action_cost(law[first:end], first) for form in (fast, plain))
            torch.testing.assert_close(found, expected, atol=1e-13, rtol=0)
        law[:, movers] = law[:, movers].roll(1, -1)
        torch.testing.assert_close(fast.cost(law[:5]), plain.cost(law[:5]), atol=1e-12, rtol=0)


@pytest.mark.parametrize("changes", _CHANGES[:3])
@pytest.mark.parametrize("planner", ["receiver", "prices"])
def test_rounds_that_ask_few_devices_decide_alike(planner, changes, monkeypatch):
    problem = _network(40, changes)
    plan = hm.plan(problem, planner, **({"largest_table": 0} if planner == "receiver" else {}))
    looked_up = hm.simulate_costs(problem, plan, 6)
    monkeypatch.setattr(coordination, "_MOST_RESPONSES", 0)
    for share in (0.0, 0.1, 1.0):
        monkeypatch.setattr(colour_rounds, "_FEW_CHANGED", share)
        np.testing.assert_array_equal(hm.simulate_costs(problem, plan, 6), looked_up)
    monkeypatch.setattr(coordination, "is_small", lambda _: False)  # episodes share tables where they can
    again = hm.plan(problem, planner, **({"largest_table": 0} if planner == "receiver" else {}))
    np.testing.assert_array_equal(hm.simulate_costs(problem, again, 6), looked_up)


def test_threads_draw_the_same_numbers(monkeypatch):
    problem = _network(40, {})
    plan = hm.plan(problem, "uncoordinated")
    alone = hm.simulate(problem, plan, episodes=5)
    monkeypatch.setattr(slot_loop, "_MANY_NUMBERS", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    together = hm.simulate(problem, plan, episodes=5)
    np.testing.assert_array_equal(together.delivered, alone.delivered)
    np.testing.assert_array_equal(together.battery_joule, alone.battery_joule)
    costs = hm.simulate_costs(problem, plan, 5)  # which draw no packets
    np.testing.assert_allclose(costs, alone.cost, rtol=1e-14)


@pytest.mark.parametrize("state", ["receiver", "link"])
def test_prices_sought_in_float32_give_nearly_the_same_bound(state, monkeypatch):
    problem = _network(30, {"channel.state": state}).wide
    paths = drawn_paths(problem, range(2), 0)
    levels = problem.battery.levels
    plain, found = (
        sampled_bound.PathSearch(problem, levels, narrow).bounds(paths, None, 30, lambda items, *_: items)
        for narrow in (False, True)
    )
    assert not sampled_bound.is_large(problem)
    monkeypatch.setattr(threads, "_MOST_DEVICES", 10)
    assert sampled_bound.is_large(problem)
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=0)
