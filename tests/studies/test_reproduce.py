"""Running the lines of figures: each job once, paired by seed, and on after an interruption."""

import tomllib
from dataclasses import replace
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import heliomesh as hm
from heliomesh.cli import app
from heliomesh.jobs import stacks
from heliomesh.jobs import store as store_module
from heliomesh.jobs.scheme import Scheme
from heliomesh.jobs.steps import lossless
from heliomesh.jobs.store import Store
from heliomesh.learning.run import Run
from heliomesh.learning.settings import TrainSettings
from heliomesh.learning.trainer import Execution
from heliomesh.studies.experiments import experiments
from heliomesh.studies.line import LOSSLESS, Line
from heliomesh.studies.results import (
    Result,
    compared,
    estimate,
    num_common_seeds,
    paired,
    result_of,
    stored_runs,
    trends,
)

SMALL = hm.Scenario.load("tiny").override({"slots": 4, "learning.local_steps": 1, "learning.dataset": "synthetic"})
TRAINING = TrainSettings(strategy="loop")
PAIRWISE = Execution(runs_at_once=2, keep_weights=False)
LINES = [
    Line("figure", scheme, SMALL.override(partition), 2, setting)
    for setting, partition in (("i.i.d.", {}), ("shards", {"learning.partition": "shards"}))
    for scheme in (Scheme("receiver", "receiver"), Scheme("greedy", "uncoordinated"), LOSSLESS)
]
JOBS = [job for line in LINES for job in line.jobs(TRAINING)]


