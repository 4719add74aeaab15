"""A compromised member that bids: nothing of it raises, and what no healthy device says isolates it."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from heliomesh.field.fleet.messages import Kind, Message, Packet
from heliomesh.model.problem import Problem
from tests.agents.network import LOUD, READY, bidding, deployed, small

from heliomesh.field.agents.agent import Agent, installed  # isort: skip
from heliomesh.field.agents.clock import Clock
from heliomesh.field.agents.codec import Codec
from heliomesh.field.agents.folder import Belief, SentPlan
from heliomesh.field.agents.inbox import Agreement, Inbox
from heliomesh.field.agents.tables import fits
from heliomesh.field.agents.wire import Mail, Manifest, Sender
from heliomesh.field.fleet.bidder import Bidder, OwnBids
from heliomesh.field.fleet.device import Device, Sensed
from heliomesh.slot.bids import account_bytes
from heliomesh.slot.energy_table import battery_units

CODEC = Codec(100)


class Stage:
    """Device 0 of a ring of four, with neighbours 1 and 3."""

    def __init__(self, root: Path) -> None:
        problem = small(**{"network.devices": 4, "energy.actions": "separate", "slots": 10, **LOUD})
        folders = deployed(problem, bidding(problem), root)
        own = folders[0]
        assert isinstance(own.plan, OwnBids)
        self.folder, self.part, self.problem = own, own.plan, problem
        self.device, _ = installed(own, own.view(), 1.0)
        self.identities, self.settings, self.members = (
            [one.identity() for one in folders],
            own.settings,
            own.members(),
        )
        self.agreement = Agreement(
            network=own.settings.network,
            device=0,
            slots=10,
            plan=own.settings.plan,
            plan_second=0.0,
            codec=CODEC,
            powers_watt=frozenset({0.0, 1.0}),
            neighbours=frozenset(problem.topology.neighbours[0]),
            told_by={},
            sizes={},
            bidder=self.device.bidder,
        )
        self.empty()

    def empty(self, **changes: Any) -> None:
        self.box = Inbox(replace(self.agreement, **changes), self.members, Clock(READY), print, set())
        self.box.enter(5)

    def take(self, kind: Kind, content: bytes, sender: int = 1, to: int = 0, slot: int = 5) -> list[Mail]:
        own = Sender(self.identities[sender], self.settings.network, self.settings.plan, sender, 1)
        message = Message(sender, to, kind, slot, content, len(content))
        if kind == "model":
            packet = Packet(1.0, torch.zeros(CODEC.num_parameters), account=content)
            message = Message(sender, to, "model", slot, packet, 1)
        return [mail for mail in map(self.box.take, own.frames(message, 1.0, CODEC)) if mail is not None]

    @property
    def bidder(self) -> Bidder:
        return self.device.bidder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("bids") / "net")


@pytest.fixture
def stage(made: Stage) -> Stage:
    made.empty()
    return made


def honest(device: Device) -> dict[Kind, bytes]:
    """What a healthy device says in a slot."""
    device.open(5, Sensed({}, 0, 0.0))
    bid, grant = device.bid(5), device.grant(5)
    (first,), (second,) = bid[1], grant[1]
    assert isinstance(first.content, bytes)
    assert isinstance(second.content, bytes)
    return {"bid": first.content, "grant": second.content, "model": account_bytes(device.bidder.after_training(2))}


def test_what_a_healthy_device_says_comes_in_once(stage: Stage) -> None:
    for kind, content in honest(stage.device).items():
        (mail,) = stage.take(kind, content)
        told = mail.message(CODEC)
        assert (told.kind, told.origin) == (kind, 1)
        assert (told.content.account if isinstance(told.content, Packet) else told.content) == content
        assert not stage.take(kind, content)  # a copy
    assert not stage.box.isolated


@pytest.mark.parametrize("kind", ["bid", "grant", "model"])
def test_bytes_of_another_length_isolate_their_sender(stage: Stage, kind: Kind) -> None:
    content = honest(stage.device)[kind]
    for wrong in (content + b"\0", content[:-1], b""):
        stage.empty()
        assert not stage.take(kind, wrong)
        assert stage.box.isolated == {1}


def test_what_no_healthy_device_says_isolates_it(stage: Stage) -> None:
    said = honest(stage.device)
    bid, grant, account = said["bid"], said["grant"], said["model"]
    wrong: list[tuple[Kind, bytes]] = [
        ("bid", b"\xff" + bid[1:]),  # a power that is none
        ("bid", bid[:-1] + b"\x80"),  # a lean of -128 steps
        ("grant", b"\x02" + grant[1:]),  # a third neighbour of two
        ("model", account[:-1] + b"\x80"),
    ]
    for kind, content in wrong:
        stage.empty()
        assert not stage.take(kind, content), (kind, content)
        assert stage.box.isolated == {1}, (kind, content)


def test_who_is_no_neighbour_bids_for_nobody(stage: Stage) -> None:
    bid = honest(stage.device)["bid"]
    assert not stage.take("bid", bid, sender=2)
    assert not stage.take("bid", bid, to=3)
    assert not stage.box.isolated
    stage.empty(bidder=None)  # another kind of plan
    assert not stage.take("bid", bid)


def accepted(part: OwnBids, problem: Problem, changes: dict[str, Any]) -> bool:
    """Whether an agent takes a part with changes, which comes in as JSON."""
    with suppress(ValidationError):
        return fits(OwnBids.model_validate_json(json.dumps(part.model_dump() | changes)), problem, 0)
    return False


def test_a_part_that_does_not_fit_is_refused(stage: Stage) -> None:
    part, problem = stage.part, stage.problem
    assert fits(part, problem, 0, part)
    assert accepted(part, problem, {})
    full = int(battery_units(problem, problem.battery.capacity_joule)[0])
    shorter = tuple(tuple(row[: full >> part.point_bits] for row in rows) for rows in part.entries)
    wrong: list[dict[str, Any]] = [
        {"point_bits": 0},
        {"entries": shorter},
        {"own_weight": 1 << 40},
        {"own_weight": -1},
        {"trained": tuple(not one for one in part.trained)},
        {"keeps": next(one for one in ("oneself", "all", "arrived") if one != part.keeps)},
        {"half_duplex": not part.half_duplex},
        {"action_power": (-1, *part.action_power[1:])},
        {"spent": (-1, *part.spent[1:])},
        {"direction": (1 << 20, *part.direction[1:])},
        {"place": (255, 0)},
    ]
    for changes in wrong:
        assert not accepted(part, problem, changes), changes
    fewer = part.model_copy(update={"direction": part.direction[:-1]})
    assert fits(fewer, problem, 0)
    assert not fits(fewer, problem, 0, part)  # neighbours speak of more


def test_an_agent_refuses_a_plan_with_other_directions_in_one_sentence(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 4, "energy.actions": "separate", "slots": 10})
    folder = deployed(problem, bidding(problem), tmp_path / "net")[0]
    part, said = folder.plan, list[str]()
    assert isinstance(part, OwnBids)
    agent = Agent(folder, said.append, Clock(READY), said.append)
    try:
        for given, refused in ((part, 0), (part.model_copy(update={"direction": part.direction[1:]}), 1)):
            sent = SentPlan(part=given, belief=Belief())
            agent._keep_plan(Mail(Manifest.model_construct(), sent.model_dump_json().encode(), b""))
            assert len(said) == refused
    finally:
        agent.close()


def test_a_checkpoint_of_another_kind_of_plan_starts_an_account(stage: Stage) -> None:
    known = stage.device.state()
    for changed in ({}, {"lean": torch.zeros(3, dtype=torch.long), "progress": known["progress"]}):
        state = {name: one for name, one in known.items() if name not in ("progress", "lean")} | changed
        device, _ = installed(stage.folder, stage.folder.view(), 1.0)
        device.restore(state)
        assert not device.bidder.account.progress.any()
        assert device.bidder.account.lean.shape == known["lean"].shape


def test_no_bytes_raise_and_what_comes_in_can_be_answered(stage: Stage) -> None:
    rng, said = np.random.default_rng(0), honest(stage.device)
    for _ in range(500):
        kind, sender = list(said)[rng.integers(3)], int(rng.choice([1, 3]))
        content = rng.bytes(len(said[kind]))
        stage.empty()
        for mail in stage.take(kind, content, sender):
            if kind != "model":
                stage.device.deliver(sender, [mail.message(CODEC)])
        if kind == "bid":
            stage.device.grant(5)
        elif kind == "grant":
            stage.bidder.choose()
