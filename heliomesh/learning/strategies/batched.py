"""Layers of several devices as batched matrix products, in float64: for perceptrons on a CPU.

A perceptron's step is shorter than PyTorch's way to it, so several rows share each operation. Weights stay float32
between slots. A device's K steps are computed in float64, so that the order of sums hardly shows. Averaging stays
float32: PyTorch without vector units rounds it otherwise, which moved losses by up to 2e-7 and no accuracy.

Autograd carries activations, and a layer's backward pass is its SGD step: see `moving_layers.py`. Pieces of the
rows go to as many threads as PyTorch has. Products of a row are rounded alike whoever is beside it.
"""

# PyTorch's autograd functions have no types.
# mypy: allow-untyped-calls

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heliomesh.learning.moving_layers import moving_layers, on_all_cores, program_on_a_cpu
from heliomesh.learning.precision import Precision
from heliomesh.learning.scoring import LEAST_ROWS, evaluate_together, in_pieces, mean_losses
from heliomesh.learning.stacked import Layout, Samples, Scores, joined, layout_of
from heliomesh.learning.stacked_graph import Dense, PerSample, Program, refuse

_ROWS_AT_ONCE = 32  # more are not quicker
_SCORED_AT_ONCE = 4  # rows in a task, so that all threads have some


@dataclass(frozen=True)
class Batched:
    """Rows in pieces, pieces in threads; idle rows cost nothing."""

    program: Program
    layout: Layout

    def train(self, weights: Tensor, rows: Tensor, batches: Tensor, samples: Samples, learning_rate: float) -> Tensor:
        """K steps in place; see `Strategy.train`."""
        pieces = zip(rows.split(_ROWS_AT_ONCE), batches.split(_ROWS_AT_ONCE), strict=True)
        slots = [(weights, *piece, samples, learning_rate) for piece in pieces]
        return torch.cat(on_all_cores(self._slot, slots)).to(weights.dtype) if len(rows) else weights.new_zeros(0)

    def _slot(self, weights: Tensor, rows: Tensor, batches: Tensor, samples: Samples, learning_rate: float) -> Tensor:
        """K steps of a few rows, in place; their mean losses (row,), float64."""
        active, filled = len(rows), _filled(rows)
        batches, losses = batches[filled], torch.zeros(len(filled), dtype=torch.float64)
        own = self._copies(weights, rows[filled])
        for name in own.keys() - self.layout.frozen:
            own[name].requires_grad_()
        with torch.enable_grad():
            for step in range(batches.shape[1]):
                picked = batches[:, step]
                # several times as quick as samples.inputs[picked]
                inputs = samples.inputs.index_select(0, picked.flatten()).unflatten(0, picked.shape)
                step_losses = mean_losses(self._logits(own, inputs, learning_rate), samples.labels[picked])
                step_losses.sum().backward()
                losses += step_losses.detach()
        for name, view in self.layout.views(weights).items():
            view[rows] = own[name].detach()[:active].to(view.dtype)
        return losses[:active] / batches.shape[1]

    def _copies(self, weights: Tensor, rows: Tensor) -> dict[str, Tensor]:
        """Parameters of rows by name (row, …), each in memory of its own."""
        return {name: view[rows].double() for name, view in self.layout.views(weights.detach()).items()}

    def _logits(self, own: Mapping[str, Tensor], inputs: Tensor, learning_rate: float = 0.0) -> Tensor:
        """(row, sample, class) for inputs (row, sample, …)."""
        layers = moving_layers(own, learning_rate)
        return self.program.run(layers, inputs.double().flatten(0, 1)).view(*inputs.shape[:2], -1)

    def evaluate(self, weights: Tensor, rows: Tensor, samples: Samples, picked: Tensor | None = None) -> Scores:
        """Scores of ``weights[rows]``; see `Strategy.evaluate`."""

        def logits(part: Tensor, inputs: Tensor) -> Tensor:
            filled = _filled(part)
            return self._logits(self._copies(weights, part[filled]), inputs[filled])[: len(part)]

        tasks = [(logits, piece, samples, met) for piece, met in in_pieces(rows, picked, _SCORED_AT_ONCE)]
        return joined(on_all_cores(evaluate_together, tasks))


def _filled(rows: Tensor) -> Tensor:
    """Places of the rows, one of them twice where it would be alone."""
    return torch.arange(max(len(rows), LEAST_ROWS)) % len(rows)


def build(model: nn.Module, precision: Precision = "fp32") -> Batched:
    """The strategy for a model of dense layers on a CPU."""
    program = program_on_a_cpu(model, precision, "batched")
    for step in program.instructions:
        if not isinstance(step.operation, Dense | PerSample):
            raise refuse("batched", f"has a layer of type {type(step.operation).__name__}")
    return Batched(program, layout_of(model))
