"""What a training run leaves behind: metrics by evaluated slot, the devices' final weights, and their origin."""

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.common.arguments import checked
from heliomesh.common.durable import Sealed, file_sha256, make_folder, read_tensors, write_tensors, written_whole
from heliomesh.common.mistakes import MistakeError, in_one_line

MANIFEST, METRICS, WEIGHTS = "manifest.json", "metrics.parquet", "weights.safetensors"
CHECKPOINTS = "checkpoints"  # folder within a run's folder, until the run is finished
_MANIFEST_FILE = Sealed("the manifest of a run", 2, (("sha256", dict), ("provenance", dict)))

_ORIGIN = ("planner", "seed")  # columns of a table from a run's provenance; the seed is the training's
_COUNTS = ("slot", "device_samples")  # metrics that are whole numbers

Floats = npt.NDArray[np.float64]


class TrainingError(MistakeError, ValueError):
    """Training cannot start or go on, or a folder does not hold a run: what was expected and what was found."""


@dataclass(frozen=True)
class Run:
    """A finished training run.

    Attributes
    ----------
    metrics
        By column of `evaluation.COLUMNS`; (evaluated slot,) each.
    accuracy
        Share of test samples that each device gets right; (evaluated slot, device), from 0 to 1.
    loss
        Mean cross-entropy; (evaluated slot, device).
    weights
        Final weights; (device, parameter) float32.
    provenance
        What it was made from, and how.
    """

    metrics: Mapping[str, Floats]
    accuracy: Floats
    loss: Floats
    weights: Tensor
    provenance: Mapping[str, Any]

    @property
    def final(self) -> dict[str, float]:
        """The last row of the metrics: all models on the whole test set."""
        return {name: float(column[-1]) for name, column in self.metrics.items()}

    def parameters(self, device: int) -> dict[str, Tensor]:
        """One device's final parameters by name, as ``load_state_dict`` takes them."""
        names, shapes = zip(*self.provenance["parameters"], strict=True)
        parts = torch.split(self.weights[device], [math.prod(shape) for shape in shapes])
        return {name: part.reshape(shape) for name, shape, part in zip(names, shapes, parts, strict=True)}

    @checked
    def save(self, folder: str | Path, *, weights: bool = True) -> None:
        """Write Parquet metrics, safetensors weights (if wanted) and, last, a JSON manifest with their sha256."""
        import pyarrow as pa  # here and below, because training itself does not need it
        import pyarrow.parquet as pq

        target = Path(folder)
        make_folder(target)
        columns = table_columns(self)
        columns |= {"device_accuracy": self.accuracy.tolist(), "device_loss": self.loss.tolist()}
        with written_whole(target / METRICS) as path, path.open("wb") as file:  # pyarrow takes names in UTF-8 only
            pq.write_table(pa.table(columns), file)
        files = (METRICS, WEIGHTS) if weights else (METRICS,)
        if weights:
            write_tensors(target / WEIGHTS, {"weights": self.weights.contiguous()})
        sums = {name: file_sha256(target / name) for name in files}
        _MANIFEST_FILE.write(target / MANIFEST, {"sha256": sums, "provenance": dict(self.provenance)})

    @classmethod
    @checked
    def load(cls, folder: str | Path) -> "Run":
        """Read a saved run; raises TrainingError for anything else."""
        source = Path(folder)
        manifest = read_manifest(source)
        provenance = manifest["provenance"]
        columns, accuracy, loss = read_metrics(source / METRICS)
        if WEIGHTS not in manifest["sha256"]:
            return cls(columns, accuracy, loss, torch.empty(accuracy.shape[1], 0), provenance)
        tensors = read_tensors(source / WEIGHTS, TrainingError)
        names = list(tensors)
        TrainingError.when(names != ["weights"], source / WEIGHTS, "one tensor weights", f"names {names}")
        return cls(columns, accuracy, loss, tensors["weights"], provenance)


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a finished run: the manifest is written last."""
    return (folder / MANIFEST).exists()


def versions() -> dict[str, str]:
    """Versions of what computes the numbers."""
    try:
        own = version("heliomesh")
    except PackageNotFoundError:  # used from its folder
        own = "not installed"
    return {
        "heliomesh": own,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def machine(device: str) -> dict[str, Any]:
    """What computes the numbers: processors and threads round differently."""
    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    return {"processor": platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpu": gpu}


def read_manifest(folder: Path, checked: Sequence[str] | None = None) -> dict[str, Any]:
    """A finished run's manifest, after a check of its files' sums (or of some); raises TrainingError."""
    manifest = _MANIFEST_FILE.read(folder / MANIFEST, TrainingError)
    sums: dict[str, str] = manifest["sha256"]
    TrainingError.when(METRICS not in sums, folder / MANIFEST, f"the checksum of {METRICS} is missing.")
    for name in sums if checked is None else checked:
        check_sum(folder / name, sums.get(name))
    return manifest


def check_sum(
    path: Path,
    expected: str | None,
    what: str = "a file of a finished result",
    error: type[Exception] = TrainingError,
) -> None:
    """Raise ``error`` where a file is missing or not what was written."""
    try:
        actual = file_sha256(path)
    except OSError as problem:
        raise error(f"{path}: expected {what}, actual: {problem.strerror}") from None
    if actual != expected:
        raise error(f"{path}: expected sha256 {expected}, actual value {actual}")


def table_columns(run: Run) -> dict[str, Any]:
    """Columns of a run's table: planner and seed in every row, then its metrics; counts are whole numbers."""
    metrics = {name: column.astype(np.int64) if name in _COUNTS else column for name, column in run.metrics.items()}
    rows = len(next(iter(metrics.values())))
    return {**{name: [run.provenance.get(name)] * rows for name in _ORIGIN}, **metrics}


def read_metrics(path: Path) -> tuple[dict[str, Floats], Floats, Floats]:
    """A run's metrics by column (evaluated slot,), and accuracy and loss (evaluated slot, device).

    Raises TrainingError where the file is another.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # no thread of Arrow may hold the bytes: one that lets go of them while Python ends aborts the process
        columns = pq.ParquetFile(pa.BufferReader(path.read_bytes())).read(use_threads=False).to_pydict()
        accuracy, loss = (np.array(columns.pop(name), np.float64) for name in ("device_accuracy", "device_loss"))
        metrics = {name: np.array(values, np.float64) for name, values in columns.items() if name not in _ORIGIN}
        return metrics, accuracy, loss
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise TrainingError(path, "the metrics of a run", f": {in_one_line(error)}") from None
