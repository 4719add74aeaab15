"""The 8×8 handwritten digits that scikit-learn carries: 1797 samples, 10 classes, no download.

Every fifth sample of each class, in scikit-learn's order, is a test sample: 1442 for training and 355 for tests, all
classes in equal shares. Pixels 0 … 16 are divided by 16, then normalised by the training samples' mean and deviation.
"""

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from heliomesh.scenario.schema import Learning
from heliomesh.tasks.dataset import Dataset, dataset_from_arrays, normalised

ORIGIN = "bundled with scikit-learn"
SHAPE = (1, 8, 8)
CLASSES = 10
MEAN = (0.3051,)
STD = (0.3762,)
_EVERY = 5


def load(settings: Learning) -> Dataset:
    """Read and split the samples; inputs (sample, 1, 8, 8)."""
    bunch = load_digits()
    inputs = normalised(bunch.images[:, None], MEAN, STD, full_scale=16.0)
    labels = np.asarray(bunch.target, np.int64)
    test = _rank_in_class(labels) % _EVERY == _EVERY - 1
    return dataset_from_arrays("digits", inputs[~test], labels[~test], inputs[test], labels[test], CLASSES)


def _rank_in_class(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many earlier samples have the same label; (sample,)."""
    rank = np.empty_like(labels)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        rank[members] = np.arange(len(members))
    return rank