def count(monkeypatch, name):
    """Record what jobs a step was asked for."""
    module = stacks if name == "begun" else store_module
    calls, original = [], getattr(module, name)

    def counted(first, *arguments):
        calls.append(first)
        return original(first, *arguments)

    monkeypatch.setattr(module, name, counted)
    return calls


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished store; do not change it."""
    store = Store(tmp_path_factory.mktemp("done"))
    store.runs(JOBS, PAIRWISE)
    return store


def result(store, line):
    return result_of(line, stored_runs(store, line.jobs(TRAINING)))


def curves(found):
    """One row per seed and evaluated slot."""
    return pd.concat([pd.DataFrame({"seed": seed, **run.metrics}) for seed, run in enumerate(found.runs)])


def _of_seed(seed):
    return {"identity": {"training seed": seed}}


def made(setting, label, place, accuracy, over_run=None, seeds=None):
    """A result whose runs have these accuracies in percent, each evaluated twice."""
    seeds, end = seeds or range(len(accuracy)), np.array(accuracy) / 100
    start = end if over_run is None else 2 * np.array(over_run) / 100 - end
    metrics = [{"accuracy_mean": np.array(pair)} for pair in zip(start, end, strict=True)]
    runs = [Run(own, *[np.empty(0)] * 3, _of_seed(seed)) for own, seed in zip(metrics, seeds, strict=True)]
    return Result(Line("", Scheme(label, label), SMALL, len(runs), setting, place), tuple(runs))


def assert_same(one, other):
    for line in LINES:
        pd.testing.assert_frame_equal(curves(result(one, line)), curves(result(other, line)))


def test_nothing_is_done_twice(done, monkeypatch):
    steps = [count(monkeypatch, name) for name in ("planned", "simulated", "begun")]
    done.traces(JOBS)
    done.runs(JOBS, PAIRWISE)
    assert steps == [[], [], []]


def test_partitions_share_their_plans(tmp_path, monkeypatch):
    planned, simulated = count(monkeypatch, "planned"), count(monkeypatch, "simulated")
    Store(tmp_path).traces(JOBS)
    assert sorted(job.planner for job in planned) == ["receiver", "uncoordinated"]
    assert sorted(jobs[0].planner for jobs in simulated) == ["ideal", "receiver", "uncoordinated"]


def test_figures_share_what_is_trained(done, monkeypatch):
    trained = count(monkeypatch, "begun")
    again = [replace(line, figure="another", setting="as before", place=1.0) for line in LINES[:2]]
    done.runs([job for line in again for job in line.jobs(TRAINING)], PAIRWISE)
    assert trained == []
    for line, equal in zip(LINES, again, strict=False):
        pd.testing.assert_frame_equal(curves(result(done, line)), curves(result(done, equal)))
        assert result(done, equal).line.place == 1.0


def test_a_result_is_what_the_trainer_gives(done):
    line = LINES[3]
    problem = hm.build(line.scenario)
    trace = hm.simulate(problem, hm.plan(problem, "receiver"), 2, seed=0)
    found = result(done, line)
    for seed in range(2):
        run = hm.train(line.scenario, trace, seed, seed=seed, strategy="loop")
        np.testing.assert_array_equal(found.runs[seed].metrics["accuracy_mean"], run.metrics["accuracy_mean"])
    np.testing.assert_allclose(found.cost, trace.cost)


@pytest.mark.parametrize("runs_at_once", [1, 4, 100])
def test_stacks_change_nothing(done, tmp_path, runs_at_once):
    store = Store(tmp_path)
    store.runs(JOBS, replace(PAIRWISE, runs_at_once=runs_at_once))
    assert_same(store, done)


@pytest.mark.parametrize("killed_at", [1, 4])
def test_a_killed_reproduction_goes_on(done, tmp_path, monkeypatch, killed_at):
    store = Store(tmp_path)

    def kill(items, description, total):
        for number, item in enumerate(items):
            if number == killed_at * (SMALL.slots if description == "train" else 1):
                raise KeyboardInterrupt
            yield item

    killing = replace(PAIRWISE, track=kill)
    if killed_at < 3:
        with pytest.raises(KeyboardInterrupt):
            store.traces(JOBS, killing)
    store.traces(JOBS)
    with pytest.raises(KeyboardInterrupt):
        store.runs(JOBS, killing)
    assert sum(store.has(job) for job in JOBS) == 2 * killed_at
    trained = count(monkeypatch, "begun")
    store.runs(JOBS, PAIRWISE)
    assert len(trained) == len(LINES) - killed_at
    assert_same(store, done)


def test_the_ideal_loses_nothing():
    trace = lossless(hm.build(SMALL), 2)
    assert trace.scheduled.all()
    assert trace.delivered.all()
    assert trace.cost.tolist() == [0.0, 0.0]


def test_runs_say_where_they_come_from(done):
    facts = result(done, LINES[0]).runs[0].provenance
    assert facts["scenario"] == LINES[0].scenario.content_hash
    assert hm.Scenario.parse(tomllib.loads(facts["scenario_toml"])) == LINES[0].scenario
    assert facts["identity"] == LINES[0].jobs(TRAINING)[0].identity()
    assert {"torch", "numpy", "python", "heliomesh"} <= set(facts["versions"])
    assert facts["device"] == "cpu"
    assert facts["duration_second"] > 0


def test_pairs_are_compared_by_seed(done):
    results = [result(done, line) for line in LINES[:3]]
    pairs = compared(results, [("ideal", "receiver"), ("receiver", "greedy"), ("greedy", "absent")])
    assert [(pair.first.scheme.label, pair.second.scheme.label) for pair in pairs] == [
        ("ideal", "receiver"),
        ("receiver", "greedy"),
    ]
    expected = (results[2].accuracy - results[0].accuracy).mean()
    assert pairs[0].at_end.points.mean == pytest.approx(expected)


@pytest.mark.parametrize(
    ("against", "pairs"),
    [
        ("one", [("other", 0, "one", 0), ("other", 1, "one", 1)]),
        (1.0, [("one", 0, "one", 1), ("other", 0, "other", 1)]),
    ],
)
def test_all_are_compared_with_one_scheme_or_one_place(against, pairs):
    results = [made("", name, place, [1.0, 2.0]) for name in ("one", "other") for place in (0.0, 1.0)]
    found = [
        (pair.first.scheme.label, pair.first.place, pair.second.scheme.label, pair.second.place)
        for pair in compared(results, against)
    ]
    assert found == pairs


def rewrite_battery(monkeypatch, lines):
    """Let the experiment `battery` have other lines."""
    (battery,) = experiments(["battery"])
    changed = replace(battery, rows=lambda quick: lines)
    import_module("heliomesh.commands.reproduce")  # its help names the experiments that there are when it is loaded
    monkeypatch.setattr("heliomesh.studies.experiments.EXPERIMENTS", (changed,))


def test_reproduce_stores_prints_and_does_not_repeat(tmp_path, monkeypatch):
    rewrite_battery(monkeypatch, [replace(line, scenario=SMALL, place=2.0) for line in LINES[:2]])
    arguments = ["reproduce", "battery", "--quick", "--strategy", "loop", "--quiet", "--out", str(tmp_path)]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert "not there yet" not in first.output
    assert (tmp_path / "quick" / "battery.md").read_text(encoding="utf-8").strip() in first.output
    assert not list((tmp_path / "quick" / "runs").rglob("*.parquet"))  # they are packed
    trained = count(monkeypatch, "begun")
    again = CliRunner().invoke(app, arguments)
    assert (again.exit_code, again.output, trained) == (0, first.output, [])
    monkeypatch.setattr("heliomesh.jobs.job.versions", lambda: {"torch": "7.1.0", "numpy": "9.0.0"})
    later = CliRunner().invoke(app, arguments)  # packed runs serve, whatever computed them
    assert (later.exit_code, later.stdout, trained) == (0, first.stdout, [])


def test_reproduce_plans_first_where_asked(tmp_path, monkeypatch):
    rewrite_battery(monkeypatch, [replace(LINES[1], place=2.0)])
    arguments = ["reproduce", "battery", "--only-plan", "--quiet", "--out", str(tmp_path)]
    found = CliRunner().invoke(app, arguments)
    assert (
        f"holds no results of battery yet: `heliomesh reproduce battery --out {tmp_path}` makes them." in found.output
    )
    names = sorted(path.name for path in (tmp_path / "traces").rglob("trace.*"))
    assert names == ["trace.json", "trace.json", "trace.npz", "trace.npz"]  # of two episodes
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_reproduce_refuses_a_device_that_is_not_there_before_it_plans(tmp_path, monkeypatch):
    planned = count(monkeypatch, "planned")
    arguments = ["reproduce", "hops", "--quick", "--quiet", "--device", "cuda", "--out", str(tmp_path)]
    found = CliRunner().invoke(app, arguments)
    assert str(found.exception) == "device: expected cpu (no CUDA device is present), actual value 'cuda'"
    assert (planned, list(tmp_path.iterdir())) == ([], [])


def test_reproduce_refuses_what_it_does_not_know():
    found = CliRunner().invoke(app, ["reproduce", "batery"])
    assert isinstance(found.exception, hm.ScenarioError)
    assert "did you mean 'battery'?" in str(found.exception)


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
    stored = result(done, LINES[0])
    earlier = [
        replace(run, metrics=run.metrics | {"accuracy_mean": np.append(0.0, run.metrics["accuracy_mean"])})
        for run in stored.runs
    ]
    twice = replace(stored, runs=tuple(earlier))
    np.testing.assert_allclose(twice.accuracy, stored.accuracy)
    np.testing.assert_allclose(twice.accuracy_over_run, stored.accuracy / 2)


@pytest.mark.parametrize(
    ("gain_per_joule", "sign"), [([0.4, 0.5, 0.6], 1), ([-0.4, -0.5, -0.6], -1), ([0.4, -0.5, 0.1], 0)]
)
def test_a_gain_that_grows_along_the_axis_is_told(gain_per_joule, sign):
    base, slope = np.array([70.0, 71.0, 72.0]), np.array(gain_per_joule)
    results = [
        made("Dir", name, place, accuracy, base)
        for place in (2.0, 3.0, 8.0)
        for name, accuracy in (("one", base + 1 + slope * place), ("other", base))
    ]
    one, other, trend = trends(results, [("one", "other"), ("other", "absent")])
    assert (one.first, one.second, other.first, other.second) == ("one", None, "other", None)
    assert one.at_end.points.mean == pytest.approx(slope.mean())
    assert other.at_end.points.mean == pytest.approx(0)
    assert (trend.setting, trend.first, trend.second, trend.at_end.sign) == ("Dir", "one", "other", sign)
    assert trend.at_end.points.mean == pytest.approx(slope.mean())
    assert trend.over_run.points.mean == pytest.approx(0)


def test_different_seeds_are_not_paired():
    """Equally many seeds, but others: differences by position would compare other random numbers."""
    results = [
        made("Dir", name, place, [70.0, 71.0], seeds=seeds)
        for place in (2.0, 3.0)
        for name, seeds in (("one", (0, 1)), ("other", (1, 2)))
    ]
    sentence = r"Dir, other, 2: expected the seeds \[0, 1\] of Dir, one, 2, to pair them by, actual \[1, 2\]"
    with pytest.raises(hm.TrainingError, match=sentence):
        paired(results[0], results[1])
    with pytest.raises(hm.TrainingError, match=sentence):
        compared(results, "other")
    with pytest.raises(hm.TrainingError, match="to pair them by"):
        trends(results, [("one", "other")])


def test_a_line_of_more_seeds_is_compared_over_those_of_the_other():
    few = made("Dir", "few", None, [70.0, 71.0])
    many = made("Dir", "many", None, [73.0, 76.0, 0.0])
    assert num_common_seeds([few]) == 2
    assert paired(many, few).at_end.points.mean == pytest.approx(4)
    assert paired(few, many).over_run.points.mean == pytest.approx(-4)


def test_results_know_their_seeds(done):
    stored = result(done, LINES[0])
    later = [replace(run, provenance=_of_seed(seed + 5)) for seed, run in enumerate(stored.runs)]
    assert stored.seeds == (0, 1)
    assert replace(stored, runs=tuple(later)).seeds == (5, 6)


def test_one_place_has_no_trend():
    results = [made("", name, 2.0, [70.0, 71.0]) for name in ("one", "other")]
    assert trends(results, [("one", "other")]) == []


def test_runs_of_another_machine_count_where_a_line_has_no_own(tmp_path):
    """Published results were trained on a GPU; all runs of a line must come from one machine."""
    line, store = LINES[1], Store(tmp_path)
    elsewhere = line.jobs(replace(TRAINING, strategy="vmap"))
    store.runs(elsewhere, PAIRWISE)
    assert stored_runs(store, line.jobs(TRAINING)) is None
    store.pack("figure", elsewhere)
    found = stored_runs(store, line.jobs(TRAINING))
    assert [run.provenance["key"] for run in found] == [job.key() for job in elsewhere]
    assert stored_runs(store, replace(line, num_seeds=3).jobs(TRAINING)) is None
