"""Which strategy trains this model on this device, and how many rows at once.

`choose` takes the first that can execute the model: on a CPU `cores` for networks with convolutions or `batched` for
perceptrons, and else the plain loop; on a GPU `fused`, `vmap`, the loop. No clock is read. On a CPU all round in the
same way whoever trains beside a device, so the same inputs give the same bits in every run.
What it returns is a strategy itself: rows go through it in pieces that fit into memory, and weights that live in the
memory of the CPU visit the device piece by piece. No result depends on the pieces.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heliomesh import catalog
from heliomesh.learning.precision import Precision, check_precision
from heliomesh.learning.stacked import Samples, Scores, Strategy, flat_weights
from heliomesh.learning.stacked_graph import FIELD
from heliomesh.scenario import ScenarioError

STRATEGY_CATALOG = "heliomesh.learning.strategies"

_CPU_ROWS = 64  # at once: more do not run faster
_MANNERS = {"": None, "compiled": True, "eager": False}  # what may follow a strategy's name
_MEMORY_SHARE = 0.5  # of the free memory of a device for one piece
_WEIGHT_SHARE = 0.6  # of the free memory of a device for the weights


@dataclass(frozen=True)
class Report:
    """What was chosen."""

    strategy: str
    compiled: bool
    precision: Precision
    bytes_per_row: int = 0  # of a device's memory, besides the weights; 0 on a CPU

    @property
    def setting(self) -> str:
        """The strategy as the setting ``strategy`` names it."""
        return f"{self.strategy}:{'compiled' if self.compiled else 'eager'}"

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.strategy}{' compiled' if self.compiled else ''}, {self.precision}"


@dataclass
class Chosen:
    """A strategy with the pieces it works in."""

    inner: Strategy
    report: Report
    device: torch.device  # that computes; weights may live elsewhere
    rows_at_once: int | None = None  # found at the first use, from the memory that is free then
    _stage: Tensor | None = None  # (row, parameter): visitors from the memory of the CPU

    @property
    def name(self) -> str:
        """The strategy's name in the catalog."""
        return self.inner.name

    def train(self, weights: Tensor, rows: Tensor, batches: Tensor, samples: Samples, learning_rate: float) -> Tensor:
        """K steps in place; see `Strategy.train`. Weights may be in the memory of the CPU."""
        losses = torch.empty(len(rows), device=self.device)
        batches, start = batches.to(self.device), 0
        while start < len(rows):
            here = slice(start, start + self._piece(weights))
            try:
                losses[here] = self._train_piece(weights, rows[here], batches[here], samples, learning_rate)
            except torch.cuda.OutOfMemoryError:
                self._shrink(here.stop - here.start)  # no strategy has changed a weight by then
                continue
            start = here.stop
        return losses

    def _train_piece(
        self, weights: Tensor, rows: Tensor, batches: Tensor, samples: Samples, learning_rate: float
    ) -> Tensor:
        if weights.device.type == self.device.type:
            return self.inner.train(weights, rows, batches, samples, learning_rate)
        stage, homes = self._visit(weights, rows)
        losses = self.inner.train(stage, torch.arange(len(rows), device=self.device), batches, samples, learning_rate)
        for home, visitor in zip(homes, stage, strict=False):
            home.copy_(visitor, non_blocking=True)
        torch.cuda.synchronize(self.device)
        return losses

    def _visit(self, weights: Tensor, rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Copy rows to the device; they, and where they came from. The place stays the same, for captured graphs."""
        if self._stage is None or len(self._stage) < len(rows):
            self._stage = torch.empty(len(rows), weights.shape[1], device=self.device)
        homes = [weights[row] for row in rows.tolist()]
        for home, visitor in zip(homes, self._stage, strict=False):
            visitor.copy_(home, non_blocking=True)
        return self._stage, homes

    def evaluate(self, weights: Tensor, rows: Tensor, samples: Samples, picked: Tensor | None = None) -> Scores:
        """Scores of ``weights[rows]``; see `Strategy.evaluate`."""
        if weights.device.type == self.device.type:
            return self.inner.evaluate(weights, rows, samples, picked)
        parts, size = [], self._piece(weights)
        for start in range(0, len(rows), size):
            stage, homes = self._visit(weights, rows[start : start + size])
            visitors = torch.arange(len(homes), device=self.device)
            met = None if picked is None else picked[start : start + size]
            parts.append(self.inner.evaluate(stage, visitors, samples, met))
        return Scores(torch.cat([part.loss for part in parts]), torch.cat([part.accuracy for part in parts]))

    def _piece(self, weights: Tensor) -> int:
        """Rows at once: a power of two that leaves half of the free memory alone."""
        if self.rows_at_once is None:
            visiting = weights.device.type != self.device.type
            self.rows_at_once = self._rows_that_fit(weights.shape[1] * 4 if visiting else 0)
        return self.rows_at_once

    def _rows_that_fit(self, more_bytes: int) -> int:
        if self.device.type != "cuda":
            return _CPU_ROWS
        fitting = int(free_bytes(self.device) * _MEMORY_SHARE) // max(self.report.bytes_per_row + more_bytes, 1)
        return 1 << max(fitting.bit_length() - 1, 0)

    def _shrink(self, rows_at_once: int) -> None:
        """Try half as many rows at once, from now on."""
        if rows_at_once == 1:
            raise ScenarioError(
                "learning.batch",
                f"expected one batch to fit into the memory of {self.device}, actual value needs more",
            )
        self.rows_at_once = rows_at_once // 2
        self._stage = None
        torch.cuda.empty_cache()


def free_bytes(device: torch.device) -> int:
    """Memory of a CUDA device that nobody uses: free, or kept by PyTorch for later."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def new_weights(rows: int, num_parameters: int, device: torch.device) -> Tensor:
    """Memory for a stack of weights (row, parameter): on the device where it fits, else pinned beside the CPU."""
    if device.type == "cuda" and rows * num_parameters * 4 > _WEIGHT_SHARE * free_bytes(device):
        return torch.empty(rows, num_parameters, pin_memory=True)
    return torch.empty(rows, num_parameters, device=device)


def choose(
    model: nn.Module,
    samples: Samples,
    local_steps: int,
    batch: int,
    precision: Precision = "fp32",
    strategy: str = "auto",
) -> Chosen:
    """A strategy for devices that make ``local_steps`` steps of ``batch`` samples.

    It computes where the samples are. ``strategy`` is "auto", a file of `learning/strategies`, or that with
    ":compiled" or ":eager" after it; raises ScenarioError where it cannot execute the model.
    """
    check_precision(precision)
    check_strategy(strategy)
    device = samples.labels.device
    task = _Task(model.to(device), samples, local_steps, batch, precision)
    if strategy != "auto":
        name, _, manner = strategy.partition(":")
        return _tried(task, name, _MANNERS[manner])
    *preferred, last = _by_preference(model, device)
    for name in preferred:
        try:
            return _tried(task, name, None)
        except (ScenarioError, RuntimeError, NotImplementedError):  # vmap's ways to say no; out of memory
            continue
    return _tried(task, last, None)


def _by_preference(model: nn.Module, device: torch.device) -> tuple[str, ...]:
    """Strategies for `auto`, the quickest first; the last executes every model."""
    if device.type == "cuda":
        return ("fused", "vmap", "loop")
    return ("cores" if any(isinstance(layer, nn.Conv2d) for layer in model.modules()) else "batched", "loop")


def known_strategy(strategy: str, device: str, precision: Precision, perceptron: bool) -> str:
    """The name under which a run is stored: what `auto` takes on a CPU is known for perceptrons alone.

    What it takes for other models follows from the model.
    """
    if strategy != "auto" or device != "cpu" or not perceptron:
        return strategy
    return "loop" if precision == "bf16" else "batched"


@dataclass(frozen=True)
class _Task:
    """What is to be executed."""

    model: nn.Module
    samples: Samples
    local_steps: int
    batch: int
    precision: Precision


def _tried(task: _Task, name: str, compiled: bool | None) -> Chosen:
    """A strategy of the catalog, compiled or not as asked or as it prefers, after a step where memory is scarce."""
    build, device = catalog.find(STRATEGY_CATALOG, name).build, task.samples.labels.device
    options: dict[str, Any] = {} if compiled is None else {"compiled": compiled}
    made: Strategy = build(task.model, precision=task.precision, **options)
    plain = build(task.model, precision=task.precision, compiled=False)  # compiled it needs no more
    memory = _bytes_per_row(task, plain) if device.type == "cuda" else 0
    return Chosen(made, Report(name, bool(getattr(made, "compiled", False)), task.precision, memory), device)


def _bytes_per_row(task: _Task, strategy: Strategy) -> int:
    """Memory of a CUDA device that a slot takes for each row, besides the weights."""
    device, shape = task.samples.labels.device, (1, task.local_steps, task.batch)
    weights = flat_weights(task.model).to(device).unsqueeze(0)
    batches = torch.arange(math.prod(shape), device=device) % len(task.samples.labels)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    strategy.train(weights, torch.zeros(1, dtype=torch.long, device=device), batches.view(shape), task.samples, 0.0)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before + 1


def check_strategy(strategy: str) -> None:
    """Refuse an unknown strategy."""
    name, _, manner = strategy.partition(":")
    known = catalog.names(STRATEGY_CATALOG)
    if strategy != "auto" and (name not in known or manner not in _MANNERS):
        raise ScenarioError(
            FIELD,
            f"expected auto or one of {', '.join(known)}, followed by ':compiled', ':eager' or nothing, "
            f"actual value {strategy!r}{catalog.nearest(name, known) if name not in known else ''}",
        )
