"""A network's program with layers merged: norm, residual and ReLU are one visit, ReLU and pooling another.

This file needs no Triton: a model that the kernels do not know is refused on every machine.
"""

from dataclasses import dataclass, replace

from heliomesh.learning.stacked_graph import (
    Convolution,
    GroupNorm,
    Instruction,
    Program,
    is_kind,
    only_producer,
    refuse,
    refuse_repeated_layers,
    with_fused_pools,
)


@dataclass(frozen=True)
class FusedNorm:
    """ReLU(norm(x) + residual), the residual or the ReLU being optional."""

    norm: GroupNorm
    residual: bool
    relu: bool


def fuse(program: Program) -> Program:
    """Merge ReLU and pooling, and norm, residual and ReLU; raises ScenarioError for what the kernels do not know."""
    _check_layers(program)
    steps = [
        replace(step, operation=FusedNorm(step.operation, residual=False, relu=False))
        if isinstance(step.operation, GroupNorm)
        else step
        for step in program.instructions
    ]
    for kind, merge in (("add", _with_residual), ("relu", _with_relu)):
        for step in list(steps):
            if is_kind(step, kind):
                steps = merge(steps, step, program)
    return with_fused_pools(replace(program, instructions=tuple(steps)))


def _check_layers(program: Program) -> None:
    """Refuse what the kernels do not know."""
    for step in program.instructions:
        match step.operation:
            case Convolution(stride=stride, padding=padding, dilation=dilation, groups=groups):
                if groups != 1 or dilation != (1, 1) or len(set(stride)) > 1 or len(set(padding)) > 1:
                    raise refuse("fused", "has a convolution that is grouped, dilated or not square in its steps")
            case GroupNorm(weight=weight, groups=groups, channels=channels):
                if weight is None or groups & (groups - 1) or channels & (channels - 1):
                    raise refuse("fused", f"has a norm of {channels} channels in {groups} groups, not powers of two")
    refuse_repeated_layers(program, "fused")


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
