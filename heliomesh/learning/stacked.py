"""Local SGD of many devices on one stack of weights: w_j ← w_j − η ∇f_j(w_j; ξ), K times for every active row.

All weights live in one contiguous matrix (row, parameter), float32. A row is one device of one run, so that several
planners, seeds and partitions may train together. How the steps are executed is a *strategy*, one file of
`learning/strategies` each; all of them compute what `strategies/loop.py` writes down plainly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Where each parameter of the model lies in a row."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    offsets: tuple[int, ...]  # one more than names: the last is the number of parameters
    frozen: frozenset[str] = frozenset()  # names of those that training leaves alone

    @property
    def num_parameters(self) -> int:
        """Length of a row."""
        return self.offsets[-1]

    def views(self, weights: Tensor) -> dict[str, Tensor]:
        """Parameters by name as views of (…, parameter) weights; (…, *shape) each."""
        spans = zip(self.names, self.shapes, self.offsets, self.offsets[1:], strict=False)
        leading = weights.shape[:-1]
        return {name: weights[..., start:stop].view(*leading, *shape) for name, shape, start, stop in spans}


def layout_of(model: nn.Module) -> Layout:
    """The model's parameters in the order it names them."""
    named = dict(model.named_parameters())
    return Layout(
        tuple(named),
        tuple(parameter.shape for parameter in named.values()),
        (0, *accumulate(parameter.numel() for parameter in named.values())),
        frozenset(name for name, parameter in named.items() if not parameter.requires_grad),
    )


def flat_weights(model: nn.Module) -> Tensor:
    """The model's parameters as one row; (parameter,)."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@dataclass(frozen=True)
class Samples:
    """Labelled inputs that minibatches point into, on the device of the weights."""

    inputs: Tensor  # (sample, channel, height, width) or (sample, feature)
    labels: Tensor  # (sample,)


@dataclass(frozen=True)
class Scores:
    """Quality of several rows on test samples."""

    loss: Tensor  # (row,) mean cross-entropy
    accuracy: Tensor  # (row,) in [0, 1]


def joined(parts: Sequence[Scores]) -> Scores:
    """Scores of several groups of rows, one after the other."""
    return Scores(torch.cat([part.loss for part in parts]), torch.cat([part.accuracy for part in parts]))


class Strategy(Protocol):
    """A way to execute local steps."""

    def train(self, weights: Tensor, rows: Tensor, batches: Tensor, samples: Samples, learning_rate: float) -> Tensor:
        """K steps in place on ``weights[rows]``; other rows are not touched.

        weights (row, parameter); rows (active,) distinct; batches (active, K, batch) indices into samples. Returns
        the mean loss over the K minibatches, each before its step; (active,). The model is in training mode, and
        its frozen parameters stay as they are.
        """

    def evaluate(self, weights: Tensor, rows: Tensor, samples: Samples, picked: Tensor | None = None) -> Scores:
        """Scores of ``weights[rows]``, with the model in evaluation mode.

        Each meets all samples, or those that ``picked`` (row, sample) names for it.
        """
