"""One device after the other, one step after the other: the plain meaning of local SGD, and the quickest on a CPU."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from heliomesh.learning.stacked import Layout, Samples, Scores, layout_of, sample_chunks

_EVALUATED_AT_ONCE = 1000  # samples


@dataclass(frozen=True)
class Loop:
    """Rows in turn; idle rows cost nothing."""

    model: nn.Module
    layout: Layout
    name: str = "loop"

    def train(self, weights: Tensor, rows: Tensor, batches: Tensor, samples: Samples, learning_rate: float) -> Tensor:
        """K steps in place; see `Strategy.train`."""
        losses = torch.zeros(len(rows), device=weights.device)
        for position, row in enumerate(rows.tolist()):
            own = weights[row].requires_grad_()
            parameters = self.layout.views(own)
            for batch in batches[position]:
                logits = functional_call(self.model, parameters, (samples.inputs[batch],))
                loss = cross_entropy(logits, samples.labels[batch])
                (gradient,) = torch.autograd.grad(loss, own)
                with torch.no_grad():
                    own -= learning_rate * gradient
                losses[position] += loss.detach() / batches.shape[1]
                parameters = self.layout.views(own)
        return losses

    def evaluate(self, weights: Tensor, rows: Tensor, samples: Samples) -> Scores:
        """Scores row by row."""
        loss, right = torch.zeros(len(rows), device=weights.device), torch.zeros(len(rows), device=weights.device)
        with torch.no_grad():
            for position, row in enumerate(rows.tolist()):
                parameters = self.layout.views(weights[row])
                for part in sample_chunks(samples, _EVALUATED_AT_ONCE):
                    logits = functional_call(self.model, parameters, (part.inputs,))
                    loss[position] += cross_entropy(logits, part.labels, reduction="sum")
                    right[position] += (logits.argmax(-1) == part.labels).sum()
        return Scores(loss / len(samples.labels), right / len(samples.labels))


def build(model: nn.Module) -> Loop:
    """The strategy for a model."""
    return Loop(model, layout_of(model))
