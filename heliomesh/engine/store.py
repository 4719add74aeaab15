"""Results by what decides them: one Parquet file of curves and one JSON manifest per arm, one trace beside them.

A manifest is written last and carries the sha256 of its curves, so what has a manifest is complete. Traces are kept
in a folder of their own: they are large, and only needed until the arm is trained.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from heliomesh.engine.arm import Arm, Prepared
from heliomesh.learning.durable import file_sha256, write_json, written_whole
from heliomesh.learning.run import TrainingError
from heliomesh.simulation.trace import Trace

_FORMAT = 1


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
        table.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(table) as path:
            curves.to_parquet(path, index=False)
        manifest = facts | {"format": _FORMAT, "key": arm.key, "sha256": file_sha256(table)}
        write_json(self._path(arm, ".json"), manifest)

    def get(self, arm: Arm) -> Result:
        """Read a result; raises TrainingError where it is damaged or belongs to something else."""
        place = self._path(arm, ".json")
        try:
            manifest = json.loads(place.read_text(encoding="utf-8"))
            expected = (_FORMAT, arm.key, file_sha256(self._path(arm, ".parquet")))
            actual = (manifest["format"], manifest["key"], manifest["sha256"])
            if actual != expected:
                raise TrainingError(f"{place}: expected format, key and sha256 {expected}, actual value {actual}")
            return Result(arm, pd.read_parquet(self._path(arm, ".parquet")), manifest)
        except OSError as error:
            raise TrainingError(f"{error.filename}: expected a stored result, actual: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, TrainingError):
                raise
            raise TrainingError(f"{place}: expected the manifest of a result, actual: {error}") from None

    def has_trace(self, arm: Arm) -> bool:
        """Whether the arm is planned and simulated."""
        return self._trace(arm, ".json").exists()

    def put_trace(self, arm: Arm, prepared: Prepared) -> None:
        """Keep a planned and simulated arm."""
        self._trace(arm, ".npz").parent.mkdir(parents=True, exist_ok=True)
        prepared.trace.save(self._trace(arm, ".npz"))
        write_json(self._trace(arm, ".json"), prepared.facts)

    def get_trace(self, arm: Arm) -> Prepared:
        """Read a planned and simulated arm."""
        place = self._trace(arm, ".json")
        try:
            facts = dict(json.loads(place.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise TrainingError(f"{place}: expected the facts of a plan, actual: {error}") from None
        return Prepared(Trace.load(self._trace(arm, ".npz")), facts)

    def _path(self, arm: Arm, suffix: str) -> Path:
        return self.folder / arm.figure / f"{arm.name}{suffix}"

    def _trace(self, arm: Arm, suffix: str) -> Path:
        return self.folder / "traces" / f"{arm.trace_key}{suffix}"
