"""Training samples that are held out, so that nothing is tuned on the test set."""

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.jobs.job import Job
from heliomesh.jobs.steps import begun, simulated
from heliomesh.jobs.store import Store
from heliomesh.learning.trainer import Execution
from heliomesh.scenario.schema import Learning
from heliomesh.tasks.dataset import DatasetError, held_out, load_dataset


def test_they_are_training_samples_and_no_longer_trained_on() -> None:
    whole, split = (load_dataset(Learning(validation=share)) for share in (None, 0.2))
    rows = lambda inputs: {tuple(one.flatten().tolist()) for one in inputs}  # noqa: E731
    assert len(split.test_labels) == round(0.2 * len(whole.train_labels))
    assert len(split.train_labels) + len(split.test_labels) == len(whole.train_labels)
    together = torch.cat([split.train_inputs, split.test_inputs])
    assert rows(together) == rows(whole.train_inputs)
    counts = np.bincount(torch.cat([split.train_labels, split.test_labels]).numpy())
    assert np.array_equal(counts, np.bincount(whole.train_labels.numpy()))


def test_labels_stay_with_their_samples() -> None:
    whole, split = (load_dataset(Learning(validation=share)) for share in (None, 0.1))
    label = {
        tuple(one.flatten().tolist()): int(y) for one, y in zip(whole.train_inputs, whole.train_labels, strict=True)
    }
    for inputs, labels in ((split.train_inputs, split.train_labels), (split.test_inputs, split.test_labels)):
        assert [label[tuple(one.flatten().tolist())] for one in inputs] == labels.tolist()


def test_the_same_share_holds_out_the_same_samples() -> None:
    first, again = (load_dataset(Learning(validation=0.1)) for _ in range(2))
    assert first.sha256 == again.sha256 != load_dataset(Learning()).sha256


@pytest.mark.parametrize("share", [1e-9, 1 - 1e-9])
def test_a_share_that_leaves_nothing_is_refused(share: float) -> None:
    with pytest.raises(DatasetError, match=r"learning\.validation: expected a share of \d+ training samples"):
        load_dataset(Learning(validation=share))


def test_runs_are_scored_on_them_and_have_keys_of_their_own() -> None:
    scenario = hm.Scenario.load("tiny").override({"slots": 3, "learning.dataset": "synthetic"})
    tuned = scenario.override({"learning.validation": 0.25})
    assert Job(scenario).key() != Job(tuned).key()
    assert "validation" not in str(Job(scenario).identity())
    own = load_dataset(scenario.learning)
    jobs = [Job(tuned, "uncoordinated", dataset=dataset) for dataset in (None, own)]
    traces = [simulated([job], hm.plan(hm.build(tuned), "uncoordinated"), Execution())[0] for job in jobs]
    work = Execution()
    runs = [begun([job], [trace], work).to_the_end(work.track)[0] for job, trace in zip(jobs, traces, strict=True)]
    assert runs[0].final["device_samples"] == len(held_out(own, 0.25).test_labels)
    assert torch.equal(runs[0].weights, runs[1].weights)


def test_a_stack_never_mixes_data_with_and_without_them(tmp_path) -> None:
    """Both runs of one call are what each is alone."""
    scenario = hm.Scenario.load("tiny").override({"slots": 3, "learning.dataset": "synthetic"})
    jobs = [Job(scenario.override({"learning.validation": share}), "uncoordinated") for share in (None, 0.4)]
    together = Store(tmp_path / "together").runs(jobs)
    for number, job in enumerate(jobs):
        (alone,) = Store(tmp_path / str(number)).runs([job])
        assert torch.equal(alone.weights, together[number].weights)
    assert together[0].final["device_samples"] != together[1].final["device_samples"]


def test_plans_that_read_labels_have_keys_of_their_own() -> None:
    scenario = hm.Scenario.load("tiny").override({"learning.dataset": "digits"})
    jobs = [Job(scenario.override({"learning.validation": share}), "bids") for share in (None, 0.4)]
    assert jobs[0].key("plan") != jobs[1].key("plan")
