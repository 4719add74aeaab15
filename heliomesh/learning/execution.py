"""Which strategy trains this model on this device, and how many rows at once.

On a CPU `choose` takes `cores` for networks with convolutions and `batched` for perceptrons, where they can execute
them, and else the plain loop. All three round in the same way whoever trains beside a device, so the same inputs give
the same bits in every run.
On a GPU it times the strategies of the catalog for a moment on copies of the model, checks that they agree with the
loop, and remembers the quickest by model, sizes, device and version of PyTorch in the data folder.
What it returns is a strategy itself: rows go through it in pieces that fit into memory, and weights that live in the
memory of the CPU visit the device piece by piece. No result depends on the pieces.
"""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heliomesh import catalog
from heliomesh.durable import json_sha256, make_folder, write_json
from heliomesh.learning.precision import Precision, check_precision
from heliomesh.learning.retrieval.search import cache_folder
from heliomesh.learning.stacked import Samples, Scores, Strategy, flat_weights, layout_of
from heliomesh.learning.stacked_graph import FIELD
from heliomesh.scenario import ScenarioError

STRATEGY_CATALOG = "heliomesh.learning.strategies"

_FORMAT = 1
_CPU_ROWS = 64  # at once: more do not run faster
_PROBE_ROWS = 64
_PROBE_RATE = 0.1  # large enough to carry the rounding of gradients over to the weights
_MANNERS = {"": None, "compiled": True, "eager": False}  # what may follow a strategy's name
_MEMORY_SHARE = 0.5  # of the free memory of a device for one piece
_WEIGHT_SHARE = 0.6  # of the free memory of a device for the weights
# Largest difference from the loop's step, relative to its length; several times what rounding makes.
_TOLERANCE: dict[Precision, float] = {"fp32": 1e-3, "tf32": 5e-2, "bf16": 0.3}


@dataclass(frozen=True)
class Report:
    """How the choice was made."""

    strategy: str
    compiled: bool
    precision: Precision
    milliseconds: dict[str, float] = field(default_factory=dict)  # per slot of all rows, by strategy; empty if named
    refused: dict[str, str] = field(default_factory=dict)  # reasons, by strategy
    bytes_per_row: int = 0  # of a device's memory, besides the weights; 0 on a CPU
    remembered: bool = False  # whether an earlier calibration was used

    @property
    def setting(self) -> str:
        """The strategy as the setting ``strategy`` names it."""
        return f"{self.strategy}:{'compiled' if self.compiled else 'eager'}"

    def __str__(self) -> str:
        """One line for people."""
        name = f"{self.strategy}{' compiled' if self.compiled else ''}, {self.precision}"
        if not self.milliseconds:
            return name
        times = ", ".join(f"{other} {value:.3g} ms" for other, value in self.milliseconds.items())
        return f"{name} ({'remembered' if self.remembered else 'measured'}: {times} a slot)"


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
    rows: int,
    local_steps: int,
    batch: int,
    precision: Precision = "fp32",
    strategy: str = "auto",
) -> Chosen:
    """A strategy for ``rows`` devices that make ``local_steps`` steps of ``batch`` samples.

    It computes where the samples are. ``strategy`` is "auto", a file of `learning/strategies`, or that with
    ":compiled" or ":eager" after it; raises ScenarioError where it cannot execute the model.
    """
    check_precision(precision)
    device = samples.labels.device
    model = model.to(device)
    task = _Task(model, samples, rows, local_steps, batch, device, precision)
    if strategy == "auto" and device.type == "cuda":
        report = _quickest(task)
        return Chosen(_built(task, report.strategy, report.compiled), report, device)
    return _named(task, _on_a_cpu(task) if strategy == "auto" else strategy)


@dataclass(frozen=True)
class _Task:
    """What is to be executed."""

    model: nn.Module
    samples: Samples
    rows: int
    local_steps: int
    batch: int
    device: torch.device
    precision: Precision

    def key(self) -> str:
        """A hash of all that the times depend on."""
        layout = layout_of(self.model)
        parameters = [
            [name, *shape, *(["frozen"] if name in layout.frozen else [])]
            for name, shape in zip(layout.names, layout.shapes, strict=True)
        ]
        sizes = [list(self.samples.inputs.shape[1:]), self.rows, self.local_steps, self.batch, self.precision]
        return json_sha256(
            [_FORMAT, str(self.model), parameters, sizes, _device_name(self.device), torch.__version__]
        )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _built(task: _Task, name: str, compiled: bool | None) -> Strategy:
    """A strategy of the catalog; None: compiled or not as the strategy prefers."""
    options: dict[str, Any] = {} if compiled is None else {"compiled": compiled}
    made: Strategy = catalog.find(STRATEGY_CATALOG, name).build(task.model, precision=task.precision, **options)
    return made


def _named(task: _Task, strategy: str) -> Chosen:
    """The user's own choice."""
    check_strategy(strategy)
    name, _, manner = strategy.partition(":")
    made = _built(task, name, _MANNERS[manner])
    compiled = bool(getattr(made, "compiled", False))
    memory = _Probe.of(task, 1).bytes_per_row(_built(task, name, False))  # compiled it needs no more
    return Chosen(made, Report(name, compiled, task.precision, bytes_per_row=memory), task.device)


