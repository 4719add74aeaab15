"""One part of a large network: it trains its own devices, and averages them with rows that other parts send.

Who sends what to whom in a slot follows from the trace, which all parts know: the rows of devices of which at least
one packet was delivered in another part. So only the rows themselves travel, in the order of their devices.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from heliomesh.learning.replay import Replay
from heliomesh.learning.settings import TrainJob, TrainSettings
from heliomesh.learning.stacked import Scores
from heliomesh.physics.topology import Topology, build_topology
from heliomesh.tasks.dataset import Dataset

Indices = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]  # (device, parameter)


class Border:
    """Who must hear of whom across the parts of a network, slot by slot."""

    def __init__(self, topology: Topology, part: Indices, delivered: npt.NDArray[np.bool_]) -> None:
        """``part`` is (device,), ``delivered`` is (slot, edge)."""
        crossing = np.flatnonzero(part[topology.edge_sender] != part[topology.edge_receiver])
        self._sender, self._delivered = topology.edge_sender[crossing], delivered[:, crossing]
        self._from, self._to = part[self._sender], part[topology.edge_receiver[crossing]]
        self.pairs = tuple(sorted(set(zip(self._from.tolist(), self._to.tolist(), strict=True))))  # (from, to)

    def senders(self, slot: int, source: int, target: int) -> Indices:
        """Devices of part ``source`` of which something arrives in part ``target``, in rising order."""
        chosen = self._delivered[slot] & (self._from == source) & (self._to == target)
        return np.unique(self._sender[chosen])


class Shard:
    """The part with one number; ``part`` says of which part each device is, (device,)."""

    def __init__(self, job: TrainJob, dataset: Dataset, settings: TrainSettings, part: Indices, number: int) -> None:
        self._own, self._number = np.flatnonzero(part == number), number
        self._border = Border(build_topology(job.scenario), part, job.trace.delivered[job.episode])
        self._replay = Replay([job], dataset, settings, self._own)
        self.setting = self._replay.setting  # the strategy that trains
        devices = self._replay.members[0].devices
        self._row = np.full(len(part), -1)  # of a device; -1: neither here nor a neighbour
        self._row[devices] = np.arange(len(devices))

    def train(self, slot: int) -> tuple[npt.NDArray[np.float64], dict[int, Rows]]:
        """Train the own devices; their losses (own,), NaN where idle, and the rows to send to each other part."""
        losses = self._replay.train(slot)[: len(self._own)]
        targets = [target for source, target in self._border.pairs if source == self._number]
        rows = {target: self._row[self._border.senders(slot, self._number, target)] for target in targets}
        return losses, {target: self._replay.send(own).cpu().numpy() for target, own in rows.items()}

    def average(self, slot: int, received: Mapping[int, Rows]) -> None:
        """Average with what was delivered; ``received`` are the rows sent here, by the part that sent them."""
        for source, sent in received.items():
            rows = self._row[self._border.senders(slot, source, self._number)]
            self._replay.receive(rows, torch.tensor(sent))  # a copy: what comes from elsewhere may be read-only
        self._replay.average(slot)

    def state(self) -> list[Rows]:
        """What `state_names` lists, of the own devices; (own, parameter) each."""
        return [one[: len(self._own)].cpu().numpy() for one in self._replay.gather_state().values()]

    def restore(self, *state: Rows) -> None:
        """Go back to a `state` of the own devices."""
        for one, kept in zip(self._replay.gather_state().values(), state, strict=True):
            one[: len(self._own)] = torch.tensor(kept)

    def score_devices(self, done: int) -> Scores:
        """The own devices on the test set; (own,)."""
        return _on_cpu(self._replay.score_devices(done))

    def score_models(self, models: Rows) -> Scores:
        """Other models (model, parameter) on the whole test set."""
        return _on_cpu(self._replay.score_models(torch.tensor(models).to(self._replay.weights.device)))


def _on_cpu(scores: Scores) -> Scores:
    return Scores(scores.loss.cpu(), scores.accuracy.cpu())
