"""Who owns which training samples: i.i.d., Dirichlet per class, shards by class, or the user's own lists."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.schema import Learning

Indices = npt.NDArray[np.int64]

_UNIFORM_ALPHA = 1e12  # beyond it proportions are equal to within one sample, and gamma draws overflow


@dataclass(frozen=True)
class Partition:
    """Ragged lists of training samples, one per device, as one flat array.

    Device i owns ``flat[offsets[i]:offsets[i + 1]]``. To draw a minibatch that is uniform over a device's own
    samples however many they are, draw positions below ``sizes[i]`` and look them up at ``offsets[i] + position``.
    """

    flat: Indices  # (owned sample,)
    offsets: Indices  # (device + 1,)
    num_samples: int  # of the training set
    num_moved: int = 0  # samples that left their drawn owner so that every device has enough

    @property
    def num_devices(self) -> int:
        """Number of lists."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Indices:
        """Samples of each device; (device,)."""
        return np.diff(self.offsets)

    @property
    def num_left_out(self) -> int:
        """Training samples that no device owns."""
        return self.num_samples - len(np.unique(self.flat))

    def of(self, device: int) -> Indices:
        """Training samples of one device; (sample,)."""
        return self.flat[self.offsets[device] : self.offsets[device + 1]]

    def label_counts(self, labels: npt.ArrayLike, num_classes: int) -> Indices:
        """How many samples of each class every device owns; (device, class)."""
        by_sample = np.asarray(labels, np.int64)
        owner = np.repeat(np.arange(self.num_devices), self.sizes)
        cells = np.bincount(owner * num_classes + by_sample[self.flat], minlength=self.num_devices * num_classes)
        return cells.reshape(self.num_devices, num_classes).astype(np.int64)

    def summary(self) -> str:
        """One sentence on sizes and on what was left out or moved."""
        return (
            f"{self.num_samples} training samples on {self.num_devices} devices, "
            f"{self.sizes.min()} to {self.sizes.max()} each, {self.num_left_out} left out, "
            f"{self.num_moved} moved to reach the minimum"
        )


def split(labels: npt.ArrayLike, settings: Learning, devices: int, rng: np.random.Generator) -> Partition:
    """Deal the training samples with ``labels`` (sample,) out to ``devices``; raises ScenarioError.

    ``rng`` is ``stream(seed, "partition")``. All kinds but explicit lists use every sample exactly once.
    """
    by_sample = np.asarray(labels, np.int64)
    samples = len(by_sample)
    if settings.partition == "indices":
        return _explicit(settings.indices, samples, devices)
    expected = f"at most {samples}, one training sample for each"
    refuse(samples < devices, "network.devices", expected, f"value {devices}")
    match settings.partition:
        case "iid":
            owner = np.repeat(np.arange(devices), _even_sizes(samples, devices, rng))
            return _owned(rng.permutation(owner), devices)
        case "shards":
            return _owned(_shards(by_sample, settings.shards_per_device, devices, rng), devices)
        case "dirichlet":
            return _dirichlet(by_sample, settings, devices, rng)


def _owned(owner: Indices, devices: int, num_moved: int = 0) -> Partition:
    """The partition in which sample s belongs to ``owner[s]``; lists in rising order."""
    offsets = _offsets(np.bincount(owner, minlength=devices))
    return Partition(np.argsort(owner, kind="stable"), offsets, len(owner), num_moved)


