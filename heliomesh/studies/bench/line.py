"""Files of the benchmark: lines, of one planner on its scenarios, with all that decided its numbers; and bounds."""

import hashlib
import math
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from heliomesh.common import catalog
from heliomesh.common.durable import Sealed, json_sha256, make_folder
from heliomesh.common.mistakes import MistakeError
from heliomesh.jobs.fingerprint import of_variant
from heliomesh.planning import PLANNER_CATALOG
from heliomesh.scenario.section import Fraction, Section, validated
from heliomesh.studies.bench.scenarios import Bench, BenchScenario

_FILE = Sealed("a line of the benchmark", 1, (("bench", int), ("entries", dict)))
_Numbers = Annotated[tuple[float, ...], Field(strict=False)]


class BenchError(MistakeError, ValueError):
    """A file is no result of this version of the benchmark: what was expected and what was found."""


class Entry(Section):
    """What a planner reached on one scenario; where it refused, why."""

    scenario_sha256: str = Field(description="of the scenario and of how it is measured")
    key: str = Field(description="sha256 of all that decides the numbers")
    results_version: int = Field(description="of heliomesh, see `jobs/job.py`")
    made_with: dict[str, Any] = Field(description="versions of packages, and the machine in words")
    refused_for: Literal["", "memory", "time", "scenario"] = Field("", description="what was too much, in one word")
    refusal: str = Field("", description="the same in one sentence, in place of all that follows")
    fell_back_to: dict[str, Any] = Field({}, description="options with which the planner fits, where its own do not")
    converged: bool = Field(True, description="whether the last round of planning changed nothing")
    picks_actions: bool = Field(True, description="whether the bound speaks of the plan")
    cost: _Numbers = Field((), description="(episode,) updates lost per slot")
    spent_joule: _Numbers = Field((), description="(episode,) by all devices in all slots [J]")
    accuracy: Annotated[tuple[Fraction, ...], Field(strict=False)] = Field(
        (), description="(seed,) mean over devices after the last slot, 0 to 1"
    )
    process_seconds: float = Field(0.0, ge=0, description="time of processors on planning [s]")
    offline_bytes: int = Field(0, ge=0, description="sent while planning, by all devices")
    online_bytes_per_slot: float = Field(0.0, ge=0, description="sent for decisions, by all devices")


class BenchLine(Section):
    """One planner with its options on the scenarios of one version of the benchmark."""

    bench: int = Field(description="version of the benchmark")
    planner: str = Field(min_length=1, description="a name, or module:name")
    options: dict[str, Any] = Field(description="of the planner")
    package: str | None = Field(description="that brings the planner; None where it is no installed package")
    package_version: str | None
    planner_source: str | None = Field(description="sha256 of code from outside heliomesh")
    seed: Literal[0] = Field(0, description="of the simulation, the same for all; episode e is trained with seed e")
    entries: dict[str, Entry] = Field(description="by scenario")

    @property
    def label(self) -> str:
        """As tables name it."""
        return label_of(self.planner, self.options)

    def beside(self, known: "BenchLine | None") -> "BenchLine":
        """The line with entries that are known of the same code."""
        earlier = known.entries if known is not None and known.planner_source == self.planner_source else {}
        return self.model_copy(update={"entries": {**earlier, **self.entries}})


def label_of(planner: str, options: Mapping[str, Any]) -> str:
    """A planner with the options that are not its defaults."""
    return " ".join([planner, *(f"{name}={value}" for name, value in sorted(options.items()))])


def new_line(bench: Bench, planner: str, options: Mapping[str, Any]) -> BenchLine:
    """A line without entries, with where the planner comes from."""
    outside = planner if ":" in planner else catalog.offered(PLANNER_CATALOG, planner)
    top = "heliomesh" if outside is None else outside.partition(":")[0].partition(".")[0]
    package = next(iter(packages_distributions().get(top, [])), "heliomesh" if outside is None else None)
    source, package_version = of_variant(PLANNER_CATALOG, planner), None
    with suppress(PackageNotFoundError):  # used from its folder
        package_version = None if package is None else version(package)
    return BenchLine(
        bench=bench.version,
        planner=planner,
        options=dict(options),
        package=package,
        package_version=package_version,
        planner_source=None if source is None else json_sha256(source),
        entries={},
    )


