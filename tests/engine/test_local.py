"""Running arms here: each once, paired by seed, and on after an interruption."""

import tomllib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import heliomesh as hm
from heliomesh import catalog
from heliomesh.cli import app
from heliomesh.commands.reproduce import EXPERIMENT_CATALOG
from heliomesh.engine import local
from heliomesh.engine.arm import LOSSLESS, Arm, Scheme, lossless
from heliomesh.engine.local import Hardware, prepare_all, train_all
from heliomesh.engine.results import Final, compared, estimate, final, trends
from heliomesh.engine.store import Store

SMALL = hm.Scenario.load("tiny").override({"slots": 4, "learning.local_steps": 1, "learning.dataset": "synthetic"})
HARDWARE = Hardware(strategy="loop")
ARMS = [
    Arm("figure", scheme, SMALL.override(partition), 2, setting)
    for setting, partition in (("i.i.d.", {}), ("shards", {"learning.partition": "shards"}))
    for scheme in (Scheme("receiver", "receiver"), Scheme("greedy", "uncoordinated"), LOSSLESS)
]


def count(monkeypatch, name):
    """Record the calls of a function of the engine."""
    calls, original = [], getattr(local, name)

    def counted(first, *arguments):
        calls.append(first)
        return original(first, *arguments)

    monkeypatch.setattr(local, name, counted)
    return calls


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished store; do not change it."""
    store = Store(tmp_path_factory.mktemp("done"))
    prepare_all(ARMS, store)
    train_all(ARMS, store, HARDWARE)
    return store


def assert_same(one, other):
    for arm in ARMS:
        pd.testing.assert_frame_equal(one.get(arm).curves, other.get(arm).curves)


def test_nothing_is_done_twice(done, monkeypatch):
    prepared, trained = count(monkeypatch, "prepare"), count(monkeypatch, "train_many")
    prepare_all(ARMS, done)
    train_all(ARMS, done, HARDWARE)
    assert (prepared, trained) == ([], [])


def test_partitions_share_their_plans(tmp_path, monkeypatch):
    prepared = count(monkeypatch, "prepare")
    prepare_all(ARMS, Store(tmp_path))
    assert [arm.scheme.label for arm in prepared] == ["receiver", "greedy", "ideal"]


def test_figures_share_what_is_trained(done, monkeypatch):
    prepared, trained = count(monkeypatch, "prepare"), count(monkeypatch, "train_many")
    again = [replace(arm, figure="another", setting="as before", place=1.0) for arm in ARMS[:2]]
    prepare_all([*ARMS, *again], done)
    train_all([*ARMS, *again], done, HARDWARE)
    assert (prepared, trained) == ([], [])
    for arm, equal in zip(ARMS, again, strict=False):
        pd.testing.assert_frame_equal(done.get(arm).curves, done.get(equal).curves)
        assert final(done.get(equal)).place == 1.0


def test_a_result_is_what_the_trainer_gives(done):
    arm = ARMS[3]
    problem = hm.build(arm.scenario)
    trace = hm.simulate(problem, hm.plan(problem, "receiver"), 2, seed=0)
    curves = done.get(arm).curves
    for seed in range(2):
        run = hm.train(arm.scenario, trace, seed, seed=seed, strategy="loop")
        own = curves[curves["seed"] == seed]
        np.testing.assert_array_equal(own["accuracy_mean"], run.metrics["accuracy_mean"])
    np.testing.assert_allclose(done.get(arm).manifest["cost"], trace.cost)


def test_stacks_change_nothing(done, tmp_path):
    store = Store(tmp_path)
    prepare_all(ARMS, store)
    train_all(ARMS, store, replace(HARDWARE, arms_at_once=4))
    assert_same(store, done)


@pytest.mark.parametrize("killed_at", [1, 4])
def test_a_killed_reproduction_goes_on(done, tmp_path, monkeypatch, killed_at):
    store = Store(tmp_path)

    def kill(items, description, total):
        for number, item in enumerate(items):
            if number == killed_at:
                raise KeyboardInterrupt
            yield item

    if killed_at < 3:
        with pytest.raises(KeyboardInterrupt):
            prepare_all(ARMS, store, kill)
    prepare_all(ARMS, store)
    with pytest.raises(KeyboardInterrupt):
        train_all(ARMS, store, HARDWARE, kill)
    assert sum(store.has(arm) for arm in ARMS) == killed_at
    trained = count(monkeypatch, "train_many")
    train_all(ARMS, store, HARDWARE)
    assert len(trained) == len(ARMS) - killed_at
    assert_same(store, done)


def test_the_ideal_loses_nothing():
    trace = lossless(hm.build(SMALL), 2)
    assert trace.scheduled.all()
    assert trace.delivered.all()
    assert trace.cost.tolist() == [0.0, 0.0]


def test_manifests_say_where_results_come_from(done):
    facts = done.get(ARMS[0]).manifest
    assert facts["scenario"] == ARMS[0].scenario.content_hash
    assert hm.Scenario.parse(tomllib.loads(facts["scenario_toml"])) == ARMS[0].scenario
    assert facts["seeds"] == [0, 1]
    assert {"torch", "numpy", "python", "heliomesh"} <= set(facts["versions"])
    assert facts["hardware"]["device"] == "cpu"
    assert facts["train_second"] > 0


def test_pairs_are_compared_by_seed(done):
    finals = [final(done.get(arm)) for arm in ARMS[:3]]
    pairs = compared(finals, [("ideal", "receiver"), ("receiver", "greedy"), ("greedy", "absent")])
    assert [(pair.first.scheme, pair.second.scheme) for pair in pairs] == [
        ("ideal", "receiver"),
        ("receiver", "greedy"),
    ]
    expected = (finals[2].accuracy - finals[0].accuracy).mean()
    assert pairs[0].at_end.points.mean == pytest.approx(expected)


@pytest.mark.parametrize(
    ("against", "pairs"),
    [
        ("one", [("other", 0, "one", 0), ("other", 1, "one", 1)]),
        (1.0, [("one", 0, "one", 1), ("other", 0, "other", 1)]),
    ],
)
def test_all_are_compared_with_one_scheme_or_one_place(against, pairs):
    seeds = np.array([1.0, 2.0])
    finals = [Final("", name, place, *[seeds] * 4) for name in ("one", "other") for place in (0.0, 1.0)]
    found = [(p.first.scheme, p.first.place, p.second.scheme, p.second.place) for p in compared(finals, against)]
    assert found == pairs


def test_reproduce_stores_prints_and_does_not_repeat(tmp_path, monkeypatch):
    module = catalog.find(EXPERIMENT_CATALOG, "battery")
    small = [replace(arm, scenario=SMALL, figure="battery", place=2.0) for arm in ARMS[:2]]
    monkeypatch.setattr(module, "arms", lambda quick: small)
    arguments = ["reproduce", "battery", "--quick", "--strategy", "loop", "--quiet", "--out", str(tmp_path)]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert "not there yet" not in first.output
    assert (tmp_path / "quick" / "battery.md").read_text(encoding="utf-8").strip() in first.output
    trained = count(monkeypatch, "train_many")
    again = CliRunner().invoke(app, arguments)
    assert (again.exit_code, again.output, trained) == (0, first.output, [])


def test_reproduce_plans_first_where_asked(tmp_path, monkeypatch):
    module = catalog.find(EXPERIMENT_CATALOG, "battery")
    monkeypatch.setattr(module, "arms", lambda quick: [replace(ARMS[1], figure="battery", place=2.0)])
    arguments = ["reproduce", "battery", "--only-plan", "--quiet", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert (
        f"holds no results of battery yet: `heliomesh reproduce battery --out {tmp_path}` makes them."
        in result.output
    )
    assert [path.suffix for path in sorted((tmp_path / "traces").iterdir())] == [".json", ".npz"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_reproduce_refuses_a_device_that_is_not_there_before_it_plans(tmp_path, monkeypatch):
    planned = count(monkeypatch, "prepare")
    arguments = ["reproduce", "hops", "--quick", "--quiet", "--device", "cuda", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert str(result.exception) == "--device: expected cpu (no CUDA device is present), actual value 'cuda'"
    assert (planned, list(tmp_path.iterdir())) == ([], [])


def test_reproduce_refuses_what_it_does_not_know():
    result = CliRunner().invoke(app, ["reproduce", "batery"])
    assert isinstance(result.exception, catalog.UnknownVariantError)
    assert "did you mean 'battery'?" in str(result.exception)


@pytest.mark.parametrize(
    ("points", "sign"),
    [([1.0, 1.1, 0.9], 1), ([-1.0, -1.1, -0.9], -1), ([1.0, -1.0, 0.1], 0), ([0.0, 0.0, 0.0], 0)],
)
def test_an_estimate_is_told_from_zero_where_its_interval_excludes_it(points, sign):
    found = estimate(np.array(points))
    assert found.sign == sign
    assert np.isnan(found.p_value) == (np.ptp(points) == 0)
    assert (found.p_value < 0.05) == (sign != 0)


def test_the_run_counts_every_evaluation(done):
    stored = done.get(ARMS[0])
    earlier = stored.curves.assign(slot=stored.curves["slot"] - 1, accuracy_mean=0.0)
    twice = final(replace(stored, curves=pd.concat([stored.curves, earlier])))
    np.testing.assert_allclose(twice.accuracy, final(stored).accuracy)
    np.testing.assert_allclose(twice.accuracy_over_run, final(stored).accuracy / 2)


@pytest.mark.parametrize(
    ("gain_per_joule", "sign"), [([0.4, 0.5, 0.6], 1), ([-0.4, -0.5, -0.6], -1), ([0.4, -0.5, 0.1], 0)]
)
def test_a_gain_that_grows_along_the_axis_is_told(gain_per_joule, sign):
    base, slope = np.array([70.0, 71.0, 72.0]), np.array(gain_per_joule)
    finals = [
        Final("Dir", name, place, accuracy, base, accuracy, accuracy)
        for place in (2.0, 3.0, 8.0)
        for name, accuracy in (("one", base + 1 + slope * place), ("other", base))
    ]
    one, other, trend = trends(finals, [("one", "other"), ("other", "absent")])
    assert (one.first, one.second, other.first, other.second) == ("one", None, "other", None)
    assert one.at_end.points.mean == pytest.approx(slope.mean())
    assert other.at_end.points.mean == pytest.approx(0)
    assert (trend.setting, trend.first, trend.second, trend.at_end.sign) == ("Dir", "one", "other", sign)
    assert trend.at_end.points.mean == pytest.approx(slope.mean())
    assert trend.over_run.points.mean == pytest.approx(0)


def test_one_place_has_no_trend():
    accuracy = np.array([70.0, 71.0])
    finals = [Final("", name, 2.0, *[accuracy] * 4) for name in ("one", "other")]
    assert trends(finals, [("one", "other")]) == []
