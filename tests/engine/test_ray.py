"""The Ray engine: what it says, what it binds to, and that its results are those of the local engine."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from heliomesh.cli import main
from heliomesh.commands import options
from heliomesh.jobs.job import Job
from heliomesh.jobs.store import Store
from heliomesh.learning.trainer import Execution
from heliomesh.model.problem import build
from heliomesh.pages.tables import figure_text
from heliomesh.planning import make_plan
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.scenario import Scenario
from heliomesh.studies import reproduce as study
from tests.faults.small_experiment import SMALL

if find_spec("ray") is None:
    pytest.skip("Ray is not installed (pip install heliomesh[ray])", allow_module_level=True)

from heliomesh.engine import ray as engine  # isort: skip  # it sets what Ray reads when it is imported
from ray.cluster_utils import Cluster

LISTENING = "0A"  # state of a socket in /proc/net/tcp
LOOPBACK = "127.0.0.1"


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    engine.start()
    yield
    engine.stop()


def test_map_keeps_the_order_and_raises_the_functions_own_error(local_ray: None) -> None:
    assert list(engine.parallel_map(abs, range(-9, 0))) == list(range(9, 0, -1))
    assert list(engine.parallel_map(abs, [])) == []
    with pytest.raises(ValueError, match="invalid literal"):
        list(engine.parallel_map(int, ["1", "x"]))


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="no /proc/net/tcp to read")
def test_a_local_ray_listens_on_loopback_only(local_ray: None) -> None:
    list(engine.parallel_map(abs, range(4)))  # workers exist
    bound = _listening(_family(os.getpid()))
    assert len(bound) >= 4, bound  # the store of states, the node, workers and the driver
    assert all(address.is_loopback for address in bound), bound


def test_a_lost_worker_is_replaced(local_ray: None, tmp_path: Path) -> None:
    def die_once(item: int) -> int:
        mark = tmp_path / str(item)
        if item == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return -item

    assert list(engine.parallel_map(die_once, range(4))) == [0, -1, -2, -3]
    assert (tmp_path / "1").exists()


def test_a_sweep_is_equal_and_not_repeated(local_ray: None, tmp_path: Path) -> None:
    jobs, spread = [_job(number, slots=8) for number in range(4)], Execution(parallel_map=engine.parallel_map)
    ours, theirs = Store(tmp_path / "local"), Store(tmp_path / "ray")
    ours.runs(jobs)
    theirs.runs(jobs, spread)
    written = [(path, path.stat().st_mtime_ns) for path in sorted((tmp_path / "ray").rglob("*.*"))]
    for job in jobs:
        _assert_equal(ours, theirs, job)
    theirs.runs(jobs, spread)
    assert written == [(path, path.stat().st_mtime_ns) for path in sorted((tmp_path / "ray").rglob("*.*"))]


def test_a_figure_is_equal(local_ray: None, tmp_path: Path) -> None:
    (ours,) = study.reproduce([SMALL], tmp_path / "local")
    (theirs,) = study.reproduce(
        [SMALL], tmp_path / "ray", parallel_map=engine.parallel_map, train_map=engine.parallel_map, runs_at_once=1
    )
    assert len(ours.absent) == 0
    assert len(ours.results) == len(theirs.results) == 2
    for mine, other in zip(ours.results, theirs.results, strict=True):
        for run, same in zip(mine.runs, other.runs, strict=True):
            pd.testing.assert_frame_equal(pd.DataFrame(run.metrics), pd.DataFrame(same.metrics), check_exact=True)
    assert figure_text(ours) == figure_text(theirs)


@pytest.mark.parametrize(
    ("planner", "overrides"),
    [("receiver", {"network.topology": "star"}), ("receiver", {"link.half_duplex": True}), ("prices", {})],
)
def test_plans_are_equal(local_ray: None, planner: str, overrides: dict[str, object]) -> None:
    problem = build(Scenario.load("ring10").override({"slots": 12, "network.devices": 5, **overrides}))
    ours = make_plan(problem, planner, {}, bound=False)
    theirs = make_plan(problem, planner, {}, bound=False, parallel_map=engine.parallel_map)
    assert ours.lower_bound == theirs.lower_bound
    for name in ("tables", "futures"):
        mine, other = getattr(ours.policy, name, None), getattr(theirs.policy, name, None)
        if isinstance(mine, tuple):
            assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))
        elif mine is not None:
            assert torch.equal(mine, other)


def test_a_command_leaves_no_session_behind_and_no_stack() -> None:
    program = """
import os, signal
from heliomesh import cli
from heliomesh.commands import plan
from heliomesh.engine import ray
def ended(*arguments, **options):
    assert len(ray._sessions) == 1
    assert ray._sessions[0].is_dir()
    os.kill(os.getpid(), signal.SIGTERM)
