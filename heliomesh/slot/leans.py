"""Directions in which training at devices moves models, and how far they lead apart.

Known labels tell both. Let p_k be device k's label shares and p̄ their mean over devices. Then

    d_k = (p_k − p̄) / √h,    h = mean over k of |p_k − p̄|²,    λ = .2 + 6 h,

so directions have the mean square length one, and two devices with like data lead the same way. Longer ones are cut
to length one: else a device that alone has a class would hardly ever train, since its first slot of training would
cost more bias than it brings progress. Where labels are not known, every device leads in a direction of its own.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.common.mistakes import MistakeError
from heliomesh.common.streams import stream
from heliomesh.model.problem import Problem
from heliomesh.slot.learning_model import guessed_unlikeness, unlikeness
from heliomesh.tasks.dataset import load_dataset
from heliomesh.tasks.partition import split


@dataclass(frozen=True)
class Leans:
    """Directions, and λ for 200 slots."""

    directions: Tensor | None  # (device, direction); None: one per device
    unlikeness: float
    notes: tuple[str, ...] = ()


def leans_of(problem: Problem, by_labels: bool, partition_seed: int | None = None) -> Leans:
    """Directions by label shares, of samples dealt out by a seed (the scenario's), or one per device."""
    scenario = problem.scenario
    if not by_labels:
        return Leans(None, unlikeness(scenario))
    try:
        shares = _label_shares(problem, scenario.seed if partition_seed is None else partition_seed)
    except MistakeError as unknown:  # data that are not here, or too few for the devices
        note = f"no labels are known, so each device has a direction of its own ({unknown})"
        return Leans(None, unlikeness(scenario), (note,))
    apart = shares - shares.mean(0)
    distance = float(np.square(apart).sum(1).mean())
    directions = apart / np.sqrt(max(distance, _ALIKE))
    cut = directions / np.linalg.norm(directions, axis=1, keepdims=True).clip(1)
    given = scenario.cost.unlikeness
    return Leans(torch.from_numpy(cut).to(problem.device), guessed_unlikeness(distance) if given is None else given)


_ALIKE = 1e-12  # mean square distance below which data are the same


def _label_shares(problem: Problem, seed: int) -> npt.NDArray[np.float64]:
    """Label shares of every device; (device, class). Raises MistakeError where they cannot be known."""
    learning = problem.scenario.learning
    data = load_dataset(learning)
    dealt = split(data.train_labels, learning, problem.num_devices, stream(seed, "partition"))
    counts = dealt.label_counts(data.train_labels, data.num_classes)
    shares: npt.NDArray[np.float64] = counts / counts.sum(1, keepdims=True).clip(1)
    return shares
