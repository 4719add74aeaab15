"""A Flower app that follows a trace: who trains and whose packet arrives is as planned and simulated.

    gate = FlowerGate("ring10", "trace.npz")  # of `heliomesh simulate ring10 receiver --out trace.npz`
    for models in gate.play(grid, first_models):  # in a ServerApp
        ...

Flower puts a server between clients, and devices have none: the server keeps every device's model and is the radio.
A round is a slot. Clients that are scheduled get their model and return it trained; the server then averages what was
delivered, w_i ← mix(w_i½, {w_j½ : ζ_ij = 1}), by the scenario's aggregation rule. `examples/flower` is such an app.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from heliomesh.common.streams import stream
from heliomesh.learning.aggregation import aggregate
from heliomesh.learning.members import lined_up
from heliomesh.learning.schedule import learning_rates
from heliomesh.learning.settings import TrainJob
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.trace import Trace
from heliomesh.tasks.dataset import Dataset, given_or_loaded
from heliomesh.tasks.partition import split

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

Models = npt.NDArray[Any]  # (client, parameter)
_POLL_SECOND = 0.1


class FlowerGate:
    """One episode of a trace, as the rounds of a Flower app; client i is the node with partition-id i."""

    def __init__(
        self,
        scenario: Scenario | str,
        trace: Trace | str | Path,
        episode: int = 0,
        seed: int | None = None,
        dataset: Dataset | None = None,
    ) -> None:
        loaded = Scenario.load(scenario) if isinstance(scenario, str) else scenario
        job = TrainJob(loaded, trace if isinstance(trace, Trace) else Trace.load(trace), episode, seed)
        settings = loaded.learning
        for name, actual, wanted in (
            ("quasi_global", settings.quasi_global, None),
            ("on_air", settings.on_air, "float32"),
        ):
            refuse(actual != wanted, f"learning.{name}", f"{wanted or 'none'} with Flower", f"value {actual!r}")
        self.dataset = given_or_loaded(dataset, settings)
        self._network = lined_up([job], self.dataset)[0]
        self._partition = split(
            self.dataset.train_labels, settings, self.num_clients, stream(job.training_seed, "partition")
        )
        self.rule, self.learning_rates = settings.aggregation, learning_rates(loaded)  # (round,)

    @property
    def num_clients(self) -> int:
        """Devices m."""
        return self._network.num_own

    @property
    def num_rounds(self) -> int:
        """Slots T."""
        return len(self._network.scheduled)

    def samples(self, client: int) -> npt.NDArray[np.int64]:
        """A client's samples of the training set, as the trainer deals them out; (sample,)."""
        return self._partition.of(client)

    def trains(self, number: int) -> list[int]:
        """Clients that take local steps in a round."""
        return np.flatnonzero(self._network.scheduled[number]).tolist()

    def mixed(self, number: int, before: Models, after: Models) -> Models:
        """Models with which clients leave a round, from those before and after their local steps."""
        network, (first, own) = self._network, map(torch.from_numpy, map(np.ascontiguousarray, (before, after)))
        heard, trained, out = network.delivered[number], network.scheduled[number], torch.empty_like(own)
        aggregate(self.rule, network.mixing_in(number), first, own, heard, trained, out)
        return out.numpy()

    def play(self, grid: "Grid", models: Models) -> Iterator[Models]:
        """Play all rounds over Flower's grid; yields the models after each.

        A client app answers ``query`` with its number as ``config["client"]``, and ``train`` with the array of
        ``weights`` that it made of the one it got; ``config`` has the number of the ``round``.
        """
        from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

        nodes = self._nodes(grid)
        for number in range(self.num_rounds):
            asked = [
                Message(
                    RecordDict({"weights": ArrayRecord([models[client]]), "config": ConfigRecord({"round": number})}),
                    dst_node_id=nodes[client],
                    message_type="train",
                    group_id=str(number),
                )
                for client in self.trains(number)
            ]
            after = models.copy()
            for client, content in _answers(grid, asked, nodes).items():
                after[client] = content["weights"].to_numpy_ndarrays()[0]
            models = self.mixed(number, models, after)
            yield models

    def _nodes(self, grid: "Grid") -> list[int]:
        """The node of every client, once all have connected and said which they are."""
        from flwr.app import Message, RecordDict

        while len(nodes := list(grid.get_node_ids())) < self.num_clients:
            time.sleep(_POLL_SECOND)
        asked = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
        told = {
            int(content["config"]["client"]): nodes[place] for place, content in _answers(grid, asked, nodes).items()
        }
        if sorted(told) != list(range(self.num_clients)):
            expected = f"one node for each of 0 to {self.num_clients - 1}"
            raise RuntimeError(f"partition-id: expected {expected}, actual {sorted(told)}")
        return [told[client] for client in range(self.num_clients)]


def _answers(grid: "Grid", asked: "Iterable[Message]", nodes: list[int]) -> Mapping[int, Any]:
    """What nodes answer, by their place in ``nodes``."""
    replies = list(grid.send_and_receive(asked)) if asked else []
    for reply in replies:
        if reply.has_error():
            raise RuntimeError(f"a client did not answer: {reply.error}")
    return {nodes.index(reply.metadata.src_node_id): reply.content for reply in replies}
