"""Watch a run while it trains: an observer is called with every row of metrics.

Those of TensorBoard and MLflow are ready-made; each keeps runs apart.
"""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
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
        raise _missing("tensorboard") from None
    numbers = [int(path.name) for path in Path(folder).glob("*") if path.name.isdigit()] if name is None else []
    first = max(numbers, default=-1) + 1
    writers: dict[int, SummaryWriter] = {}

    def observe(run: int, row: Mapping[str, float]) -> None:
        if run not in writers:
            own = f"{first + run:03d}" if name is None else _numbered(name, run)
            writers[run] = SummaryWriter(str(Path(folder) / own))
        for column, value in _finite(row).items():
            writers[run].add_scalar(column, value, int(row["slot"]))
        writers[run].flush()  # so that a killed run loses nothing

    return observe


def mlflow(
    uri: str | None = None,
    name: str = "run",
    facts: Mapping[str, object] = MappingProxyType({}),
    *,
    experiment: str = "heliomesh",
    slots: int | None = None,
) -> Observer:
    """Log every column to MLflow as a metric with the slot as its step; needs the extra ``mlflow``.

    ``uri`` is that of a tracking server, a database or a folder; default: MLflow's own. ``facts`` become parameters
    of the run. It is marked as finished after ``slots`` slots. A resumed run is a run of its own: it has the rows
    since its checkpoint.
    """
    try:
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise _missing("mlflow") from None
    try:
        client = MlflowClient(uri)
        found = client.get_experiment_by_name(experiment)
        where = client.create_experiment(experiment) if found is None else found.experiment_id
    except MlflowException as error:
        raise TrainingError("mlflow", "a place to log to", f": {error.message}") from None
    made: dict[int, str] = {}

    def observe(run: int, row: Mapping[str, float]) -> None:
        if run not in made:
            made[run] = client.create_run(where, run_name=_numbered(name, run)).info.run_id
            for fact, value in facts.items():
                client.log_param(made[run], fact, value)
        slot, now = int(row["slot"]), int(1000 * time.time())
        client.log_batch(made[run], [Metric(column, value, now, slot) for column, value in _finite(row).items()])
        if slot == slots:
            client.set_terminated(made[run])

    return observe


def _missing(package: str) -> TrainingError:
    return TrainingError(f"{package} is not installed. Run `pip install heliomesh[{package}]`.")


def _finite(row: Mapping[str, float]) -> dict[str, float]:
    """The columns that can be drawn over slots."""
    return {name: value for name, value in row.items() if name != "slot" and math.isfinite(value)}


def _numbered(name: str, run: int) -> str:
    return f"{name}-{run:03d}" if run else name
