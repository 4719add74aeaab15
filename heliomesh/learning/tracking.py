"""Watch a run while it trains: an observer is called with every row of metrics.

That of TensorBoard is ready-made.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from heliomesh.learning.run import TrainingError


class Observer(Protocol):
    """Anything that can be called with the number of the run in its stack and a row of `evaluation.COLUMNS`."""

    def __call__(self, run: int, row: Mapping[str, float]) -> None:
        """Take note of the row."""


def unobserved(run: int, row: Mapping[str, float]) -> None:
    """No observer."""


def both(one: Observer, other: Observer) -> Observer:
    """Two observers as one."""

    def observe(run: int, row: Mapping[str, float]) -> None:
        one(run, row)
        other(run, row)

    return observe


def tensorboard(folder: str | Path, name: str | None = None) -> Observer:
    """Write every column as a curve over slots, each run in a folder of its own; needs the extra ``tensorboard``.

    Folders are 000, 001, … from the first number that is not there yet, so that no two runs share curves. A ``name``
    that says what is run, such as a job's, replaces the number: the run goes on there when it is resumed, and repeats
    the rows since its checkpoint with equal values.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise TrainingError("tensorboard is not installed. Run `pip install heliomesh[tensorboard]`.") from None
    numbers = [int(path.name) for path in Path(folder).glob("*") if path.name.isdigit()] if name is None else []
    first = max(numbers, default=-1) + 1
    writers: dict[int, SummaryWriter] = {}

    def observe(run: int, row: Mapping[str, float]) -> None:
        if run not in writers:
            own = f"{first + run:03d}" if name is None else f"{name}-{run:03d}" if run else name
            writers[run] = SummaryWriter(str(Path(folder) / own))
        for column, value in row.items():
            if column != "slot" and math.isfinite(value):
                writers[run].add_scalar(column, value, int(row["slot"]))
        writers[run].flush()  # so that a killed run loses nothing

    return observe