plan.make_plan = ended
cli.main()
"""
    words = ["plan", "tiny", "receiver", "--engine", "ray"]
    with tempfile.TemporaryDirectory() as folder:  # a short name: sockets are in it
        environment = os.environ | {"RAY_TMPDIR": folder}
        command = [sys.executable, "-c", program, *words]
        ended = subprocess.run(command, capture_output=True, text=True, env=environment)  # noqa: S603
        assert (ended.returncode, ended.stdout, ended.stderr) == (128 + signal.SIGTERM, "", "")
        assert list(Path(folder).rglob("session_*")) == []


def test_only_the_own_session_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other, latest = tmp_path / "session_1", tmp_path / "session_2", tmp_path / "session_latest"
    monkeypatch.setattr(engine, "_sessions", [own])
    monkeypatch.setattr("ray.shutdown", lambda: None)
    for folder in (own, other):
        folder.mkdir()
    latest.symlink_to(other)
    engine.stop()
    assert not own.exists()
    assert other.is_dir()
    assert latest.is_symlink()


def test_the_command_ends_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "--quick", "--out", str(tmp_path), "--engine", "ray", "--address", "nonsense"]
    monkeypatch.setattr(sys, "argv", ["heliomesh", *words])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    told = capfd.readouterr().err  # what Ray's own libraries write is in it
    assert told.startswith("error: --address: expected host:port of a running Ray cluster")
    assert told.count("\n") == 1


def test_absent_ray_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    with pytest.raises(ScenarioError, match=r"pip install heliomesh\[ray\]"):
        options.SpreadOptions("ray").maps()


def test_an_address_needs_ray() -> None:
    with pytest.raises(ScenarioError, match="--engine ray"):
        options.SpreadOptions("local", "127.0.0.1:6379").maps()


@pytest.mark.parametrize(
    "address", ["nonsense", "127.0.0.1:x", "127.0.0.1:1", "127.0.0.1:99999", "ray://127.0.0.1:1"]
)
def test_a_wrong_address_is_said_at_once(address: str) -> None:
    started = time.monotonic()
    with pytest.raises(ScenarioError, match="host:port of a running Ray cluster") as caught:
        options.SpreadOptions("ray", address).maps()
    assert "\n" not in str(caught.value)
    assert time.monotonic() - started < 15


@pytest.mark.slow
def test_something_else_at_the_address_is_said_within_seconds() -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        started = time.monotonic()
        with pytest.raises(ScenarioError, match="does not answer"):
            engine.start(f"{LOOPBACK}:{other.getsockname()[1]}")
        assert time.monotonic() - started < 15


@pytest.mark.slow
def test_a_sweep_survives_the_loss_of_a_node(tmp_path: Path) -> None:
    engine.stop()
    jobs = [_job(number, slots=40) for number in range(24)]
    ours, theirs = Store(tmp_path / "local"), Store(tmp_path / "ray")
    ours.runs(jobs)
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "node_ip_address": LOOPBACK, "include_dashboard": False}
    )
    nodes = [cluster.add_node(num_cpus=1, node_ip_address=LOOPBACK) for _ in range(2)]
    killed = []

    def track(items, description, total):  # type: ignore[no-untyped-def]
        for done, item in enumerate(items):
            if description == "train" and done == total // 3:
                cluster.remove_node(nodes[0], allow_graceful=False)
                killed.append(done)
            yield item

    try:
        engine.start(cluster.address)
        theirs.runs(jobs, Execution(track=track, parallel_map=engine.parallel_map, runs_at_once=1))
    finally:
        engine.stop()
        cluster.shutdown()
    assert killed == [8 * 40]  # slots of eight runs
    for job in jobs:
        _assert_equal(ours, theirs, job)


def _job(number: int, slots: int) -> Job:
    planners = ("uncoordinated", "myopic", "prices", "receiver")
    scenario = Scenario.load("ring10").override(
        {
            "slots": slots,
            "network.devices": 4 + number // len(planners),
            "learning.dataset": "synthetic",
            "learning.model": "mlp",
        }
    )
    return Job(scenario, planners[number % len(planners)])


def _assert_equal(ours: Store, theirs: Store, job: Job) -> None:
    a, b = ours.trace(job), theirs.trace(job)
    for name in ("scheduled", "power_watt", "battery_joule", "delivered", "update_loss"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    mine, other = ours.run(job), theirs.run(job)
    assert list(mine.metrics) == list(other.metrics)
    for name, column in mine.metrics.items():
        assert np.array_equal(column, other.metrics[name], equal_nan=True), name
    assert torch.equal(mine.weights, other.weights)
    assert mine.provenance["cost"] == other.provenance["cost"]


def _family(root: int) -> set[int]:
    """A process and all it started."""
    parent = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent[int(stat.parent.name)] = int(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    family, before = {root}, 0
    while len(family) > before:
        before = len(family)
        family |= {child for child, own in parent.items() if own in family}
    return family


def _listening(processes: set[int]) -> list[IPv4Address | IPv6Address]:
    """Addresses on which processes listen for connections."""
    own = set()
    for process in processes:
        for handle in Path(f"/proc/{process}/fd").glob("*"):
            try:
                own.add(str(handle.readlink()))
            except OSError:  # closed meanwhile
                continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="utf-8").splitlines()[1:]:
            cells = line.split()
            if cells[3] == LISTENING and f"socket:[{cells[9]}]" in own:
                found.append(_address(cells[1].partition(":")[0]))
    return found


def _address(text: str) -> IPv4Address | IPv6Address:
    """An address of the kernel's table: words of four bytes in the machine's order."""
    words = [bytes.fromhex(text[start : start + 8]) for start in range(0, len(text), 8)]
    address = ip_address(b"".join(word[::-1] if sys.byteorder == "little" else word for word in words))
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
