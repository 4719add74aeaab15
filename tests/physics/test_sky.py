"""One sky over all devices: what is shared, what is not, and forecasts that are right as often as they say."""

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.physics.harvesting import with_forecast
from heliomesh.simulation.slot_loop import run_slots

MARKOV = {
    "source": "markov",
    "joule": [[0.0, 1.0], [1.0, 2.0]],
    "prob": [[0.7, 0.3], [0.4, 0.6]],
    "kernel": [[0.9, 0.1], [0.2, 0.8]],
}


def under(sky, **more):
    """The scenario `tiny` with Markov weather under a sky."""
    base = hm.Scenario.load("tiny").as_dict()
    return hm.Scenario.parse(base | {"harvest": MARKOV | {"sky": sky} | more})


def harvests(problem, episodes=200):
    """Weather and harvest (episode, slot, device) under a policy that does not matter."""
    policy = hm.plan(problem, "uncoordinated", bound=False).policy
    slots = list(run_slots(problem, policy, list(range(episodes)), 0))
    return (np.stack([getattr(slot, name).numpy() for slot in slots], 1) for name in ("weather", "harvested_joule"))


@pytest.mark.parametrize(
    ("sky", "one_weather", "one_harvest"),
    [("independent", False, False), ("mixed", True, False), ("common", True, True)],
)
def test_what_devices_share(sky, one_weather, one_harvest):
    weather, harvested = harvests(hm.build(under(sky)))
    assert bool((weather == weather[..., :1]).all()) == one_weather
    assert bool((harvested == harvested[..., :1]).all()) == one_harvest


@pytest.mark.parametrize("sky", ["independent", "mixed", "common"])
def test_every_device_alone_has_the_same_law(sky):
    problem = hm.build(under(sky))
    _, harvested = harvests(problem, 2000)
    expected = float(problem.harvest.law.mean_joule()[0])
    by_episode = np.asarray(harvested).mean((1, 2))
    assert abs(by_episode.mean() - expected) < 4 * by_episode.std() / np.sqrt(len(by_episode))


@pytest.mark.parametrize("sky", ["independent", "mixed", "common"])
@pytest.mark.parametrize("planner", ["centralized", "uncoordinated"])
def test_expected_costs_are_simulated_costs(sky, planner):
    problem = hm.build(under(sky).override({"network.devices": 3, "slots": 8}))
    assert problem.grid_is_exact
    plan = hm.plan(problem, planner, bound=False)
    cost = hm.simulate(problem, plan, episodes=4000).cost
    exact = hm.exact_cost(problem, plan)
    assert abs(cost.mean() - exact) < 4 * cost.std() / np.sqrt(len(cost))
    if planner == "centralized":
        assert exact == pytest.approx(plan.expected_cost, abs=1e-12)


def test_a_common_sky_costs_more():
    """Shared bad weather leaves everybody without energy at once, and shared good weather makes packets collide."""
    costs = {
        sky: hm.plan(hm.build(under(sky).override({"network.devices": 3})), "centralized", bound=False).expected_cost
        for sky in ("independent", "mixed", "common")
    }
    assert costs["independent"] < costs["mixed"] < costs["common"]


def test_prices_that_see_the_sky_bound_more(monkeypatch):
    from heliomesh.bounds import dual

    problem = hm.build(under("common").override({"slots": 40}))
    effort = dual.Effort(60)
    seeing = dual.raise_bound(problem, effort, lambda items, *_: items)
    monkeypatch.setattr(dual, "num_skies", lambda _: 1)
    assert seeing > dual.raise_bound(problem, effort, lambda items, *_: items)


def test_a_replay_under_a_common_sky_starts_everywhere_at_once():
    scenario = hm.Scenario.load("tiny").as_dict() | {
        "harvest": {"source": "trace", "joule": [0.0, 0.5, 1.0, 2.0, 0.0, 3.0], "sky": "common"}
    }
    _, harvested = harvests(hm.build(hm.Scenario.parse(scenario)))
    assert bool((harvested == harvested[..., :1]).all())
    assert len(np.unique(harvested[:, 0, 0])) > 3  # episodes start at different points


@pytest.mark.parametrize("accuracy", [0.0, 0.5, 0.9, 1.0])
def test_a_forecast_is_right_as_often_as_it_says(accuracy):
    problem = hm.build(under("independent", forecast=accuracy).override({"slots": 50}))
    weather, _ = harvests(problem, 400)
    seen, forecast = weather // 2, weather % 2
    right = (forecast[:, :-1] == seen[:, 1:]).mean()
    assert abs(float(right) - accuracy) < 0.01
    plain = hm.build(under("independent")).harvest.law
    moved = np.array([[(seen[:, 1:][seen[:, :-1] == w] == v).mean() for v in (0, 1)] for w in (0, 1)])
    np.testing.assert_allclose(moved, plain.kernel.numpy(), atol=0.02)


def test_a_forecast_helps_and_a_better_one_more():
    costs = [
        hm.plan(
            hm.build(under("common", **({} if a is None else {"forecast": a})).override({"network.devices": 3})),
            "centralized",
            bound=False,
        ).expected_cost
        for a in (None, 0.5, 0.8, 1.0)
    ]
    assert costs[1] == pytest.approx(costs[0], abs=1e-12)  # a coin tells nothing
    assert costs[0] > costs[2] > costs[3]


def test_every_row_of_a_forecast_is_a_law():
    law = hm.build(under("independent")).harvest.law
    kernel = with_forecast(law, 1.0).kernel
    torch.testing.assert_close(kernel.sum(1), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("harvest", "sentence"),
    [
        ({"source": "trace", "joule": [0.0, 1.0], "sky": "mixed"}, "harvest.sky: expected independent or common"),
        ({"source": "table", "joule": [1.0], "prob": [1.0], "forecast": 0.9}, "harvest.forecast: expected a source"),
        (MARKOV | {"forecast": 1.1}, "harvest.forecast: "),
        (MARKOV | {"sky": "blue"}, "harvest.sky: "),
    ],
)
def test_bad_skies_are_refused_in_one_sentence(harvest, sentence):
    with pytest.raises(hm.ScenarioError, match=sentence):
        hm.build(hm.Scenario.parse(hm.Scenario.load("tiny").as_dict() | {"harvest": harvest}))
