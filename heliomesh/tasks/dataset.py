"""What is learned from: training and test samples as tensors, checked once at the door."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.common import catalog
from heliomesh.common.arguments import checked
from heliomesh.common.mistakes import MistakeError
from heliomesh.common.streams import stream
from heliomesh.scenario.schema import Learning, variant

DATASET_CATALOG = "heliomesh.tasks.datasets"

Array = npt.NDArray[Any]

_MOST_CLASSES = 1_000_000  # the largest label says how many outputs a model has


class DatasetError(MistakeError, ValueError):
    """Data that cannot be had or cannot be used: what was expected and what was found."""


@dataclass(frozen=True)
class Dataset:
    """Samples of a classification task; `dataset_from_arrays` makes one from anything else.

    Attributes
    ----------
    name
        Shown in tables and pages.
    train_inputs
        (sample, channel, height, width) or (sample, feature) float32, normalised per channel.
    train_labels
        (sample,) int64, 0 … num_classes − 1.
    test_inputs
        (sample, …) float32, normalised as the training inputs are.
    test_labels
        (sample,) int64.
    num_classes
        Number of classes.
    """

    name: str
    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    num_classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(channel, height, width) of one image, or (feature,) of one vector."""
        return tuple(self.train_inputs.shape[1:])

    @cached_property
    def sha256(self) -> str:
        """Hexadecimal sha256 of all samples and labels."""
        digest = hashlib.sha256(str(self.num_classes).encode())
        for tensor in (self.train_inputs, self.train_labels, self.test_inputs, self.test_labels):
            digest.update(f"{tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()


def given_or_loaded(given: Dataset | None, settings: Learning) -> Dataset:
    """A dataset that a caller gave, or the one that is named; in either, what `validation` asks for is held out."""
    return load_dataset(settings) if given is None else held_out(given, settings.validation)


def load_dataset(settings: Learning) -> Dataset:
    """The dataset that a scenario's ``[learning]`` names; raises ScenarioError for a name the catalog lacks."""
    dataset: Dataset = catalog.function(find_dataset(settings), "load")(settings)
    expected = f"a Dataset from {settings.dataset!r}, as dataset_from_arrays makes it"
    actual = f"value of type {type(dataset).__name__}"
    DatasetError.when(not isinstance(dataset, Dataset), "learning.dataset", expected, actual)
    return held_out(dataset, settings.validation)


def held_out(dataset: Dataset, share: float | None) -> Dataset:
    """A dataset whose test samples are a share of its training samples, which nobody trains on; None: as it is.

    Whatever is tuned is tuned on these, so that the test set stays untouched. They depend on the share alone.
    """
    if share is None:
        return dataset
    count = len(dataset.train_labels)
    order = torch.from_numpy(stream(0, "validation").permutation(count))
    number = round(share * count)
    expected = f"a share of {count} training samples that leaves some on both sides"
    DatasetError.when(not 0 < number < count, "learning.validation", expected, f"value {share:g}")
    kept, scored = order[number:].sort().values, order[:number].sort().values
    return replace(
        dataset,
        train_inputs=dataset.train_inputs[kept],
        train_labels=dataset.train_labels[kept],
        test_inputs=dataset.train_inputs[scored],
        test_labels=dataset.train_labels[scored],
    )


def find_dataset(settings: Learning) -> Any:
    """The dataset's file, so that a wrong name is told before any work; see `load_dataset`."""
    return variant(DATASET_CATALOG, settings.dataset, "learning.dataset")


@checked
def dataset_from_arrays(
    name: str,
    train_inputs: npt.ArrayLike,
    train_labels: npt.ArrayLike,
    test_inputs: npt.ArrayLike,
    test_labels: npt.ArrayLike,
    num_classes: int | None = None,
) -> Dataset:
    """Check a user's arrays and make a `Dataset` of copies of them.

    Inputs are images (sample, channel, height, width), or (sample, height, width) for one channel, or feature vectors
    (sample, feature). Their values are kept: normalise them first, e.g. by `normalised`.

    Parameters
    ----------
    name
        Shown in tables and pages.
    train_inputs
        Images or vectors.
    train_labels
        Whole numbers 0 … num_classes − 1; (sample,).
    test_inputs
        Images or vectors of the same shape.
    test_labels
        Their labels; (sample,).
    num_classes
        By default one more than the largest label.

    Returns
    -------
    Dataset
        What `train` takes.

    Raises
    ------
    DatasetError
        Where shapes, numbers or labels do not fit.
    """
    train, test = _inputs("train_inputs", train_inputs), _inputs("test_inputs", test_inputs)
    shape, other = train.shape[1:], test.shape[1:]
    DatasetError.when(shape != other, "test_inputs", f"samples of shape {shape} as in train_inputs", f"shape {other}")
    train_classes = _labels("train_labels", train_labels, len(train))
    test_classes = _labels("test_labels", test_labels, len(test))
    if num_classes is None:
        num_classes = int(max(train_classes.max(), test_classes.max())) + 1
    for field, labels in (("train_labels", train_classes), ("test_labels", test_classes)):
        right = (labels >= 0) & (labels < num_classes)
        _check_all(field, right, labels, f"labels 0 to {num_classes - 1}")
    train_x, train_y, test_x, test_y = map(torch.from_numpy, (train, train_classes, test, test_classes))
    return Dataset(name, train_x, train_y, test_x, test_y, num_classes)


def normalised(
    inputs: Array, mean: tuple[float, ...], std: tuple[float, ...], full_scale: float = 1.0
) -> npt.NDArray[np.float32]:
    """(inputs / full_scale − mean) / std as float32, by the second axis: inputs (sample, channel or feature, …)."""
    scaled = inputs.astype(np.float32)
    by_channel = (-1, *(1,) * (inputs.ndim - 2))
    # in place and with one factor per channel: CIFAR-10 is 0.6 GB as float32
    scaled *= np.array([1 / (full_scale * s) for s in std], np.float32).reshape(by_channel)
    scaled -= np.array([m / s for m, s in zip(mean, std, strict=True)], np.float32).reshape(by_channel)
    return scaled


def _inputs(field: str, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    array = _numeric(field, values)
    if array.ndim == 3:
        array = array[:, None]
    axes = "axes (sample, channel, height, width), (sample, height, width) or (sample, feature)"
    DatasetError.when(array.ndim not in (2, 4), field, axes, f"shape {array.shape}")
    DatasetError.when(0 in array.shape, field, "at least one sample and one value each", f"shape {array.shape}")
    with np.errstate(over="ignore"):  # too large for float32 becomes infinite and is refused below
        inputs = np.array(array, np.float32)
    finite = np.isfinite(inputs).reshape(len(inputs), -1).all(1)
    wrong = f"{int((~finite).sum())}, the first at index {int(finite.argmin())}"
    actual = f"number of samples with NaN or infinite values {wrong}"
    DatasetError.when(not finite.all(), field, "finite numbers", actual)
    return inputs


def _labels(field: str, values: npt.ArrayLike, num_samples: int) -> npt.NDArray[np.int64]:
    array = _numeric(field, values)
    expected = f"one label for each of the {num_samples} samples"
    DatasetError.when(array.shape != (num_samples,), field, expected, f"shape {array.shape}")
    _check_all(field, np.isfinite(array) & (array == np.floor(array)), array, "whole numbers")
    near = (array > -_MOST_CLASSES) & (array < _MOST_CLASSES)
    _check_all(field, near, array, f"labels below {_MOST_CLASSES}")
    return array.astype(np.int64)


def _check_all(field: str, right: npt.NDArray[np.bool_], values: Array, expected: str) -> None:
    """Refuse the first value that is not right; (sample,) both."""
    if not right.all():
        first = int(right.argmin())
        raise DatasetError(field, expected, f"value {values[first]:g} at index {first}")


def _numeric(field: str, values: npt.ArrayLike) -> Array:
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DatasetError(field, "a rectangular array of numbers", f": {error}") from None
    DatasetError.when(array.dtype.kind not in "buif", field, "real numbers", f"type {array.dtype}")
    return array
