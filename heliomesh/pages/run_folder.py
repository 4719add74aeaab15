"""A run's folder as a report reads it: finished or not, but whole as far as it goes.

It is a store of one job (`jobs/store.py`); `heliomesh run --trace` leaves neither plan nor trace there. What is not
there is said in `RunFolder.missing`; what is there and wrong raises TrainingError. Weights are not read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heliomesh.common.mistakes import in_one_line
from heliomesh.jobs.store import PLAN, TRACE, TRACE_ARRAYS, read_result
from heliomesh.learning.checkpoint import Checkpoints, newest_whole
from heliomesh.learning.evaluation import COLUMNS
from heliomesh.learning.members import check_trace
from heliomesh.learning.run import (
    CHECKPOINTS,
    MANIFEST,
    METRICS,
    TrainingError,
    is_finished,
    read_manifest,
    read_metrics,
)
from heliomesh.learning.settings import TrainJob
from heliomesh.physics.topology import Topology, build_topology
from heliomesh.planning import find_planner, planner_names
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.trace import Trace, TraceError
from heliomesh.studies.episodes import EpisodeCosts, read_episodes
from heliomesh.studies.gap_ledger import LEDGER, GapLedger, read_ledger

_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curves:
    """What is known by evaluated slot; no rows where nothing was evaluated yet."""

    metrics: Mapping[str, Floats]  # by column of `evaluation.COLUMNS`; (evaluated slot,) each
    accuracy: Floats  # (evaluated slot, device)

    @property
    def done(self) -> int:
        """Slots after which the last row was taken."""
        slots = self.metrics["slot"]
        return int(slots[-1]) if len(slots) else 0


def no_curves(scenario: Scenario) -> Curves:
    """Of a run that was not evaluated yet."""
    return Curves({name: np.empty(0) for name in COLUMNS}, np.empty((0, scenario.network.devices)))


@dataclass(frozen=True)
class Live:
    """Which slots of a real network a trace has, and who was heard in them."""

    slots: npt.NDArray[np.int64]  # (slot of the trace,) their numbers in the network, rising
    heard: npt.NDArray[np.bool_]  # (slot of the trace, device)


@dataclass(frozen=True)
class RunFolder:
    """Everything a report knows of one run."""

    path: Path
    scenario: Scenario
    topology: Topology
    planner: str
    seed: int  # of the training
    episode: int  # of the trace
    finished: bool
    curves: Curves
    trace: Trace | None
    plan: Mapping[str, Any]  # facts of the plan; empty where unknown
    options: Mapping[str, Any]  # of the planner, where they are not its defaults
    provenance: Mapping[str, Any]  # empty until the run is finished
    missing: tuple[str, ...]  # sentences
    gap_ledger: GapLedger | None = None  # where it was asked for
    episodes: EpisodeCosts | None = None  # all that a comparison simulated with the plan
    live: Live | None = None  # of a network that is watched


def read_run(folder: str | Path) -> RunFolder:
    """Read a run's folder; raises TrainingError or TraceError with one sentence where it holds none."""
    path = Path(folder)
    _check_is_run(path)
    trace = read_trace(path) if (path / TRACE).exists() else None
    options, plan = _read_plan(path)
    known = (_finished if is_finished(path) else _half_finished)(path, trace)
    missing = list(known.pop("remarks", ()))
    if trace is None:
        missing.append("There is no trace.npz: batteries, packets and update loss cannot be shown.")
    if not plan:
        missing.append("There is no plan.json: bound, control overhead and planning time are unknown.")
    return RunFolder(path=path, trace=trace, plan=plan, options=options, missing=tuple(missing), **known)


def is_run(path: Path) -> bool:
    """Whether a folder is a run's: finished, half-way, or about to be trained; others may hold stored results."""
    planned = (path / PLAN).exists() and (path / TRACE).exists()
    return planned or (path / MANIFEST).exists() or (path / CHECKPOINTS).exists()


def _check_is_run(path: Path) -> None:
    if not path.is_dir():
        actual = "a file" if path.exists() else "nothing there"
        raise TrainingError(path, "the folder of a run", f": {actual}")
    if is_run(path) or (path / TRACE).exists():
        return
    names = {entry.name for entry in path.iterdir()}
    TrainingError.when(
        PLAN in names, path, "this run has a plan but was not simulated. Run the same command again to resume it."
    )
    inside = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and is_run(entry))
    actual = "none of them" if names else "an empty folder"
    actual += f"; runs are inside it, such as {inside[0]}" if inside else ""
    raise TrainingError(path, "the folder of a run, with manifest.json or trace.json", f": {actual}")


def read_trace(path: Path) -> Trace:
    """The trace in a folder, after its sums."""
    read_result(path, "trace")
    return Trace.load(path / TRACE_ARRAYS)


