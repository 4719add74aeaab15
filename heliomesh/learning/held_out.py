"""The test set on the device that scores: all of it, and the part on which devices are scored before the end.

The part is drawn once, from ``stream(seed, "partition", 1)``, and is the same for all devices of a run.
"""

import numpy as np
import torch

from heliomesh.learning.dataset import Dataset
from heliomesh.learning.stacked import Samples
from heliomesh.streams import stream


class HeldOut:
    """Test samples on a device."""

    def __init__(self, dataset: Dataset, device: torch.device, device_samples: int) -> None:
        self.all = Samples(dataset.test_inputs.to(device), dataset.test_labels.to(device))
        self._size = device_samples
        self._parts: dict[int, Samples] = {}

    def part(self, seed: int) -> Samples:
        """A random part of the test set, in its order."""
        if self._size >= len(self.all.labels):
            return self.all
        if seed not in self._parts:
            total = len(self.all.labels)
            chosen = np.sort(stream(seed, "partition", 1).choice(total, self._size, replace=False))
            index = torch.from_numpy(chosen).to(self.all.labels.device)
            self._parts[seed] = Samples(self.all.inputs[index], self.all.labels[index])
        return self._parts[seed]