_PLAIN = set("abcdefghijklmnopqrstuvwxyz0123456789._")  # what every file system keeps apart


def place_of(folder: Path, bench: Bench, label: str) -> Path:
    """The file of a line: a plain label with its own name, another with a hash, since hyphens stand for its rest."""
    name = "".join(letter if letter.isalnum() or letter in _PLAIN else "-" for letter in label)
    own = name if set(label) <= _PLAIN else f"{name}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
    return folder / str(bench.version) / f"{own}.json"


def write_line(folder: Path, bench: Bench, line: BenchLine) -> None:
    """Write a line whole."""
    place = place_of(folder, bench, line.label)
    make_folder(place.parent)
    _FILE.write(place, line.model_dump(mode="json"))


def read_line(path: Path, bench: Bench) -> BenchLine:
    """A line of this version of the benchmark; raises BenchError or ScenarioError for anything else."""
    line = validated(BenchLine, _FILE.read(path, BenchError), str(path))
    BenchError.when(line.bench != bench.version, path, f"a line of bench {bench.version}", f"version {line.bench}")
    known = {one.name: one for one in bench.scenarios}
    for name, entry in line.entries.items():
        BenchError.when(name not in known, f"{path}: {name}", f"one of {', '.join(known)}", f"value {name!r}")
        own, expected = entry.scenario_sha256, known[name].sha256
        BenchError.when(own != expected, f"{path}: {name}", f"the scenario {expected}", f"sha256 {own!r}")
        _check_numbers(f"{path}: {name}", entry, known[name])
    return line


def _check_numbers(where: str, entry: Entry, one: BenchScenario) -> None:
    """Every episode and seed has its number, and a refusal has none; no device loses more than all of its updates."""
    for name, count in (("cost", one.episodes), ("spent_joule", one.episodes), ("accuracy", one.seeds)):
        actual, expected = len(getattr(entry, name)), 0 if entry.refusal else count
        BenchError.when(actual != expected, f"{where}: {name}", f"{expected} numbers", f"number {actual}")
    devices = one.scenario.network.devices
    for name, most in (("cost", devices * (1 + 1e-9)), ("spent_joule", math.inf)):
        for number in getattr(entry, name):
            BenchError.when(not 0 <= number <= most, f"{where}: {name}", f"0 to {most:g}", f"value {number:g}")


def known_line(folder: Path, bench: Bench, label: str) -> BenchLine | None:
    """The line that a folder has under a label."""
    place = place_of(folder, bench, label)
    return read_line(place, bench) if place.exists() else None


class Bound(Section):
    """No policy that picks the scenario's actions is expected to cost less."""

    scenario_sha256: str = Field(description="of the scenario and of how it is measured")
    per_slot: float = Field(description="updates lost per slot; of a sampled bound the lower end of its interval")
    paths: int = Field(0, ge=0, description="sampled paths, confidence 97.5 %; 0: certified")


_BOUNDS = Sealed("bounds of the benchmark", 1, (("bench", int), ("bounds", dict)))


def _place(folder: Path, bench: Bench) -> Path:
    """Not among the lines, one of which may have any name."""
    return folder / f"bounds-{bench.version}.json"


def read_bounds(folder: Path, bench: Bench) -> dict[str, Bound]:
    """Bounds by scenario, as far as they are there and of these scenarios; raises BenchError for a damaged file."""
    place = _place(folder, bench)
    if not place.exists():
        return {}
    content = _BOUNDS.read(place, BenchError)
    found = {name: validated(Bound, bound, f"{place}: {name}") for name, bound in content["bounds"].items()}
    current = {one.name: one.sha256 for one in bench.scenarios}
    return {name: bound for name, bound in found.items() if current.get(name) == bound.scenario_sha256}


def write_bounds(folder: Path, bench: Bench, bounds: Mapping[str, Bound]) -> None:
    """Write all bounds whole."""
    place = _place(folder, bench)
    make_folder(place.parent)
    content = {name: bound.model_dump(mode="json") for name, bound in bounds.items()}
    _BOUNDS.write(place, {"bench": bench.version, "bounds": content})
