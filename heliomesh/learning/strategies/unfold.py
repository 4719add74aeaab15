"""Convolutions as batched matrix products: every patch of the input becomes a column, one product for each row.

Activations are folded (row · batch, channel, height, width).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from heliomesh.learning.gathered import Gathered
from heliomesh.learning.precision import Precision, check_precision
from heliomesh.learning.stacked import layout_of
from heliomesh.learning.stacked_graph import Convolution, Dense, Executors, GroupNorm, Program, refuse, trace
from heliomesh.learning.stacked_ops import batched_dense


@dataclass(frozen=True)
class _Layers:
    """Layers of all rows with given parameters by name, (row, …) each."""

    parameters: Mapping[str, Tensor]
    rows: int

    def _rows_first(self, x: Tensor) -> Tensor:
        """(row · batch, …) → (row, batch, …)."""
        return x.view(self.rows, len(x) // self.rows, *x.shape[1:])

    def convolution(self, operation: Convolution, x: Tensor) -> Tensor:
        patches = _patches(operation, self._rows_first(x))
        weight = self.parameters[operation.weight].flatten(2)  # (row, filter, channel · tap)
        y = torch.bmm(weight, patches.flatten(3).flatten(1, 2))  # (row, filter, batch · pixel)
        if operation.bias is not None:
            y = y + self.parameters[operation.bias][:, :, None]
        return y.view(self.rows, -1, *patches.shape[3:]).transpose(1, 2).flatten(0, 1)

    def group_norm(self, operation: GroupNorm, x: Tensor) -> Tensor:
        y = functional.group_norm(x, operation.groups, eps=operation.epsilon)
        if operation.weight is None or operation.bias is None:
            return y
        channel_shape = (self.rows, 1, operation.channels, *(1 for _ in x.shape[2:]))
        scale = self.parameters[operation.weight].view(channel_shape)
        shift = self.parameters[operation.bias].view(channel_shape)
        return (self._rows_first(y) * scale + shift).flatten(0, 1)

    def dense(self, operation: Dense, x: Tensor) -> Tensor:
        bias = None if operation.bias is None else self.parameters[operation.bias]
        return batched_dense(self._rows_first(x), self.parameters[operation.weight], bias).flatten(0, 1)


def _patches(operation: Convolution, x: Tensor) -> Tensor:
    """(row, channel, tap, batch, height, width) of x (row, batch, channel, height, width), shifted for every tap."""
    size = [
        (length + 2 * pad - spread * (side - 1) - 1) // step + 1
        for length, pad, spread, side, step in zip(
            x.shape[3:], operation.padding, operation.dilation, operation.kernel, operation.stride, strict=True
        )
    ]
    (top, left), (down, right), (lines, columns) = operation.padding, operation.stride, operation.dilation
    padded = functional.pad(x, (left, left, top, top)).transpose(1, 2)
    shifted = [
        padded[
            ..., line : line + (size[0] - 1) * down + 1 : down, column : column + (size[1] - 1) * right + 1 : right
        ]
        for line in range(0, operation.kernel[0] * lines, lines)
        for column in range(0, operation.kernel[1] * columns, columns)
    ]
    return torch.stack(shifted, 2)


def build(model: nn.Module, precision: Precision = "fp32", compiled: bool = False) -> Gathered:
    """The strategy for a model, which must be traceable and have no grouped convolutions of its own."""
    check_precision(precision)
    program = trace(model, "unfold")
    _check(program)

    def logits(parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        layers = _Layers(parameters, len(inputs))
        executors: Executors = {Convolution: layers.convolution, GroupNorm: layers.group_norm, Dense: layers.dense}
        return program.run(executors, inputs.flatten(0, 1)).view(*inputs.shape[:2], -1)

    return Gathered("unfold", layout_of(model), logits, precision, compiled)


def _check(program: Program) -> None:
    for step in program.instructions:
        if isinstance(step.operation, Convolution) and step.operation.groups != 1:
            raise refuse("unfold", f"has a convolution with {step.operation.groups} groups")
