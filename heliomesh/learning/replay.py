"""Replay episodes of traces with real models: who was scheduled trains, what was delivered is averaged.

In slot t device i goes from w_i to w_i½, and from there to the next slot's weights:

    w_i½ = w_i,  then K times  w_i½ ← w_i½ − η_t ∇f_i(w_i½; ξ)   where i is scheduled (β_i = 1);
    w_i ← mix(w_i½, {w_j½ : the packet from j arrived, ζ_ij = 1})   by the rule of `aggregation.py`.

A run is one episode of one trace with one training seed. Several runs stand in one stack of weights and train
together; each of them gives what it would give alone.
"""

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB, check_fits
from heliomesh.common.streams import stream
from heliomesh.learning.aggregation import WORKSPACE_BYTES, aggregate
from heliomesh.learning.members import Member, alike, diverged, lined_up, part_of, shared_learning
from heliomesh.learning.packets import first_feedback, is_exact, packet
from heliomesh.learning.quasi_global import lean, remember
from heliomesh.learning.schedule import learning_rates
from heliomesh.learning.settings import TrainJob, TrainSettings
from heliomesh.learning.stacked import Layout, Samples, Scores, flat_weights, joined, layout_of
from heliomesh.learning.strategy import choose_for, free_bytes, new_weights
from heliomesh.model.problem import torch_device
from heliomesh.scenario.schema import Learning
from heliomesh.tasks.dataset import Dataset
from heliomesh.tasks.model import build_model


class Stack(Protocol):
    """What the trainer asks of whoever holds the weights: a `Replay` in this process, or several elsewhere."""

    members: tuple[Member, ...]
    layout: Layout
    num_slots: int  # horizon T of all runs
    setting: str  # the strategy that trains

    @property
    def facts(self) -> dict[str, Any]:
        """Where it trains, for a run's provenance."""

    def step(self, slot: int) -> npt.NDArray[np.float64]:
        """Train and average in one slot; returns the training loss, NaN for idle devices; (row,)."""

    def gather_state(self) -> dict[str, Tensor]:
        """What `state_names` lists, after the last step; (row, parameter) each."""

    def restore(self, state: Mapping[str, Tensor], done: int) -> None:
        """Go back to what `gather_state` gave after ``done`` slots."""

    def score_devices(self, done: int) -> Scores:
        """Every device on its run's part of the test set, after the last slot on all of it; (row,)."""

    def score_models(self, models: Tensor) -> Scores:
        """Other models (model, parameter) on the whole test set."""


