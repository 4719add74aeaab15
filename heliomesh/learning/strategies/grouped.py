"""Rows as groups of channels: one grouped convolution does the convolutions of all devices.

Activations are folded (batch · row, channel, height, width), which is (batch, row · channel, height, width) without
moving anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from heliomesh.learning.gathered import Gathered
from heliomesh.learning.precision import Precision, check_precision
from heliomesh.learning.stacked import layout_of
from heliomesh.learning.stacked_graph import Convolution, Dense, Executors, GroupNorm, trace
from heliomesh.learning.stacked_ops import batched_dense


@dataclass(frozen=True)
class _Layers:
    """Layers of all rows with given parameters by name, (row, …) each."""

    parameters: Mapping[str, Tensor]
    rows: int

    def _flat(self, name: str | None) -> Tensor | None:
        """(row · first axis, …)."""
        return None if name is None else self.parameters[name].flatten(0, 1)

    def _side_by_side(self, x: Tensor) -> Tensor:
        """(batch · row, channel, …) → (batch, row · channel, …)."""
        return x.reshape(len(x) // self.rows, self.rows * x.shape[1], *x.shape[2:])

    def convolution(self, operation: Convolution, x: Tensor) -> Tensor:
        weight, bias = self.parameters[operation.weight].flatten(0, 1), self._flat(operation.bias)
        groups, padding, dilation = self.rows * operation.groups, operation.padding, operation.dilation
        y = functional.conv2d(self._side_by_side(x), weight, bias, operation.stride, padding, dilation, groups)
        return y.reshape(len(x), -1, *y.shape[2:])

    def group_norm(self, operation: GroupNorm, x: Tensor) -> Tensor:
        scale, shift = self._flat(operation.weight), self._flat(operation.bias)
        groups = self.rows * operation.groups
        y = functional.group_norm(self._side_by_side(x), groups, scale, shift, operation.epsilon)
        return y.reshape(x.shape)

    def dense(self, operation: Dense, x: Tensor) -> Tensor:
        bias = None if operation.bias is None else self.parameters[operation.bias]
        stacked = x.view(len(x) // self.rows, self.rows, *x.shape[1:]).transpose(0, 1)
        return batched_dense(stacked, self.parameters[operation.weight], bias).transpose(0, 1).flatten(0, 1)


def build(model: nn.Module, precision: Precision = "fp32", compiled: bool = False) -> Gathered:
    """The strategy for a model, which must be traceable."""
    check_precision(precision)
    program = trace(model, "grouped")

    def logits(parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        rows, batch = inputs.shape[:2]
        layers = _Layers(parameters, rows)
        executors: Executors = {Convolution: layers.convolution, GroupNorm: layers.group_norm, Dense: layers.dense}
        folded = program.run(executors, inputs.transpose(0, 1).flatten(0, 1))
        return folded.view(batch, rows, -1).transpose(0, 1)

    return Gathered("grouped", layout_of(model), logits, precision, compiled)
