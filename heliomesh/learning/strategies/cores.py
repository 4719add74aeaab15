"""One device on each core: for networks with convolutions on a CPU.

As many devices train at once as PyTorch has threads, each on one thread. A device's K steps work on a copy of its
weights, in memory of its own. So its bits depend neither on who trains beside it nor on the number of threads, and no
thread waits for another one within a step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from heliomesh.learning.moving_layers import (
    channels_last,
    move_the_rest,
    moving_layers,
    on_all_cores,
    program_on_a_cpu,
)
from heliomesh.learning.precision import Precision
from heliomesh.learning.scoring import evaluate_by_row
from heliomesh.learning.stacked import Layout, Samples, Scores, layout_of
from heliomesh.learning.stacked_graph import Program, with_fused_pools


@dataclass(frozen=True)
class Cores:
    """Rows in threads; idle rows cost nothing."""

    program: Program
    layout: Layout

    def train(self, weights: Tensor, rows: Tensor, batches: Tensor, samples: Samples, learning_rate: float) -> Tensor:
        """K steps in place; see `Strategy.train`."""
        slots = [(weights[row], own, samples, learning_rate) for row, own in zip(rows.tolist(), batches, strict=True)]
        losses = on_all_cores(self._slot, slots)
        return torch.stack(losses) / batches.shape[1] if losses else weights.new_zeros(0)

    def _slot(self, row: Tensor, batches: Tensor, samples: Samples, learning_rate: float) -> Tensor:
        """One device's K steps, in place; the sum of its losses."""
        views = self.layout.views(row)
        own = {name: _copy(value).requires_grad_(name not in self.layout.frozen) for name, value in views.items()}
        layers, loss = moving_layers(own, learning_rate), row.new_zeros(())
        with torch.enable_grad():
            for batch in batches:
                logits = self.program.run(layers, channels_last(samples.inputs[batch]))
                step_loss = cross_entropy(logits, samples.labels[batch])
                step_loss.backward()  # type: ignore[no-untyped-call]
                move_the_rest(own.values(), learning_rate)
                loss += step_loss.detach()
        for name, value in views.items():
            value.copy_(own[name].detach())
        return loss

    def evaluate(self, weights: Tensor, rows: Tensor, samples: Samples, picked: Tensor | None = None) -> Scores:
        """Scores of ``weights[rows]``; pieces of the samples are scored side by side. See `Strategy.evaluate`."""

        def logits(row: int, inputs: Tensor) -> Tensor:
            own = {name: _copy(value) for name, value in self.layout.views(weights[row]).items()}
            return self.program.run(moving_layers(own), channels_last(inputs))

        return evaluate_by_row(logits, rows, samples, picked, on_all_cores)


def _copy(value: Tensor) -> Tensor:
    """A parameter in memory of its own: products may be rounded by the place of a row."""
    return value.detach().clone(memory_format=torch.channels_last if value.ndim == 4 else torch.contiguous_format)


def build(model: nn.Module, precision: Precision = "fp32") -> Cores:
    """The strategy for a model on a CPU, which must be traceable."""
    program = program_on_a_cpu(model, precision, "cores")
    return Cores(with_fused_pools(program), layout_of(model))
