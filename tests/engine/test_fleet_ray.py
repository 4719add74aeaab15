"""The fleet over Ray: actors do what objects in one process do, and a killed actor is a dead device."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heliomesh.commands import options as command_options
from heliomesh.field.fleet.clock import FleetRun, run_fleet
from heliomesh.field.fleet.scheme import scheme_of
from heliomesh.learning.run import Run
from heliomesh.model.problem import build
from heliomesh.pages.run_folder import read_run
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.trace import Trace
from tests.conftest import Call
from tests.engine.in_process import InProcess
from tests.engine.test_fleet import SMALL, job_of

if find_spec("ray") is None:
    pytest.skip("Ray is not installed (pip install heliomesh[ray])", allow_module_level=True)

from heliomesh.engine import ray as engine  # isort: skip  # it sets what Ray reads when it is imported
from heliomesh.field.fleet.ray_post import RayPost

PROGRAM = "from heliomesh.cli import main; main()"


@pytest.fixture
def local_ray() -> Iterator[None]:
    engine.start()
    yield
    engine.stop()


def test_actors_do_what_objects_do_and_a_killed_one_is_dead(local_ray: None) -> None:
    chain = {"network.topology": "edges", "network.devices": 4, "network.edges": [[0, 1], [1, 2], [2, 3]]}
    problem = build(Scenario.load("tiny").override({**SMALL, **chain}))
    scheme = scheme_of(problem, "decentralized", {"rounds": 1})
    ours, theirs = (run_fleet(scheme, post, job_of(scheme, 2), deaths={3: 4}) for post in (InProcess, RayPost))
    assert ours.died == theirs.died == {3: 4}
    assert ours.logbooks == theirs.logbooks
    assert ours.trace.scheduled[0, 4:, :3].any()
    _assert_same(ours, theirs)


def test_absent_ray_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Call) -> None:
    monkeypatch.setattr(command_options, "find_spec", lambda name: None)
    code, _, said = call("device", "fleet", "tiny", "--planner", "uncoordinated", "--out", tmp_path / "run")
    assert code == 2
    assert "pip install heliomesh[ray]" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--planner", "myopic"],
            "error: planner: expected one of bids, decentralized, fixed_fraction, skiptrain",
        ),
        (["--kill", "5@0"], "error: --kill: expected device@slot with a device below 5 and a slot below 12"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    call: Call,
) -> None:
    code, _, said = call("device", "fleet", "tiny", *words, "--out", tmp_path / "run")
    assert code == 2
    assert said.startswith(sentence)
    assert said.count("\n") == 1


@pytest.mark.slow
def test_twenty_devices_do_what_run_does(tmp_path: Path) -> None:
    ring = ["--set", "network.devices=20", "--set", "slots=6", "--evaluate-every", "3", "--json"]
    fleet, alone = tmp_path / "fleet", tmp_path / "run"
    ended = _fleet("ring10", *ring, "--planner", "decentralized", "--finite", "--out", str(fleet))
    assert ended.returncode == 0, ended.stderr
    words = ["run", "ring10", "decentralized", *ring, "-o", "share_tables=false", "--out", str(alone)]
    assert subprocess.run([sys.executable, "-c", PROGRAM, *words], env=_one_thread()).returncode == 0  # noqa: S603
    _assert_same_folders(fleet, alone)
    facts = json.loads(ended.stdout)
    assert facts["planning bytes, counted"] == facts["planning bytes, predicted"] > 0
    assert facts["coordination bytes per slot, counted"] == facts["coordination bytes per slot, predicted"] > 0
    assert read_run(fleet).finished
    again = _fleet("ring10", *ring, "--finite", "--out", str(fleet))
    assert again.returncode == 2
    assert "expected an empty folder" in again.stderr


@pytest.mark.slow
def test_twenty_bidders_do_what_run_does(tmp_path: Path) -> None:
    words = ["--set", "network.devices=20", "--set", "slots=20", "--set", "energy.control_loss=0.2", "--seed", "3"]
    words += ["--evaluate-every", "10", "--json", "-o", "practice=2"]
    fleet, alone = tmp_path / "fleet", tmp_path / "run"
    ended = _fleet("ring10", *words, "--out", str(fleet))
    assert ended.returncode == 0, ended.stderr
    ran = [sys.executable, "-c", PROGRAM, "run", "ring10", "bids", *words, "-o", "endless=true", "--out", str(alone)]
    assert subprocess.run(ran, env=_one_thread()).returncode == 0  # noqa: S603
    _assert_same_folders(fleet, alone)
    facts = json.loads(ended.stdout)
    assert facts["coordination bytes per slot, counted"] == facts["coordination bytes per slot, predicted"] > 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="no /proc to find processes in")
def test_an_actor_that_is_killed_from_outside_is_a_dead_device(local_ray: None) -> None:
    problem = build(Scenario.load("tiny").override({**SMALL, "network.devices": 4}))
    killed: list[int] = []

    class Struck(RayPost):
        def call(self, name: str, arguments: Any) -> dict[int, Any]:
            if name == "open" and arguments[0][0] == 2 and not killed:
                killed.extend(pid for pid in _descendants(os.getpid()) if "ray::DeviceActor" in _name(pid))
                os.kill(killed[0], signal.SIGKILL)
            return super().call(name, arguments)

    scheme = scheme_of(problem, "uncoordinated", {})
    found = run_fleet(scheme, Struck, job_of(scheme))
    (device, slot) = next(iter(found.died.items()))
    assert len(found.died) == 1
    assert slot in (2, 3)  # the process may live a moment longer
    assert not found.trace.scheduled[0, slot:, device].any()
    alive = [other for other in range(4) if other != device]
    assert found.trace.scheduled[0, slot:, alive].any()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="no /proc to find processes in")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    words = [
        "device",
        "fleet",
        "tiny",
        "--set",
        "slots=4000",
        "--planner",
        "uncoordinated",
        "--out",
        str(tmp_path / "run"),
    ]
    running = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", PROGRAM, *words],
        env=_one_thread(),
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    assert running.stderr is not None
    assert running.stderr.readline().startswith("slot 10")
    family = {pid: _name(pid) for pid in _descendants(running.pid)}
    assert any("ray::DeviceActor" in name for name in family.values())
    running.send_signal(number)
    assert running.wait(60) == 128 + number
    assert running.stderr.read().splitlines()[-1] == "stopped; of an unfinished fleet nothing is kept"
    running.stderr.close()
    deadline = time.monotonic() + 30
    while any(_name(pid) for pid in family) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [name for pid, name in family.items() if _name(pid)]
    assert not (tmp_path / "run").exists()


def _assert_same(one: FleetRun, other: FleetRun) -> None:
    _assert_same_traces(one.trace, other.trace)
    _assert_same_runs(one.run, other.run)


def _assert_same_folders(one: Path, other: Path) -> None:
    _assert_same_traces(Trace.load(one / "trace.npz"), Trace.load(other / "trace.npz"))
    _assert_same_runs(Run.load(one), Run.load(other))


def _assert_same_traces(one: Trace, other: Trace) -> None:
    for field in fields(Trace):
        assert np.array_equal(getattr(one, field.name), getattr(other, field.name)), field.name


def _assert_same_runs(one: Run, other: Run) -> None:
    for name, column in one.metrics.items():
        assert np.array_equal(column, other.metrics[name], equal_nan=True), name
    assert torch.equal(one.weights, other.weights)
    assert np.array_equal(one.accuracy, other.accuracy)
    assert one.provenance["trace"] == other.provenance["trace"]


def _fleet(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, "device", "fleet", *words]
    return subprocess.run(command, capture_output=True, text=True, env=_one_thread(), encoding="utf-8")  # noqa: S603


def _one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _descendants(root: int) -> set[int]:
    """Processes that a process has started, themselves or through others."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has just ended
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
                )
    found, fresh = set[int](), {root}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def _name(pid: int) -> str:
    """What a process is called; nothing once it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    return ""
