"""The test set on the device that scores: all of it, and the part on which devices are scored before the end.

The part is drawn once, from ``stream(seed, "partition", 1)``, and is the same for all devices of a run.
"""

import numpy as np
import torch
from torch import Tensor

from heliomesh.learning.dataset import Dataset
from heliomesh.learning.stacked import Samples
from heliomesh.streams import stream


class HeldOut:
    """Test samples on a device."""

    def __init__(self, dataset: Dataset, device: torch.device, device_samples: int) -> None:
        self.all = Samples(dataset.test_inputs.to(device), dataset.test_labels.to(device))
        self._size = device_samples
        self._parts: dict[int, Tensor] = {}

    @property
    def is_divided(self) -> bool:
        """Whether parts are smaller than the test set."""
        return self._size < len(self.all.labels)

    def part(self, seed: int) -> Tensor:
        """Places in the test set of a random part of it, in its order; (sample,)."""
        if seed not in self._parts:
            total = len(self.all.labels)
            chosen = np.sort(stream(seed, "partition", 1).choice(total, self._size, replace=False))
            self._parts[seed] = torch.from_numpy(chosen).to(self.all.labels.device)
        return self._parts[seed]
