"""Sizing: the pairs it tries, what follows from them, and the smallest that meet a target."""

import re

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.jobs.store import COST, Store, opened
from heliomesh.simulation.diagnostics import Interval
from heliomesh.simulation.ledger import dark_slots
from heliomesh.studies.sizing import (
    Axes,
    BatteryPanel,
    Measurement,
    Outcome,
    PairSamples,
    Prices,
    Sizing,
    Target,
    axes_of,
    search,
)

TINY = hm.Scenario.load("tiny")
AXES = Axes((1.0, 2.0, 3.0, 4.0), (10.0, 20.0, 30.0), "harvest.panel_cm2", "cm²")
LOSS = Target("update loss", 0.5)


NOISE = np.array([-1e-6, 0.0, 1e-6])


def falling(pair):
    """A loss that falls in both directions, the same in three episodes but for a little noise; no darkness."""
    return PairSamples(1 / (1 + pair.capacity_joule * pair.panel / 40) + NOISE, np.zeros(3))


def found(mean, half_width=0.0, dark=0.0):
    return Outcome(mean, half_width, Interval(dark, 0.0))


def test_smallest_pairs_by_hand():
    # the loss is at most 40/81 where capacity × panel is at least 41: nothing lies on the border
    sizing = search(AXES, Target("update loss", 40 / 81), falling)
    assert sizing.smallest == [BatteryPanel(2.0, 30.0), BatteryPanel(3.0, 20.0)]
    assert {pair for pair in AXES.pairs if sizing.meets(pair)} == {
        BatteryPanel(2.0, 30.0),
        BatteryPanel(3.0, 20.0),
        BatteryPanel(3.0, 30.0),
        BatteryPanel(4.0, 20.0),
        BatteryPanel(4.0, 30.0),
    }
    assert sizing.cheapest(Prices(per_joule=1.0, per_panel_unit=0.01)) == BatteryPanel(2.0, 30.0)  # 2.3 against 3.2
    assert sizing.cheapest(Prices(per_joule=1.0, per_panel_unit=1.0)) == BatteryPanel(3.0, 20.0)  # 23 against 32
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
    walked = search(
        AXES, Target("accuracy", 41 / 81), lambda pair: PairSamples(1 - falling(pair).measure, np.zeros(3)), False
    )
    assert walked.smallest == [BatteryPanel(2.0, 30.0), BatteryPanel(3.0, 20.0)]
    assert walked.best in walked.found


def test_a_target_out_of_reach():
    sizing = search(AXES, Target("update loss", 0.1), falling, every_pair=False)
    assert sizing.smallest == []
    assert sizing.best == BatteryPanel(4.0, 30.0)


def test_pairs_that_meet_by_chance_do_not_spread():
    outcomes = {pair: found(0.9) for pair in AXES.pairs} | {BatteryPanel(2.0, 10.0): found(0.1)}
    sizing = Sizing(AXES, LOSS, outcomes)
    assert [pair for pair in AXES.pairs if sizing.meets(pair)] == [BatteryPanel(2.0, 10.0)]


# axes


def test_axes_are_multiples_of_the_scenario_s_own_values():
    axes = axes_of(hm.Scenario.load("ring10"))
    assert axes.capacity_joule == (1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0)
    assert axes.panel == (3.125, 6.25, 12.5, 18.75, 25.0, 37.5, 50.0)
    assert axes.panel_field == "harvest.panel_cm2"
    built = axes.scenario(hm.Scenario.load("ring10"), BatteryPanel(6.5, 25.0))
    assert (built.energy.capacity_joule, built.energy.battery_levels) == (6.5, None)  # planners choose their grids
    assert built.as_dict()["harvest"]["panel_cm2"] == 25.0


def test_a_harvest_without_panel_is_scaled():
    axes = axes_of(TINY, [3, 1], [2, 0.5, 2])
    assert (axes.panel_field, axes.capacity_joule, axes.panel) == ("harvest.scale", (1, 3), (0.5, 2))
    assert axes.scenario(TINY, BatteryPanel(1, 2)).as_dict()["harvest"]["scale"] == 2.0


@pytest.mark.parametrize(
    ("changes", "capacity", "panel", "words"),
    [
        ({}, [-1.5], None, "capacity_joule: expected numbers above 0, actual value -1.5"),
        ({}, [0.0], None, "capacity_joule: expected numbers above 0, actual value 0"),
        ({}, [float("nan")], None, "capacity_joule: expected numbers above 0, actual value nan"),
        ({}, None, [-1.0], "panel: expected numbers of at least 0, actual value -1"),
        ({}, None, [float("inf")], "panel: expected numbers of at least 0, actual value inf"),
        ({"energy.capacity_joule": [3.0] * 5}, None, None, "energy.capacity_joule: expected one number for all"),
    ],
)
def test_axes_that_cannot_be(changes, capacity, panel, words):
    with pytest.raises(hm.ScenarioError, match=re.escape(words)):
        axes_of(TINY.override(changes), capacity, panel)


# darkness and borders

DRAINED = TINY.override({"energy.sleep_watt": 1.0, "energy.initial": 0.0})


def darkening(pair):
    """The loss of `falling`, and darkness that both parts lower."""
    return PairSamples(falling(pair).measure, 0.5 / (pair.capacity_joule * pair.panel) + NOISE)


