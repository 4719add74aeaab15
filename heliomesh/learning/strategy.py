"""Which strategy trains this model on this device, how many rows at once, and under which name a run is stored.

`choose` takes the first that can execute the model: on a CPU `cores` for networks with convolutions or `batched` for
perceptrons, and else the plain loop; on a GPU `fused`, `vmap`, the loop. No clock is read. On a CPU all round in the
same way whoever trains beside a device, so the same inputs give the same bits in every run.
What it returns is a strategy itself: rows go through it in pieces that fit into memory, and weights that live in the
memory of the CPU visit the device piece by piece. No result depends on the pieces.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from heliomesh.common import catalog
from heliomesh.learning.optimiser import is_plain_sgd, optimiser_factory
from heliomesh.learning.precision import Precision
from heliomesh.learning.scoring import in_pieces
from heliomesh.learning.settings import TrainSettings
from heliomesh.learning.stacked import Samples, Scores, Strategy, flat_weights, joined
from heliomesh.learning.stacked_graph import FIELD
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.schema import Learning
from heliomesh.tasks.dataset import Dataset, find_dataset
from heliomesh.tasks.model import is_perceptron

Result = TypeVar("Result")
STRATEGY_CATALOG = "heliomesh.learning.strategies"

_CPU_ROWS = 64  # at once: more do not run faster
_MEMORY_SHARE = 0.5  # of the free memory of a device for one piece
_WEIGHT_SHARE = 0.6  # of the free memory of a device for the weights


@dataclass
class Chosen:
    """A strategy with the pieces it works in."""

    inner: Strategy
    setting: str  # the strategy as the setting ``strategy`` names it: its name and whether it is compiled
    device: torch.device  # that computes; weights may live elsewhere
    bytes_per_row: int = 0  # of the device's memory, besides the weights; 0 on a CPU
    rows_at_once: int | None = None  # found at the first use, from the memory that is free then
    _stage: Tensor | None = None  # (row, parameter): visitors from the memory of the CPU

    def train(self, weights: Tensor, rows: Tensor, batches: Tensor, samples: Samples, learning_rate: float) -> Tensor:
        """K steps in place; see `Strategy.train`. Weights may be in the memory of the CPU."""
        losses = torch.empty(len(rows), device=self.device)
        batches, start = batches.to(self.device), 0
        while start < len(rows):
            here = slice(start, start + self._piece(weights))
            step = partial(self.inner.train, batches=batches[here], samples=samples, learning_rate=learning_rate)
            try:
                losses[here] = self._near(weights, rows[here], step, moves=True)
            except torch.cuda.OutOfMemoryError:
                self._shrink(here.stop - here.start)  # no strategy has changed a weight by then
                continue
            start = here.stop
        return losses

    def evaluate(self, weights: Tensor, rows: Tensor, samples: Samples, picked: Tensor | None = None) -> Scores:
        """Scores of ``weights[rows]``; see `Strategy.evaluate`."""
        size = len(rows) if weights.device.type == self.device.type else self._piece(weights)
        pieces = in_pieces(rows, picked, size)
        score = partial(self.inner.evaluate, samples=samples)
        return joined([self._near(weights, own, partial(score, picked=met)) for own, met in pieces])

    def _near(
        self, weights: Tensor, rows: Tensor, work: Callable[[Tensor, Tensor], Result], moves: bool = False
    ) -> Result:
        """Work with rows of weights; those in the memory of the CPU visit the device, and return if it moves them.

        Visitors have the same place in every slot, for captured graphs.
        """
        if weights.device.type == self.device.type:
            return work(weights, rows)
        if self._stage is None or len(self._stage) < len(rows):
            self._stage = torch.empty(len(rows), weights.shape[1], device=self.device)
        homes = [weights[row] for row in rows.tolist()]
        for home, visitor in zip(homes, self._stage, strict=False):
            visitor.copy_(home, non_blocking=True)
        result = work(self._stage, torch.arange(len(rows), device=self.device))
        for home, visitor in zip(homes if moves else (), self._stage, strict=False):
            home.copy_(visitor, non_blocking=True)
        torch.cuda.synchronize(self.device)
        return result

    def _piece(self, weights: Tensor) -> int:
        """Rows at once: a power of two that leaves half of the free memory alone."""
        if self.rows_at_once is None:
            self.rows_at_once = _CPU_ROWS
            if self.device.type == "cuda":
                visitor_bytes = 0 if weights.device.type == "cuda" else 4 * weights.shape[1]
                row_bytes = max(self.bytes_per_row + visitor_bytes, 1)
                fitting = int(free_bytes(self.device) * _MEMORY_SHARE) // row_bytes
                self.rows_at_once = 1 << max(fitting.bit_length() - 1, 0)
        return self.rows_at_once

    def _shrink(self, rows_at_once: int) -> None:
        """Try half as many rows at once, from now on."""
        expected = f"one batch to fit into the memory of {self.device}"
        refuse(rows_at_once == 1, "learning.batch", expected, "value needs more")
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

    It computes where the samples are. ``strategy`` is "auto" or a file of `learning/strategies`; after it ":eager"
    lets `fused` do without graphs, as all others do. Raises ScenarioError where it cannot execute the model.
    """
    check_strategy(strategy)
    device = samples.labels.device
    model = model.to(device)

    def tried(setting: str) -> Chosen:
        """A strategy of the catalog, compiled or not as asked or as it prefers."""
        name, _, manner = setting.partition(":")
        file = catalog.find(STRATEGY_CATALOG, name)
        made: Strategy = file.build(model, precision)
        eager = file.build(model, precision, compiled=False) if name == "fused" else made
        size = (1, local_steps, batch)  # compiled it needs no more memory
        memory = _bytes_per_row(eager, flat_weights(model), samples, size) if device.type == "cuda" else 0
        if manner == "eager":
            made = eager
        return Chosen(made, f"{name}:{'eager' if made is eager else 'compiled'}", device, memory)

    *preferred, last = _by_preference(model, device) if strategy == "auto" else (strategy,)
    for name in preferred:
        try:
            return tried(name)
        except (ScenarioError, RuntimeError, NotImplementedError):  # vmap's ways to say no; out of memory
            continue
    return tried(last)


