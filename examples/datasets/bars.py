"""Bright bars in noise: 8×8 images with one row or one column lit, 16 classes, made on the spot."""

import numpy as np

from heliomesh.learning.dataset import Dataset, dataset_from_arrays
from heliomesh.scenario import Learning
from heliomesh.streams import stream

ORIGIN = "made on the spot"
_SIDE = 8
_SAMPLES_PER_CLASS = {"train": 100, "test": 50}


def load(settings: Learning) -> Dataset:
    """Draw the samples; inputs (sample, 1, 8, 8), class k lights row k or, from 8 on, column k − 8."""
    rng = stream(2**63, "partition")  # a scenario's seed is smaller, so these data are nobody's luck
    rows = np.repeat(np.eye(_SIDE)[:, :, None], _SIDE, axis=2)
    bars = np.concatenate([rows, rows.transpose(0, 2, 1)])[:, None]  # (class, 1, 8, 8)
    inputs, labels = {}, {}
    for part, repeats in _SAMPLES_PER_CLASS.items():
        labels[part] = np.tile(np.arange(len(bars)), repeats)
        inputs[part] = bars[labels[part]] + 0.5 * rng.standard_normal((len(labels[part]), *bars.shape[1:]))
    return dataset_from_arrays("bars", inputs["train"], labels["train"], inputs["test"], labels["test"], len(bars))
