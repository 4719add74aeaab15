"""How good the models are: every w_i on a fixed part of the test set, their average w̄ = Σ_i w_i / m on all of it.

At the end of a run every device meets the whole test set; `replay.scored_part` says which part it is before.
"""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.learning.members import diverged
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


def evaluate(
    stack: Stack, done: int, losses: Floats, num_samples: int
) -> Iterator[tuple[dict[str, float], Floats, Floats]]:
    """Score every run of a stack after ``done`` slots: its row by `COLUMNS`, accuracy and loss (device,).

    ``losses`` (slot, row) are the training losses since last time, ``num_samples`` are those that each device meets.
    """
    weights = stack.gather_state()["weights"]
    averages = torch.stack([weights[member.rows].mean(0) for member in stack.members])
    of_average, of_devices = stack.score_models(averages), stack.score_devices(done)
    every_accuracy, every_loss = of_devices.accuracy.double().cpu().numpy(), of_devices.loss.double().cpu().numpy()
    if not np.isfinite(every_loss).all():
        device = int(np.flatnonzero(~np.isfinite(every_loss))[0])
        raise diverged(stack.members, device, done - 1, f"test loss {every_loss[device]:g}")
    for run, member in enumerate(stack.members):
        accuracy, loss = every_accuracy[member.rows], every_loss[member.rows]
        trace, episode, own_losses = member.job.trace, member.job.episode, losses[:, member.rows]
        trained, spent = own_losses[~np.isnan(own_losses)], float(trace.spent_joule[episode, :done].sum())
        row = {
            "slot": done,
            **{f"accuracy_{name}": float(getattr(accuracy, name)()) for name in ("mean", "min", "max")},
            **{f"loss_{name}": float(getattr(loss, name)()) for name in ("mean", "min", "max")},
            "device_samples": num_samples,
            "average_accuracy": float(of_average.accuracy[run]),
            "average_loss": float(of_average.loss[run]),
            "consensus_distance": consensus_distance(weights[member.rows], averages[run]),
            "train_loss": float(trained.mean()) if len(trained) else math.nan,
            "spent_joule": spent,
            "harvested_joule": float(trace.harvested_joule[episode, :done].sum()),
            "accuracy_per_joule": float(accuracy.mean()) / spent if spent > 0 else math.nan,
        }
        yield row, accuracy, loss


def consensus_distance(weights: Tensor, average: Tensor) -> float:
    """Σ_i ‖w_i − w̄‖² / m for weights (device, parameter) and w̄ (parameter,)."""
    total, columns = 0.0, _COLUMNS_AT_ONCE.get(average.device.type, 65_536)
    for start in range(0, len(average), columns):  # so that the stack is not held twice
        part = slice(start, start + columns)
        total += float((weights[:, part] - average[part]).square().sum(dtype=torch.float64))
    return total / len(weights)
