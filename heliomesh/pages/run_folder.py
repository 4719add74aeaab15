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
from heliomesh.jobs.result_files import PLAN, TRACE, TRACE_ARRAYS, read_result
from heliomesh.learning.checkpoint import Checkpoint, Checkpoints, newest_whole
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
    trace = _read_trace(path)
    wanted, plan = _read_plan(path)
    missing = []
    if trace is None:
        missing.append("There is no trace.npz: batteries, packets and update loss cannot be shown.")
    if not plan:
        missing.append("There is no plan.json: bound, control overhead and planning time are unknown.")
    known: dict[str, Any] = {"path": path, "trace": trace, "plan": plan, "missing": tuple(missing)}
    known["options"] = _chosen_options(path, wanted)
    if is_finished(path):
        return _finished(path, trace, known)
    if trace is None:
        raise TrainingError(f"{path}: this run is not finished and has no trace.npz. Finish the run first.")
    return _half_finished(path, trace, known)


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


def _read_trace(path: Path) -> Trace | None:
    if not (path / TRACE).exists():
        return None
    read_result(path, "trace")
    return Trace.load(path / TRACE_ARRAYS)


def _finished(path: Path, trace: Trace | None, known: Mapping[str, Any]) -> RunFolder:
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
    return RunFolder(
        **known,
        scenario=scenario,
        topology=topology,
        planner=planner,
        seed=seed,
        episode=episode,
        finished=True,
        curves=_read_curves(path / METRICS, scenario),
        provenance=provenance,
        gap_ledger=read_ledger(path / LEDGER, key) if (path / LEDGER).exists() else None,
        episodes=read_episodes(path, key),
    )


def _half_finished(path: Path, trace: Trace, known: Mapping[str, Any]) -> RunFolder:
    scenario = _scenario(path / TRACE_ARRAYS, trace.scenario_toml)
    whole, damage = newest_whole([Checkpoints(path / CHECKPOINTS, None)])  # changes no file
    found = next(iter(whole), None)
    seed = int(found.identity.get("training seed", trace.seed)) if found else trace.seed
    topology = _topology(path, scenario, trace, 0, seed)
    curves = _curves(path / CHECKPOINTS, found, scenario)
    evaluated = f"only the first {curves.done} of {scenario.slots} slots are evaluated"
    remarks = [f"The training is not finished (no manifest.json): {evaluated if curves.done else 'no curve yet'}."]
    remarks += [f"A checkpoint was passed over: {sentence}." for sentence in damage]
    return RunFolder(
        **{**known, "missing": (*remarks, *known["missing"])},
        scenario=scenario,
        topology=topology,
        planner=trace.planner,
        seed=seed,
        episode=0,
        finished=False,
        curves=curves,
        provenance={},
    )


def _read_plan(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What was asked for, and the facts of the plan; both empty where there is no such file."""
    if not (path / PLAN).exists():
        return {}, {}
    content = read_result(path, "plan")
    return content["identity"], content["facts"]


def _chosen_options(path: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The planner's options that are not its defaults; all of them where the planner is a user's own."""
    options, planner = wanted.get("options", {}), wanted.get("planner")
    if not isinstance(options, Mapping):
        raise TrainingError(path / PLAN, "options of a planner", f"value {options!r:.40}")
    known = planner in planner_names()
    defaults = find_planner(planner).checked_options({}).model_dump(mode="json") if known else {}
    return {name: value for name, value in options.items() if name not in defaults or defaults[name] != value}


def _read_curves(path: Path, scenario: Scenario) -> Curves:
    metrics, accuracy, _ = read_metrics(path)
    try:
        return _checked({name: metrics[name] for name in COLUMNS}, accuracy, scenario)
    except _MALFORMED as error:
        raise TrainingError(path, "the metrics of a run", f": {in_one_line(error)}") from None


def _checked(metrics: dict[str, Floats], accuracy: Floats, scenario: Scenario) -> Curves:
    rows, devices = len(metrics["slot"]), scenario.network.devices
    accuracy = accuracy.reshape(-1, devices) if not accuracy.size else accuracy
    if accuracy.shape != (rows, devices) or any(column.shape != (rows,) for column in metrics.values()):
        raise ValueError(f"expected {rows} rows of {devices} devices, actual shape {accuracy.shape}")
    return Curves(metrics, accuracy)


def _curves(folder: Path, found: Checkpoint | None, scenario: Scenario) -> Curves:
    """What a checkpoint knows so far."""
    if found is None:
        return no_curves(scenario)
    try:
        metrics = dict(zip(COLUMNS, found.tensors["metrics 0"].numpy(), strict=True))
        return _checked(metrics, found.tensors["accuracy 0"].numpy(), scenario)
    except _MALFORMED as error:
        raise TrainingError(folder, "the curves of a run", f": {in_one_line(error)}") from None


def _scenario(source: Path, toml: str) -> Scenario:
    try:
        return Scenario.from_toml(toml)
    except ScenarioError as error:
        raise TrainingError(source, "a scenario of this version", f": {in_one_line(error)}") from None


def _topology(path: Path, scenario: Scenario, trace: Trace | None, episode: int, seed: int) -> Topology:
    """The scenario's network, if the trace is of it."""
    if trace is not None:
        _check_arrays(path / TRACE_ARRAYS, trace, scenario)  # before a network of any size is built
    try:
        topology = build_topology(scenario)
        if trace is not None:
            check_trace(TrainJob(scenario, trace, episode, seed), topology)
    except (ScenarioError, TraceError) as error:
        raise TrainingError(f"{path}: {error}") from None
    return topology


def _check_arrays(path: Path, trace: Trace, scenario: Scenario) -> None:
    """Refuse a trace whose arrays do not fit together or hold what is no number."""
    sizes = {"slot": scenario.slots, "moment": scenario.slots + 1, "device": scenario.network.devices}
    sizes |= {"edge": len(np.atleast_1d(trace.edge_receiver)), "site": trace.channel_level.shape[-1]}
    for column in trace.recorded:
        name, array = column.name, getattr(trace, column.name)
        shape = column.shape(sizes | {"episode": len(array)})[1:]
        if array.ndim != 3 or array.shape[1:] != shape or not len(array):
            raise TraceError(path, f"{name} of shape (episode, {shape[0]}, {shape[1]})", f"{array.shape}")
        TraceError.when(not np.isfinite(array).all(), path, f"finite numbers in {name}", ": NaN or infinity")
