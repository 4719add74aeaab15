"""What sending costs: consumption at and between the powers, and simulations in which nobody overdraws."""

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.physics.sending import build_sending
from heliomesh.scenario.scenario import Scenario

DRAWN = {"energy.consumed_watt": [0.0, 1.5, 2.2]}  # at 0, 1 and 2 W


def test_a_radio_draws_what_it_radiates_unless_told_otherwise():
    sending = build_sending(Scenario.load("tiny").energy, 0.3)
    powers = torch.rand(5, 2, dtype=torch.float64)
    assert torch.equal(sending.joule(powers), powers * 0.3)
    assert torch.equal(sending.radiated_watt(powers), powers)


@pytest.mark.parametrize(("radiated", "drawn"), [(0.0, 0.0), (0.5, 0.75), (1.0, 1.5), (1.5, 1.85), (2.0, 2.2)])
def test_consumption_is_interpolated_between_the_powers(radiated, drawn):
    sending = build_sending(Scenario.load("tiny").override(DRAWN).energy, 2.0)
    power = torch.tensor([radiated], dtype=torch.float64)
    assert float(sending.joule(power)) == pytest.approx(2 * drawn)
    assert float(sending.radiated_watt(torch.tensor([drawn], dtype=torch.float64))) == pytest.approx(radiated)


def test_silence_alone_draws_nothing():
    settings = {"energy.powers_watt": [0.0], "energy.consumed_watt": [0.0], "energy.train_only": True}
    problem = hm.build(Scenario.load("tiny").override(settings))
    assert problem.actions.spent_joule[0].tolist() == [0.0, 1.0]


def test_actions_spend_what_is_drawn_and_links_hear_what_is_radiated():
    plain, real = (hm.build(Scenario.load("tiny").override(changes)) for changes in ({}, DRAWN))
    assert real.actions.spent_joule[0].tolist() == [0.0, 1.0 + 1.5, 1.0 + 2.2]
    assert torch.equal(real.actions.power_watt, plain.actions.power_watt)


@pytest.mark.parametrize("actions", ["coupled", "separate"])
@pytest.mark.parametrize(
    ("planner", "options"),
    [("uncoordinated", {}), ("myopic", {}), ("myopic", {"mode": "continuous"}), ("skiptrain", {}), ("receiver", {})],
)
def test_simulated_spending_is_what_is_drawn(planner, options, actions):
    """The slot loop refuses whoever overdraws a battery."""
    changes = DRAWN | {"energy.compute_joule": 0.4, "energy.actions": actions, "slots": 20}
    problem = hm.build(Scenario.load("tiny").override(changes))
    trace = hm.simulate(problem, hm.plan(problem, planner, **options), episodes=5)
    drawn = np.interp(trace.power_watt, [0.0, 1.0, 2.0], [0.0, 1.5, 2.2])
    assert np.allclose(trace.spent_joule, 0.4 * trace.scheduled + drawn)
    assert (trace.power_watt > 0).any()
