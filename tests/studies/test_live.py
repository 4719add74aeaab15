"""Models in a changing world: the same until the change, different from it on, and worse without a device's data."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import heliomesh as hm
from heliomesh.field.living.change import eras
from heliomesh.jobs.steps import job_of
from heliomesh.jobs.store import opened
from heliomesh.studies.live import there_at_the_end

DEATH = "device.1=dead@10"
# two rows of three devices, each with two of ten kinds of digits: who dies takes its kinds along
UNLIKE = {
    "slots": 30,
    "network.topology": "grid",
    "network.devices": 6,
    "learning.partition": "shards",
    "learning.shards_per_device": 2,
    "learning.local_steps": 3,
    "learning.learning_rate": 0.2,
    "harvest.scale": 4.0,
    "link.waterfall": 0.02,
    "link.noise_watt": 0.01,
}
BEFORE = 10  # evaluations up to the change, one per slot


@pytest.fixture(scope="module")
def problem():
    return hm.build(hm.Scenario.load("tiny").override(UNLIKE))


@pytest.fixture(scope="module")
def lived(problem):
    return hm.live(problem, [DEATH], "uncoordinated", episodes=4, train=3, evaluate_every=1, device_samples=200)


def test_all_plans_have_the_same_models_until_the_change_and_others_after_it(lived):
    models = lived.models
    assert list(models.runs) == ["unchanged", "stale", "re-planned", "fresh"]
    assert models.slots.tolist() == list(range(1, 31))
    unchanged = [run.accuracy for run in models.runs["unchanged"]]
    for plan in ("stale", "re-planned", "fresh"):
        for own, other in zip((run.accuracy for run in models.runs[plan]), unchanged, strict=True):
            np.testing.assert_array_equal(own[:BEFORE], other[:BEFORE])
            assert not np.array_equal(own[BEFORE:], other[BEFORE:])
    assert not np.array_equal(models.accuracy("stale"), models.accuracy("fresh"))


def test_who_is_dead_keeps_its_model_and_counts_no_more(lived):
    models = lived.models
    assert models.devices == (0, 2, 3, 4, 5)
    for plan in ("stale", "re-planned", "fresh"):
        for run in models.runs[plan]:
            assert len(set(run.accuracy[BEFORE:-1, 1].tolist())) == 1  # on one part of the test set
            assert len(set(run.accuracy[BEFORE:-1, 2].tolist())) > 1
    run = models.runs["stale"][1]
    assert models.accuracy("stale")[1, 20] == pytest.approx(100 * run.accuracy[20, [0, 2, 3, 4, 5]].mean())


def test_a_dead_device_costs_accuracy_where_data_are_unlike(lived):
    """It knew a sixth of all samples, and digits that few others know: no plan brings that back."""
    for plan in ("stale", "re-planned", "fresh"):
        lost = lived.models.final("unchanged") - lived.models.final(plan)
        assert (lost > 3).all()
    table = lived.models.table().set_index("plan")
    assert table.loc["unchanged", "against_unchanged"] == 0
    assert table.loc["stale", "against_unchanged"] < -3
    assert table.loc["stale", "accuracy"] == pytest.approx(lived.models.final("stale").mean())


def test_a_dead_device_does_not_train_even_if_training_is_free():
    changes = {"slots": 8, "energy.compute_joule": 0.0, "energy.train_only": True}
    problem = hm.build(hm.Scenario.load("tiny").override(changes))
    with_death = replace(job_of(problem, "uncoordinated", {}), changes=("device.2=dead@4",))

    with opened(None) as store:
        scheduled = store.trace(with_death).scheduled[0]
    assert scheduled[:4, 2].any()
    assert not scheduled[4:, 2].any()
    assert scheduled[4:, 1].any()


def test_nobody_left_is_refused_before_anything_is_planned(problem):
    everyone = [f"device.{device}=dead@5" for device in range(6)]
    with pytest.raises(
        hm.ScenarioError, match="changes: expected at least one device alive at the end, actual number"
    ):
        hm.live(problem, everyone, "none such")
    back = [*everyone, "device.3=alive@9"]
    assert there_at_the_end(problem, eras(problem, back)) == (3,)


def test_a_folder_keeps_everything_and_repeats_nothing(problem, tmp_path, monkeypatch):
    asked = {"episodes": 4, "train": 2, "evaluate_every": 10, "device_samples": 50, "folder": tmp_path}
    first = hm.live(problem, ["link.0-1=off@10"], "uncoordinated", **asked)
    monkeypatch.setattr("heliomesh.jobs.stacks.begun", lambda *_: pytest.fail("trained again"))
    monkeypatch.setattr("heliomesh.jobs.store.simulated", lambda *_: pytest.fail("simulated again"))
    again = hm.live(problem, ["link.0-1=off@10"], "uncoordinated", **asked)
    for plan in first.models.runs:
        np.testing.assert_array_equal(first.models.accuracy(plan), again.models.accuracy(plan))
    pd.testing.assert_frame_equal(first.table(), again.table())
    assert len(list(tmp_path.glob("runs/*/*/metrics.parquet"))) == 8
    assert len(list(tmp_path.glob("traces/*/*/trace.npz"))) == 8
    assert list(first.models.table()["plan"]) == ["unchanged", "stale", "re-planned", "fresh"]


def test_an_episode_is_the_same_alone_and_among_others(problem, tmp_path):
    """Re-planning keeps state for all episodes of a batch; the batch must not show."""
    job = replace(job_of(problem, "uncoordinated", {}), changes=("harvest=0.3@8",), reaction="re-planned")
    jobs = [replace(job, episode=number) for number in range(4)]
    together = hm.Store(tmp_path / "together").traces(jobs)
    alone = hm.Store(tmp_path / "alone").trace(jobs[2])
    for column in alone.recorded:
        np.testing.assert_array_equal(getattr(together[2], column.name), getattr(alone, column.name), column.name)
    assert together[0].planner == "uncoordinated, re-planned"


def test_new_weights_reach_the_models(problem, tmp_path):
    """Who follows a fresh plan no longer waits for the dead: its weights are those of the smaller graph."""
    changing = replace(job_of(problem, "uncoordinated", {}), changes=("link.0-1=off@10",))
    stale, fresh = (hm.Store(tmp_path).trace(replace(changing, reaction=name)) for name in ("stale", "fresh"))
    np.testing.assert_array_equal(stale.edge_weight[0], np.broadcast_to(problem.topology.edge_weight, (30, 14)))
    np.testing.assert_array_equal(fresh.edge_weight[0, :10], stale.edge_weight[0, :10])
    edge = problem.topology.edge
    assert (fresh.edge_weight[0, 10:, [edge(0, 1), edge(1, 0)]] == 0).all()
    assert fresh.edge_weight[0, 10, edge(2, 1)] > stale.edge_weight[0, 10, edge(2, 1)]
    np.testing.assert_array_equal(stale.delivered, fresh.delivered)  # batteries do not depend on weights


def test_on_a_ring_new_weights_alone_change_no_model(tmp_path):
    """All weights of a ring are a third, also after a loss; what does not arrive stays with oneself anyway."""
    model = {"learning.aggregation": "model"}
    problem = hm.build(hm.Scenario.load("tiny").override({"slots": 8, "learning.local_steps": 2, **model}))
    job = replace(job_of(problem, "uncoordinated", {}), changes=("link.0-1=off@2",))
    stale, fresh = hm.Store(tmp_path).runs([replace(job, reaction=name) for name in ("stale", "fresh")])
    assert stale.provenance["cost"] > fresh.provenance["cost"]
    assert torch.equal(stale.weights, fresh.weights)


@pytest.mark.parametrize("planner", ["news", "contributions"])
def test_plans_that_remember_react_too(planner, tmp_path):
    scenario = hm.Scenario.load("tiny").override({"slots": 24, "energy.actions": "separate", "harvest.scale": 2.0})
    options = {"passes": 1, "practice": 2} if planner == "contributions" else {}
    problem = hm.build(scenario)
    base = job_of(problem, planner, options)
    changes = ("link.0-1=off@9", "device.3=dead@15")
    plain = hm.Store(tmp_path).trace(base)
    traces = {}
    for reaction in ("stale", "re-planned", "fresh"):
        traces[reaction] = hm.Store(tmp_path).trace(replace(base, changes=changes, reaction=reaction))
        np.testing.assert_array_equal(traces[reaction].power_watt[0, :9], plain.power_watt[0, :9])
    unreacted = hm.Store(tmp_path).trace(replace(base, changes=changes))
    for column in plain.recorded:  # the stale plan is the plan itself
        np.testing.assert_array_equal(getattr(traces["stale"], column.name), getattr(unreacted, column.name))
    assert not np.array_equal(traces["fresh"].power_watt, traces["stale"].power_watt)
    assert not traces["fresh"].scheduled[0, 15:, 3].any()
