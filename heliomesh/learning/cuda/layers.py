"""Layers of a stack of networks whose backward pass is also the SGD step.

A layer reads its weights from the flat (row, parameter) matrix and, when its gradient arrives, computes the gradient
of its input and then moves its own weights: w ← w − η ∂f/∂w. Autograd carries activations only. During a slot,
convolutions keep their weights in another order, and wide dense layers keep what they met: `begin` and `end` frame
the steps. Only import this module where Triton is installed.
"""

from heliomesh.learning.cuda.buffers import Buffers
from heliomesh.learning.cuda.convolution_layer import convolution, pooled_convolution, return_filters, take_filters
from heliomesh.learning.cuda.dense_layer import dense, earlier_steps
from heliomesh.learning.cuda.fusion import FusedNorm, PooledConvolution
from heliomesh.learning.cuda.norm_layer import norm
from heliomesh.learning.stacked_graph import Convolution, Dense, Executors, Program


def executors(stack: Buffers, step: int = 0) -> Executors:
    """By operation, for `Program.run` in one of a slot's steps."""
    return {
        Dense: lambda operation, x: dense(operation, x, stack, step),
        Convolution: lambda operation, x: convolution(operation, x, stack),
        PooledConvolution: lambda operation, x: pooled_convolution(operation, x, stack),
        FusedNorm: lambda operation, x, *residual: norm(operation, x, stack, *residual),
    }


def begin(stack: Buffers, program: Program, steps: int = 1, images: int = 0) -> None:
    """Prepare for ``steps`` steps of ``images`` samples; one step is also how networks are evaluated."""
    for operation in _convolutions(program):
        take_filters(stack, operation)
    for instruction in program.instructions:
        if isinstance(instruction.operation, Dense):
            earlier = earlier_steps(stack, instruction.operation, steps, images)
            if earlier is not None:
                stack.earlier[instruction.operation.weight] = earlier


def end(stack: Buffers, program: Program) -> None:
    """Bring all weights back into their rows."""
    for operation in _convolutions(program):
        return_filters(stack, operation)


def _convolutions(program: Program) -> list[Convolution]:
    operations = [instruction.operation for instruction in program.instructions]
    bare = [getattr(operation, "convolution", operation) for operation in operations]
    return [operation for operation in bare if isinstance(operation, Convolution)]
