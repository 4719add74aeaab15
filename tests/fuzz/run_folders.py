"""Folders of runs, checkpoints, traces and stored results: whole ones, damaged in content, checksum or layout."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

import heliomesh as hm
from heliomesh.common.durable import file_sha256, json_sha256
from heliomesh.jobs.job import Job
from heliomesh.jobs.store import Store
from heliomesh.learning.evaluation import COLUMNS
from heliomesh.learning.run import Run
from heliomesh.learning.settings import TrainSettings
from heliomesh.simulation.trace import Trace
from heliomesh.studies.experiments import experiments
from tests.fuzz.mutation import Rng, spoiled_array, spoiled_arrays, spoiled_bytes, spoiled_text, spoiled_tree

_OVERRIDES = {
    "slots": 4,
    "network.devices": 3,
    "learning.dataset": "synthetic",
    "learning.batch": 2,
    "learning.local_steps": 1,
    "learning.model": "mlp",
}
SETTINGS = [part for path, new in _OVERRIDES.items() for part in ("--set", f"{path}={new}")]
_EVERY = ["--evaluate-every", "1", "--quiet", "--json"]


class _StopError(Exception):
    """Ends a training as a loss of power would."""


def prepare_originals(originals: Path) -> None:
    """A finished run, one that was stopped, a trace and stored results."""
    scenario = hm.Scenario.load("tiny").override(_OVERRIDES)
    for name, stop_after in (("finished", 99), ("stopped", 3)):
        try:
            hm.run(
                scenario,
                "uncoordinated",
                folder=originals / name,
                evaluate_every=1,
                checkpoint_every=1,
                observer=_stop_after(stop_after),
            )
        except _StopError:
            (originals / name / ".lock").unlink(missing_ok=True)
    hm.Trace.load(originals / "finished" / "trace.npz").save(originals / "trace.npz")
    _prepare_store(originals / "store" / "quick")


def _stop_after(slots: int) -> Callable[[int, Mapping[str, float]], None]:
    def observe(run: int, row: Mapping[str, float]) -> None:
        if row["slot"] >= slots:
            raise _StopError

    return observe


def stored_jobs() -> list[Job]:
    """The jobs whose results are stored: those of three lines."""
    return [job for line in experiments(["hops"])[0].lines(quick=True)[:3] for job in line.jobs(TrainSettings())]


def _prepare_store(folder: Path) -> None:
    """Packed runs of made-up curves, one run that is not packed, and the first one's plan and trace."""
    store, rng, jobs = Store(folder), np.random.default_rng(0), stored_jobs()
    for job in jobs:
        metrics = {name: rng.random(2) for name in COLUMNS} | {"slot": np.array([10.0, 20.0])}
        facts = {"cost": float(rng.random()), "participation": 0.5, "delivery": 0.25, "planner": job.planner}
        origin = {"key": job.key(), "identity": job.identity(), "name": "ring10", "device": "cpu", **facts}
        by_device = rng.random((2, job.scenario.network.devices))
        store.put_run(job, Run(metrics, by_device, by_device, torch.zeros(1, 1), origin))
    store.pack("hops", jobs[:-1])
    cheap = Job(jobs[0].scenario.override({"slots": 3}), "uncoordinated")  # only its files matter
    store.put_plan(jobs[0], store.plan(cheap))
    store.put_trace(jobs[0], store.trace(cheap))
    store.means([replace(cheap, episode=1)])


def run_folder(rng: Rng, originals: Path, place: Path) -> list[str]:
    """A run's folder with damage, under every command that reads one."""
    folder = place / "run"
    shutil.copytree(originals / ("finished" if rng.random() < 0.6 else "stopped"), folder)
    _damage_folder(rng, folder)
    commands = (
        ["store", "list", str(folder)],
        ["store", "show", str(folder), "--json"],
        ["store", "verify", str(folder)],
        ["report", str(folder), "--out", str(place / "page.html")],
        ["run", "tiny", "uncoordinated", "--out", str(folder), *SETTINGS, *_EVERY],
    )
    return commands[rng.integers(len(commands))]


def checkpoint(rng: Rng, originals: Path, place: Path) -> list[str]:
    """A stopped run with damaged checkpoints; half of the damage has right checksums."""
    folder = place / "run"
    shutil.copytree(originals / "stopped", folder)
    files = sorted((folder / "checkpoints").iterdir())
    for _ in range(rng.integers(1, 3)):
        _damage_checkpoint(rng, files[rng.integers(len(files))])
    if rng.random() < 0.3:
        return ["store", "show", str(folder), "--json"]
    return ["run", "tiny", "uncoordinated", "--out", str(folder), *SETTINGS, *_EVERY]


def _damage_checkpoint(rng: Rng, file: Path) -> None:
    if rng.random() < 0.4 or not file.exists():
        _damage_file(rng, file)
        return
    tensors, facts = file.with_suffix(".safetensors"), file.with_suffix(".json")
    try:
        content = json.loads(facts.read_text(encoding="utf-8"))
        if file == tensors:
            save_file(_plain(spoiled_arrays(rng, load_file(tensors))), tensors)
            content["tensors_sha256"] = file_sha256(tensors)
        else:
            content = spoiled_tree(rng, content, int(rng.integers(1, 3)))
        write_sealed(facts, content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, SafetensorError):  # damaged by an earlier round
        _damage_file(rng, facts)


