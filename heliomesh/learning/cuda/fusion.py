"""A network's program with layers merged: norm, residual and ReLU; and convolution, ReLU and pooling.

This file needs no Triton: a model that the kernels do not know is refused on every machine.
"""

from dataclasses import dataclass, replace

from heliomesh.learning.stacked_graph import (
    Convolution,
    GroupNorm,
    Instruction,
    Operation,
    Program,
    is_kind,
    only_producer,
    refuse,
    refuse_repeated_layers,
)


@dataclass(frozen=True)
class FusedNorm:
    """ReLU(norm(x) + residual), the residual or the ReLU being optional."""

    norm: GroupNorm
    residual: bool
    relu: bool


@dataclass(frozen=True)
class PooledConvolution:
    """The maximum over windows without overlap, at least 0, of a convolution; window 1 leaves it as it is.

    ``flat`` orders the output as PyTorch does, (channel, line, column), because a layer that flattens follows.
    """

    convolution: Convolution
    window: int
    flat: bool


def fuse(program: Program) -> Program:
    """Merge layers; raises ScenarioError for what the kernels do not know."""
    steps = [replace(step, operation=_alone(step.operation)) for step in program.instructions]
    refuse_repeated_layers(program, "fused")
    for kind, merge in (("add", _with_residual), ("relu", _with_relu)):
        for step in list(steps):
            if is_kind(step, kind):
                steps = merge(steps, step, program)
    for pool in [step for step in steps if is_kind(step, "max_pool")]:
        steps = _with_pooling(steps, pool, program)
    return replace(program, instructions=tuple(steps))


def _alone(operation: Operation) -> Operation | FusedNorm | PooledConvolution:
    """A layer as its kernel takes it, not yet merged with others; refuses what the kernels do not know."""
    match operation:
        case Convolution(stride=stride, padding=padding, dilation=dilation, groups=groups):
            if groups != 1 or dilation != (1, 1) or len(set(stride)) > 1 or len(set(padding)) > 1:
                raise refuse("fused", "has a convolution that is grouped, dilated or not square in its steps")
            return PooledConvolution(operation, window=1, flat=False)
        case GroupNorm(weight=weight, groups=groups, channels=channels):
            if weight is None or groups & (groups - 1) or channels & (channels - 1):
                raise refuse("fused", f"has a norm of {channels} channels in {groups} groups, not powers of two")
            return FusedNorm(operation, residual=False, relu=False)
    return operation


def _with_residual(steps: list[Instruction], add: Instruction, program: Program) -> list[Instruction]:
    for own, other in (add.inputs, add.inputs[::-1]):
        norm = only_producer(steps, own, program)
        if norm is not None and isinstance(norm.operation, FusedNorm) and not norm.operation.residual:
            merged = Instruction(add.output, replace(norm.operation, residual=True), (norm.inputs[0], other))
            return [merged if step is add else step for step in steps if step is not norm]
    return steps


def _with_relu(steps: list[Instruction], relu: Instruction, program: Program) -> list[Instruction]:
    norm = only_producer(steps, relu.inputs[0], program)
    if norm is None or not isinstance(norm.operation, FusedNorm) or norm.operation.relu:
        return steps
    merged = Instruction(relu.output, replace(norm.operation, relu=True), norm.inputs)
    return [merged if step is relu else step for step in steps if step is not norm]


def _with_pooling(steps: list[Instruction], pool: Instruction, program: Program) -> list[Instruction]:
    """Merge a pooling, the ReLU and the convolution before it; the kernels know windows of 2 and 4."""
    relu = only_producer(steps, pool.inputs[0], program)
    if pool.operation.window not in (2, 4) or relu is None or not is_kind(relu, "relu"):
        return steps
    before = only_producer(steps, relu.inputs[0], program)
    if before is None or not isinstance(before.operation, PooledConvolution) or before.operation.window > 1:
        return steps
    users = [step for step in steps if pool.output in step.inputs]
    flat = len(users) == 1 and is_kind(users[0], "flatten") and pool.output != program.result
    pooled = replace(before.operation, window=pool.operation.window, flat=flat)
    merged = Instruction(pool.output, pooled, before.inputs)
    return [merged if step is pool else step for step in steps if step not in (relu, before)]
