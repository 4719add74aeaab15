"""Replay a heliomesh schedule: who trains and whose model arrives is as planned and simulated.

The model is softmax regression, written out, so that the app needs NumPy alone; put your own in place of
`first_weights`, `local_steps` and `accuracy`. Nothing of heliomesh is needed to replay, and nothing of Flower here.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ReplayedSchedule:
    """What `schedule.json` says."""

    content: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path) -> "ReplayedSchedule":
        """Read the file; refuses other formats and versions, and a rule that this example does not have."""
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        found = (content.get("format"), content.get("version"))
        if found != ("heliomesh-schedule", 1):
            raise ValueError(f"{path}: expected a heliomesh-schedule of version 1, actual {found}")
        if content["aggregation"] == "update":
            raise ValueError(f"{path}: expected another aggregation than 'update', actual 'update'")
        return cls(content)

    @property
    def num_clients(self) -> int:
        """Number of devices."""
        return len(self.content["clients"])

    def learning_rate(self, number: int) -> float:
        """Learning rate of a round."""
        by_round = self.content.get("learning_rates")
        return float(self.content["learning_rate"] if by_round is None else by_round[number])

    def mixed(self, number: int, models: Array) -> Array:
        """Models (client, parameter) after a round's packets; lost weight stays with oneself or is shared."""
        after = models.copy()
        arrived = np.zeros((len(models), len(models)))  # a_ij where j's packet reached i
        for receiver, sender in self.content["rounds"][number]["arrivals"]:
            client = self.content["clients"][receiver]
            arrived[receiver, sender] = client["weights"][client["neighbours"].index(sender)]
        own = np.array([client["self_weight"] for client in self.content["clients"]])
        if self.content["aggregation"] == "renormalized":
            arrived /= (own + arrived.sum(1))[:, None]
        if self.content["aggregation"] == "reassigned":
            arrived *= ((1 - own) / np.maximum(arrived.sum(1), 1e-12))[:, None]
        for receiver, sender in zip(*np.nonzero(arrived), strict=True):
            after[receiver] += arrived[receiver, sender] * (models[sender] - models[receiver])
        return after


# The model: softmax regression


def first_weights(num_inputs: int, num_classes: int) -> Array:
    """All zeros, flat; (parameter,)."""
    return np.zeros((num_inputs + 1) * num_classes)


def local_steps(
    weights: Array, inputs: Array, labels: Array, steps: int, batch: int, rate: float, rng: np.random.Generator
) -> Array:
    """Steps of SGD on a client's own samples; inputs (sample, input) → (parameter,)."""
    matrix = weights.reshape(inputs.shape[1] + 1, -1).copy()
    for _ in range(steps):
        chosen = rng.integers(len(inputs), size=batch)
        x = np.hstack([inputs[chosen], np.ones((batch, 1))])
        score = x @ matrix
        prob = np.exp(score - score.max(1, keepdims=True))
        prob /= prob.sum(1, keepdims=True)
        prob[np.arange(batch), labels[chosen]] -= 1
        matrix -= rate / batch * x.T @ prob
    return matrix.reshape(-1)


def accuracy(weights: Array, inputs: Array, labels: Array) -> float:
    """Share of samples classified rightly."""
    matrix = weights.reshape(inputs.shape[1] + 1, -1)
    guess: Array = (np.hstack([inputs, np.ones((len(inputs), 1))]) @ matrix).argmax(1)
    return float((guess == labels).mean())


def load_data(path: str | Path) -> tuple[Array, Array]:
    """Inputs (sample, input) and labels (sample,) of an .npz file."""
    with np.load(path, allow_pickle=False) as file:
        inputs, labels = file["inputs"], file["labels"]
    return inputs.reshape(len(inputs), -1).astype(np.float64), labels.astype(np.int64)