def write_sealed(file: Path, content: Any) -> None:
    """Write JSON under the seal that belongs to it: its damage must be noticed by what it says."""
    if isinstance(content, dict):
        content.pop("seal", None)
        content["seal"] = json_sha256(content)
    file.write_text(json.dumps(content), encoding="utf-8")


def _plain(arrays: dict[str, Any]) -> dict[str, Any]:
    """Arrays that safetensors can hold."""
    return {name: np.ascontiguousarray(array) for name, array in arrays.items() if array.dtype.kind in "biuf"}


def trace_file(rng: Rng, originals: Path, place: Path) -> list[str]:
    """A trace with other arrays or facts, or damaged bytes, given to the trainer."""
    file = place / "trace.npz"
    if rng.random() < 0.3:
        file.write_bytes(spoiled_bytes(rng, (originals / "trace.npz").read_bytes()))
    else:
        with np.load(originals / "trace.npz") as stored:
            arrays = dict(stored)
        if rng.random() < 0.4:
            meta = spoiled_tree(rng, json.loads(str(arrays["meta"])))
            arrays["meta"] = np.array(json.dumps(meta))
        else:
            arrays = spoiled_arrays(rng, arrays)
        np.savez(file, **arrays)
    return ["run", "tiny", "--trace", str(file), "--out", str(place / "run"), *SETTINGS, *_EVERY]


def stored_result(rng: Rng, originals: Path, place: Path) -> list[str] | Callable[[], object]:
    """Plans, traces, costs, runs and packs of experiments as `reproduce` keeps them."""
    folder = place / "store"
    shutil.copytree(originals / "store", folder)
    store, (job, *_, last) = Store(folder / "quick"), stored_jobs()
    if rng.random() < 0.5:
        files = [path for path in sorted((folder / "quick").rglob("*")) if path.is_file()]
        _damage_file(rng, files[rng.integers(len(files))])
        works: tuple[list[str] | Callable[[], object], ...] = (
            lambda: store.trace(job),
            lambda: store.plan(job),
            lambda: store.run(last),
            lambda: store.means([replace(job, episode=1)]),
            ["store", "verify", str(folder)],
            ["store", "list", str(folder)],
        )
        return works[rng.integers(len(works))]
    files = sorted((folder / "quick" / "packs").iterdir())
    _damage_result(rng, files[rng.integers(len(files))])
    return ["reproduce", "hops", "--quick", "--only-print", "--quiet", "--out", str(folder)]


def _damage_result(rng: Rng, file: Path) -> None:
    """Damage with a right checksum."""
    table, facts = file.with_suffix(".parquet"), file.with_suffix(".json")
    content = json.loads(facts.read_text(encoding="utf-8"))
    if file == table:
        curves = pd.read_parquet(table)
        column = curves.columns[rng.integers(len(curves.columns))]
        match rng.integers(4):
            case 0:
                curves = curves.drop(columns=column)
            case 1:
                curves = curves.iloc[: rng.integers(len(curves))]
            case 2:
                curves[column] = "text"
            case _:
                curves[column] = float(rng.choice([np.nan, np.inf, -1.0, 1e308]))
        curves.to_parquet(table, index=False)
        content["sha256"] = file_sha256(table)
    else:
        content = spoiled_tree(rng, content, int(rng.integers(1, 3)))
    write_sealed(facts, content)


def _damage_folder(rng: Rng, folder: Path) -> None:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    for _ in range(rng.integers(1, 3)):
        _damage_file(rng, files[rng.integers(len(files))])
    manifest, metrics = folder / "manifest.json", folder / "metrics.parquet"
    if rng.random() < 0.5 and manifest.is_file() and metrics.is_file():
        try:  # let the damage pass the checksum
            content = json.loads(manifest.read_text(encoding="utf-8"))
            content["sha256"] = {name: file_sha256(folder / name) for name in content["sha256"]}
            write_sealed(manifest, content)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return


def _damage_file(rng: Rng, file: Path) -> None:
    """Change, empty, remove or replace one file."""
    if not file.is_file():
        return
    action = rng.integers(10)
    if action == 0:
        file.unlink()
    elif action == 1:
        file.unlink()
        file.mkdir()
    elif action == 2:
        file.write_bytes(b"")
    elif action == 3:
        file.unlink()
        file.symlink_to(file.name)  # a loop
    elif file.suffix == ".json" and action < 8:
        try:
            spoiled = spoiled_tree(rng, json.loads(file.read_text(encoding="utf-8")), 2)
            if action < 6:
                write_sealed(file, spoiled)
            else:
                file.write_text(json.dumps(spoiled), encoding="utf-8")
        except ValueError:
            file.write_bytes(spoiled_bytes(rng, file.read_bytes()))
    elif file.suffix in (".json", ".toml"):
        file.write_bytes(spoiled_text(rng, file.read_text(encoding="utf-8", errors="replace")))
    elif file.suffix == ".npz" and action < 7:
        _damage_arrays(rng, file)
    else:
        file.write_bytes(spoiled_bytes(rng, file.read_bytes()))


def _damage_arrays(rng: Rng, file: Path) -> None:
    try:
        trace = Trace.load(file)
    except hm.TraceError:
        return
    with np.load(file) as stored:
        arrays = dict(stored)
    name = ["scheduled", "power_watt", "delivered", "edge_sender", "battery_joule"][rng.integers(5)]
    arrays[name] = spoiled_array(rng, getattr(trace, name))
    np.savez(file, **arrays)
