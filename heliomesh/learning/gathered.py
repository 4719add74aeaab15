"""Active rows copied side by side, trained together with PyTorch's own operations, and copied back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from heliomesh.learning.precision import Precision, activation_type, arithmetic, widened
from heliomesh.learning.stacked import Layout, Samples, Scores

# (parameters by name (row, …), inputs (row, batch, …)) → logits (row, batch, class)
Logits = Callable[[Mapping[str, Tensor], Tensor], Tensor]

# Samples that are evaluated together, of one row and of all: few on a CPU, so that activations stay in its cache;
# on a CUDA device enough that its work takes longer than Python needs to ask for it.
_SAMPLES_AT_ONCE = {"cpu": 250, "cuda": 1000}
_EVALUATED_AT_ONCE = {"cpu": 500, "cuda": 16_384}
LEAST_ROWS = 2  # a product of one pair of matrices is rounded in another way than those of several


def mean_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of each row; logits (row, batch, class), labels (row, batch)."""
    each = cross_entropy(widened(logits).flatten(0, 1), labels.flatten(), reduction="none")
    return each.view(labels.shape).mean(1)


@dataclass
class Gathered:
    """A strategy made of one stacked forward pass; gradients by `torch.func`.

    ``compiled`` hands the step to `torch.compile`, for one number of rows: fewer are filled up with copies.
    """

    name: str
    layout: Layout
    logits: Logits
    precision: Precision
    compiled: bool
    module: nn.Module | None = None  # that ``logits`` calls, where it does
    _step: Callable[..., Tensor] = field(init=False)
    _capacity: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Compile where asked to."""
        self._step = torch.compile(self._one_step, dynamic=False) if self.compiled else self._one_step

    def train(self, weights: Tensor, rows: Tensor, batches: Tensor, samples: Samples, learning_rate: float) -> Tensor:
        """K steps in place; see `Strategy.train`."""
        if self.module is not None:
            self.module.train()
        active, steps = len(rows), batches.shape[1]
        if active == 0:
            return weights.new_zeros(0)
        self._capacity = max(self._capacity, active, LEAST_ROWS)
        filled = (
            torch.arange(self._capacity if self.compiled else max(active, LEAST_ROWS), device=rows.device) % active
        )
        rows, batches = rows[filled], batches[filled]
        rate = weights.new_tensor(learning_rate)
        with arithmetic(self.precision, weights.device):
            stacked = weights[rows]
            parameters = self.layout.views(stacked)
            losses = weights.new_zeros(len(rows))
            for step in range(steps):
                picked = batches[:, step]
                losses += self._step(parameters, samples.inputs[picked], samples.labels[picked], rate)
        weights[rows[:active]] = stacked[:active]
        return losses[:active] / steps

    def _one_step(self, parameters: dict[str, Tensor], inputs: Tensor, labels: Tensor, rate: Tensor) -> Tensor:
        """Losses (row,) before the step, which happens in place."""
        frozen = {name: value for name, value in parameters.items() if name in self.layout.frozen}
        moving = {name: value for name, value in parameters.items() if name not in frozen}
        gradients, losses = torch.func.grad(self._objective, has_aux=True)(moving, frozen, inputs, labels)
        for name, value in moving.items():
            value.sub_(gradients[name].mul_(rate))
        return losses  # type: ignore[no-any-return]

    def _objective(
        self, moving: dict[str, Tensor], frozen: dict[str, Tensor], inputs: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Σ of the rows' losses, whose gradient holds each row's own; and the losses."""
        losses = mean_losses(self._forward(moving | frozen, inputs), labels)
        return losses.sum(), losses.detach()

    def _forward(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        dtype = activation_type(self.precision, next(iter(parameters.values())).dtype)
        return self.logits({name: value.to(dtype) for name, value in parameters.items()}, inputs.to(dtype))

    def evaluate(self, weights: Tensor, rows: Tensor, samples: Samples, picked: Tensor | None = None) -> Scores:
        """Scores of several rows at once; see `Strategy.evaluate`."""
        if self.module is not None:
            self.module.eval()

        def logits(part: Tensor, inputs: Tensor) -> Tensor:
            parameters = self.layout.views(weights[part])
            return self._forward(parameters, inputs)

        with arithmetic(self.precision, weights.device):
            return evaluate_together(logits, rows, samples, picked)


def evaluate_together(
    logits: Callable[[Tensor, Tensor], Tensor], rows: Tensor, samples: Samples, picked: Tensor | None
) -> Scores:
    """Scores by ``logits(rows, inputs (row, sample, …))`` → (row, sample, class), a bounded number at once."""
    device = samples.labels.device.type
    loss, right = (samples.inputs.new_zeros(len(rows)) for _ in range(2))
    count = len(samples.labels) if picked is None else picked.shape[1]
    chunk = min(_SAMPLES_AT_ONCE.get(device, 250), count)
    rows_at_once = max(1, _EVALUATED_AT_ONCE.get(device, 500) // chunk)
    with torch.no_grad():
        for start in range(0, len(rows), rows_at_once):
            here = slice(start, min(start + rows_at_once, len(rows)))
            for first in range(0, count, chunk):
                inputs, labels = _met(samples, picked, here, slice(first, min(first + chunk, count)))
                output: Any = logits(rows[here], inputs)
                loss[here] += mean_losses(output, labels) * labels.shape[1]
                right[here] += (output.argmax(-1) == labels).sum(1)
    return Scores(loss / count, right / count)


def _met(samples: Samples, picked: Tensor | None, here: slice, span: slice) -> tuple[Tensor, Tensor]:
    """Inputs (row, sample, …) and labels (row, sample) that rows meet."""
    if picked is not None:
        index = picked[here, span]
        return samples.inputs[index], samples.labels[index]
    inputs, labels, number = samples.inputs[span], samples.labels[span], here.stop - here.start
    return inputs.expand(number, *inputs.shape), labels.expand(number, -1)
