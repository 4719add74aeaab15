"""Which samples a device trains on: it walks through its own in shuffled epochs, K batches in every slot it trains.

Epoch e of device i has the order ``stream(seed, "minibatch", i, e).permutation(n_i)`` of its n_i samples. A device
that has trained in c earlier slots stands at position c·K·|ξ| of its endless walk, so its next batches follow from
(seed, device, c) alone: neither the strategy nor the rest of the stack matters, and resuming needs no state.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from heliomesh.common.streams import stream
from heliomesh.tasks.partition import Partition

Indices = npt.NDArray[np.int64]

_KEPT_SAMPLES = 2048  # orders of devices with more samples are drawn again: they take long to keep, not to begin


class Minibatches:
    """The walks of all devices of one run. Remembers each device's current order, which only saves time."""

    def __init__(self, partition: Partition, seed: int, local_steps: int, batch: int) -> None:
        self._partition, self._seed, self._shape = partition, seed, (local_steps, batch)
        self._size, self._offset = partition.sizes, partition.offsets[:-1]
        self._order = np.empty_like(partition.flat)  # the current epoch's order of every device, one after the other
        self._epoch = np.full(partition.num_devices, -1, dtype=np.int64)  # which epoch that is

    def of(self, devices: Indices, trained_before: Indices) -> Indices:
        """Training samples of the next slot; (active, K, batch).

        ``devices`` (active,) train now and trained in ``trained_before`` (active,) earlier slots. A device with
        fewer samples than a batch meets some of them twice in it.
        """
        num_local, batch = self._shape
        position = trained_before[:, None] * (num_local * batch) + np.arange(num_local * batch)
        epoch, place = np.divmod(position, self._size[devices, None])
        chosen = np.empty_like(position)
        for ahead in range(int((epoch[:, -1] - epoch[:, 0]).max(initial=-1)) + 1):
            now = epoch[:, 0] + ahead
            met = now <= epoch[:, -1]  # devices whose batches reach this epoch
            self._turn_to(devices[met], now[met])
            here = epoch == now[:, None]
            row = np.nonzero(here)[0]
            chosen[here] = self._order[self._offset[devices[row]] + place[here]]
        return self._partition.flat[self._offset[devices, None] + chosen].reshape(-1, num_local, batch)

    def _turn_to(self, devices: Indices, epochs: Indices) -> None:
        """Draw the orders of the epochs that devices enter."""
        entering = self._epoch[devices] != epochs
        for device, epoch in zip(devices[entering].tolist(), epochs[entering].tolist(), strict=True):
            start, size = int(self._offset[device]), int(self._size[device])
            order = _order if size <= _KEPT_SAMPLES else _order.__wrapped__
            self._order[start : start + size] = order(self._seed, device, epoch, size)
            self._epoch[device] = epoch


@lru_cache(maxsize=1024)
def _order(seed: int, device: int, epoch: int, size: int) -> Indices:
    """A device's samples in an epoch; runs of one seed in a stack ask for it one after the other."""
    return stream(seed, "minibatch", device, epoch).permutation(size)
