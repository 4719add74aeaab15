"""One device after the other, one step after the other: the plain meaning of local SGD, and the quickest on a CPU."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from heliomesh.learning.precision import Precision, activation_type, arithmetic, check_precision, widened
from heliomesh.learning.scoring import evaluate_by_row
from heliomesh.learning.stacked import Layout, Samples, Scores, layout_of
from heliomesh.learning.stacked_graph import trace
from heliomesh.scenario.errors import ScenarioError


@dataclass(frozen=True)
class Loop:
    """Rows in turn; idle rows cost nothing."""

    model: nn.Module  # a private copy, whose parameters are one row after the other
    layout: Layout
    precision: Precision
    channels_last: bool  # filters in this order: a CPU trains 1.1 times, and evaluates 1.5 times as quickly
    optimiser: Callable[[list[Tensor], float], torch.optim.Optimizer] | None = None  # None: plain SGD

    def train(self, weights: Tensor, rows: Tensor, batches: Tensor, samples: Samples, learning_rate: float) -> Tensor:
        """K steps in place; see `Strategy.train`."""
        self.model.to(weights.device, activation_type(self.precision, weights.dtype)).train()
        losses = weights.new_zeros(len(rows))
        frozen = self.layout.frozen
        with arithmetic(self.precision, weights.device):
            for position, row in enumerate(rows.tolist()):
                own = list(self.layout.views(weights[row]).values())
                moving = [value for name, value in zip(self.layout.names, own, strict=True) if name not in frozen]
                move = self._mover(moving, learning_rate)
                for batch in batches[position]:
                    losses[position] += self._step(own, samples.inputs[batch], samples.labels[batch], move)
        return losses / batches.shape[1]

    def _mover(self, own: list[Tensor], learning_rate: float) -> Callable[[Sequence[Tensor]], None]:
        """What moves a device's weights in place along gradients, for the K steps of a slot."""
        if self.optimiser is None:
            return partial(torch._foreach_add_, own, alpha=-learning_rate)
        optimiser = self.optimiser(own, learning_rate)

        def move(gradients: Sequence[Tensor]) -> None:
            for weight, gradient in zip(own, gradients, strict=True):
                weight.grad = gradient.to(weight.dtype)
            optimiser.step()

        return move

    def _step(
        self, own: list[Tensor], inputs: Tensor, labels: Tensor, move: Callable[[Sequence[Tensor]], None]
    ) -> Tensor:
        """The loss before the step; gradients end with it, so that the next ones find their memory warm."""
        parameters = self._load(own)
        loss = cross_entropy(widened(self.model(inputs.to(parameters[0].dtype))), labels)
        moving = [parameter for parameter in parameters if parameter.requires_grad]
        gradients = torch.autograd.grad(loss, moving, materialize_grads=True)
        with torch.no_grad():
            move(gradients)
        return loss.detach()

    def _load(self, own: list[Tensor]) -> list[Tensor]:
        """Let the model compute with these weights: the memory itself, or a copy, rounded or in another order."""
        parameters: list[Tensor] = list(self.model.parameters())
        ordered = self.channels_last and own[0].device.type == "cpu"
        with torch.no_grad():
            for parameter, value in zip(parameters, own, strict=True):
                if self.precision == "bf16" or (ordered and value.ndim == 4):
                    parameter.copy_(value)
                else:
                    parameter.data = value
        return parameters

    def evaluate(self, weights: Tensor, rows: Tensor, samples: Samples, picked: Tensor | None = None) -> Scores:
        """Scores row by row; see `Strategy.evaluate`."""
        self.model.to(weights.device, activation_type(self.precision, weights.dtype)).eval()

        def logits(row: int, inputs: Tensor) -> Tensor:
            parameters = self._load(list(self.layout.views(weights[row]).values()))
            return self.model(inputs.to(parameters[0].dtype))  # type: ignore[no-any-return]

        with arithmetic(self.precision, weights.device):
            return evaluate_by_row(logits, rows, samples, picked)


def build(model: nn.Module, precision: Precision = "fp32") -> Loop:
    """The strategy for a model."""
    check_precision(precision)
    try:
        trace(model, "loop")
        channels_last = True  # all its operations are known, and none depends on the order of activations in memory
    except ScenarioError:
        channels_last = False
    own = copy.deepcopy(model).to(activation_type(precision))
    if channels_last:
        own = own.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Loop(own, layout_of(model), precision, channels_last)