def test_a_pair_in_the_dark_does_not_meet_the_target():
    bright = search(AXES, Target("update loss", 0.9, most_dark=0.01), falling)
    assert bright.smallest == [BatteryPanel(1.0, 10.0)]
    dark = search(AXES, Target("update loss", 0.9, most_dark=0.5 / 39), darkening)
    assert dark.smallest == [BatteryPanel(2.0, 20.0), BatteryPanel(4.0, 10.0)]  # capacity × panel is at least 39
    assert BatteryPanel(1.0, 30.0) in dark.too_dark
    walked = search(AXES, dark.target, darkening, every_pair=False)
    assert walked.smallest == dark.smallest


def test_the_worse_end_of_the_darkness_must_keep_the_limit():
    target = Target("update loss", 0.5, most_dark=0.05)
    assert target.met_by(Outcome(0.4, 0.0, Interval(0.04, 0.009)))
    assert not target.met_by(Outcome(0.4, 0.0, Interval(0.04, 0.011)))
    assert not target.met_by(Outcome(0.6, 0.0, Interval(0.0, 0.0)))


def test_answers_at_the_border_of_the_grid_say_so():
    sizing = search(AXES, Target("update loss", 0.9), falling)
    assert sizing.at_border == {BatteryPanel(1.0, 10.0): ["smallest battery", "smallest panel"]}
    inner = search(AXES, Target("update loss", 40 / 81), falling)  # 2 J with 30, 3 J with 20
    assert inner.at_border == {BatteryPanel(2.0, 30.0): ["largest panel"]}
    assert Axes((1.0,), (0.0, 1.0), "harvest.scale", "").border(BatteryPanel(1.0, 0.0)) == []  # no less than no panel
    assert inner.table()["border"].tolist().count("") == 2  # (2, 20) and (3, 20)


def test_darkness_is_that_of_the_traces():
    with opened(None) as store:
        simulated = Measurement("update loss", episodes=3).samples(DRAINED, store)
        trained = Measurement("accuracy", episodes=3).samples(DRAINED.override({"learning.local_steps": 1}), store)
    problem = hm.build(DRAINED)
    trace = hm.simulate(problem, hm.plan(problem, "receiver"), 3)
    expected = dark_slots(trace).mean((1, 2))
    assert (expected > 0.1).all()
    np.testing.assert_allclose(simulated.dark, expected, rtol=1e-12)
    np.testing.assert_allclose(trained.dark, expected, rtol=1e-12)


def test_without_drain_nobody_is_in_the_dark():
    assert not hm.size(TINY, target_loss=1.0, capacity_joule=[2, 3], panel=[0.0, 1], episodes=2).is_drained


def test_stored_costs_without_darkness_are_measured_again(tmp_path):
    store, measurement = Store(tmp_path), Measurement("update loss", episodes=2)
    expected = measurement.samples(DRAINED, store)
    for place in (tmp_path / "costs").rglob("*.json"):
        content = COST.read(place, ValueError)
        del content["dark"]
        COST.write(place, content)
    np.testing.assert_array_equal(measurement.samples(DRAINED, store), expected)


def test_panels_of_their_own_are_scaled_by_one_factor():
    own = TINY.override({"harvest.scale": [1.0, 1.0, 2.0, 1.0, 0.5]})
    axes = axes_of(own, [3.0], [0.5, 2.0])
    assert axes.panel == (0.5, 2.0)
    assert axes.scenario(own, BatteryPanel(3.0, 2.0)).as_dict()["harvest"]["scale"] == [2.0, 2.0, 4.0, 2.0, 1.0]
    assert axes_of(own).panel == (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
    assert axes.price(BatteryPanel(3.0, 2.0), Prices(1.0, 10.0)) == pytest.approx(3 + 10 * 2 * 1.1)
    sizing = hm.size(own, target_loss=1.0, capacity_joule=[3.0], panel=[1.0], episodes=2)
    np.testing.assert_allclose(sizing.found[BatteryPanel(3.0, 1.0)].mean, losses(own, episodes=2).mean())


def test_panel_areas_of_their_own_are_factors():
    ring = hm.Scenario.load("ring10")
    axes = axes_of(ring.override({"harvest.panel_cm2": [10.0] * 9 + [20.0]}))
    assert (axes.panel_unit, axes.panel[2]) == ("times the panels", 1.0)


# measurements


def losses(scenario, **settings):
    """Update losses, measured anew."""
    with opened(None) as store:
        return Measurement("update loss", **settings).samples(scenario, store).measure


def test_update_loss_is_the_cost_per_device_on_common_luck():
    found = losses(TINY, episodes=4)
    problem = hm.build(TINY)
    expected = hm.simulate(problem, hm.plan(problem, "receiver"), 4, seed=0).cost / 5
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_more_of_both_loses_less():
    sizing = hm.size(TINY, target_loss=0.5, capacity_joule=[2, 3, 6], panel=[0.5, 1, 2])
    means = np.array([[sizing.found[BatteryPanel(c, p)].mean for c in (2, 3, 6)] for p in (0.5, 1, 2)])
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
        found = measurement.samples(scenario, store).measure
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
    for step in ("planned", "simulated", "simulated_means", "train_stacks"):
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
