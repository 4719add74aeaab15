"""Gaussian clusters, one per class: 2,000 training and 1,000 test samples of 8×8, 10 classes, made in milliseconds.

A sample is its class's centre plus unit noise in each of 64 directions. Centres are at mean distance 4 from the
origin, hence about 5.7 from each other. All values are divided by their theoretical deviation, so the mean is 0 and
the deviation 1. The data are always the same: their seed is fixed, and no scenario can have it.
"""

import numpy as np

from heliomesh.common.streams import stream
from heliomesh.scenario.schema import Learning
from heliomesh.tasks.dataset import Dataset, dataset_from_arrays

ORIGIN = "made on the spot"
SEED = 2**63  # a scenario's seed is smaller
SHAPE = (1, 8, 8)
CLASSES = 10
_CENTRE_DISTANCE = 4.0  # root mean square distance of a centre from the origin, in units of the noise
_SAMPLES_PER_CLASS = {"train": 200, "test": 100}


def load(settings: Learning) -> Dataset:
    """Draw the samples; inputs (sample, 1, 8, 8), classes in turn."""
    rng = stream(SEED, "partition")
    spread = _CENTRE_DISTANCE / np.prod(SHAPE) ** 0.5
    centres = spread * rng.standard_normal((CLASSES, *SHAPE))
    deviation = (1 + spread**2) ** 0.5
    inputs, labels = {}, {}
    for part, repeats in _SAMPLES_PER_CLASS.items():
        labels[part] = np.tile(np.arange(CLASSES), repeats)
        inputs[part] = (centres[labels[part]] + rng.standard_normal((len(labels[part]), *SHAPE))) / deviation
    return dataset_from_arrays("synthetic", inputs["train"], labels["train"], inputs["test"], labels["test"], CLASSES)