def _on_a_cpu(task: _Task) -> str:
    """The strategy that follows from the model: the loop where no other can execute it."""
    convolutional = any(isinstance(layer, nn.Conv2d) for layer in task.model.modules())
    name = "cores" if convolutional else "batched"
    try:
        _built(task, name, False)
    except ScenarioError:
        return "loop"
    return name


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


def _candidates() -> Iterator[tuple[str, bool]]:
    """Strategies to time beside the loop, (name, compiled): none that PyTorch would first compile for a minute."""
    for name in catalog.names(STRATEGY_CATALOG):
        if name != "loop":
            yield name, name == "fused"


def _quickest(task: _Task) -> Report:
    """The quickest strategy, measured once and then remembered."""
    place = cache_folder() / "strategies" / f"{task.key()}.json"
    report = _remembered(place) or _calibrated(task)
    if not report.remembered:
        _remember(place, report)
    return report


def _calibrated(task: _Task) -> Report:
    """Time all candidates on a few rows."""
    loop = _built(task, "loop", False)
    alone, probe = _Probe.of(task, 1), _Probe.of(task, min(task.rows, _PROBE_ROWS))
    pair = _Probe.of(task, 2)  # of different minibatches, which must not mix
    expected = pair.step(loop)
    times, refused, memory = {"loop": alone.seconds(loop)}, {}, {"loop": alone.bytes_per_row(loop)}
    for name, compiled in _candidates():
        try:
            candidate = _built(task, name, compiled)
            pair.check(candidate, expected)
            times[name] = probe.seconds(candidate)
            memory[name] = probe.bytes_per_row(candidate)
        except (ScenarioError, RuntimeError, NotImplementedError) as error:  # vmap's ways to say no; out of memory
            refused[name] = str(error).splitlines()[0]
    best = min(times, key=lambda name: times[name])
    milliseconds = {name: 1000 * seconds * task.rows for name, seconds in times.items()}
    return Report(best, best == "fused", task.precision, milliseconds, refused, memory[best])


@dataclass(frozen=True)
class _Probe:
    """Copies of the model and minibatches for a few rows."""

    task: _Task
    weights: Tensor
    rows: Tensor
    batches: Tensor

    @classmethod
    def of(cls, task: _Task, rows: int) -> "_Probe":
        weights = flat_weights(task.model).to(task.device).repeat(rows, 1)
        shape = (rows, task.local_steps, task.batch)
        batches = torch.arange(math.prod(shape), device=task.device) % len(task.samples.labels)
        return cls(task, weights, torch.arange(rows, device=task.device), batches.view(shape))

    def _train(self, strategy: Strategy, weights: Tensor, learning_rate: float) -> None:
        strategy.train(weights, self.rows, self.batches, self.task.samples, learning_rate)
        if self.task.device.type == "cuda":
            torch.cuda.synchronize(self.task.device)

    def seconds(self, strategy: Strategy) -> float:
        """Of a row's slot: the shortest of three tries, after one to warm up."""
        tries = []
        for _ in range(4):
            start = time.perf_counter()
            self._train(strategy, self.weights, 0.0)  # weights stay as they are
            tries.append(time.perf_counter() - start)
        return min(tries[1:]) / len(self.rows)

    def bytes_per_row(self, strategy: Strategy) -> int:
        """Memory of a CUDA device that a slot takes for each row, besides the weights; on a CPU 0."""
        if self.task.device.type != "cuda":
            return 0
        elsewhere = self.weights.clone()  # where no graph has been captured yet
        before = torch.cuda.memory_allocated(self.task.device)
        torch.cuda.reset_peak_memory_stats(self.task.device)
        self._train(strategy, elsewhere, 0.0)
        return (torch.cuda.max_memory_allocated(self.task.device) - before) // len(self.rows) + 1

    def step(self, strategy: Strategy) -> Tensor:
        """How a slot moves the weights."""
        weights = self.weights.clone()
        self._train(strategy, weights, _PROBE_RATE)
        return weights - self.weights

    def check(self, strategy: Strategy, expected: Tensor) -> None:
        """Refuse a strategy that does not do what the loop does: the model may mix samples of a stack."""
        difference = float((self.step(strategy) - expected).norm() / expected.norm().clamp(min=1e-30))
        if not difference <= _TOLERANCE[self.task.precision]:
            raise ScenarioError(
                FIELD, f"expected the training step of 'loop', actual step differs by {difference:.1e} of its length"
            )


def _remembered(place: Path) -> Report | None:
    """An earlier calibration; None where there is none that can be read."""
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        report = Report(**{**data, "remembered": True})
        known = report.strategy in catalog.names(STRATEGY_CATALOG) and isinstance(report.bytes_per_row, int)
        check_precision(report.precision)
    except (OSError, ValueError, TypeError):
        return None
    return report if known else None


def _remember(place: Path, report: Report) -> None:
    """Keep a calibration; where that cannot be written, the next start measures again."""
    try:
        make_folder(place.parent)
        write_json(place, asdict(report))
    except OSError:
        return
