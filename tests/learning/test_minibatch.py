"""Walks through a device's own samples: against a plain loop, and what they must not depend on."""

import numpy as np
import pytest

from heliomesh.common.streams import stream
from heliomesh.learning.minibatch import Minibatches
from heliomesh.tasks.partition import Partition


def ragged(sizes, rng):
    """A partition with these sizes of a shuffled training set."""
    total = int(np.sum(sizes))
    return Partition(rng.permutation(total), np.concatenate([[0], np.cumsum(sizes)]), total)


def walk(partition, seed, device, start, count):
    """Positions start, start + 1, … of a device's walk, one by one."""
    own = partition.of(device)
    orders = {}
    chosen = []
    for position in range(start, start + count):
        epoch, place = divmod(position, len(own))
        if epoch not in orders:
            orders[epoch] = stream(seed, "minibatch", device, epoch).permutation(len(own))
        chosen.append(own[orders[epoch][place]])
    return np.array(chosen)


@pytest.mark.parametrize(("local_steps", "batch"), [(1, 1), (5, 4), (3, 32)])
def test_equals_the_walk_step_by_step(local_steps, batch):
    """Devices with one sample, with less than a batch, with exactly one and with many."""
    partition = ragged([1, 3, batch, local_steps * batch, 200], np.random.default_rng(0))
    minibatches = Minibatches(partition, 7, local_steps, batch)
    trained = np.zeros(5, dtype=np.int64)
    rng = np.random.default_rng(1)
    for _ in range(12):
        devices = np.flatnonzero(rng.random(5) < 0.6)
        got = minibatches.of(devices, trained[devices])
        assert got.shape == (len(devices), local_steps, batch)
        for row, device in enumerate(devices):
            start = trained[device] * local_steps * batch
            expected = walk(partition, 7, device, start, local_steps * batch)
            np.testing.assert_array_equal(got[row].ravel(), expected)
        trained[devices] += 1


def test_every_epoch_meets_every_sample_once():
    partition = ragged([40, 24], np.random.default_rng(0))
    minibatches = Minibatches(partition, 0, 2, 4)
    batches = [minibatches.of(np.array([0, 1]), np.array([slot, slot])) for slot in range(15)]
    for device, size in ((0, 40), (1, 24)):
        seen = np.concatenate([batch[device].ravel() for batch in batches])
        for epoch in range(len(seen) // size):
            np.testing.assert_array_equal(
                np.sort(seen[epoch * size : (epoch + 1) * size]), np.sort(partition.of(device))
            )


def test_depends_on_nothing_but_seed_device_and_trained_slots():
    """A new object in the middle of the run, alone or in company, in any order."""
    partition = ragged([50, 7, 90], np.random.default_rng(0))
    company = Minibatches(partition, 3, 5, 8)
    for slot in range(6):
        company.of(np.arange(3), np.full(3, slot))
    together = company.of(np.arange(3), np.full(3, 6))
    alone = Minibatches(partition, 3, 5, 8).of(np.array([1]), np.array([6]))
    backwards = company.of(np.array([2, 0]), np.array([0, 1]))
    np.testing.assert_array_equal(alone[0], together[1])
    np.testing.assert_array_equal(backwards, Minibatches(partition, 3, 5, 8).of(np.array([2, 0]), np.array([0, 1])))
    assert not np.array_equal(together, Minibatches(partition, 4, 5, 8).of(np.arange(3), np.full(3, 6)))


def test_nobody_trains():
    minibatches = Minibatches(ragged([5], np.random.default_rng(0)), 0, 2, 3)
    none = np.empty(0, dtype=np.int64)
    assert minibatches.of(none, none).shape == (0, 2, 3)