def _by_preference(model: nn.Module, device: torch.device) -> tuple[str, ...]:
    """Strategies for `auto`, the quickest first; the last executes every model."""
    if device.type == "cuda":
        return ("fused", "vmap", "loop")
    return ("cores" if any(isinstance(layer, nn.Conv2d) for layer in model.modules()) else "batched", "loop")


def _bytes_per_row(strategy: Strategy, first: Tensor, samples: Samples, shape: tuple[int, int, int]) -> int:
    """Memory of a CUDA device that a slot of (1, K, batch) samples takes for each row, besides the weights."""
    device = samples.labels.device
    batches = torch.arange(math.prod(shape), device=device) % len(samples.labels)
    weights = first.to(device).unsqueeze(0)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    strategy.train(weights, torch.zeros(1, dtype=torch.long, device=device), batches.view(shape), samples, 0.0)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before + 1


def choose_for(learning: Learning, model: nn.Module, samples: Samples, precision: Precision, strategy: str) -> Chosen:
    """The strategy that makes a scenario's local steps: by `choose`, or the loop for other rules than SGD."""
    steps, batch = learning.local_steps, learning.batch
    if is_plain_sgd(learning):
        return choose(model, samples, steps, batch, precision, strategy)
    other = strategy.partition(":")[0] not in ("auto", "loop")
    refuse(other, "strategy", "auto or loop with learning.optimizer", f"value {strategy!r}")
    chosen = choose(model, samples, steps, batch, precision, "loop")
    loop: Any = chosen.inner
    chosen.inner = replace(loop, optimiser=optimiser_factory(learning, model))
    return chosen


def known_strategy(learning: Learning, settings: TrainSettings, dataset: Dataset | None) -> str:
    """The name under which a run is stored: what `auto` takes on a CPU, where that follows from names alone.

    It is known for other rules than SGD and for perceptrons. What `auto` takes for other models follows from the
    model. ``dataset`` replaces the scenario's.
    """
    if settings.strategy != "auto" or settings.device != "cpu":
        return settings.strategy
    if not is_plain_sgd(learning):
        return "loop"
    shape = dataset.input_shape if dataset else getattr(find_dataset(learning), "SHAPE", None)
    if not is_perceptron(learning.model, shape):
        return settings.strategy
    return "loop" if settings.precision == "bf16" else "batched"


def check_strategy(strategy: str) -> None:
    """Refuse an unknown strategy."""
    name, _, manner = strategy.partition(":")
    known = catalog.names(STRATEGY_CATALOG)
    right = strategy in ("auto", "fused:compiled") or (name in known and manner in ("", "eager"))
    hint = "" if name in known else catalog.nearest(name, known)
    expected = f"auto or one of {', '.join(known)}, followed by ':eager' or nothing"
    refuse(not right, FIELD, expected, f"value {strategy!r}{hint}")
