"""Losses and scores of several rows, side by side or one after the other, a bounded number of samples at once."""

# PyTorch's `split` has no types.
# mypy: allow-untyped-calls

from collections.abc import Callable, Iterable
from itertools import starmap
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from heliomesh.learning.precision import widened
from heliomesh.learning.stacked import Samples, Scores, joined

# Samples that are evaluated together, of one row and of all: few on a CPU, so that activations stay in its cache;
# on a CUDA device enough that its work takes longer than Python needs to ask for it.
_SAMPLES_AT_ONCE = {"cpu": 250, "cuda": 1000}
_EVALUATED_AT_ONCE = {"cpu": 500, "cuda": 16_384}
_ONE_ROW_AT_ONCE = {"cpu": 250, "cuda": 4096}  # where rows are not side by side
LEAST_ROWS = 2  # a product of one pair of matrices is rounded in another way than those of several


def mean_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of each row; logits (row, batch, class), labels (row, batch)."""
    each = cross_entropy(widened(logits).flatten(0, 1), labels.flatten(), reduction="none")
    return each.view(labels.shape).mean(1)


def in_pieces(rows: Tensor, picked: Tensor | None, size: int) -> list[tuple[Tensor, Tensor | None]]:
    """So many rows at a time, with the samples (row, sample) that are picked for them."""
    pieces = rows.split(size)
    return list(zip(pieces, [None] * len(pieces) if picked is None else picked.split(size), strict=True))


def evaluate_together(
    logits: Callable[[Tensor, Tensor], Tensor], rows: Tensor, samples: Samples, picked: Tensor | None
) -> Scores:
    """Scores by ``logits(rows, inputs (row, sample, …))`` → (row, sample, class), a bounded number at once."""
    device, parts = samples.labels.device.type, []
    count = len(samples.labels) if picked is None else picked.shape[1]
    chunk = min(_SAMPLES_AT_ONCE.get(device, 250), count)
    for own, met in in_pieces(rows, picked, max(1, _EVALUATED_AT_ONCE.get(device, 500) // chunk)):
        loss, right = (samples.inputs.new_zeros(len(own)) for _ in range(2))
        for span in (slice(first, first + chunk) for first in range(0, count, chunk)):
            index = span if met is None else met[:, span]
            inputs, labels = samples.inputs[index], samples.labels[index]
            if met is None:
                inputs, labels = inputs.expand(len(own), *inputs.shape), labels.expand(len(own), -1)
            with torch.no_grad():
                output: Any = logits(own, inputs)
                loss += mean_losses(output, labels) * labels.shape[1]
            right += (output.argmax(-1) == labels).sum(1)
        parts.append(Scores(loss / count, right / count))
    return joined(parts)


def evaluate_by_row(
    logits: Callable[[int, Tensor], Tensor],
    rows: Tensor,
    samples: Samples,
    picked: Tensor | None,
    execute: Callable[..., Iterable[Any]] = starmap,
) -> Scores:
    """Scores by ``logits(row, inputs (sample, …))`` → (sample, class), a bounded number of samples at once.

    ``execute`` calls a function with the arguments of each task; its results are in the order of the tasks.
    """
    count = len(samples.labels) if picked is None else picked.shape[1]
    size = _ONE_ROW_AT_ONCE.get(samples.labels.device.type, 250)
    spans = [slice(first, first + size) for first in range(0, count, size)]

    def score(place: int, row: int, span: slice) -> tuple[int, Tensor, Tensor]:
        met = span if picked is None else picked[place, span]
        labels = samples.labels[met]
        with torch.no_grad():
            output = widened(logits(row, samples.inputs[met]))
            loss = cross_entropy(output, labels, reduction="sum")
        return place, loss, (output.argmax(-1) == labels).sum()

    loss, right = (samples.inputs.new_zeros(len(rows)) for _ in range(2))
    tasks = [(place, row, span) for place, row in enumerate(rows.tolist()) for span in spans]
    for place, part_loss, part_right in execute(score, tasks):  # in order, so that sums are rounded alike
        loss[place] += part_loss
        right[place] += part_right
    return Scores(loss / count, right / count)
