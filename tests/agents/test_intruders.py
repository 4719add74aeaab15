"""Who is not let in: strangers, forgers, repeaters and devices that send NaN."""

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from heliomesh.field.fleet.messages import Message, Packet
from tests.agents.network import deployed, final_weights, planned, running, small, told

from heliomesh.field.agents.clock import WallClock  # isort: skip
from heliomesh.field.agents.codec import Codec
from heliomesh.field.agents.deploy import WATCHER
from heliomesh.field.agents.folder import AgentFolder, ClockSettings
from heliomesh.field.agents.identity import OPERATOR
from heliomesh.field.agents.inbox import Agreement, Inbox
from heliomesh.field.agents.link import Link, Overlook, opened
from heliomesh.field.agents.wire import CHUNK_BYTES, Sender
from heliomesh.model.factor import energy
from tests.agents.lines import read_journal

FLOATS = Codec(1)  # senders of float32 need no number of parameters


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[AgentFolder]:
    problem = small(**{"network.devices": 3, "slots": 4})
    return deployed(problem, planned(problem, hops=0), tmp_path_factory.mktemp("net") / "net")


def sender(folder: AgentFolder, **changes: Any) -> Sender:
    settings = folder.settings
    own = Sender(folder.identity(), settings.network, settings.plan, settings.device, 1)
    return replace(own, **changes)


def inbox(folder: AgentFolder, said: list[str], parameters: int) -> Inbox:
    told_by = {1: frozenset({energy(1)})}
    agreement = Agreement(
        network=folder.settings.network,
        device=0,
        slots=1000,
        plan=folder.settings.plan,
        plan_second=9.0,
        codec=Codec(parameters),
        powers_watt=frozenset({0.0, 1.0}),
        neighbours=frozenset({1, 2}),
        told_by=told_by,
        sizes={energy(1): 3},
    )
    found = Inbox(agreement, folder.members(), WallClock(ClockSettings()), said.append, set())
    found.enter(5)
    return found


def model(slot: int, row: torch.Tensor, origin: int = 1) -> Any:
    return Message(origin, 0, "model", slot, Packet(1.0, row), 32 * len(row))


def delivered(box: Inbox, frames: tuple[bytes, ...]) -> Any:
    return [mail for mail in map(box.take, frames) if mail is not None]


def test_a_model_comes_in_chunks_and_is_the_same(folders: list[AgentFolder]) -> None:
    row = torch.randn(50_000)
    frames = sender(folders[1]).frames(model(5, row), 0.0, FLOATS)
    assert len(frames) == 5
    assert max(map(len, frames)) <= CHUNK_BYTES
    said: list[str] = []
    (mail,) = delivered(inbox(folders[0], said, 50_000), frames)
    assert torch.equal(mail.message(Codec(50_000)).content.row, row)
    assert mail.message(Codec(50_000)).content.power_watt == 1.0
    assert said == []


@pytest.mark.parametrize(
    ("reason", "changes", "slot"),
    [
        ("replay", {}, 4),
        ("early", {}, 7),
        ("plan", {"plan": "another"}, 5),
        ("network", {"network": "another"}, 5),
        ("unsigned", {"device": 2}, 5),
    ],
)
def test_messages_that_do_not_fit_are_refused(
    folders: list[AgentFolder], reason: str, changes: dict[str, Any], slot: int
) -> None:
    said: list[str] = []
    box = inbox(folders[0], said, 10)
    assert not delivered(box, sender(folders[1], **changes).frames(model(slot, torch.zeros(10)), 0.0, FLOATS))
    signer = "unknown" if reason == "unsigned" else "1"
    assert box.refused[signer][reason] >= 1
    assert len(said) == len(box.refused[signer])  # a sentence for each reason


def test_only_the_operator_changes_plans_and_only_to_newer_ones(folders: list[AgentFolder]) -> None:
    said: list[str] = []
    box = inbox(folders[0], said, 10)
    watcher = AgentFolder(folders[0].path.parent / WATCHER)
    network = folders[0].settings.network
    operator = Sender(watcher.identity(), network, "new", OPERATOR, 1)
    assert len(delivered(box, operator.new_plan(0, 7, 10.0, b"tables"))) == 1
    assert not delivered(box, operator.new_plan(0, 7, 9.0, b"older tables"))
    assert not delivered(box, operator.new_plan(1, 7, 10.0, b"for somebody else"))
    assert not delivered(box, sender(folders[1]).new_plan(0, 7, 10.0, b"from a member"))
    assert not delivered(box, sender(folders[1], device=OPERATOR).new_plan(0, 7, 10.0, b"forged"))
    assert not delivered(box, operator.frames(model(5, torch.zeros(10)), 0.0, FLOATS))
    chunks = {"chunk": 1}  # which nobody announced
    assert box.refused == {
        "operator": {"replay": 1, "right": 2, "chunk": 3},
        "1": {"right": 1} | chunks,
        "unknown": {"unsigned": 2},
    }
    assert not box.isolated


def test_the_same_message_comes_in_once(folders: list[AgentFolder]) -> None:
    said: list[str] = []
    box = inbox(folders[0], said, 10)
    frames = sender(folders[1]).frames(model(5, torch.zeros(10)), 0.0, FLOATS)
    assert len(delivered(box, frames)) == 1
    assert not delivered(box, frames)
    assert box.refused["1"] == {"replay": 1, "chunk": 1}
    assert "slot 5" in said[0]


