"""All layers of all devices in kernels of our own, the SGD step within the backward pass, replayed as a CUDA graph.

Convolutions are implicit matrix products; norm, residual and ReLU are one visit, ReLU and pooling another; a dense
layer's weights are read twice and written once a step. Positions beyond the number of active devices cost nothing, so
one graph serves every number up to its own.
"""

import importlib.util
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from heliomesh.learning.gathered import evaluate_together, mean_losses
from heliomesh.learning.precision import Precision, activation_type, check_precision
from heliomesh.learning.stacked import Layout, Samples, Scores, layout_of
from heliomesh.learning.stacked_graph import (
    Convolution,
    Dense,
    GroupNorm,
    Instruction,
    PerSample,
    Program,
    refuse,
    trace,
)

if TYPE_CHECKING:  # needs Triton
    from heliomesh.learning.fused_ops import Stack

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
    name: str = "fused"
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
        self._check(batch)
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
        stream = torch.cuda.Stream(weights.device)  # type: ignore[no-untyped-call]
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

    def _check(self, batch: int) -> None:
        from heliomesh.learning.fused_ops import LARGEST_BATCH

        if batch > LARGEST_BATCH and any(isinstance(step.operation, Dense) for step in self.program.instructions):
            raise refuse("fused", f"learning.batch = {batch}, more than {LARGEST_BATCH} samples for a dense layer")

    def _stack(self, weights: Tensor, slot: _Slot) -> "Stack":
        from heliomesh.learning.fused_ops import Stack

        stack = Stack(
            weights,
            self.layout,
            slot.rows,
            slot.count,
            slot.rate,
            activation_type(self.precision),
            "tf32" if self.precision == "tf32" else "ieee",
            torch.zeros(1, device=weights.device, requires_grad=True),
        )
        stack.refresh([step.operation for step in self.program.instructions])
        return stack

    def _steps(self, slot: _Slot, weights: Tensor, samples: Samples) -> None:
        """All K steps; every layer moves its weights when its gradient arrives."""
        stack = self._stack(weights, slot)
        steps = slot.batches.shape[1]
        slot.losses.zero_()
        for step in range(steps):
            picked = slot.batches[:, step]
            losses = mean_losses(self._logits(stack, samples.inputs[picked]), samples.labels[picked])
            losses.sum().backward()  # type: ignore[no-untyped-call]
            slot.losses += losses.detach() / steps

    def _logits(self, stack: "Stack", inputs: Tensor) -> Tensor:
        """(position, batch, class) of inputs (position, batch, …)."""
        folded = self.program.run(stack.layers(), inputs.flatten(0, 1).to(stack.dtype))
        return folded.view(*inputs.shape[:2], -1)

    def evaluate(self, weights: Tensor, rows: Tensor, samples: Samples) -> Scores:
        """Scores of as many rows at once as memory allows."""

        def logits(part: Tensor, inputs: Tensor) -> Tensor:
            count = torch.full((1,), len(part), dtype=torch.int32, device=weights.device)
            slot = _Slot(part, count, count, part, part)
            return self._logits(self._stack(weights, slot), inputs.expand(len(part), *inputs.shape))

        return evaluate_together(logits, rows, samples)


def build(model: nn.Module, precision: Precision = "fp32", compiled: bool = True) -> Fused:
    """The strategy for a model of dense layers, plain convolutions and GroupNorm; ``compiled`` captures graphs."""
    check_precision(precision)
    program = trace(model, "fused")
    _check_layers(program)
    if importlib.util.find_spec("triton") is None:
        raise refuse("fused", "has no Triton to compile its kernels with")
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        raise refuse("fused", "has no CUDA device to run them on")
    layout = layout_of(model)
    if layout.frozen:
        raise refuse("fused", f"has the frozen parameter {min(layout.frozen)!r}, which its kernels would move")
    return Fused(_fuse(program), layout, precision, compiled)


def _check_layers(program: Program) -> None:
    """Refuse what the kernels do not know."""
    for step in program.instructions:
        match step.operation:
            case Convolution(stride=stride, padding=padding, dilation=dilation, groups=groups):
                if groups != 1 or dilation != (1, 1) or len(set(stride)) > 1 or len(set(padding)) > 1:
                    raise refuse("fused", "has a convolution that is grouped, dilated or not square in its steps")
            case GroupNorm(weight=weight, bias=bias, groups=groups, channels=channels):
                if weight is None or bias is None or groups & (groups - 1) or channels & (channels - 1):
                    raise refuse("fused", f"has a norm of {channels} channels in {groups} groups, not powers of two")
    layers = (Dense, Convolution, GroupNorm)
    owners = [step.operation.weight for step in program.instructions if isinstance(step.operation, layers)]
    if len(set(owners)) < len(owners):
        raise refuse("fused", "uses a layer twice, whose weights would move between its two gradients")


def _fuse(program: Program) -> Program:
    """Merge ReLU and pooling, and norm, residual and ReLU."""
    from heliomesh.learning.fused_ops import FusedNorm, FusedPool

    steps = [
        replace(step, operation=FusedNorm(step.operation, residual=False, relu=False))
        if isinstance(step.operation, GroupNorm)
        else step
        for step in program.instructions
    ]
    for kind, merge in (("add", _with_residual), ("relu", _with_relu)):
        for step in list(steps):
            if _is(step, kind):
                steps = merge(steps, step, program)
    for pool in [step for step in steps if _is(step, "max_pool") and step.operation.window]:
        relu = _only_producer(steps, pool.inputs[0], program)
        if relu is not None and _is(relu, "relu"):
            merged = Instruction(pool.output, FusedPool(pool.operation.window), relu.inputs)
            steps = [merged if step is pool else step for step in steps if step is not relu]
    return replace(program, instructions=tuple(steps))


def _is(step: Instruction, kind: str) -> bool:
    return isinstance(step.operation, PerSample) and step.operation.kind == kind


def _only_producer(steps: list[Instruction], name: str, program: Program) -> Instruction | None:
    """The instruction that makes an activation which one other instruction uses."""
    uses = sum(step.inputs.count(name) for step in steps) + (name == program.result)
    return next((step for step in steps if step.output == name), None) if uses == 1 else None


def _with_residual(steps: list[Instruction], add: Instruction, program: Program) -> list[Instruction]:
    from heliomesh.learning.fused_ops import FusedNorm

    for own, other in (add.inputs, add.inputs[::-1]):
        norm = _only_producer(steps, own, program)
        if norm is not None and isinstance(norm.operation, FusedNorm) and not norm.operation.residual:
            merged = Instruction(add.output, replace(norm.operation, residual=True), (norm.inputs[0], other))
            return [merged if step is add else step for step in steps if step is not norm]
    return steps


def _with_relu(steps: list[Instruction], relu: Instruction, program: Program) -> list[Instruction]:
    from heliomesh.learning.fused_ops import FusedNorm

    norm = _only_producer(steps, relu.inputs[0], program)
    if norm is None or not isinstance(norm.operation, FusedNorm) or norm.operation.relu:
        return steps
    merged = Instruction(relu.output, replace(norm.operation, relu=True), norm.inputs)
    return [merged if step is relu else step for step in steps if step is not norm]
