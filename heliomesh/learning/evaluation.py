"""How good the models are: every w_i on a fixed part of the test set, their average w̄ = Σ_i w_i / m on all of it.

At the end of a run every device meets the whole test set; `replay.scored_part` says which part it is before.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.learning.members import Member, diverged
from heliomesh.learning.replay import Stack

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

_COLUMNS_AT_ONCE = {"cpu": 65_536, "cuda": 4_194_304}  # parameters

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """One run after one slot."""

    row: dict[str, float]  # by `COLUMNS`
    accuracy: Floats  # (device,)
    loss: Floats  # (device,)


def evaluate(stack: Stack, done: int, losses: Floats, num_samples: int) -> list[Evaluation]:
    """Score every run of a stack after ``done`` slots.

    ``losses`` (slot, row) are the training losses since last time, ``num_samples`` are those that each device meets.
    """
    weights = stack.gather_state()["weights"]
    averages = torch.stack([weights[member.rows].mean(0) for member in stack.members])
    scores = stack.score_models(averages)
    every_accuracy, every_loss = _devices(stack, done)
    evaluations = []
    for run, member in enumerate(stack.members):
        accuracy, loss = every_accuracy[member.rows], every_loss[member.rows]
        row = {
            "slot": done,
            **{f"accuracy_{name}": value for name, value in _spread(accuracy).items()},
            **{f"loss_{name}": value for name, value in _spread(loss).items()},
            "device_samples": num_samples,
            "average_accuracy": float(scores.accuracy[run]),
            "average_loss": float(scores.loss[run]),
            "consensus_distance": consensus_distance(weights[member.rows], averages[run]),
            "train_loss": _mean_of_trained(losses[:, member.rows]),
            **_energy(member, done, float(accuracy.mean())),
        }
        evaluations.append(Evaluation(row, accuracy, loss))
    return evaluations


def _devices(stack: Stack, done: int) -> tuple[Floats, Floats]:
    """Accuracy and loss of each device of all runs; (row,)."""
    scores = stack.score_devices(done)
    accuracy, loss = scores.accuracy.double().cpu().numpy(), scores.loss.double().cpu().numpy()
    if not np.isfinite(loss).all():
        row = int(np.flatnonzero(~np.isfinite(loss))[0])
        raise diverged(stack.members, row, done - 1, f"test loss {loss[row]:g}")
    return accuracy, loss


def consensus_distance(weights: Tensor, average: Tensor) -> float:
    """Σ_i ‖w_i − w̄‖² / m for weights (device, parameter) and w̄ (parameter,)."""
    total, columns = 0.0, _COLUMNS_AT_ONCE.get(average.device.type, 65_536)
    for start in range(0, len(average), columns):  # so that the stack is not held twice
        part = slice(start, start + columns)
        total += float((weights[:, part] - average[part]).square().sum(dtype=torch.float64))
    return total / len(weights)


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
