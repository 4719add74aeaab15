"""Sizing: the pairs it tries, what follows from them, and the smallest that meet a target."""

import re

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.jobs.store import Store, opened
from heliomesh.simulation.diagnostics import Interval
from heliomesh.studies.sizing import Axes, Measurement, Pair, Prices, Sizing, Target, axes_of, search

TINY = hm.Scenario.load("tiny")
AXES = Axes((1.0, 2.0, 3.0, 4.0), (10.0, 20.0, 30.0), "harvest.panel_cm2", "cm²")
LOSS = Target("update loss", 0.5)


def falling(pair):
    """A loss that falls in both directions, the same in each of three episodes but for a little noise."""
    return 1 / (1 + pair.capacity_joule * pair.panel / 40) + np.array([-1e-6, 0.0, 1e-6])


def test_smallest_pairs_by_hand():
    # the loss is at most 40/81 where capacity × panel is at least 41: nothing lies on the border
    sizing = search(AXES, Target("update loss", 40 / 81), falling)
    assert sizing.smallest == [Pair(2.0, 30.0), Pair(3.0, 20.0)]
    assert {pair for pair in AXES.pairs if sizing.meets(pair)} == {
        Pair(2.0, 30.0),
        Pair(3.0, 20.0),
        Pair(3.0, 30.0),
        Pair(4.0, 20.0),
        Pair(4.0, 30.0),
    }
    assert sizing.cheapest(Prices(per_joule=1.0, per_panel_unit=0.01)) == Pair(2.0, 30.0)  # 2.3 against 3.2
    assert sizing.cheapest(Prices(per_joule=1.0, per_panel_unit=1.0)) == Pair(3.0, 20.0)  # 23 against 32
    assert sizing.skipped == []


@pytest.mark.parametrize("value", [0.0, 0.2, 0.3, 0.4, 0.45, 0.55, 0.6, 0.7, 0.79, 1.0])
def test_what_follows_from_others_need_not_be_tried(value):
    target = Target("update loss", value)
    every = search(AXES, target, falling)
    walked = search(AXES, target, falling, every_pair=False)
    assert [walked.meets(pair) for pair in AXES.pairs] == [every.meets(pair) for pair in AXES.pairs]
    assert walked.smallest == every.smallest
    assert len(walked.found) <= len(AXES.capacity_joule) + len(AXES.panel) - 1
    assert sorted([*walked.found, *walked.skipped]) == sorted(AXES.pairs)


def test_the_worse_end_of_the_interval_must_meet_the_target():
    assert LOSS.missed_by(Interval(0.4, 0.1)) == pytest.approx(0)
    assert LOSS.missed_by(Interval(0.45, 0.1)) == pytest.approx(0.05)
    accuracy = Target("accuracy", 0.8)
    assert accuracy.missed_by(Interval(0.85, 0.1)) == pytest.approx(0.05)
    assert accuracy.missed_by(Interval(0.95, 0.1)) == pytest.approx(-0.05)


def test_accuracy_grows_where_loss_falls():
    walked = search(AXES, Target("accuracy", 41 / 81), lambda pair: 1 - falling(pair), every_pair=False)
    assert walked.smallest == [Pair(2.0, 30.0), Pair(3.0, 20.0)]
    assert walked.best in walked.found


def test_a_target_out_of_reach():
    sizing = search(AXES, Target("update loss", 0.1), falling, every_pair=False)
    assert sizing.smallest == []
    assert sizing.best == Pair(4.0, 30.0)


def test_pairs_that_meet_by_chance_do_not_spread():
    found = {pair: Interval(0.9, 0.0) for pair in AXES.pairs} | {Pair(2.0, 10.0): Interval(0.1, 0.0)}
    sizing = Sizing(AXES, LOSS, found)
    assert [pair for pair in AXES.pairs if sizing.meets(pair)] == [Pair(2.0, 10.0)]


# axes


def test_axes_are_multiples_of_the_scenario_s_own_values():
    axes = axes_of(hm.Scenario.load("ring10"))
    assert axes.capacity_joule == (1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0)
    assert axes.panel == (3.125, 6.25, 12.5, 18.75, 25.0, 37.5, 50.0)
    assert axes.panel_field == "harvest.panel_cm2"
    built = axes.scenario(hm.Scenario.load("ring10"), Pair(6.5, 25.0))
    assert (built.energy.capacity_joule, built.energy.battery_levels) == (6.5, None)  # planners choose their grids
    assert built.as_dict()["harvest"]["panel_cm2"] == 25.0


def test_a_harvest_without_panel_is_scaled():
    axes = axes_of(TINY, [3, 1], [2, 0.5, 2])
    assert (axes.panel_field, axes.capacity_joule, axes.panel) == ("harvest.scale", (1, 3), (0.5, 2))
    assert axes.scenario(TINY, Pair(1, 2)).as_dict()["harvest"]["scale"] == 2.0


