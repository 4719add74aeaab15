"""A device's own learning: its samples, its model, and the average with what reaches it.

A device and its neighbours are the rows of a small matrix, itself first. Steps and averages are the library's own,
and terms are added in the same order, so weights agree bit for bit with those of the trainer.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.learning.aggregation import aggregate
from heliomesh.learning.members import divergence
from heliomesh.learning.minibatch import Minibatches
from heliomesh.learning.packets import first_feedback, int8_scale, is_exact, packet
from heliomesh.learning.precision import Precision
from heliomesh.learning.quasi_global import lean, remember
from heliomesh.learning.schedule import learning_rates
from heliomesh.learning.stacked import Samples, flat_weights
from heliomesh.learning.strategy import choose_for
from heliomesh.physics.topology import Topology
from heliomesh.scenario.on_air import update_bits
from heliomesh.scenario.scenario import Scenario
from heliomesh.tasks.model import InputShape, build_model
from heliomesh.tasks.partition import Partition


@dataclass(frozen=True)
class Lesson:
    """What a device is given to learn from, and how."""

    samples: Samples  # its own
    input_shape: InputShape
    num_classes: int
    seed: int  # of the first weights, which are common, and of the device's own minibatches
    strategy: str
    precision: Precision


class Learner:
    """The model of one device; ``scenario`` must not tell whose samples are whose."""

    def __init__(self, lesson: Lesson, device: int, scenario: Scenario, star: Topology) -> None:
        settings = scenario.learning
        self._lesson, self._device, self._settings, self._star = lesson, device, settings, star
        self._learning_rates = learning_rates(scenario)
        model = build_model(settings.model, lesson.input_shape, lesson.num_classes, lesson.seed, settings.buffers)
        first = flat_weights(model)
        self._weights = torch.zeros(star.num_devices, len(first))  # (row, parameter)
        self._weights[0] = first
        self._sends_updates, self._decay = settings.aggregation == "update", settings.quasi_global or 0.0
        self._before = torch.zeros_like(self._weights)  # of neighbours it stays zero
        self._momentum = torch.zeros(1, len(first))
        self._feedback = first_feedback(settings, first).clone() if settings.on_air == "top-k" else None
        self._strategy = choose_for(settings, model, lesson.samples, lesson.precision, lesson.strategy)
        self._minibatches = Minibatches(_alone(lesson, device), lesson.seed, settings.local_steps, settings.batch)
        self._slots_trained = 0

    @property
    def weights(self) -> Tensor:
        """The device's own weights; (parameter,)."""
        return self._weights[0]

    def follow(self, star: Topology) -> None:
        """Average by the weights of these links from now on; neighbours are the same."""
        self._star = star

    def begin(self) -> None:
        """Remember the weights before training."""
        self._before[0] = self._weights[0]

    def train(self, slot: int) -> float:
        """K local steps; the mean training loss."""
        own, before = np.array([self._device]), np.array([self._slots_trained])
        batches = torch.from_numpy(self._minibatches.of(own, before))
        rate = self._learning_rates[slot]
        if self._decay:
            lean(self._weights, self._momentum, [0], self._decay)
        loss = float(self._strategy.train(self._weights, torch.tensor([0]), batches, self._lesson.samples, rate)[0])
        self._slots_trained += 1
        if not np.isfinite(loss) or not bool(self.weights.sum().isfinite()):
            raise divergence(self._device, slot, f"training loss {loss:g}")
        return loss

    def state(self) -> dict[str, Tensor]:
        """All that the next slot depends on."""
        found = {
            "weights": self.weights,
            "momentum": self._momentum,
            "slots_trained": torch.tensor(self._slots_trained),
        }
        if self._feedback is not None:
            found["feedback"] = self._feedback
        return {name: value.clone() for name, value in found.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go back to what `state` gave."""
        self._weights[0] = state["weights"]
        self._momentum.copy_(state["momentum"])
        self._slots_trained = int(state["slots_trained"])
        if self._feedback is not None:
            self._feedback.copy_(state["feedback"])

    @property
    def packet_bytes(self) -> int:
        """What a packet takes on the air."""
        return -(-update_bits(len(self.weights), self._settings.on_air, self._settings.top_k_share) // 8)

    def sent(self, slot: int) -> tuple[Tensor, Tensor | None]:
        """What goes on the air in a slot: w½, or Δ where updates are averaged, compressed, and the scales of int8.

        Returns (parameter,) and (block,).
        """
        content = self.weights - self._before[0] if self._sends_updates else self.weights.clone()
        scale = int8_scale(content) if self._settings.on_air == "int8" else None
        return packet(self._settings, content, self._feedback, self._lesson.seed, slot, self._device), scale

    def average(self, rows: dict[int, Tensor], delivered: npt.NDArray[np.bool_], trained: bool) -> None:
        """Average with what was delivered: ``rows`` by the sender's row, ``delivered`` by incoming edge."""
        for row, sent in rows.items():
            self._weights[row] = sent  # an update Δ is one from weights of zero, which the copy before keeps
        active = np.zeros(self._star.num_devices, dtype=np.bool_)
        active[0] = trained
        aggregate(
            self._settings.aggregation,
            self._star,
            self._before,
            self._weights,
            delivered,
            active,
            out=self._weights,
            sent=None if is_exact(self._settings) else self._weights,
        )
        if self._decay:
            remember(self._momentum, self._before[:1], self._weights[:1], self._decay)


def _alone(lesson: Lesson, device: int) -> Partition:
    """A partition in which only this device owns samples, under its own number: its walk follows from that."""
    size = len(lesson.samples.labels)
    offsets = np.zeros(device + 2, dtype=np.int64)
    offsets[-1] = size
    return Partition(np.arange(size), offsets, size)
