"""A short training on the user's own data and model, to find how unlike the devices' data are.

All devices train together without losses for a few slots, average until they agree, and then train one more slot,
each at home. That slot tells both what a step of progress is worth, by the fall of the average model's loss, and what
the lean towards one's own data costs, by how far the devices' own models lag behind the average:

    L = (mean loss of the devices − loss of the average model) / (fall of the average model's loss),

in slots of training. `cost.unlikeness` follows from it by a line that was fitted on Fashion-MNIST, where L was .1 for
equal parts, 3 for Dir(.8) and 12 for Dir(.1). Losses are taken on training samples: no test sample decides a plan.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heliomesh.common.arguments import Index, checked
from heliomesh.common.streams import stream
from heliomesh.jobs.steps import lossless
from heliomesh.jobs.training import train
from heliomesh.model.problem import build
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.trace import Trace
from heliomesh.slot.learning_model import guessed_unlikeness
from heliomesh.tasks.dataset import Dataset, load_dataset
from heliomesh.tasks.partition import split

_TOGETHER, _AGREEING = 12, 30  # slots
_SCORED = 2000  # training samples on which losses are taken
_ALIKE, _PER_LAG = 0.2, 0.23  # of the line from L to unlikeness


@dataclass(frozen=True)
class Pilot:
    """What a pilot found."""

    unlikeness: float  # for ``cost.unlikeness``
    lag_slots: float  # L
    label_distance: float  # mean squared distance between a device's label law and the law of all
    guess: float  # unlikeness by label counts alone
    seconds: float


@checked
def pilot(scenario: Scenario, *, seed: Index | None = None, **settings: Any) -> Pilot:
    """Train briefly to learn how unlike the devices' data are.

    Parameters
    ----------
    scenario
        What is trained, and where.
    seed
        Draws the training; by default the scenario's.
    **settings
        Fields of `TrainSettings` and of `Execution`, such as ``device``, ``track`` or ``observer``.

    Returns
    -------
    Pilot
        What ``cost.unlikeness`` should be.
    """
    refuse(scenario.network.devices < 2, "network.devices", "at least 2", f"value {scenario.network.devices}")
    started = time.perf_counter()
    dataset = load_dataset(scenario.learning)
    distance = label_distance(scenario, dataset, seed)
    slots = _TOGETHER + _AGREEING + 1
    short = scenario.override({"slots": slots, "learning.aggregation": "model", "cost.deadline": "end"})
    scored = replace(dataset, test_inputs=dataset.train_inputs[:_SCORED], test_labels=dataset.train_labels[:_SCORED])
    run = train(
        short,
        _pilot_trace(short),
        seed=seed,
        dataset=scored,
        **{"evaluate_every": _TOGETHER + _AGREEING, "device_samples": _SCORED, **settings},
    )
    (agreed, average), devices = run.metrics["average_loss"][-2:].tolist(), float(run.metrics["loss_mean"][-1])
    lag = max(devices - average, 0.0) / max(agreed - average, _LEAST_STEP)
    unlikeness, guess = _ALIKE + _PER_LAG * min(lag, _MOST_LAG), guessed_unlikeness(distance)
    return Pilot(unlikeness, lag, distance, guess, time.perf_counter() - started)


_LEAST_STEP = 1e-3  # a slot that brings less says nothing of the ratio
_MOST_LAG = 20.0  # beyond it training would hardly ever be worth it


def label_distance(scenario: Scenario, dataset: Dataset, seed: int | None = None) -> float:
    """Mean over devices of Σ_l (p_l − p̄_l)², p a device's law of labels and p̄ that of all its samples."""
    number = scenario.seed if seed is None else seed
    parts = split(dataset.train_labels, scenario.learning, scenario.network.devices, stream(number, "partition"))
    counts = parts.label_counts(dataset.train_labels, dataset.num_classes)
    laws = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    everyone = counts.sum(0) / max(counts.sum(), 1)
    return float(((laws - everyone) ** 2).sum(1).mean())


def _pilot_trace(short: Scenario) -> Trace:
    """All train and all arrive, then all only average, and in the last slot all train alone."""
    quiet = lossless(build(short), 1)
    slots = np.arange(short.slots).reshape(1, -1, 1)
    alone = slots == short.slots - 1
    return replace(
        quiet,
        power_watt=np.zeros_like(quiet.power_watt),
        scheduled=np.broadcast_to((slots < _TOGETHER) | alone, quiet.scheduled.shape).copy(),
        delivered=np.broadcast_to(~alone, quiet.delivered.shape).copy(),
    )
