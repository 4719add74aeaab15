"""The fused strategy: K steps of all active devices on fixed memory, captured once as a CUDA graph and replayed.

Positions beyond the number of active devices cost nothing, so one graph serves every number up to its own.

A layer reads its weights from the flat (row, parameter) matrix and, when its gradient arrives, computes the gradient
of its input and then moves its own weights: w ← w − η ∂f/∂w. Autograd carries activations only. During a slot,
convolutions keep their weights in another order, and wide dense layers keep what they met. Only import this module
where Triton is installed.
"""

# PyTorch's autograd functions have no types.
# mypy: allow-untyped-calls

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from heliomesh.learning.cuda.buffers import Buffers
from heliomesh.learning.cuda.convolution_layer import ConvolutionStep, move_filters
from heliomesh.learning.cuda.dense_layer import LARGEST_BATCH, DenseStep, earlier_steps
from heliomesh.learning.cuda.fusion import FusedNorm, PooledConvolution
from heliomesh.learning.cuda.norm_layer import NormStep
from heliomesh.learning.precision import Precision, activation_type
from heliomesh.learning.scoring import evaluate_together, mean_losses
from heliomesh.learning.stacked import Layout, Samples, Scores
from heliomesh.learning.stacked_graph import Dense, Executors, Program, refuse

_GRAPHS_KEPT = 8
_WARM_UPS = 2  # rounds before a capture: kernels are compiled in the first, libraries set up in both


@dataclass
class _Slot:
    """K steps on fixed memory: fill the buffers, then replay the graph (or execute the steps)."""

    rows: Tensor  # (position,)
    count: Tensor  # (1,) how many of them are real
    rate: Tensor  # (1,)
    batches: Tensor  # (position, K, batch)
    losses: Tensor  # (position,)
    graph: Any = None


@dataclass
class Fused:
    """A strategy with its captured graphs, by the memory that they use."""

    program: Program
    layout: Layout
    precision: Precision
    compiled: bool
    _slots: dict[tuple[Any, ...], _Slot] = field(default_factory=dict)
    _pool: Any = None  # memory that all graphs share, as they never run side by side

    def train(self, weights: Tensor, rows: Tensor, batches: Tensor, samples: Samples, learning_rate: float) -> Tensor:
        """K steps in place; see `Strategy.train`. In bf16 activations are rounded; weights and sums are float32."""
        active = len(rows)
        if active == 0:
            return torch.zeros(0, device=weights.device)
        slot = self._slot(weights, samples, active, *batches.shape[1:])
        slot.rows[:active] = rows
        slot.batches[:active] = batches
        slot.rate.fill_(learning_rate)
        slot.count.fill_(active)
        if slot.graph is None:
            self._steps(slot, weights, samples)
        else:
            slot.graph.replay()
        return slot.losses[:active].clone()

    def _slot(self, weights: Tensor, samples: Samples, active: int, steps: int, batch: int) -> _Slot:
        """The smallest slot that has room, or a new one."""
        memory = (weights.data_ptr(), weights.shape, samples.inputs.data_ptr(), samples.inputs.shape, steps, batch)
        room = min(1 << (active - 1).bit_length(), len(weights)) if self.compiled else active
        key = (*memory, room)
        if key not in self._slots:
            while len(self._slots) >= (_GRAPHS_KEPT if self.compiled else 1):
                self._slots.pop(next(iter(self._slots)))
            self._slots[key] = self._new_slot(weights, samples, room, steps, batch)
        return self._slots[key]

    def _new_slot(self, weights: Tensor, samples: Samples, room: int, steps: int, batch: int) -> _Slot:
        if batch > LARGEST_BATCH and self._layers(Dense):
            raise refuse("fused", f"learning.batch = {batch}, more than {LARGEST_BATCH} samples for a dense layer")
        device = weights.device
        slot = _Slot(
            torch.zeros(room, dtype=torch.int64, device=device),
            torch.zeros(1, dtype=torch.int32, device=device),  # nobody: rounds to warm up change no weights
            torch.zeros(1, device=device),
            torch.zeros(room, steps, batch, dtype=torch.int64, device=device),
            torch.zeros(room, device=device),
        )
        if self.compiled and device.type == "cuda":
            slot.graph = self._captured(slot, weights, samples)
        return slot

    def _captured(self, slot: _Slot, weights: Tensor, samples: Samples) -> Any:
        stream = torch.cuda.Stream(weights.device)
        stream.wait_stream(torch.cuda.current_stream(weights.device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self._steps(slot, weights, samples)
        torch.cuda.current_stream(weights.device).wait_stream(stream)
        torch.cuda.synchronize(weights.device)
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool):
            self._steps(slot, weights, samples)
        return graph

    def _begun(self, weights: Tensor, slot: _Slot, steps: int = 1, images: int = 0) -> Buffers:
        """What layers share in ``steps`` steps of ``images`` samples; networks are evaluated in one step."""
        stack = Buffers(
            weights,
            self.layout,
            slot.rows,
            slot.count,
            slot.rate,
            activation_type(self.precision),
            "tf32" if self.precision == "tf32" else "ieee",
            torch.zeros(1, device=weights.device, requires_grad=True),
        )
        for operation in self._layers(PooledConvolution):
            move_filters(stack, operation.convolution, back=False)
        for operation in self._layers(Dense):
            earlier = earlier_steps(stack, operation, steps, images)
            if earlier is not None:
                stack.earlier[operation.weight] = earlier
        return stack

    def _layers(self, kind: type) -> list[Any]:
        return [step.operation for step in self.program.instructions if isinstance(step.operation, kind)]

    def _steps(self, slot: _Slot, weights: Tensor, samples: Samples) -> None:
        """All K steps; layers move their weights when their gradients arrive."""
        steps, batch = slot.batches.shape[1:]
        stack = self._begun(weights, slot, steps, batch)
        slot.losses.zero_()
        for step in range(steps):
            picked = slot.batches[:, step]
            losses = mean_losses(self._logits(stack, samples.inputs[picked], step), samples.labels[picked])
            losses.sum().backward()
            slot.losses += losses.detach() / steps
        for operation in self._layers(PooledConvolution):
            move_filters(stack, operation.convolution, back=True)

    def _logits(self, stack: Buffers, inputs: Tensor, step: int = 0) -> Tensor:
        """(position, batch, class) of inputs (position, batch, …)."""
        executors: Executors = {
            Dense: lambda operation, x: DenseStep.apply(x, stack.anchor, operation, stack, step),
            PooledConvolution: lambda operation, x: ConvolutionStep.apply(x, stack.anchor, operation, stack),
            FusedNorm: lambda operation, x, *residual: NormStep.apply(x, stack.anchor, operation, stack, *residual),
        }
        folded = self.program.run(executors, inputs.flatten(0, 1).to(stack.dtype))
        return folded.view(*inputs.shape[:2], -1)

    def evaluate(self, weights: Tensor, rows: Tensor, samples: Samples, picked: Tensor | None = None) -> Scores:
        """Scores of several rows at once; see `Strategy.evaluate`."""

        def logits(part: Tensor, inputs: Tensor) -> Tensor:
            count = torch.full((1,), len(part), dtype=torch.int32, device=weights.device)
            slot = _Slot(part, count, count, part, part)
            return self._logits(self._begun(weights, slot), inputs)

        return evaluate_together(logits, rows, samples, picked)
