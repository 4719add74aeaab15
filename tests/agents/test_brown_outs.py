"""Agents that end at any moment come back, and nothing is corrupt."""

import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.agents.network import CONTEXT, LOUD, READY, bidding, deployed, final_weights, planned, running, small, told

from heliomesh.field.agents.agent import run_agent  # isort: skip
from heliomesh.common.durable import BusyFolderError, alone_in
from heliomesh.common.mistakes import MistakeError
from heliomesh.field.agents.clock import WallClock
from heliomesh.field.agents.folder import AgentFolder, ClockSettings
from heliomesh.learning.checkpoint import CheckpointError, Checkpoints, newest_whole
from heliomesh.scenario.errors import ScenarioError
from heliomesh.slot.bids import PROGRESS_STEPS
from tests.agents.lines import read_journal

ALONE = READY.model_copy(update={"patience_second": 0.2})  # neighbours never come


def test_a_killed_agent_comes_back(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 3, "slots": 60})
    folders = deployed(problem, planned(problem), tmp_path / "net")
    with running(folders) as network:
        network.wait_for_slot(1, 3)
        network.kill(1)
        network.start(1)
        network.wait()
    check_after_kills(folders, {1})


@pytest.mark.slow
def test_twenty_agents_killed_at_random_come_back(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 20, "slots": 120})
    folders = deployed(problem, planned(problem), tmp_path / "net")
    rng = np.random.default_rng(0)
    killed = set()
    with running(folders) as network:
        for slot in range(4, 100, 8):
            network.wait_for_slot(0, slot, 600)
            victim = int(rng.integers(1, 20))
            network.kill(victim)
            network.start(victim)
            killed.add(victim)
        network.wait(1200)
    check_after_kills(folders, killed)
    print(f"killed {sorted(killed)}; slots taken part in:", [len(read_journal(folder)) for folder in folders])


def check_after_kills(folders: list[AgentFolder], killed: set[int]) -> None:
    """All ended with whole models; who was killed went on, and nobody else missed a slot."""
    assert bool(final_weights(folders).isfinite().all())
    for device, folder in enumerate(folders):
        lines = read_journal(folder)
        slots = folder.problem.slots
        assert lines[-1]["slot"] == slots - 1
        assert not lines[-1]["isolated"]
        if device in killed:
            assert "going on after slot" in told(folder)
        else:
            assert len(lines) == slots
        (found,), damage = newest_whole([Checkpoints(folder.memory, None)])
        assert found.done == slots
        assert not damage


@pytest.fixture
def lonely(tmp_path: Path) -> AgentFolder:
    """An agent whose neighbours are not there."""
    problem = small(**{"network.devices": 3, "slots": 6})
    return deployed(problem, planned(problem, hops=0), tmp_path / "net", ALONE)[0]


def test_a_restart_gives_the_weights_of_an_unbroken_run(lonely: AgentFolder, tmp_path: Path) -> None:
    other = AgentFolder(Path(shutil.copytree(lonely.path, tmp_path / "copy")))
    assert run_agent(lonely, print) == 6
    said: list[str] = []
    assert run_agent(other, said.append, stop_after=2) == 2
    assert run_agent(other, said.append) == 4
    assert said == ["device 0: going on after slot 1"]
    assert (final_weights([lonely]) == final_weights([other])).all()
    assert read_journal(lonely) == read_journal(other)


def test_a_bidder_goes_on_with_its_account(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 3, "slots": 6, "energy.actions": "separate", **LOUD})
    first = deployed(problem, bidding(problem), tmp_path / "net", ALONE)[0]
    other = AgentFolder(Path(shutil.copytree(first.path, tmp_path / "copy")))
    assert run_agent(first, print) == 6
    for slots in (2, 4):
        assert run_agent(AgentFolder(other.path), print, stop_after=slots) == slots
    states = [newest_whole([Checkpoints(folder.memory, None)])[0][0].tensors for folder in (first, other)]
    trained = sum(line["trained"] for line in read_journal(first))
    assert [int(state["progress"]) for state in states] == [PROGRESS_STEPS * trained] * 2 != [0, 0]
    assert torch.equal(states[0]["lean"], states[1]["lean"])
    assert bool(states[0]["lean"].any())
    assert read_journal(first) == read_journal(other)


def test_a_journal_has_a_limit_and_keeps_the_newest_slots(lonely: AgentFolder) -> None:
    size, said = 1000, list[str]()
    AgentFolder(lonely.path).write_settings(lonely.settings.model_copy(update={"journal_bytes": size}))
    for _ in range(3):
        run_agent(AgentFolder(lonely.path), print, stop_after=2, report=said.append)
    kept = [line["slot"] for line in read_journal(lonely)]
    assert 2 <= len(kept) < 6
    assert kept == list(range(6 - len(kept), 6))
    longest = 1000
    assert sum(path.stat().st_size for path in lonely.path.glob("slots*")) < 2 * (size + longest)
    assert [text.split(":")[0] for text in said] == [f"slot {slot}" for slot in range(6)]
    assert all("averaged with nobody, battery " in text for text in said)
    assert any("trained" in text and "loss" in text for text in said)