def _offsets(sizes: npt.ArrayLike) -> Indices:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _even_sizes(samples: int, parts: int, rng: np.random.Generator) -> Indices:
    """Sizes that differ by at most one; a random phase decides which are larger, so no part is favoured."""
    phase = int(rng.integers(parts))
    return np.diff((np.arange(parts + 1) * samples + phase) // parts)


def _shards(labels: Indices, shards_per_device: int, devices: int, rng: np.random.Generator) -> Indices:
    """Sort by class, cut into equal shards and give every device the same number of them at random."""
    samples, shards = len(labels), devices * shards_per_device
    most = f"{samples // devices}, a sample for each shard of {devices} devices ({samples} training samples)"
    refuse(shards > samples, "learning.shards_per_device", f"at most {most}", f"value {shards_per_device}")
    shuffled = rng.permutation(samples)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owner_of_shard = rng.permutation(np.repeat(np.arange(devices), shards_per_device))
    owner = np.empty(samples, dtype=np.int64)
    owner[by_class] = np.repeat(owner_of_shard, _even_sizes(samples, shards, rng))
    return owner


def _dirichlet(labels: Indices, settings: Learning, devices: int, rng: np.random.Generator) -> Partition:
    """Share every class among devices in proportions ~ Dir(alpha), then move samples to devices with too few."""
    samples, fewest = len(labels), settings.min_samples
    most = f"{samples // devices}, the share of each of {devices} devices in {samples} training samples"
    refuse(devices * fewest > samples, "learning.min_samples", f"at most {most}", f"value {fewest}")
    owner = np.empty(samples, dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        proportions = rng.dirichlet(np.full(devices, min(settings.alpha, _UNIFORM_ALPHA)))
        owner[members] = np.repeat(np.arange(devices), _rounded(proportions, len(members), rng))
    repaired = _with_minimum(owner, fewest, devices, rng)
    return _owned(repaired, devices, int((repaired != owner).sum()))


def _rounded(proportions: npt.NDArray[np.float64], total: int, rng: np.random.Generator) -> Indices:
    """Whole numbers that sum to ``total`` and whose expectations are exactly ``proportions * total``.

    Cutting at ⌊cumulative share + u⌋ with one uniform u is unbiased; plain truncation would favour the last device.
    """
    cuts = np.floor(np.cumsum(proportions) * total + rng.random()).astype(np.int64)
    cuts[-1] = total  # the shares sum to one, up to rounding
    return np.diff(np.minimum(cuts, total), prepend=0)


def _with_minimum(owner: Indices, fewest: int, devices: int, rng: np.random.Generator) -> Indices:
    """Give devices with fewer than ``fewest`` samples what is missing, at random from the largest devices.

    One pass, so it always ends; redrawing until a draw fits need not.
    """
    sizes = np.bincount(owner, minlength=devices)
    missing = np.maximum(fewest - sizes, 0)
    rank = rank_within(owner, rng.permutation(len(owner)))
    released = np.flatnonzero(rank >= _lowered(sizes, int(missing.sum()))[owner])
    repaired = owner.copy()
    repaired[rng.permutation(released)] = np.repeat(np.arange(devices), missing)
    return repaired


def _lowered(sizes: Indices, surplus: int) -> Indices:
    """Sizes after the largest are levelled down by ``surplus`` samples in all."""
    levels = range(1, int(sizes.max()) + 1)
    level = bisect_left(levels, True, key=lambda one: np.maximum(sizes - one, 0).sum() < surplus)  # frees enough
    lowered = np.minimum(sizes, level)
    kept = int(np.maximum(sizes - level, 0).sum()) - surplus  # levelling frees a few too many: they stay
    lowered[np.flatnonzero(sizes > level)[:kept]] += 1
    return lowered


def rank_within(owner: Indices, order: Indices) -> Indices:
    """How many samples of the same owner come before each sample in an order of all; (sample,)."""
    sizes, by_owner = np.bincount(owner), order[np.argsort(owner[order], kind="stable")]
    rank = np.empty_like(owner)
    rank[by_owner] = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank


def _explicit(lists: tuple[tuple[int, ...], ...] | None, samples: int, devices: int) -> Partition:
    """The user's lists, checked; two devices may share a sample, one device may not hold it twice."""
    field = "learning.indices"
    if lists is None:
        raise ScenarioError(field, "a list per device for partition 'indices'", "value missing")
    refuse(len(lists) != devices, field, f"{devices} lists (network.devices)", f"number of lists {len(lists)}")
    for device, own in enumerate(lists):
        place = f"{field}.{device}"
        refuse(not own, place, "at least one sample", "list empty")
        outside = [sample for sample in own if not 0 <= sample < samples]
        if outside:
            raise ScenarioError(place, f"samples in 0..{samples - 1}", f"value {outside[0]}")
        sample, times = Counter(own).most_common(1)[0]
        refuse(times > 1, place, "every sample once", f"value {sample} occurs {times} times")
    return Partition(np.concatenate(lists).astype(np.int64), _offsets([len(own) for own in lists]), samples)