class Replay:
    """The weights of all runs, slot by slot.

    With ``own``, devices of the network in rising order, it holds that part of one run: whoever has the other parts
    calls `train`, brings what neighbours `send` to those who `receive` it, and calls `average`.
    """

    def __init__(
        self,
        jobs: Sequence[TrainJob],
        dataset: Dataset,
        settings: TrainSettings,
        own: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.learning = shared_learning(jobs)
        self._learning_rates, self._decay = learning_rates(jobs[0].scenario), self.learning.quasi_global or 0.0
        self.members = lined_up(jobs, dataset)
        if own is not None:
            self.members = (part_of(self.members[0], own),)
        model = first_model(jobs[0], dataset)
        self.num_slots, self.layout = jobs[0].scenario.slots, layout_of(model)
        self.device = device = torch_device(settings.device)  # that computes; the weights may be too many for it
        _check_memory(self.members, dataset, self.layout, device, settings.memory_gib)
        self.samples = Samples(dataset.train_inputs.to(device), dataset.train_labels.to(device))
        self._stacks = _first_stacks(self.members, dataset, self.layout, device)
        self.weights = self._stacks["weights"]
        self.strategy = choose_for(self.learning, model, self.samples, settings.precision, settings.strategy)
        self.setting = self.strategy.setting
        self.facts: dict[str, Any] = {"device": str(device)}
        self._test = Samples(dataset.test_inputs.to(device), dataset.test_labels.to(device))
        self._num_scored = settings.device_samples  # test samples of a device before the end

    def step(self, slot: int) -> npt.NDArray[np.float64]:
        """Train and average in one slot; returns the training loss, NaN for idle devices; (row,)."""
        losses = self.train(slot)
        self.average(slot)
        return losses

    def train(self, slot: int) -> npt.NDArray[np.float64]:
        """Local steps of who is scheduled, then packets; returns the training loss, NaN for idle devices; (row,)."""
        if "before" in self._stacks:
            self._stacks["before"].copy_(self.weights)
        losses = np.full(len(self.weights), np.nan)
        active = np.flatnonzero(np.concatenate([member.scheduled[slot] for member in self.members]))
        if len(active):
            self._train_rows(slot, active, losses)
        if "packets" in self._stacks:
            self._transmit(slot)
        return losses

    def _train_rows(self, slot: int, active: npt.NDArray[np.int64], losses: npt.NDArray[np.float64]) -> None:
        """Local steps of rows (active,), whose training losses are noted among all (row,)."""
        if "momentum" in self._stacks:
            lean(self.weights, self._stacks["momentum"], active.tolist(), self._decay)
        rows = torch.from_numpy(active).to(self.device)
        batches = torch.from_numpy(np.concatenate([member.batches(slot) for member in self.members]))
        learning_rate = self._learning_rates[slot]
        trained = self.strategy.train(self.weights, rows, batches.to(self.device), self.samples, learning_rate)
        losses[active] = trained.double().cpu().numpy()
        sums = self.weights.sum(1).double().cpu().numpy()
        wrong = active[~(np.isfinite(losses) & np.isfinite(sums))[active]]
        if len(wrong):  # a loss or, after the last step, a weight is no number: averaging would spread it
            raise diverged(self.members, int(wrong[0]), slot, f"training loss {losses[wrong[0]]:g}")

    def _transmit(self, slot: int) -> None:
        """Write what senders put on the air into their rows of the packets (row, parameter)."""
        for member in self.members:
            learning, seed = member.job.scenario.learning, member.job.training_seed
            for number in np.flatnonzero(member.sent[slot]).tolist():
                row, device = member.rows.start + number, int(member.devices[number])
                content = self._news(row) if learning.aggregation == "update" else self.weights[row]
                feedback = self._stacks["feedback"][row] if "feedback" in self._stacks else None
                self._stacks["packets"][row] = packet(learning, content, feedback, seed, slot, device)

    def _news(self, rows: int | npt.NDArray[np.int64]) -> Tensor:
        """Δ = w½ − w."""
        return self.weights[rows] - self._stacks["before"][rows]

    def send(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """What neighbours elsewhere need of rows after training: w½, or Δ where they average updates."""
        if "packets" in self._stacks:
            return self._stacks["packets"][rows]
        return self._news(rows) if self.learning.aggregation == "update" else self.weights[rows]

    def receive(self, rows: npt.NDArray[np.int64], sent: Tensor) -> None:
        """Keep what was sent for the rows of neighbours; an update Δ is one from weights of zero, Δ − 0."""
        kept = self._stacks.get("packets", self.weights)
        kept[rows] = sent.to(kept.device)
        if kept is self.weights and self.learning.aggregation == "update":
            self._stacks["before"][rows] = 0.0

    def average(self, slot: int) -> None:
        """Average what was delivered in a slot whose training is done."""
        for rule, topology, members in alike(self.members, slot):
            rows = slice(members[0].rows.start, members[-1].rows.stop)
            shape = (len(members), topology.num_devices, -1)
            own = {name: stack[rows].view(shape) for name, stack in self._stacks.items()}
            after, before, sent = own["weights"], own.get("before"), own.get("packets")
            delivered = np.stack([member.delivered[slot] for member in members])
            trained = np.stack([member.scheduled[slot] for member in members])
            aggregate(rule, topology, before, after, delivered, trained, out=after, sent=sent)
        if "momentum" in self._stacks:
            remember(self._stacks["momentum"], self._stacks["before"], self.weights, self._decay)

    def gather_state(self) -> dict[str, Tensor]:
        """What `state_names` lists, after the last step; (row, parameter) each."""
        return {name: self._stacks[name] for name in state_names(self.learning)}

    def restore(self, state: Mapping[str, Tensor], done: int) -> None:
        """Go back to what `gather_state` gave; slots follow from the trace, whichever were done."""
        for name, stack in self.gather_state().items():
            stack.copy_(state[name])

    def score_devices(self, done: int) -> Scores:
        """Every own device on its run's part of the test set, after the last slot on all of it; (own row,)."""
        # On a CPU a run shall be the same alone and in a stack, so devices of two runs do not share a product.
        groups = [self.members] if self.device.type == "cuda" else [(member,) for member in self.members]
        in_parts = done < self.num_slots and self._num_scored < len(self._test.labels)
        return joined([self._scores(group, in_parts) for group in groups])

    def _scores(self, members: Sequence[Member], in_parts: bool) -> Scores:
        """Own devices of some runs, on parts of the test set or on all of it; (own row,)."""
        starts = [(member.rows.start, member.num_own) for member in members]
        rows = torch.cat([torch.arange(start, start + own, device=self.device) for start, own in starts])
        picked = None
        if in_parts:
            total, size = len(self._test.labels), self._num_scored
            parts = [(scored_part(member.job.training_seed, total, size), member.num_own) for member in members]
            picked = torch.cat([part.expand(own, -1) for part, own in parts]).to(self.device)
        return self.strategy.evaluate(self.weights, rows, self._test, picked)

    def score_models(self, models: Tensor) -> Scores:
        """Other models (model, parameter) on the whole test set."""
        rows = torch.arange(len(models), device=self.device)
        return self.strategy.evaluate(models, rows, self._test)


@lru_cache
def scored_part(seed: int, total: int, size: int) -> Tensor:
    """Places in the test set on which devices of a run are scored before its end, in rising order; (sample,)."""
    return torch.from_numpy(np.sort(stream(seed, "partition", 1).choice(total, size, replace=False)))


def first_model(job: TrainJob, dataset: Dataset) -> nn.Module:
    """The model that every device of a run starts from."""
    settings = job.scenario.learning
    return build_model(settings.model, dataset.input_shape, dataset.num_classes, job.training_seed, settings.buffers)


def _first_stacks(
    members: Sequence[Member], dataset: Dataset, layout: Layout, device: torch.device
) -> dict[str, Tensor]:
    """Every device with its run's first model, and room for whatever else devices need; (row, parameter) each."""
    num_rows, names = members[-1].rows.stop, _stack_names(members)
    whole = new_weights(len(names) * num_rows, layout.num_parameters, device)
    stacks = dict(zip(names, torch.split(whole, num_rows), strict=True))
    by_seed: dict[int, Tensor] = {}  # runs of one stack share everything else that a first model depends on
    for member in members:
        seed = member.job.training_seed
        if seed not in by_seed:
            by_seed[seed] = flat_weights(first_model(member.job, dataset)).to(whole.device)
        first = by_seed[seed]
        stacks["weights"][member.rows] = first
        if "feedback" in stacks:
            stacks["feedback"][member.rows] = first_feedback(member.job.scenario.learning, first)
    if "momentum" in stacks:
        stacks["momentum"].zero_()
    return stacks


def state_names(learning: Learning) -> tuple[str, ...]:
    """What a device keeps from slot to slot: weights, quasi-global momentum, the memory of top-k."""
    has = {"weights": True, "momentum": learning.quasi_global, "feedback": learning.on_air == "top-k"}
    return tuple(name for name, needed in has.items() if needed)


def _stack_names(members: Sequence[Member]) -> tuple[str, ...]:
    """Matrices as large as the weights: the state, weights before training where needed, and packets."""
    settings = [member.job.scenario.learning for member in members]
    names = state_names(settings[0])
    if any(one.aggregation == "update" or one.quasi_global for one in settings):
        names += ("before",)
    return names if is_exact(settings[0]) else (*names, "packets")


def _check_memory(
    members: Sequence[Member], dataset: Dataset, layout: Layout, device: torch.device, memory_gib: float | None
) -> None:
    """Refuse a stack that would not fit: weights, their copies, samples, and space to work in."""
    names, updates = _stack_names(members), any(one.job.scenario.learning.aggregation == "update" for one in members)
    beside = 4 if updates and "packets" in names else 0  # devices and packets side by side, see `aggregate`
    stack = 4.0 * (len(names) + beside) * members[-1].rows.stop * layout.num_parameters
    samples = sum(inputs.nbytes for inputs in (dataset.train_inputs, dataset.test_inputs))
    if memory_gib is None:
        memory_gib = DEFAULT_LIMIT_GIB
        if device.type == "cuda":  # weights for which it has no room stay beside the CPU
            host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            memory_gib = (host_bytes + free_bytes(device)) / 2**30
    remedy = "lower network.devices, take a smaller model, or train fewer runs at once"
    # small stacks are copied whole: differences, their sum, what evaluations gather, and the weights of the result
    workspace = min(4 * stack, WORKSPACE_BYTES)
    check_fits("training", stack + samples + workspace, memory_gib, remedy)