@pytest.mark.parametrize(
    ("changes", "capacity", "panel", "words"),
    [
        ({}, [-1.5], None, "capacity_joule: expected numbers above 0, actual value -1.5"),
        ({}, [0.0], None, "capacity_joule: expected numbers above 0, actual value 0"),
        ({}, [float("nan")], None, "capacity_joule: expected numbers above 0, actual value nan"),
        ({}, None, [-1.0], "panel: expected numbers of at least 0, actual value -1"),
        ({}, None, [float("inf")], "panel: expected numbers of at least 0, actual value inf"),
        ({"energy.capacity_joule": [3.0] * 5}, None, None, "energy.capacity_joule: expected one number for all"),
        ({"harvest.scale": [1.0] * 5}, None, None, "harvest.scale: expected one number for all devices"),
    ],
)
def test_axes_that_cannot_be(changes, capacity, panel, words):
    with pytest.raises(hm.ScenarioError, match=re.escape(words)):
        axes_of(TINY.override(changes), capacity, panel)


# measurements


def losses(scenario, **settings):
    """Update losses, measured anew."""
    with opened(None) as store:
        return Measurement("update loss", **settings).samples(scenario, store)


def test_update_loss_is_the_cost_per_device_on_common_luck():
    found = losses(TINY, episodes=4)
    problem = hm.build(TINY)
    expected = hm.simulate(problem, hm.plan(problem, "receiver"), 4, seed=0).cost / 5
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_more_of_both_loses_less():
    sizing = hm.size(TINY, target_loss=0.5, capacity_joule=[2, 3, 6], panel=[0.5, 1, 2])
    means = np.array([[sizing.found[Pair(c, p)].mean for c in (2, 3, 6)] for p in (0.5, 1, 2)])
    assert (np.diff(means, axis=0) < 0).all()
    assert (np.diff(means, axis=1) < 0).all()


def test_no_sun_and_no_first_charge_loses_everything():
    dark = TINY.override({"energy.initial": 0.0})
    sizing = hm.size(dark, target_loss=0.5, capacity_joule=[1, 3], panel=[0.0], episodes=2)
    assert {(found.mean, found.half_width) for found in sizing.found.values()} == {(1.0, 0.0)}
    assert sizing.smallest == []


def test_batteries_too_small_to_train_lose_everything():
    np.testing.assert_array_equal(losses(TINY.override({"energy.compute_joule": 50.0}), episodes=2), 1.0)


def test_accuracy_by_a_slot_is_that_of_the_run_so_far():
    scenario = TINY.override({"learning.local_steps": 2})
    measurement = Measurement("accuracy", episodes=2, seed=3, by_slot=5, strategy="loop")
    with opened(None) as store:
        found = measurement.samples(scenario, store)
    problem = hm.build(scenario)
    trace = hm.simulate(problem, hm.plan(problem, "receiver"), 2, seed=3)
    for episode in range(2):
        run = hm.train(
            scenario, trace, episode, seed=3 + episode, evaluate_every=5, device_samples=10**6, strategy="loop"
        )
        assert found[episode] == run.metrics["accuracy_mean"][0]


@pytest.mark.parametrize("measure", ["update loss", "accuracy"])
def test_stored_samples_are_not_computed_twice(tmp_path, monkeypatch, measure):
    scenario, store = TINY.override({"learning.local_steps": 1}), Store(tmp_path / "new")
    measurement = Measurement(measure, episodes=2)
    first = measurement.samples(scenario, store)
    for step in ("planned", "simulated", "simulated_costs", "trained"):
        monkeypatch.setattr(f"heliomesh.jobs.store.{step}", pytest.fail)
    np.testing.assert_array_equal(measurement.samples(scenario, store), first)


def test_a_damaged_cost_is_named(tmp_path):
    store, measurement = Store(tmp_path), Measurement("update loss", episodes=2)
    measurement.samples(TINY, store)
    one, other = sorted((tmp_path / "costs").rglob("*.json"))
    for text in ("", "{}", '{"cost": [1]}', '{"cost": "x"}', other.read_text(encoding="utf-8")):
        one.write_text(text, encoding="utf-8")
        with pytest.raises(hm.TrainingError, match=one.name):
            measurement.samples(TINY, store)


def test_whatever_decides_samples_is_in_their_keys():
    measurements = [
        Measurement("accuracy"),
        Measurement("accuracy", "prices"),
        Measurement("accuracy", "prices", {"coordinate": False}),
        Measurement("accuracy", seed=1),
        Measurement("accuracy", by_slot=4),
    ]
    keys = [tuple(job.key() for job in one.jobs(TINY)) for one in measurements]
    keys.append(tuple(job.key() for job in measurements[0].jobs(TINY.override({"slots": 3}))))
    assert len({key for own in keys for key in own}) == sum(len(own) for own in keys)
    fewer = [job.key() for job in Measurement("accuracy", episodes=3).jobs(TINY)]
    assert fewer == list(keys[0][:3])  # more episodes go on from those that are there
