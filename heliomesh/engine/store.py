"""Results by what decides them: one Parquet file of curves and one JSON manifest per arm, one trace beside them.

A manifest is written last and carries the sha256 of its curves, so what has a manifest is complete. Traces are kept
in a folder of their own: they are large, and only needed until the arm is trained.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from heliomesh.durable import Sealed, file_sha256, make_folder, written_whole
from heliomesh.engine.arm import Arm, Prepared
from heliomesh.learning.run import TrainingError
from heliomesh.simulation.trace import Trace

_SUMS = (("key", str), ("sha256", str))
_RESULT = Sealed("the manifest of a result", 2, _SUMS)
_PREPARED = Sealed("the facts of a stored trace", 2, (*_SUMS, ("facts", dict)))
TRACES = "traces"  # folder within a store


@dataclass(frozen=True)
class Result:
    """A stored arm."""

    arm: Arm
    curves: pd.DataFrame  # one row per seed and evaluated slot: the trainer's columns and ``seed``
    manifest: dict[str, Any]


@dataclass(frozen=True)
class Store:
    """A folder of results."""

    folder: Path

    def has(self, arm: Arm) -> bool:
        """Whether the arm's result is complete."""
        return self._path(arm, ".json").exists()

    def put(self, arm: Arm, curves: pd.DataFrame, facts: dict[str, Any]) -> None:
        """Store a result; whatever happens meanwhile, it is there in full or not at all."""
        table = self._path(arm, ".parquet")
        make_folder(table.parent)
        with written_whole(table) as path, path.open("wb") as file:
            curves.to_parquet(file, index=False)
        _RESULT.write(self._path(arm, ".json"), facts | {"key": arm.key, "sha256": file_sha256(table)})

    def get(self, arm: Arm) -> Result:
        """Read a result; raises TrainingError where it is damaged or belongs to something else."""
        place, table = self._path(arm, ".json"), self._path(arm, ".parquet")
        manifest = _checked(_RESULT, place, table, arm.key)
        return Result(arm, _read_curves(table), manifest)

    def has_trace(self, arm: Arm) -> bool:
        """Whether the arm is planned and simulated."""
        return self._trace(arm, ".json").exists()

    def put_trace(self, arm: Arm, prepared: Prepared) -> None:
        """Keep a planned and simulated arm."""
        trace = self._trace(arm, ".npz")
        make_folder(trace.parent)
        prepared.trace.save(trace)
        content = {"facts": prepared.facts, "key": arm.trace_key, "sha256": file_sha256(trace)}
        _PREPARED.write(self._trace(arm, ".json"), content)

    def get_trace(self, arm: Arm) -> Prepared:
        """Read a planned and simulated arm; raises as `get` does."""
        trace = self._trace(arm, ".npz")
        content = _checked(_PREPARED, self._trace(arm, ".json"), trace, arm.trace_key)
        return Prepared(Trace.load(trace), content["facts"])

    def _path(self, arm: Arm, suffix: str) -> Path:
        return self.folder / arm.figure / f"{arm.name}{suffix}"

    def _trace(self, arm: Arm, suffix: str) -> Path:
        return self.folder / TRACES / f"{arm.trace_key}{suffix}"


def read_result(place: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """A stored result's manifest and curves, of whatever arm; raises TrainingError where it is damaged."""
    manifest = _checked(_RESULT, place, place.with_suffix(".parquet"))
    if not place.stem.endswith(manifest["key"][:8]):
        raise TrainingError(f"{place}: expected a name that ends in its key {manifest['key'][:8]}, actual: another")
    return manifest, _read_curves(place.with_suffix(".parquet"))


def _read_curves(table: Path) -> pd.DataFrame:
    return pd.read_parquet(pa.BufferReader(table.read_bytes()))  # pyarrow itself takes names in UTF-8 only


def check_trace(place: Path) -> None:
    """Raise TrainingError or TraceError where the trace beside these facts is damaged or another's."""
    trace = place.with_suffix(".npz")
    _checked(_PREPARED, place, trace, place.stem)
    Trace.load(trace)


def _checked(kind: Sealed, place: Path, file: Path, key: str | None = None) -> dict[str, Any]:
    """A manifest, after its key (unless any will do) and the sum of the file beside it."""
    manifest = kind.read(place, TrainingError)
    try:
        expected, actual = (key or manifest["key"], file_sha256(file)), (manifest["key"], manifest["sha256"])
    except OSError as error:
        raise TrainingError(f"{file}: expected a stored file, actual: {error.strerror}") from None
    if actual != expected:
        raise TrainingError(f"{place}: expected key and sha256 {expected}, actual value {actual}")
    return manifest
