"""Many finished runs in two files: their curves in one Parquet table, and what decided each in sealed JSON.

A pack is for results that are published or kept for years: no weights, and one entry for all runs of a *line*, which
differ by episode and training seed only. The JSON is written last and has the table's sha256. A packed run serves
whichever versions of numpy and torch computed it, unlike a loose one: nobody trains for days again unasked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heliomesh.common.durable import Sealed, file_sha256, json_sha256, make_folder, written_whole
from heliomesh.jobs.job import MACHINE, PLANNER_VERSION, VERSIONS
from heliomesh.learning.evaluation import COLUMNS
from heliomesh.learning.run import Run, TrainingError, check_sum, table_columns

_PACK = Sealed("a pack of runs", 1, (("sha256", str), ("lines", list)))
_MALFORMED = (AttributeError, KeyError, TypeError, ValueError)  # what damage under a right seal may raise
_OF_A_RUN = ("episode", "training seed")  # in which the identities of a line differ


@dataclass(frozen=True)
class Packs:
    """A folder of packs."""

    folder: Path

    def key_of(self, identity: Mapping[str, Any]) -> str | None:
        """The key of a packed run of an identity, whichever versions of numpy and torch computed it; None without."""
        exact, others = json_sha256(identity), self._alike.get(_without(identity, VERSIONS), [])
        return exact if exact in self._where else next(reversed(others), None)

    def run(self, key: str) -> Run:
        """A packed run: its metrics and provenance, without devices' accuracies and weights."""
        name, provenance = self._where[key]
        try:
            curves = self._tables[name].get_group(key)
            metrics = {column: curves[column].to_numpy(dtype=np.float64) for column in COLUMNS}
        except _MALFORMED as error:
            table = self.folder / f"{name}.parquet"
            raise TrainingError(table, f"numbers of run {key}", f": {error}") from None
        nothing = np.empty((len(curves), 0))
        return Run(metrics, nothing, nothing, torch.empty(0, 0), provenance)

    def runs(self, name: str) -> list[Run]:
        """All runs of a pack."""
        return [self.run(key) for key, (pack, _) in self._where.items() if pack == name]

    def alike(self, identity: Mapping[str, Any]) -> list[Run]:
        """Runs that differ from an identity only by what they were trained on, or by the version of their planner."""
        return [self.run(key) for key in self._alike.get(_without(identity, *MACHINE, PLANNER_VERSION), ())]

    def write(self, name: str, runs: Sequence[Run]) -> None:
        """Write a pack of finished runs, under the name with a number where a pack has it already."""
        import pandas as pd

        names = (name, *(f"{name}-{number}" for number in range(2, len(self._contents) + 3)))
        name = next(one for one in names if one not in self._contents)
        make_folder(self.folder)
        frames = [pd.DataFrame({"key": run.provenance["key"], **table_columns(run)}) for run in runs]
        table = self.folder / f"{name}.parquet"
        with written_whole(table) as path, path.open("wb") as file:
            pd.concat(frames, ignore_index=True).to_parquet(file, index=False)
        lines = _lines([run.provenance for run in runs])
        _PACK.write(self.folder / f"{name}.json", {"sha256": file_sha256(table), "lines": lines})

    def content(self, name: str) -> dict[str, Any]:
        """What a pack's sealed file says, after the sum of its table; raises TrainingError."""
        place = self.folder / f"{name}.json"
        content = _PACK.read(place, TrainingError)
        check_sum(place.with_suffix(".parquet"), content["sha256"])
        return content

    @cached_property
    def _contents(self) -> dict[str, dict[str, Any]]:
        return {place.stem: self.content(place.stem) for place in sorted(self.folder.glob("*.json"))}

    @cached_property
    def _where(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Pack and provenance of every run."""
        return {
            provenance["key"]: (name, provenance)
            for name, content in self._contents.items()
            for provenance in _provenances(self.folder / f"{name}.json", content["lines"])
        }

    @cached_property
    def _alike(self) -> dict[str, list[str]]:
        """Keys by all of an identity but its versions, and by all but what the run was trained on."""
        found: dict[str, list[str]] = {}
        for key, (_, provenance) in self._where.items():
            for parts in ((VERSIONS,), (*MACHINE, PLANNER_VERSION)):
                found.setdefault(_without(provenance["identity"], *parts), []).append(key)
        return found

    @cached_property
    def _tables(self) -> dict[str, Any]:
        import pandas as pd

        return {name: pd.read_parquet(self.folder / f"{name}.parquet").groupby("key") for name in self._contents}


def _without(identity: Mapping[str, Any], *parts: str) -> str:
    """The sha256 of an identity without some parts."""
    return json_sha256({name: value for name, value in identity.items() if name not in parts})


def _lines(provenances: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What runs of a line share, said once."""
    lines: dict[str, dict[str, Any]] = {}
    for provenance in provenances:
        identity = dict(provenance["identity"])
        own = {name: identity.pop(name) for name in _OF_A_RUN}
        line = lines.setdefault(json_sha256(identity), {"identity": identity, "runs": []})
        facts = {name: value for name, value in provenance.items() if name not in ("identity", "key")}
        line["runs"].append({"key": provenance["key"], "identity": own, "facts": facts})
    for line in lines.values():
        every = [run["facts"] for run in line["runs"]]
        line["facts"] = {n: value for n, value in every[0].items() if all(own.get(n) == value for own in every)}
        for run in line["runs"]:
            run["facts"] = {name: value for name, value in run["facts"].items() if name not in line["facts"]}
    return list(lines.values())


def _provenances(place: Path, lines: Sequence[Any]) -> list[dict[str, Any]]:
    """What a pack says of its runs; a key that is not that of the identity beside it tells of damage."""
    try:
        found = [
            {**line["facts"], **run["facts"], "key": run["key"], "identity": {**line["identity"], **run["identity"]}}
            for line in lines
            for run in line["runs"]
        ]
        wrong = [one["key"] for one in found if one["key"] != json_sha256(one["identity"])]
    except _MALFORMED as error:
        raise TrainingError(place, "lines of runs", f": {error}") from None
    TrainingError.when(wrong, place, "the key of each identity", f"{next(iter(wrong), None)!r}")
    return found
