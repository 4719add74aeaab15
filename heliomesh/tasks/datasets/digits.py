"""The 8×8 handwritten digits that scikit-learn carries: 1797 samples, 10 classes, no download.

Every fifth sample of each class, in scikit-learn's order, is a test sample: 1442 for training and 355 for tests, all
classes in equal shares. Pixels 0 … 16 are divided by 16, then normalised by the training samples' mean and deviation.
"""

import numpy as np
from sklearn.datasets import load_digits

from heliomesh.scenario.schema import Learning
from heliomesh.tasks.dataset import Dataset, dataset_from_arrays, normalised
from heliomesh.tasks.partition import rank_within

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
    test = rank_within(labels, np.arange(len(labels))) % _EVERY == _EVERY - 1
    return dataset_from_arrays("digits", inputs[~test], labels[~test], inputs[test], labels[test], CLASSES)