def _finished(path: Path, trace: Trace | None) -> dict[str, Any]:
    provenance = read_manifest(path, [METRICS])["provenance"]
    try:
        scenario = _scenario(path / MANIFEST, str(provenance["scenario_toml"]))
        planner, seed, episode = str(provenance["planner"]), int(provenance["seed"]), int(provenance["episode"])
        expected_trace = str(provenance["trace"])
    except _MALFORMED as error:
        raise TrainingError(path / MANIFEST, "the manifest of a run", f": {in_one_line(error)}") from None
    topology = _topology(path, scenario, trace, episode, seed)
    if trace is not None and TrainJob(scenario, trace, episode, seed).trace_hash != expected_trace:
        raise TrainingError(f"{path / TRACE_ARRAYS}: this is not the trace that the run was trained under.")
    key = str(provenance.get("key"))
    metrics, accuracy, _ = read_metrics(path / METRICS)
    known = {"scenario": scenario, "topology": topology, "planner": planner, "seed": seed, "episode": episode}
    return known | {
        "finished": True,
        "curves": _curves(path / METRICS, metrics, accuracy, scenario),
        "provenance": provenance,
        "gap_ledger": read_ledger(path / LEDGER, key) if (path / LEDGER).exists() else None,
        "episodes": read_episodes(path, key),
    }


def _half_finished(path: Path, trace: Trace | None) -> dict[str, Any]:
    if trace is None:
        raise TrainingError(f"{path}: this run is not finished and has no trace.npz. Finish the run first.")
    scenario = _scenario(path / TRACE_ARRAYS, trace.scenario_toml)
    whole, damage = newest_whole([Checkpoints(path / CHECKPOINTS, None)])  # changes no file
    found = next(iter(whole), None)
    seed = int(found.identity.get("training seed", trace.seed)) if found else trace.seed
    topology = _topology(path, scenario, trace, 0, seed)
    curves = no_curves(scenario)
    if found is not None:
        metrics = dict(zip(COLUMNS, found.tensors.get("metrics 0", ()), strict=False))
        curves = _curves(path / CHECKPOINTS, metrics, found.tensors.get("accuracy 0"), scenario)
    evaluated = f"only the first {curves.done} of {scenario.slots} slots are evaluated"
    remarks = [f"The training is not finished (no manifest.json): {evaluated if curves.done else 'no curve yet'}."]
    remarks += [f"A checkpoint was passed over: {sentence}." for sentence in damage]
    known = {"scenario": scenario, "topology": topology, "planner": trace.planner, "seed": seed, "episode": 0}
    return known | {"finished": False, "curves": curves, "provenance": {}, "remarks": remarks}


def _read_plan(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Options that are not the planner's defaults, and facts of the plan; both empty where there is no such file.

    All options count where the planner is a user's own.
    """
    if not (path / PLAN).exists():
        return {}, {}
    content = read_result(path, "plan")
    options, planner = content["identity"].get("options", {}), content["identity"].get("planner")
    if not isinstance(options, Mapping):
        raise TrainingError(path / PLAN, "options of a planner", f"value {options!r:.40}")
    known = planner in planner_names()
    defaults = find_planner(planner).checked_options({}).model_dump(mode="json") if known else {}
    own = {name: value for name, value in options.items() if name not in defaults or defaults[name] != value}
    return own, content["facts"]


def _curves(source: Path, metrics: Mapping[str, Any], accuracy: Any, scenario: Scenario) -> Curves:
    """What a file says by evaluated slot, in arrays that fit together."""
    try:
        columns = {name: np.asarray(metrics[name]) for name in COLUMNS}
        rows, devices = len(columns["slot"]), scenario.network.devices
        by_device = np.asarray(accuracy) if np.size(accuracy) else np.empty((0, devices))
        if by_device.shape != (rows, devices) or any(column.shape != (rows,) for column in columns.values()):
            raise ValueError(f"expected {rows} rows of {devices} devices, actual shape {by_device.shape}")
        return Curves(columns, by_device)
    except _MALFORMED as error:
        raise TrainingError(source, "the metrics of a run", f": {in_one_line(error)}") from None


def _scenario(source: Path, toml: str) -> Scenario:
    try:
        return Scenario.from_toml(toml)
    except ScenarioError as error:
        raise TrainingError(source, "a scenario of this version", f": {in_one_line(error)}") from None


def _topology(path: Path, scenario: Scenario, trace: Trace | None, episode: int, seed: int) -> Topology:
    """The scenario's network, if the trace is of it."""
    shape = (scenario.slots, scenario.network.devices)
    if trace is not None and trace.scheduled.shape[1:] != shape:  # told before a network of any size is built
        expected = f"scheduled of shape (episode, {shape[0]}, {shape[1]})"
        raise TraceError(path / TRACE_ARRAYS, expected, f"{trace.scheduled.shape}")
    try:
        topology = build_topology(scenario)
        if trace is not None:
            check_trace(TrainJob(scenario, trace, episode, seed), topology)
    except (ScenarioError, TraceError) as error:
        raise TrainingError(f"{path}: {error}") from None
    return topology
