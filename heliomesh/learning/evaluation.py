"""How good the models are: every device on a fixed part of the test set, their average on all of it.

The part is drawn once, from ``stream(seed, "partition", 1)``, and is the same for all devices of a run. At the end of
a run every device meets the whole test set.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.learning.dataset import Dataset
from heliomesh.learning.replay import Member, Replay, diverged
from heliomesh.learning.stacked import Samples
from heliomesh.streams import stream

# What is known of a run after a slot. Mean, least and largest are over devices; joules are sums over devices and
# slots so far; "average" is the model w̄ = Σ_i w_i / m.
COLUMNS = (
    "slot",  # slots done
    "accuracy_mean",
    "accuracy_min",
    "accuracy_max",
    "loss_mean",
    "loss_min",
    "loss_max",
    "device_samples",  # test samples on which each device was scored
    "average_accuracy",
    "average_loss",
    "consensus_distance",  # Σ_i ‖w_i − w̄‖² / m
    "train_loss",  # mean over what was trained since the last row; NaN where nothing was
    "spent_joule",
    "harvested_joule",
    "accuracy_per_joule",  # accuracy_mean / spent_joule; NaN where nothing was spent
)

_COLUMNS_AT_ONCE = 65_536  # parameters

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """One run after one slot."""

    row: dict[str, float]  # by `COLUMNS`
    accuracy: Floats  # (device,)
    loss: Floats  # (device,)


class Evaluator:
    """Scores all runs of a replay."""

    def __init__(self, replay: Replay, dataset: Dataset, device_samples: int) -> None:
        device = replay.device
        self._replay = replay
        self._test = Samples(dataset.test_inputs.to(device), dataset.test_labels.to(device))
        self._part = {
            member.job.training_seed: _part(self._test, member.job.training_seed, device_samples)
            for member in replay.members
        }

    def evaluate(self, done: int, losses: Floats) -> list[Evaluation]:
        """Score every run after ``done`` slots; ``losses`` (slot, row) are the training losses since last time."""
        replay = self._replay
        averages = torch.stack([replay.weights[member.rows].mean(0) for member in replay.members])
        scores = replay.strategy.evaluate(averages, _rows(slice(0, len(averages)), replay), self._test)
        evaluations = []
        for run, member in enumerate(replay.members):
            accuracy, loss, num_samples = self._devices(member, done)
            row = {
                "slot": done,
                **{f"accuracy_{name}": value for name, value in _spread(accuracy).items()},
                **{f"loss_{name}": value for name, value in _spread(loss).items()},
                "device_samples": num_samples,
                "average_accuracy": float(scores.accuracy[run]),
                "average_loss": float(scores.loss[run]),
                "consensus_distance": consensus_distance(replay.weights[member.rows], averages[run]),
                "train_loss": _mean_of_trained(losses[:, member.rows]),
                **_energy(member, done, float(accuracy.mean())),
            }
            evaluations.append(Evaluation(row, accuracy, loss))
        return evaluations

    def _devices(self, member: Member, done: int) -> tuple[Floats, Floats, int]:
        """Accuracy and loss of each device, and on how many samples; all of them after the last slot."""
        replay = self._replay
        samples = self._test if done == replay.num_slots else self._part[member.job.training_seed]
        scores = replay.strategy.evaluate(replay.weights, _rows(member.rows, replay), samples)
        accuracy, loss = scores.accuracy.double().cpu().numpy(), scores.loss.double().cpu().numpy()
        if not np.isfinite(loss).all():
            device = int(np.flatnonzero(~np.isfinite(loss))[0])
            raise diverged(replay.place(member.rows.start + device), done - 1, f"test loss {loss[device]:g}")
        return accuracy, loss, len(samples.labels)


def consensus_distance(weights: Tensor, average: Tensor) -> float:
    """Σ_i ‖w_i − w̄‖² / m for weights (device, parameter) and w̄ (parameter,)."""
    total = 0.0
    for start in range(0, len(average), _COLUMNS_AT_ONCE):  # so that the stack is not held twice
        part = slice(start, start + _COLUMNS_AT_ONCE)
        total += float((weights[:, part] - average[part]).square().sum(dtype=torch.float64))
    return total / len(weights)


def _part(test: Samples, seed: int, size: int) -> Samples:
    """A random part of the test set, in its order."""
    if size >= len(test.labels):
        return test
    chosen = np.sort(stream(seed, "partition", 1).choice(len(test.labels), size, replace=False))
    index = torch.from_numpy(chosen).to(test.labels.device)
    return Samples(test.inputs[index], test.labels[index])


def _rows(rows: slice, replay: Replay) -> Tensor:
    return torch.arange(rows.start, rows.stop, device=replay.device)


def _spread(values: Floats) -> dict[str, float]:
    return {"mean": float(values.mean()), "min": float(values.min()), "max": float(values.max())}


def _mean_of_trained(losses: Floats) -> float:
    trained = losses[~np.isnan(losses)]
    return float(trained.mean()) if len(trained) else float("nan")


def _energy(member: Member, done: int, accuracy: float) -> dict[str, float]:
    trace, episode = member.job.trace, member.job.episode
    spent = float(trace.spent_joule[episode, :done].sum())
    return {
        "spent_joule": spent,
        "harvested_joule": float(trace.harvested_joule[episode, :done].sum()),
        "accuracy_per_joule": accuracy / spent if spent > 0 else float("nan"),
    }
