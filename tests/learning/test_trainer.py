"""Training under a trace: against the equations written plainly, and what must and must not change a result."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn.functional import cross_entropy

import heliomesh as hm
from heliomesh.common.streams import stream
from heliomesh.learning.evaluation import COLUMNS
from heliomesh.learning.replay import Replay
from heliomesh.tasks.dataset import load_dataset
from heliomesh.tasks.model import build_model
from heliomesh.tasks.partition import split

RING = {
    "slots": 6,
    "network.devices": 5,
    "learning.partition": "dirichlet",
    "learning.local_steps": 2,
    "learning.batch": 16,
    "learning.learning_rate": 0.1,
}
RULES = {
    "model": {"learning.aggregation": "model"},
    "renormalized": {"learning.aggregation": "renormalized"},
    "reassigned": {"learning.aggregation": "reassigned"},
    "update": {"learning.aggregation": "update", "network.mixing": "lazy-metropolis"},
}

SEPARATE = {"energy.actions": "separate", "energy.compute_joule": 1.5}  # a battery of 1 J pays for sending only


def scenario_of(**changes):
    return hm.Scenario.load("tiny").override(RING | changes)


def trace_of(scenario, planner="uncoordinated", episodes=2):
    problem = hm.build(scenario)
    return hm.simulate(problem, hm.plan(problem, planner), episodes)


def everybody(trace, trained):
    """The trace with everybody scheduled and everything delivered, or nobody and nothing."""
    fields = {name: np.full_like(getattr(trace, name), trained) for name in ("scheduled", "delivered")}
    return hm.Trace(**{**trace.__dict__, **fields})


def plainly(scenario, trace, seed):
    """The equations of a slot, device by device; returns (device, parameter) weights."""
    settings, data = scenario.learning, load_dataset(scenario.learning)
    mixing, m = hm.build(scenario).topology.mixing, scenario.network.devices
    parts = split(data.train_labels, settings, m, stream(seed, "partition"))
    models = [build_model("mlp", data.input_shape, data.num_classes, seed) for _ in range(m)]
    position = [0] * m
    for slot in range(scenario.slots):
        before = [torch.nn.utils.parameters_to_vector(model.parameters()).detach() for model in models]
        for i in np.flatnonzero(trace.scheduled[0, slot]):
            own = parts.of(i)
            for _ in range(settings.local_steps):
                batch = []
                for _ in range(settings.batch):
                    epoch, place = divmod(position[i], len(own))
                    batch.append(own[stream(seed, "minibatch", int(i), epoch).permutation(len(own))[place]])
                    position[i] += 1
                models[i].zero_grad()
                cross_entropy(models[i](data.train_inputs[batch]), data.train_labels[batch]).backward()
                for parameter in models[i].parameters():
                    parameter.data -= settings.learning_rate * parameter.grad
        half = [torch.nn.utils.parameters_to_vector(model.parameters()).detach() for model in models]
        arrived = np.eye(m)
        arrived[trace.edge_receiver, trace.edge_sender] = trace.delivered[0, slot]
        for i, model in enumerate(models):
            a = mixing[i] * arrived[i]
            if settings.aggregation == "update":
                new = before[i] + sum(a[j] * (half[j] - before[j]) for j in range(m))
            elif settings.aggregation == "model":
                new = half[i] + sum(a[j] * (half[j] - half[i]) for j in range(m))
            elif settings.aggregation == "renormalized":
                new = sum(a[j] * half[j] for j in range(m)) / a.sum()
            elif a.sum() == a[i]:
                new = half[i]
            else:
                others = sum(a[j] * half[j] for j in range(m) if j != i) / (a.sum() - a[i])
                new = a[i] * half[i] + (1 - a[i]) * others
            torch.nn.utils.vector_to_parameters(new.float(), model.parameters())
    return torch.stack([torch.nn.utils.parameters_to_vector(model.parameters()).detach() for model in models])


@pytest.mark.parametrize("actions", [{}, SEPARATE], ids=["coupled", "separate"])
@pytest.mark.parametrize("rule", RULES)
def test_equals_the_equations(rule, actions):
    scenario = scenario_of(**RULES[rule], **actions)
    trace = trace_of(scenario)
    sends_only = (trace.power_watt[0] > 0) & ~trace.scheduled[0]
    assert trace.delivered[0][sends_only[:, trace.edge_sender]].any() == bool(actions)
    assert 0 < trace.scheduled[0].mean() < 1  # some idle, some trained
    assert trace.delivered[0].any()
    run = hm.train(scenario, trace, seed=3)
    torch.testing.assert_close(run.weights, plainly(scenario, trace, 3), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_weights_in_force_are_those_of_averaging(rule):
    """From slot 0 on they stand for another network's; where they are the network's own, not a bit changes."""
    scenario = scenario_of(**RULES[rule] | {"network.mixing": "lazy-metropolis"})
    other = scenario.override({"network.mixing": "metropolis", "learning.allow_divergence": True})
    trace = trace_of(scenario)
    shape = trace.delivered.shape
    usual, weights = (
        replace(trace, edge_weight=np.broadcast_to(hm.build(one).topology.edge_weight, shape))
        for one in (scenario, other)
    )
    plain, same, changed = (hm.train(scenario, one, seed=3).weights for one in (trace, usual, weights))
    assert torch.equal(plain, same)
    assert not torch.equal(plain, changed)
    expected = hm.train(other, replace(trace, scenario_toml=other.to_toml()), seed=3).weights
    torch.testing.assert_close(changed, expected, rtol=0, atol=1e-7)
    several = hm.train_many([hm.TrainJob(scenario, one, seed=3) for one in (trace, weights, weights)])
    assert torch.equal(several[0].weights, plain)
    assert torch.equal(several[2].weights, changed)


def test_a_part_of_a_network_has_the_weights_of_its_links():
    scenario = scenario_of()
    trace, topology = trace_of(scenario), hm.build(scenario).topology
    weights = np.broadcast_to(topology.edge_weight, trace.delivered.shape).copy()
    weights[0, 3:] *= 0.5
    job, data = hm.TrainJob(scenario, replace(trace, edge_weight=weights)), load_dataset(scenario.learning)
    (part,) = Replay([job], data, hm.TrainSettings(strategy="loop"), own=np.array([1, 2])).members
    before, after = part.mixing_in(2), part.mixing_in(3)
    assert before is part.topology
    np.testing.assert_array_equal(after.edge_weight, 0.5 * before.edge_weight)
    np.testing.assert_allclose(after.self_weight[: part.num_own], 2 / 3)  # a third, and half of two thirds


def test_another_weight_is_another_training():
    scenario = scenario_of()
    trace = trace_of(scenario)
    weights = np.broadcast_to(hm.build(scenario).topology.edge_weight, trace.delivered.shape).copy()
    first = hm.TrainJob(scenario, replace(trace, edge_weight=weights)).trace_hash
    weights[0, 3, 1] = 0.1
    hashes = {hm.TrainJob(scenario, one).trace_hash for one in (trace, replace(trace, edge_weight=weights))}
    assert len(hashes | {first}) == 3


def test_all_idle_changes_nothing():
    scenario = scenario_of()
    run = hm.train(scenario, everybody(trace_of(scenario), False), evaluate_every=2)
    assert torch.equal(run.weights, run.weights[:1].expand_as(run.weights))
    assert np.ptp(run.metrics["average_loss"]) == 0
    assert run.final["consensus_distance"] < 1e-12  # rounding of the mean
    assert np.isnan(run.metrics["train_loss"]).all()


def test_gossip_brings_models_together():
    scenario = scenario_of(slots=20)
    trace = everybody(trace_of(scenario), True)
    silent = hm.Trace(**{**trace.__dict__, "delivered": np.zeros_like(trace.delivered)})
    together, alone = hm.train(scenario, trace), hm.train(scenario, silent)
    assert together.final["consensus_distance"] < 0.3 * alone.final["consensus_distance"]
    assert together.final["accuracy_mean"] > alone.final["accuracy_mean"]
    assert alone.final["train_loss"] < alone.metrics["train_loss"][0]


@pytest.mark.parametrize("strategy", ["loop", "batched", "vmap"])
def test_stacked_runs_are_single_runs_bit_for_bit(strategy):
    """Other rules, seeds, episodes and network sizes in one stack."""
    jobs = []
    for changes, episode, seed in (
        ({}, 0, None),
        ({}, 1, 4),
        (RULES["update"], 0, 4),
        ({"network.devices": 7}, 1, 0),
        ({"learning.partition": "iid"}, 0, None),
    ):
        scenario = scenario_of(**changes)
        jobs.append(hm.TrainJob(scenario, trace_of(scenario), episode, seed))
    for job, stacked in zip(
        jobs, hm.train_many(jobs, hm.TrainSettings(evaluate_every=4, strategy=strategy)), strict=True
    ):
        single = hm.train(job.scenario, job.trace, job.episode, seed=job.seed, evaluate_every=4, strategy=strategy)
        assert torch.equal(single.weights, stacked.weights)
        np.testing.assert_array_equal(single.accuracy, stacked.accuracy)
        np.testing.assert_array_equal(single.loss, stacked.loss)
        for name in COLUMNS:
            np.testing.assert_array_equal(single.metrics[name], stacked.metrics[name])


@pytest.mark.parametrize("strategy", ["loop", "cores", "vmap"])
def test_evaluation_does_not_change_what_is_learned(strategy):
    """Also with convolutions, whose weights may be rearranged to be evaluated."""
    scenario = scenario_of(**{"slots": 3, "learning.model": "cnn"})
    trace = everybody(trace_of(scenario), True)
    often, once = (hm.train(scenario, trace, evaluate_every=every, strategy=strategy) for every in (1, 3))
    assert torch.equal(often.weights, once.weights)
    np.testing.assert_array_equal(often.accuracy[-1], once.accuracy[-1])


def test_metrics_say_what_they_are_called():
    scenario = scenario_of(slots=5)
    trace = trace_of(scenario)
    rows = []
    run = hm.train(
        scenario, trace, 1, evaluate_every=2, device_samples=100, observer=lambda _, row: rows.append(dict(row))
    )
    assert tuple(run.metrics) == COLUMNS
    assert run.accuracy.shape == run.loss.shape == (3, 5)
    np.testing.assert_array_equal(run.metrics["slot"], [2, 4, 5])
    np.testing.assert_array_equal(run.metrics["device_samples"], [100, 100, 355])
    np.testing.assert_array_equal(run.metrics["accuracy_min"], run.accuracy.min(1))
    np.testing.assert_array_equal(run.metrics["loss_max"], run.loss.max(1))
    np.testing.assert_allclose(run.metrics["spent_joule"], trace.spent_joule[1].sum(1).cumsum()[[1, 3, 4]])
    np.testing.assert_allclose(run.metrics["harvested_joule"], trace.harvested_joule[1].sum(1).cumsum()[[1, 3, 4]])
    np.testing.assert_array_equal(
        run.metrics["accuracy_per_joule"], run.metrics["accuracy_mean"] / run.metrics["spent_joule"]
    )
    assert [row["slot"] for row in rows] == [2, 4, 5]
    assert rows[-1] == pytest.approx(run.final, nan_ok=True)
    spread = (run.weights - run.weights.mean(0)).double().square().sum(1).mean()
    assert run.final["consensus_distance"] == pytest.approx(float(spread), rel=1e-5)
    data, model = load_dataset(scenario.learning), build_model("mlp", (1, 8, 8), 10, 0)
    model.load_state_dict(run.parameters(2))
    right = (model(data.test_inputs).argmax(1) == data.test_labels).float().mean()
    assert run.accuracy[-1, 2] == pytest.approx(float(right), abs=1e-6)


def test_saved_runs_come_back(tmp_path):
    scenario = scenario_of(slots=4)
    run = hm.train(scenario, trace_of(scenario), evaluate_every=2, folder=tmp_path / "new" / "run")
    again = hm.Run.load(tmp_path / "new" / "run")
    assert torch.equal(run.weights, again.weights)
    np.testing.assert_array_equal(run.accuracy, again.accuracy)
    assert {name: column.tolist() for name, column in run.metrics.items()} == {
        name: column.tolist() for name, column in again.metrics.items()
    }
    assert again.provenance == run.provenance
    assert again.provenance["planner"] == "uncoordinated"
    table = pq.read_table(tmp_path / "new" / "run" / "metrics.parquet")
    assert table.column_names == ["planner", "seed", *COLUMNS, "device_accuracy", "device_loss"]
    assert (set(table["planner"].to_pylist()), set(table["seed"].to_pylist())) == ({"uncoordinated"}, {0})
    whole = [field.name for field in table.schema if pa.types.is_integer(field.type)]
    assert whole == ["seed", "slot", "device_samples"]
    assert sorted(path.name for path in (tmp_path / "new" / "run").iterdir()) == [
        "manifest.json",
        "metrics.parquet",
        "weights.safetensors",
    ]


@pytest.mark.parametrize("name", ["manifest.json", "metrics.parquet", "weights.safetensors"])
def test_damaged_runs_are_named(tmp_path, name):
    scenario = scenario_of(slots=1)
    hm.train(scenario, trace_of(scenario)).save(tmp_path)
    damaged = tmp_path / name
    damaged.write_bytes(damaged.read_bytes()[:-40])
    with pytest.raises(hm.TrainingError, match=name):
        hm.Run.load(tmp_path)
    damaged.unlink()
    with pytest.raises(hm.TrainingError, match=name):
        hm.Run.load(tmp_path)


def test_finished_folders_are_not_trained_again(tmp_path):
    scenario = scenario_of(slots=2)
    trace = trace_of(scenario)
    first = hm.train(scenario, trace, folder=tmp_path)
    again = hm.train(scenario, trace, folder=tmp_path)
    assert again.provenance == first.provenance
    with pytest.raises(hm.TrainingError, match=r"training seed: expected 0 \(as in the folder\), actual 5"):
        hm.train(scenario, trace, folder=tmp_path, seed=5)
    other = scenario.override({"name": "other", "learning.learning_rate": 0.3})  # a name decides nothing
    with pytest.raises(
        hm.TrainingError, match=r": learning\.learning_rate: expected [\d.]+ \(as in .*, actual 0\.3;"
    ):
        hm.train(other, trace, folder=tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"network.devices": 6}, r"network\.devices: expected 5 as it was simulated with, actual 6"),
        ({"slots": 7}, "slots: expected 6 as it was simulated with, actual 7"),
        ({"network.topology": "star"}, r"network\.topology: expected 'ring' as it was simulated with, actual 'star'"),
    ],
)
def test_traces_of_other_scenarios_are_refused(changes, words):
    trace = trace_of(scenario_of())
    with pytest.raises(hm.TraceError, match=words):
        hm.train(scenario_of(**changes), trace)


def test_refusals():
    scenario = scenario_of()
    trace = trace_of(scenario)
    with pytest.raises(hm.TraceError, match="episode: expected 0 to 1"):
        hm.train(scenario, trace, 2)
    with pytest.raises(hm.ScenarioError, match="negative eigenvalues"):
        hm.train(scenario_of(**{"learning.aggregation": "update"}), trace)
    with pytest.raises(hm.TooLargeError, match=r"training: expected at most 0\.0001 GiB"):
        hm.train(scenario, trace, memory_gib=0.0001)
    with pytest.raises(hm.MistakeError, match="evaluate_every: expected a whole number of at least 1"):
        hm.train(scenario, trace, evaluate_every=0)
    with pytest.raises(hm.ScenarioError, match="device: expected cpu"):
        hm.train(scenario, trace, device="gpu")
    with pytest.raises(hm.ScenarioError, match="expected auto or one of"):
        hm.train(scenario, trace, strategy="quick")
    with pytest.raises(hm.TraceError, match="seed: expected at least 0, actual value -1"):
        hm.train(scenario, trace, seed=-1)
    with pytest.raises(TypeError, match="scenario: expected a Scenario, actual value 'tiny'"):
        hm.train("tiny", trace)
    with pytest.raises(hm.TrainingError, match="jobs: expected at least one"):
        hm.train_many([])
    slower = scenario_of(**{"learning.learning_rate": 0.2})
    with pytest.raises(hm.ScenarioError, match=r"learning\.learning_rate: expected one value in a stack"):
        hm.train_many([hm.TrainJob(scenario, trace), hm.TrainJob(slower, trace)])


def test_divergence_names_device_and_slot():
    scenario = scenario_of(**{"learning.learning_rate": 1e30})
    trace = trace_of(scenario)
    first = int(np.flatnonzero(trace.scheduled[0].any(1))[0])
    device = int(np.flatnonzero(trace.scheduled[0, first])[0])
    with pytest.raises(hm.TrainingError, match=rf"device {device}: expected finite losses.* in slot {first};"):
        hm.train(scenario, trace)


def test_own_data():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 80)
    inputs = rng.normal(size=(80, 8, 8)) + 3 * labels[:, None, None]
    data = hm.dataset_from_arrays("two clusters", inputs[:60], labels[:60], inputs[60:], labels[60:])
    scenario = scenario_of(**{"learning.partition": "iid"})
    run = hm.train(scenario, everybody(trace_of(scenario), True), dataset=data)
    assert run.final["average_accuracy"] == 1
    assert run.provenance["dataset"].startswith("two clusters ")


def half_frozen(input_shape, num_classes):
    """A model of the user's whose first layer is frozen."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10))
    for parameter in model[1].parameters():
        parameter.requires_grad_(False)
    return model


@pytest.mark.parametrize("rule", RULES)
def test_frozen_parameters_stay_as_they_are_through_training_and_averaging(rule):
    scenario = scenario_of(**RULES[rule], **{"learning.model": f"{__name__}:half_frozen"})
    trace = trace_of(scenario)
    run = hm.train(scenario, trace, seed=1)
    first = build_model(f"{__name__}:half_frozen", (1, 8, 8), 10, 1)
    start = torch.nn.utils.parameters_to_vector(first.parameters()).detach()
    frozen = 64 * 8 + 8
    assert torch.equal(run.weights[:, :frozen], start[:frozen].expand(5, -1))
    assert (run.weights[:, frozen:] != start[frozen:]).any(1).all()
