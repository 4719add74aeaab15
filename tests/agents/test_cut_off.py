"""Agents that are cut off without a farewell: a stopped process, and a cable that is pulled out."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from heliomesh.simulation.trace import simulate
from tests.agents.network import deployed, final_weights, planned, running, share_of_equal_slots, small

from heliomesh.field.agents.folder import AgentFolder, ClockSettings  # isort: skip
from tests.agents.lines import read_journal
from tests.agents.namespaces import ENTER, HIDE_RUN, address
from tests.agents.test_agents import trained_alone

_ROOT = Path(__file__).parents[2]


def _namespaces_allowed() -> bool:
    if not (shutil.which("unshare") and shutil.which("ip")):
        return False
    tried = subprocess.run([*ENTER, *HIDE_RUN], capture_output=True, check=False)  # noqa: S603
    return tried.returncode == 0


WITH_NAMESPACES = pytest.mark.skipif(not _namespaces_allowed(), reason="this user may not make network namespaces")
_LEASE_SECOND = 10  # after which Zenoh takes a silent neighbour for dead
CLEAR = {"network.devices": 3, "link.noise_watt": 1e-3, "harvest.scale": 2.0}  # devices send often and are heard


def came_back(folders: list[AgentFolder], gone: int, since: int, until: int) -> None:
    """Others took part in every slot, missed who was gone, and averaged with it again later."""
    for device, folder in enumerate(folders):
        if device == gone:
            continue
        lines = {line["slot"]: line for line in read_journal(folder)}
        assert sorted(lines) == list(range(min(lines), folder.problem.slots))
        place = folder.problem.topology.neighbours[device].index(gone)
        assert any(gone in lines[slot]["away"] for slot in range(since, until + 2))
        assert not any(lines[slot]["delivered"][place] for slot in range(since + 2, until))
        assert any(lines[slot]["delivered"][place] for slot in range(until + 2, folder.problem.slots))
        assert not lines[folder.problem.slots - 1]["away"]
        assert not lines[folder.problem.slots - 1]["isolated"]
    assert read_journal(folders[gone])[-1]["slot"] == folders[gone].problem.slots - 1
    assert bool(final_weights(folders).isfinite().all())


@pytest.mark.slow
def test_a_stopped_agent_is_missed_and_comes_back(tmp_path: Path) -> None:
    problem = small(**CLEAR, slots=45)
    clock = ClockSettings(start_second=time.time() + 25, slot_second=1.5, guard_second=0.3)
    folders = deployed(problem, planned(problem, hops=0), tmp_path / "net", clock)
    with running(folders) as network:
        network.wait_for_slot(0, 5)
        os.kill(network.processes[1].pid, signal.SIGSTOP)
        since = read_journal(folders[0])[-1]["slot"] + 1
        network.wait_for_slot(0, since + round(1.8 * _LEASE_SECOND / 1.5))
        os.kill(network.processes[1].pid, signal.SIGCONT)
        until = read_journal(folders[0])[-1]["slot"]
        network.wait()
    came_back(folders, 1, since, until)


def in_namespaces(root: Path, *event: str) -> str:
    """Run all agents of a folder in namespaces; what the program prints."""
    words = [*ENTER, sys.executable, "-m", "tests.agents.namespaces", str(root), *event]
    ended = subprocess.run(words, cwd=_ROOT, capture_output=True, text=True, check=False, timeout=1800)  # noqa: S603
    assert ended.returncode == 0, ended.stderr[-2000:] + "".join(map(Path.read_text, root.glob("*/told.txt")))
    return ended.stdout


@pytest.mark.slow
@WITH_NAMESPACES
def test_twenty_agents_in_twenty_namespaces_do_what_the_simulator_does(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 20, "slots": 50})
    plan = planned(problem)
    folders = deployed(problem, plan, tmp_path / "net", seed=3, hosts={i: address(i) for i in range(20)})
    in_namespaces(tmp_path / "net")
    trace = simulate(problem, plan, 1, 3)
    assert trace.delivered.any()
    assert share_of_equal_slots(folders, trace) == 1.0
    assert torch.equal(final_weights(folders), trained_alone(problem.scenario, trace).weights)


@pytest.mark.slow
@WITH_NAMESPACES
def test_an_agent_whose_cable_is_pulled_out_is_missed_and_comes_back(tmp_path: Path) -> None:
    problem = small(**CLEAR, slots=45)
    clock = ClockSettings(start_second=time.time() + 25, slot_second=1.5, guard_second=0.3)
    hosts = {i: address(i) for i in range(3)}
    folders = deployed(problem, planned(problem, hops=0), tmp_path / "net", clock, hosts=hosts)
    since, until = map(int, in_namespaces(tmp_path / "net", f"1:5:{1.8 * _LEASE_SECOND}").split())
    came_back(folders, 1, since, until)
