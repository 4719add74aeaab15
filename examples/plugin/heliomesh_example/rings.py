"""Points on three noisy rings, as feature vectors (sample, 2): no line separates them."""

import numpy as np

from heliomesh.common.streams import stream
from heliomesh.scenario.schema import Learning
from heliomesh.tasks.dataset import Dataset, dataset_from_arrays

_RADIUS = np.array([0.5, 1.25, 2.0])
_SAMPLES = {"train": 900, "test": 300}


def load(settings: Learning) -> Dataset:
    """Draw the samples; class k lies on ring k."""
    rng = stream(2**63, "partition")  # a scenario's seed is smaller, so these data depend on none
    inputs, labels = {}, {}
    for part, size in _SAMPLES.items():
        labels[part] = np.arange(size) % len(_RADIUS)
        angle = rng.uniform(0, 2 * np.pi, size)
        radius = _RADIUS[labels[part]] + 0.1 * rng.standard_normal(size)
        inputs[part] = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return dataset_from_arrays("rings", inputs["train"], labels["train"], inputs["test"], labels["test"])