def test_a_full_disk_is_one_sentence_and_keeps_the_checkpoint(lonely: AgentFolder) -> None:
    assert run_agent(lonely, print, stop_after=2) == 2
    ended = CONTEXT.Process(target=_run_without_room, args=(lonely.path,))
    ended.start()
    ended.join()
    assert ended.exitcode == 0
    (found,), damage = newest_whole([Checkpoints(lonely.memory, None)])
    assert (found.done, damage) == (2, [])
    assert run_agent(lonely, print) == 4


def _run_without_room(path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))  # a larger file fails as on a full disk
    with pytest.raises(CheckpointError, match=r"expected room for a checkpoint of .* the one after slot 2 is kept"):
        run_agent(AgentFolder(path), print)


def test_a_changed_plan_is_one_sentence(lonely: AgentFolder) -> None:
    run_agent(lonely, print, stop_after=1)
    plan = lonely.path / "plan.json"
    plan.write_text(plan.read_text().replace("0,", "1,"))
    with pytest.raises(ScenarioError, match=r"plan\.json: expected the plan of this deployment"):
        run_agent(AgentFolder(lonely.path), print)


def test_the_memory_of_another_network_is_one_sentence(lonely: AgentFolder) -> None:
    run_agent(lonely, print, stop_after=1)
    lonely.write_settings(lonely.settings.model_copy(update={"network": "another"}))
    with pytest.raises(CheckpointError, match=r"network: expected .* another run needs an empty folder"):
        run_agent(AgentFolder(lonely.path), print)


def test_one_folder_has_one_agent(lonely: AgentFolder) -> None:
    with alone_in(lonely.path), pytest.raises(BusyFolderError, match="another process is using this folder"):
        run_agent(lonely, print)


def test_a_copied_identity_is_refused(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 3, "slots": 500})
    patient = READY.model_copy(update={"patience_second": 3.0})  # device 2 never comes
    folders = deployed(problem, planned(problem, hops=0), tmp_path / "net", patient)
    copy = AgentFolder(Path(shutil.copytree(folders[0].path, tmp_path / "copy")))
    host, _, port = copy.settings.listen.partition(":")
    copy.write_settings(copy.settings.model_copy(update={"listen": f"{host}:{int(port) + 100}"}))
    with running(folders, [0, 1]) as network:
        network.wait_for_slot(0, 1)
        with pytest.raises(MistakeError, match="identity: expected no other agent of device 0, actual: neighbours"):
            run_agent(AgentFolder(copy.path), print)
    assert not (copy.path / "slots.jsonl").exists()


def test_a_lost_clock() -> None:
    now = [1000.0]
    clock = WallClock(ClockSettings(start_second=900.0, slot_second=10.0, guard_second=1.0), lambda: now[0])
    assert clock.next_slot(0) == 10
    assert clock.trouble() is None
    clock.heard(1, 1000.2)
    clock.heard(2, 1500.0)
    assert clock.trouble() is None  # one of two may be wrong itself
    clock.heard(1, 1500.0)
    assert clock.trouble() == "clock: expected within 1 s of the neighbours' clocks, actual: they are +500 s ahead"
    now[0] = 1500.0
    assert "jumped by +500 s" in str(clock.trouble())
    clock.heard(1, 1500.0)
    assert clock.trouble() is None


def _live_ahead(path: Path) -> None:
    """An agent whose clock is a hundred seconds ahead."""
    import time

    folder = AgentFolder(path)
    clock: Any = WallClock(folder.settings.clock, lambda: time.time() + 100)
    with (path / "told.txt").open("w", buffering=1) as log:
        run_agent(folder, lambda text: print(text, file=log), clock=clock)


@pytest.mark.slow
def test_an_agent_with_a_lost_clock_takes_no_part(tmp_path: Path) -> None:
    import time

    problem = small(**{"network.devices": 3, "slots": 200})
    clock = ClockSettings(start_second=time.time() + 20, slot_second=2.0, guard_second=0.4)
    folders = deployed(problem, planned(problem, hops=0), tmp_path / "net", clock)
    with running(folders, [0, 1]) as network:
        network.wait_for_slot(0, 1)
        lost = CONTEXT.Process(target=_live_ahead, args=(folders[2].path,))
        lost.start()
        network.processes[2] = lost
        until = time.monotonic() + 120
        while "clock: expected within 0.4 s of the neighbours' clocks" not in told(folders[2]):
            assert time.monotonic() < until
            time.sleep(0.05)
        network.wait_for_slot(0, read_journal(folders[0])[-1]["slot"] + 6)
        assert not read_journal(folders[2])
    taken = [line["slot"] for line in read_journal(folders[0])]
    print(f"slots taken part in by a right clock: {len(taken)} of {taken[-1] - taken[0] + 1}")