def test_an_earlier_process_of_a_device_is_refused(folders: list[AgentFolder]) -> None:
    said: list[str] = []
    box = inbox(folders[0], said, 10)
    assert delivered(box, sender(folders[1], started=2).frames(model(5, torch.zeros(10)), 0.0, FLOATS))
    assert not delivered(box, sender(folders[1], started=1).frames(model(6, torch.zeros(10)), 0.0, FLOATS))
    assert box.refused["1"] == {"twin": 1, "chunk": 1}


@pytest.mark.parametrize("row", [torch.tensor([1.0, torch.nan]), torch.tensor([torch.inf, 0.0]), torch.zeros(1)])
def test_who_sends_nan_is_isolated(folders: list[AgentFolder], row: torch.Tensor) -> None:
    said: list[str] = []
    box = inbox(folders[0], said, 2)
    assert not delivered(box, sender(folders[1]).frames(model(5, row), 0.0, FLOATS))
    assert box.isolated == {1}
    assert not delivered(box, sender(folders[1]).frames(model(6, torch.zeros(2)), 0.0, FLOATS))
    assert box.refused["1"]["unfit"] == 1
    assert box.refused["1"]["isolated"] >= 2


def test_papers_of_another_authority_are_refused(folders: list[AgentFolder], tmp_path: Path) -> None:
    problem = small(**{"network.devices": 3, "slots": 4})
    other = deployed(problem, planned(problem, hops=0), tmp_path / "other")
    with pytest.raises(ValueError, match=r"roster\.txt: expected a list that authority\.pem signed"):
        folders[0].install(other[0].roster_file.read_bytes())
    with pytest.raises(ValueError, match=r"certificate: expected one that authority\.pem signed"):
        folders[0].install(other[0].certificate.read_bytes())


@contextmanager
def linked(folder: AgentFolder) -> Iterator[Link]:
    """A member that obeys nobody."""
    link = Link(folder, time.time_ns())
    try:
        yield link
    finally:
        link.close()


def test_a_stranger_a_forger_and_a_sender_of_nan_change_nothing(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 3, "slots": 4})
    folders = deployed(problem, planned(problem, hops=0), tmp_path / "net")
    stranger = deployed(problem, planned(problem, hops=0), tmp_path / "other")[0]
    bad = torch.full((len(_weights(folders[0])),), torch.nan)  # before slots begin: it takes longer than one
    with linked(folders[2]) as rogue, running(folders, [0, 1]) as network:
        session = opened(stranger, None, [folders[0].settings.listen])
        until = time.monotonic() + 60
        while not (rogue.alive(0) and rogue.alive(1)):
            assert time.monotonic() < until
            time.sleep(0.05)
        forged = sender(folders[2], device=1)
        own = sender(folders[2])
        rogue.send(0, forged.silence(0, 0, 0.0))
        rogue.send(0, own.silence(0, 0, 0.0))
        rogue.send(0, own.silence(0, 0, 0.0))
        for victim in (0, 1):
            rogue.send(
                victim, own.frames(Message(2, victim, "model", 0, Packet(1.0, bad), 32 * len(bad)), 0.0, FLOATS)
            )
        session.put(f"heliomesh/{folders[0].settings.network}/to/0/from/1", b"from a stranger")
        network.wait(120)
        assert not session.info.links()
        session.close()
    last = read_journal(folders[0])[-1]
    assert last["slot"] == 3
    assert last["refused"] == {"unknown": {"unsigned": 1}, "2": {"replay": 1, "unfit": 1}}
    assert [read_journal(folder)[-1]["isolated"] for folder in folders[:2]] == [[2], [2]]
    assert "sent NaN or infinity among its weights in slot 0; it is isolated" in told(folders[1])
    assert bool(final_weights(folders[:2]).isfinite().all())


def test_a_watcher_believes_no_member_about_another(folders: list[AgentFolder]) -> None:
    heard: list[tuple[int, int]] = []
    settings = folders[0].settings
    watcher = AgentFolder(folders[0].path.parent / WATCHER)
    rogue, base = (
        opened(folders[2], folders[2].settings.listen, []),
        f"heliomesh/{settings.network}/status/watch/from",
    )
    line = b'{"n": 1}'
    signed = folders[2].identity().sign(line) + line
    with closing(rogue):
        overlook = Overlook(
            watcher,
            settings.network,
            {"2": folders[2].settings.listen},
            lambda device, line: heard.append((device, json.loads(line)["n"])),
        )
        with closing(overlook):
            until = time.monotonic() + 30
            while (2, 1) not in heard:
                assert time.monotonic() < until
                rogue.put(f"{base}/1", signed)
                rogue.put(f"{base}/2", signed.replace(b"1", b"0"))
                rogue.put(f"{base}/2", signed)
                time.sleep(0.05)
    assert set(heard) == {(2, 1)}


def _weights(folder: AgentFolder) -> torch.Tensor:
    from heliomesh.field.agents.agent import installed
    from heliomesh.field.fleet.view import view_of

    return installed(folder, view_of(folder.problem, 0, 0), 1.0)[0].weights()
