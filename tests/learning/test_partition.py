import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heliomesh.common.streams import stream
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import Learning
from heliomesh.tasks.partition import Partition, split


def _labels(samples: int, classes: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(classes, size=samples)


def _split(labels, devices=5, seed=0, **options) -> Partition:
    return split(labels, Learning(**options), devices, stream(seed, "partition"))


def _covers_once(partition: Partition, samples: int) -> bool:
    return sorted(partition.flat.tolist()) == list(range(samples))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(0, 300), st.integers(0, 2**32))
def test_iid_uses_every_sample_once_in_sizes_that_differ_by_at_most_one(devices, more, seed):
    partition = _split(_labels(devices + more), devices, seed)
    assert _covers_once(partition, devices + more)
    assert np.ptp(partition.sizes) <= 1


@settings(deadline=None, max_examples=150)
@given(
    devices=st.integers(1, 30),
    classes=st.integers(1, 12),
    fewest=st.integers(1, 8),
    more=st.integers(0, 200),
    log_alpha=st.floats(-300, 300),
    seed=st.integers(0, 2**32),
)
def test_dirichlet_always_ends_covers_all_and_keeps_the_minimum(devices, classes, fewest, more, log_alpha, seed):
    labels = _labels(devices * fewest + more, classes, seed)
    options = {"partition": "dirichlet", "alpha": 10.0**log_alpha, "min_samples": fewest}
    partition = _split(labels, devices, seed, **options)
    assert _covers_once(partition, len(labels))
    assert partition.sizes.min() >= fewest
    assert partition.num_left_out == 0


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 20), st.integers(1, 4), st.integers(0, 200), st.integers(0, 2**32))
def test_shards_cover_all_and_are_nearly_equal(devices, shards, more, seed):
    labels = _labels(devices * shards + more, 10, seed)
    partition = _split(labels, devices, seed, partition="shards", shards_per_device=shards)
    assert _covers_once(partition, len(labels))
    assert np.ptp(partition.sizes) <= shards


def test_shards_hold_few_classes():
    labels = np.repeat(np.arange(10), 100)
    counts = _split(labels, 10, partition="shards").label_counts(labels, labels.max() + 1)
    assert ((counts > 0).sum(1) <= 4).all()  # two shards of 50, each of at most two classes


def test_a_small_alpha_concentrates_and_a_large_one_evens_out():
    labels = np.repeat(np.arange(10), 200)
    shares = []
    for alpha in (0.05, 0.8, 1e6):
        counts = _split(labels, 10, partition="dirichlet", alpha=alpha).label_counts(labels, labels.max() + 1)
        shares.append((counts.max(1) / counts.sum(1)).mean())
    assert shares[0] > shares[1] > shares[2]
    assert shares[2] == pytest.approx(0.1, abs=0.01)


def test_dirichlet_favours_no_device():
    labels = np.zeros(103, dtype=np.int64)
    sizes = [_split(labels, 4, seed, partition="dirichlet", alpha=5.0, min_samples=1).sizes for seed in range(600)]
    mean, error = np.mean(sizes, axis=0), np.std(sizes, axis=0) / np.sqrt(600)
    assert (np.abs(mean - 103 / 4) < 4 * error).all()


def test_only_as_many_samples_are_moved_as_are_missing():
    labels = np.zeros(100, dtype=np.int64)
    options = {"partition": "dirichlet", "alpha": 1e-6, "min_samples": 10}
    partition = _split(labels, 5, **options)  # one device draws everything and gives ten to each of the others
    assert sorted(partition.sizes.tolist()) == [10, 10, 10, 10, 60]
    assert partition.num_moved == 40
    assert "40 moved" in partition.summary()


def test_the_same_stream_gives_the_same_partition_for_tensors_and_arrays():
    labels = _labels(200)
    for kind in ("iid", "dirichlet", "shards"):
        first, second = (_split(form, 5, 7, partition=kind) for form in (labels, torch.from_numpy(labels)))
        assert np.array_equal(first.flat, second.flat)
        assert not np.array_equal(first.flat, _split(labels, 5, 8, partition=kind).flat)


def test_label_counts_count_each_device():
    labels = np.array([0, 1, 1, 2])
    partition = _split(labels, 2, partition="indices", indices=((0, 1), (2, 3)))
    assert partition.label_counts(labels, labels.max() + 1).tolist() == [[1, 1, 0], [0, 1, 1]]
    assert partition.label_counts(labels, 4).shape == (2, 4)
    assert partition.of(1).tolist() == [2, 3]


def test_explicit_lists_report_what_they_leave_out():
    partition = _split(_labels(10), 2, partition="indices", indices=((0, 3), (3, 5, 9)))
    assert partition.num_left_out == 6  # sample 3 is shared
    assert "6 left out" in partition.summary()


def test_explicit_lists_come_from_a_scenario():
    scenario = Scenario.load("ring10").override(
        {"network.devices": 2, "learning.partition": "indices", "learning.indices": [[1], [0, 2]]}
    )
    assert scenario.learning.indices == ((1,), (0, 2))
    assert Scenario.parse(scenario.as_dict()) == scenario


@pytest.mark.parametrize(
    ("options", "field", "sentence"),
    [
        ({"partition": "dirichlet", "min_samples": 21}, "learning.min_samples", "at most 20.*5 devices.*100.*21"),
        ({"partition": "shards", "shards_per_device": 21}, "learning.shards_per_device", "at most 20.*21"),
        ({"partition": "indices"}, "learning.indices", "actual value missing"),
        ({"partition": "indices", "indices": ((0,),)}, "learning.indices", "5 lists.*actual number of lists 1"),
        ({"partition": "indices", "indices": ((0,),) * 4 + ((),)}, "learning.indices.4", "at least one sample"),
        ({"partition": "indices", "indices": ((0,),) * 4 + ((100,),)}, "learning.indices.4", r"0\.\.99.*100"),
        ({"partition": "indices", "indices": ((-1,),) + ((0,),) * 4}, "learning.indices.0", "actual value -1"),
        ({"partition": "indices", "indices": ((7, 2, 7),) + ((0,),) * 4}, "learning.indices.0", "7 occurs 2 times"),
    ],
)
def test_an_impossible_request_says_why(options, field, sentence):
    with pytest.raises(ScenarioError, match=sentence) as caught:
        _split(_labels(100), 5, **options)
    assert caught.value.field == field


def test_more_devices_than_samples_are_refused():
    with pytest.raises(ScenarioError, match=r"network\.devices: expected at most 3.*actual value 5"):
        _split(_labels(3), 5)
