"""The model as it is, vectorised over rows by `torch.func.vmap`: for any model that PyTorch can batch.

Active rows are copied side by side, trained together with PyTorch's own operations, and copied back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from heliomesh.learning.precision import Precision, activation_type, arithmetic, check_precision
from heliomesh.learning.scoring import LEAST_ROWS, evaluate_together, mean_losses
from heliomesh.learning.stacked import Layout, Samples, Scores, layout_of


@dataclass(frozen=True)
class Vectorised:
    """One stacked forward pass; gradients by `torch.func`."""

    model: nn.Module
    layout: Layout
    precision: Precision

    def train(self, weights: Tensor, rows: Tensor, batches: Tensor, samples: Samples, learning_rate: float) -> Tensor:
        """K steps in place; see `Strategy.train`."""
        self.model.train()
        active, steps = len(rows), batches.shape[1]
        if active == 0:
            return weights.new_zeros(0)
        filled = torch.arange(max(active, LEAST_ROWS), device=rows.device) % active
        rows, batches = rows[filled], batches[filled]
        rate = weights.new_tensor(learning_rate)
        with arithmetic(self.precision, weights.device):
            stacked = weights[rows]
            parameters = self.layout.views(stacked)
            losses = weights.new_zeros(len(rows))
            for step in range(steps):
                picked = batches[:, step]
                losses += self._one_step(parameters, samples.inputs[picked], samples.labels[picked], rate)
        weights[rows[:active]] = stacked[:active]
        return losses[:active] / steps

    def _one_step(self, parameters: dict[str, Tensor], inputs: Tensor, labels: Tensor, rate: Tensor) -> Tensor:
        """Losses (row,) before the step, which happens in place."""
        frozen = {name: value for name, value in parameters.items() if name in self.layout.frozen}
        moving = {name: value for name, value in parameters.items() if name not in frozen}

        def objective(moving: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            """Σ of the rows' losses, whose gradient holds each row's own; and the losses."""
            losses = mean_losses(self._logits(moving | frozen, inputs), labels)
            return losses.sum(), losses.detach()

        gradients, losses = torch.func.grad(objective, has_aux=True)(moving)
        for name, value in moving.items():
            value.sub_(gradients[name].mul_(rate))
        return losses  # type: ignore[no-any-return]

    def _logits(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """(row, batch, class) by parameters (row, …) and inputs (row, batch, …)."""
        dtype = activation_type(self.precision, next(iter(parameters.values())).dtype)
        given = {name: value.to(dtype) for name, value in parameters.items()}
        return torch.func.vmap(partial(functional_call, self.model))(given, inputs.to(dtype))  # type: ignore[no-any-return]

    def evaluate(self, weights: Tensor, rows: Tensor, samples: Samples, picked: Tensor | None = None) -> Scores:
        """Scores of several rows at once; see `Strategy.evaluate`."""
        self.model.eval()

        def logits(part: Tensor, inputs: Tensor) -> Tensor:
            return self._logits(self.layout.views(weights[part]), inputs)

        with arithmetic(self.precision, weights.device):
            return evaluate_together(logits, rows, samples, picked)


def build(model: nn.Module, precision: Precision = "fp32") -> Vectorised:
    """The strategy for a model."""
    check_precision(precision)
    return Vectorised(model, layout_of(model), precision)
