"""A network's program with layers merged: norm, residual and ReLU; and convolution, ReLU and pooling.

This file needs no Triton: a model that the kernels do not know is refused on every machine.
"""

from dataclasses import dataclass, replace

from heliomesh.learning import stacked_graph as graph


@dataclass(frozen=True)
class FusedNorm:
    """ReLU(norm(x) + residual), the residual or the ReLU being optional."""

    norm: graph.GroupNorm
    residual: bool
    relu: bool


@dataclass(frozen=True)
class PooledConvolution:
    """The maximum over windows without overlap, at least 0, of a convolution; window 1 leaves it as it is.

    ``flat`` orders the output as PyTorch does, (channel, line, column), because a layer that flattens follows.
    """

    convolution: graph.Convolution
    window: int
    flat: bool


def fuse(program: graph.Program) -> graph.Program:
    """Merge layers; raises ScenarioError for what the kernels do not know."""
    graph.refuse_repeated_layers(program, "fused")
    alone = tuple(replace(step, operation=_alone(step.operation)) for step in program.instructions)
    program = replace(program, instructions=alone)
    for rule in (_with_residual, _with_relu, _with_pooling):
        program = program.merged(rule)
    return program


def _alone(operation: graph.Operation) -> graph.Operation | FusedNorm | PooledConvolution:
    """A layer as its kernel takes it, not yet merged with others; refuses what the kernels do not know."""
    match operation:
        case graph.Convolution(stride=stride, padding=padding, dilation=dilation, groups=groups):
            if groups != 1 or dilation != (1, 1) or len(set(stride)) > 1 or len(set(padding)) > 1:
                raise graph.refuse("fused", "has a convolution that is grouped, dilated or not square in its steps")
            return PooledConvolution(operation, window=1, flat=False)
        case graph.GroupNorm(weight=weight, groups=groups, channels=channels):
            if weight is None or groups & (groups - 1) or channels & (channels - 1):
                reason = f"has a norm of {channels} channels in {groups} groups, not powers of two"
                raise graph.refuse("fused", reason)
            return FusedNorm(operation, residual=False, relu=False)
    return operation


def _with_residual(program: graph.Program, add: graph.Instruction) -> graph.Merged | None:
    for own, other in (add.inputs, add.inputs[::-1]) if add.is_kind("add") else ():
        norm = program.only_producer(own, FusedNorm)
        if norm is not None and not norm.operation.residual:
            return replace(norm.operation, residual=True), (norm.inputs[0], other), (norm,)
    return None


def _with_relu(program: graph.Program, relu: graph.Instruction) -> graph.Merged | None:
    norm = program.only_producer(relu.inputs[0], FusedNorm) if relu.is_kind("relu") else None
    if norm is None or norm.operation.relu:
        return None
    return replace(norm.operation, relu=True), norm.inputs, (norm,)


def _with_pooling(program: graph.Program, pool: graph.Instruction) -> graph.Merged | None:
    """Merge a pooling, the ReLU and the convolution before it; the kernels know windows of 2 and 4."""
    known = pool.is_kind("max_pool") and pool.operation.window in (2, 4)
    relu = program.only_producer(pool.inputs[0], "relu") if known else None
    before = relu and program.only_producer(relu.inputs[0], PooledConvolution)
    if relu is None or before is None or before.operation.window > 1:
        return None
    users = [step for step in program.instructions if pool.output in step.inputs]
    flat = len(users) == 1 and users[0].is_kind("flatten") and pool.output != program.result
    return replace(before.operation, window=pool.operation.window, flat=flat), before.inputs, (relu, before)
