"""Fitted values of receivers: exact where their form is exact, close to the tables, refused where not offered."""

import itertools

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.problem.coordination import Coordination
from heliomesh.problem.cost import receiver_factor
from heliomesh.problem.exact import backward_induction
from heliomesh.problem.fitted import fit_futures
from heliomesh.problem.problem import Part
from heliomesh.simulation.diagnostics import interval


def fitted(problem, receiver):
    """Futures of a receiver's missed weight alone, with nothing booked."""
    coordination = Coordination(problem)
    group = next(g for g in coordination.groups if receiver in g.receivers.tolist())
    place = group.receivers.tolist().index(receiver)
    level = torch.arange(problem.channel.levels).unsqueeze(1).expand(-1, problem.num_devices)
    cost = coordination.slot_costs(group, level)[:, place]
    actors = group.actors[place].tolist()
    return actors, fit_futures(problem, receiver, actors, cost, torch.zeros(len(actors), len(problem.actions)), 1e-9)


def test_one_neighbour_is_fitted_exactly():
    """With a single device heard the form holds every function of (h, e): the fit is the dynamic program."""
    edges = {"network.topology": "edges", "network.devices": 2, "network.edges": [[0, 1]], "slots": 6}
    problem = hm.build(hm.Scenario.load("tiny").override(edges))
    actors, found = fitted(problem, 0)
    steps = list(backward_induction(problem, Part((1,), (0,), (0,)), [receiver_factor(problem, 0)], with_code=False))
    assert actors == [1]
    for back, step in enumerate(steps):
        for h, e in itertools.product(range(problem.channel.levels), range(problem.num_energy)):
            value = found.joint(back, torch.tensor([h]), torch.tensor([[[e]]]))
            assert float(value) == pytest.approx(float(step.future[h, e]), abs=1e-5)


def test_futures_are_close_to_the_table_and_fall_with_charge():
    problem = hm.build(hm.Scenario.load("tiny").override({"network.topology": "star", "slots": 8}))
    actors, found = fitted(problem, 0)
    part = Part(tuple(actors), (0,), (0,))
    exact = list(backward_induction(problem, part, [receiver_factor(problem, 0)], with_code=False))[-1].future
    states = list(itertools.product(range(problem.num_energy), repeat=4))
    for h in range(problem.channel.levels):
        left = torch.tensor(states).unsqueeze(-1)
        guess = found.joint(7, torch.full((len(states),), h), left).flatten()
        true = exact[h].flatten()
        # a constant does not matter; functions of single devices alone leave 0.9 and more
        assert float((guess - true).std()) < 0.3 * float(true.std())
        assert guess[0] > guess[-1]


def test_fitted_decisions_are_as_good_as_the_tables():
    problem = hm.build(hm.Scenario.load("tiny").override({"network.topology": "star", "slots": 20}))
    options = {"steps": 2, "channel_steps": 0, "bound": False}
    cost = {
        name: hm.simulate_costs(problem, hm.plan(problem, "receiver", **options, **more), 64)
        for name, more in {"table": {}, "fit": {"largest_table": 0, "fit": True}}.items()
    }
    worse = interval((cost["fit"] - cost["table"]) / cost["table"].mean())
    assert worse.mean - worse.half_width < 0.005
    assert np.abs(cost["fit"] - cost["table"]).max() > 0  # they are not the same plan


@pytest.mark.parametrize("change", [{"channel.state": "link"}, {"link.half_duplex": True}])
def test_other_channels_are_refused(change):
    problem = hm.build(hm.Scenario.load("tiny").override(change | {"slots": 2}))
    with pytest.raises(hm.ScenarioError, match=r"receiver option\.fit: expected receiver channels and full duplex"):
        hm.plan(problem, "receiver", largest_table=0, fit=True, steps=2, channel_steps=0)
