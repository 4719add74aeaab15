"""Watch a run while it trains: an observer is called with every row of metrics; TensorBoard's is ready-made."""

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


def tensorboard(folder: str | Path) -> Observer:
    """Write every column as a curve over slots, runs in folders 000, 001, …; needs the extra ``tensorboard``.

    A resumed run repeats the rows since its checkpoint, with equal values.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise TrainingError(
            "tensorboard: expected the extra 'tensorboard' (pip install 'heliomesh[tensorboard]'), "
            "actual: not installed"
        ) from None
    writers: dict[int, SummaryWriter] = {}

    def observe(run: int, row: Mapping[str, float]) -> None:
        if run not in writers:
            writers[run] = SummaryWriter(str(Path(folder) / f"{run:03d}"))
        for name, value in row.items():
            if name != "slot" and math.isfinite(value):
                writers[run].add_scalar(name, value, int(row["slot"]))
        writers[run].flush()  # so that a killed run loses nothing

    return observe
