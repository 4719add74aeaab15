"""The commands that are disturbed: how to run each in a folder, and what of its outcome must not change."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

import heliomesh as hm
from heliomesh.jobs.store import Store
from heliomesh.learning.settings import TrainSettings
from tests.faults.forked import Job, command
from tests.faults.small_experiment import SMALL

_TRAINING = ("--strategy", "loop", "--checkpoint-second", 0, "--evaluate-every", 4, "--quiet")
_SLOTS = ("--set", "slots=6")


@dataclass(frozen=True)
class Disturbed:
    """A command, what it works on, and what counts of what it leaves."""

    name: str
    job: Callable[[Path, Path], Job]  # (inputs, folder of its own)
    essence: Callable[[Path], str]
    needs: str = ""  # the name of the job that makes its inputs


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def trace_essence(folder: Path) -> str:
    """All arrays of a trace."""
    trace = hm.Trace.load(folder / "trace.npz")
    arrays = [value for value in vars(trace).values() if isinstance(value, np.ndarray)]
    return _digest(trace.scenario_toml.encode(), trace.planner.encode(), *(array.tobytes() for array in arrays))


def run_essence(folder: Path) -> str:
    """Metrics, accuracies, losses and weights of a finished run, and its trace where it has one."""
    run = hm.Run.load(folder)
    trace = trace_essence(folder) if (folder / "trace.npz").exists() else ""
    metrics = [column.tobytes() for column in run.metrics.values()]
    return _digest(
        trace.encode(), *metrics, run.accuracy.tobytes(), run.loss.tobytes(), run.weights.numpy().tobytes()
    )


def files_essence(folder: Path) -> str:
    """All files, to the byte."""
    return _digest(*(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()))


def size_essence(folder: Path) -> str:
    """The picture to the byte, and what all costs say; how long a plan took differs."""
    costs = [json.loads(path.read_text()) for path in sorted((folder / "store" / "costs").rglob("*.json"))]
    return _digest((folder / "size.svg").read_bytes(), json.dumps(costs).encode())


def reproduce(folder: Path) -> None:
    """A job: `heliomesh reproduce` with an experiment of our own."""
    from heliomesh.studies import experiments

    experiments.EXPERIMENTS = (SMALL,)
    command("reproduce", "small", "--out", folder, "--strategy", "loop", "--quiet")


def results_essence(folder: Path) -> str:
    """Curves and costs of all lines, and the table."""
    store, training = Store(folder), TrainSettings(strategy="loop")
    jobs = [job for line in SMALL.lines(quick=False) for job in line.jobs(training)]
    assert all(store.packs.key_of(job.identity()) == job.key() for job in jobs)
    runs = store.runs(jobs)
    curves = [column.tobytes() for run in runs for column in run.metrics.values()]
    costs = str([run.provenance["cost"] for run in runs]).encode()
    return _digest((folder / "small.md").read_bytes(), *curves, costs)


def _export(inputs: Path, folder: Path) -> Job:
    return partial(command, "export", "tiny", "uncoordinated", "--format", "c", "--out", folder, "--quiet")


def _simulate(inputs: Path, folder: Path) -> Job:
    out = folder / "trace.npz"
    return partial(command, "simulate", "tiny", "uncoordinated", "--episodes", 2, *_SLOTS, "--out", out, "--quiet")


def _train(inputs: Path, folder: Path) -> Job:
    trace = inputs / "trace.npz"
    return partial(command, "run", "tiny", "--trace", trace, "--out", folder, *_SLOTS, *_TRAINING)


def _run(inputs: Path, folder: Path) -> Job:
    return partial(command, "run", "tiny", "uncoordinated", "--out", folder, *_SLOTS, *_TRAINING)


def _size(inputs: Path, folder: Path) -> Job:
    axes = ("--capacity", "2,3", "--panel", "1,2", "--planner", "uncoordinated", "--target-loss", 1)
    places = ("--store", folder / "store", "--out", folder / "size.svg")
    return partial(command, "size", "tiny", *axes, "--episodes", 8, *_SLOTS, *places, "--quiet")


def _report(inputs: Path, folder: Path) -> Job:
    return partial(command, "report", inputs, "--out", folder / "report.html", "--quiet")


JOBS = {
    one.name: one
    for one in (
        Disturbed("export", _export, files_essence),
        Disturbed("simulate", _simulate, trace_essence),
        Disturbed("train", _train, run_essence, needs="simulate"),
        Disturbed("run", _run, run_essence),
        Disturbed("reproduce", lambda inputs, folder: partial(reproduce, folder), results_essence),
        Disturbed("size", _size, size_essence),
        Disturbed("report", _report, files_essence, needs="run"),
    )
}
