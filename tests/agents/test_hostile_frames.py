"""A compromised member, with a key of its own: no frame of it raises, takes others' room, or passes for theirs."""

import json
import random
import time
import tracemalloc
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from heliomesh.field.fleet.messages import Message, Packet
from heliomesh.model.factor import Variable, energy, site
from tests.agents.network import READY

from heliomesh.field.agents.agent import Agent  # isort: skip
from heliomesh.field.agents.clock import Clock, WallClock
from heliomesh.field.agents.codec import Codec
from heliomesh.field.agents.folder import ClockSettings
from heliomesh.field.agents.identity import OPERATOR, Identity, new_authority, new_member
from heliomesh.field.agents.inbox import Agreement, Inbox
from heliomesh.field.agents.waiting import Waiting
from heliomesh.field.agents.wire import CHUNK_BYTES, Mail, Manifest, Sender

CODEC = Codec(40_000)  # a model in three chunks
PLAN_BYTES = 1 << 24


@dataclass
class Listening(Clock):
    heard_of: list[tuple[int, float]] = field(default_factory=list)

    def heard(self, device: int, day_second: float) -> None:
        self.heard_of.append((device, day_second))


@pytest.fixture(scope="module")
def people() -> dict[int, Identity]:
    authority = new_authority("net")
    return {number: new_member(authority, str(number), "127.0.0.1") for number in (OPERATOR, 0, 1, 2, 3)}


@dataclass
class Stage:
    """Device 0 with neighbours 1 and 2, and device 3 behind them."""

    people: dict[int, Identity]
    said: list[str] = field(default_factory=list)
    clock: Any = field(default_factory=lambda: Listening(READY))

    def __post_init__(self) -> None:
        agreement = Agreement(
            network="net",
            device=0,
            slots=1000,
            plan="now",
            plan_second=9.0,
            codec=CODEC,
            powers_watt=frozenset({0.0, 1.0}),
            neighbours=frozenset({1, 2}),
            told_by={other: frozenset({energy(other), site(other)}) for other in (1, 2, 3)},
            sizes={energy(1): 3},
        )
        keys = {number: identity.key.public_key() for number, identity in self.people.items()}
        self.box = Inbox(agreement, keys, self.clock, self.said.append, set())
        self.box.enter(5)

    def sender(self, key: int, **changes: Any) -> Sender:
        return replace(Sender(self.people[key], "net", "now", key, 1), **changes)

    def model(
        self, device: int, slot: int = 5, value: float = 0.0, to: int = 0, at: float = 1.0
    ) -> tuple[bytes, ...]:
        packet = Packet(1.0, torch.full((CODEC.num_parameters,), value))
        return self.sender(device).frames(Message(device, to, "model", slot, packet, 1), at, CODEC)

    def state(self, device: int, slot: int = 5, to: int = 0, at: float = 1.0, **values: int) -> bytes:
        content = {Variable(kind, device): value for kind, value in (values or {"energy": 1}).items()}  # type: ignore[arg-type]
        (frame,) = self.sender(device).frames(Message(device, to, "state", slot, content, 1), at, CODEC)
        return frame

    def take(self, *frames: bytes) -> list[Mail]:
        return [mail for mail in map(self.box.take, frames) if mail is not None]


@pytest.fixture
def stage(people: dict[int, Identity]) -> Stage:
    return Stage(people)


# what cannot be read

HONEST: dict[str, Any] = {
    "network": "net", "plan": "now", "origin": 1, "destination": 0, "kind": "state", "slot": 5, "started": 1,
    "sent_second": 1.0, "power_watt": 0.0, "states": [["energy", 1, 1]], "said": "", "num_bytes": 0,
    "sha256": "",
}  # fmt: skip
STRANGE = [
    "Infinity", "-Infinity", "NaN", "1e999", "-1", "-0.5", "1.5", "1e400", "9" * 400, "9" * 5000, str(1 << 63),
    "true", "null", '""', '"x"', '"\\ud800"', '"\\u0000"', '"../../x"', "[]", "{}", "[" * 3000,
    "[" * 5000 + "]" * 5000, '{"a":' * 2000, '[["energy",1]]', '[["energy",1,1,1]]', '[["action",1,1]]',
    '[["energy",1,Infinity]]', '[["energy",1,true]]', f'[["energy",1,{1 << 70}]]', '[["site",-1,0]]',
    '[["energy",1,2.0]]', '"' + "k" * 15_000 + '"',
]  # fmt: skip

SOUND = {("states", "[]"), ("sha256", '""'), ("said", '""')} | {
    (name, number) for name in ("sent_second", "power_watt") for number in ("1.5", str(1 << 63))
}


def altered(honest: dict[str, Any], name: str, value: str) -> bytes:
    """A manifest with another value, as JSON has it or nearly so."""
    text = json.dumps(honest | {name: "HERE"})
    return text.replace('"HERE"', value).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("name", Manifest.model_fields)
def test_no_value_of_a_field_raises_whoever_signed_it(people: dict[int, Identity], name: str) -> None:
    assert Stage(people).take(Stage(people).sender(1).signed("state", json.dumps(HONEST).encode()))
    for value in STRANGE:
        stage = Stage(people)
        stage.take(stage.sender(1).signed("state", altered(HONEST, name, value)))
        assert sum(stage.box.refused["1"].values()) == ((name, value) not in SOUND), value


TEXTS = [b"x", b"Infinity", b"[1]", b"\xff\xfe", b"\0" * 100, b"{" * 9000, b'{"' + b"k" * 9000 + b'":1}', b"{}"]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_no_text_raises_and_what_nobody_signed_is_not_even_read(
    stage: Stage, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("state", "model", "silence"):
        assert not stage.take(stage.sender(1).signed(kind, text))  # type: ignore[arg-type]
    assert stage.box.refused == {"1": {"unreadable": 3}}
    assert len(stage.said) == 1
    monkeypatch.setattr(Manifest, "model_validate_json", lambda _: pytest.fail("read before it was checked"))
    assert not stage.take(stage.sender(2, device=1).signed("state", text))
    assert stage.box.refused["unknown"] == {"unsigned": 1}


def frames_of_all_kinds(stage: Stage) -> list[bytes]:
    plan = stage.sender(OPERATOR).new_plan(0, 7, 10.0, b"tables")
    return [stage.state(1), *stage.sender(1).silence(0, 5, 1.0), *stage.model(1), *plan]


def test_frames_cut_off_anywhere_are_refused(stage: Stage) -> None:
    for frame in frames_of_all_kinds(stage):
        for length in {*range(min(len(frame), 600)), len(frame) - 1}:
            assert not stage.take(frame[:length])
    assert set(stage.box.refused) == {"unknown"}
    assert not stage.take(stage.state(1) + b"\0" * CHUNK_BYTES)


def test_changed_bytes_are_refused_and_signed_ones_raise_nothing(people: dict[int, Identity]) -> None:
    draw = random.Random(0)  # noqa: S311
    stage = Stage(people)
    frames = frames_of_all_kinds(stage)
    for _ in range(700):
        changed = bytearray(draw.choice(frames))
        for _ in range(draw.randint(1, 4)):
            changed[draw.choice((0, 1, 2, 5, 69, 70, draw.randrange(len(changed))))] ^= 1 << draw.randrange(8)
        if bytes(changed) not in frames:
            assert not stage.take(bytes(changed))
        body = bytes(changed[70:])
        kind = draw.choice(("state", "model", "silence", "plan", "chunk"))
        stage.box.take(stage.sender(draw.choice((1, 2, 3, OPERATOR)), started=draw.randint(0, 3)).signed(kind, body))
    assert all(len(words) < 12 for words in stage.box.refused.values())


def test_another_version_is_refused(stage: Stage) -> None:
    frame = stage.state(1)
    assert not stage.take(b"\x01" + frame[1:])
    assert stage.box.refused["unknown"] == {"version": 1}


# who has no right to it


def test_messages_for_nobody_or_of_nobody_are_refused(stage: Stage) -> None:
    short = stage.sender(1).frames(Message(1, 2, "model", 5, Packet(1.0, torch.zeros(1)), 1), 1.0, CODEC)
    assert not stage.take(stage.state(1, to=99), *short, *stage.model(1, to=2), stage.state(1, to=1))
    assert not stage.take(*stage.model(3), *stage.sender(3).silence(0, 5, 1.0))  # models do not travel
    assert not stage.take(*stage.sender(1).new_plan(0, 7, 10.0, b"x"), *stage.sender(0).silence(0, 5, 1.0))
    assert stage.box.refused["1"]["right"] == 5
    assert stage.box.refused["3"]["right"] == 2
    assert not stage.box.isolated
    (passed_on,) = stage.take(stage.state(1, to=3))
    assert passed_on.frame == stage.state(1, to=3)


def test_faults_in_what_a_member_announces_isolate_it_alone(people: dict[int, Identity]) -> None:
    short = Packet(1.0, torch.zeros(1))
    for fault in ("size", "power", "value", "variable", "content"):
        stage = Stage(people)
        own, packet = stage.sender(1), replace(short, row=torch.zeros(CODEC.num_parameters))
        frames = {
            "size": lambda own=own: own.frames(Message(1, 0, "model", 5, short, 1), 1.0, CODEC),
            "power": lambda own=own, packet=packet: own.frames(
                Message(1, 0, "model", 5, replace(packet, power_watt=3.0), 1), 1.0, CODEC
            ),
            "value": lambda stage=stage: (stage.state(1, energy=3),),
            "variable": lambda own=own: own.frames(Message(1, 0, "state", 5, {energy(2): 0}, 1), 1.0, CODEC),
            "content": lambda stage=stage: stage.model(1, value=2e6),
        }[fault]()
        assert not stage.take(*frames), fault
        assert stage.box.isolated == {1}
        assert len(stage.take(*stage.model(2))) == 1


# room


def test_one_members_announcements_take_no_room_from_another(stage: Stage) -> None:
    manifests = [stage.model(1, slot, value)[0] for slot in range(5, 15) for value in range(20)]
    assert not stage.take(*manifests)
    assert len(stage.box._assembly._coming) == 2
    assert not stage.take(stage.model(1, 10**9)[0], stage.model(1, 1000)[0])
    assert stage.box.refused["1"]["early"] == 2
    stage.box.enter(6)
    assert len(stage.take(*stage.model(2, 6))) == 1


def test_repeated_chunks_cost_nothing(stage: Stage) -> None:
    manifest, first, *rest = stage.model(1)
    stage.take(manifest)
    tracemalloc.start()
    try:
        assert not stage.take(*[first] * 500)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert stage.box.refused["1"] == {"chunk": 499}
    assert len(stage.take(*rest)) == 1


def test_a_member_is_held_its_newest_slots_only(stage: Stage) -> None:
    for slot in range(6, 200):
        for mail in stage.take(*stage.model(1, slot), stage.state(1, slot)):
            stage.box.hold(mail)
    for mail in stage.take(*stage.model(2, 6)):
        stage.box.hold(mail)
    held = [(mail.manifest.origin, mail.manifest.kind) for mail in stage.box._held]
    assert {which: held.count(which) for which in held} == {(1, "model"): 2, (1, "state"): 8, (2, "model"): 1}
    assert len(stage.box._seen) == 11
    assert [mail.manifest.origin for mail in stage.box.enter(6)] == [2]


def test_one_plan_comes_at_a_time_and_from_the_operator(stage: Stage) -> None:
    operator = stage.sender(OPERATOR)
    plans = [operator.new_plan(0, 7, 10.0 + number, b"x" * (CHUNK_BYTES + number)) for number in range(64)]
    for plan in plans:
        assert not stage.take(*plan[:2])
    assert len(stage.box._assembly._coming) == 1
    assert len(stage.take(plans[-1][2])) == 1
    assert not stage.take(*plans[-1])
    told = Manifest(**HONEST | {"origin": -1, "kind": "plan", "states": (), "sent_second": 99.0}).model_copy
    for num_bytes in (0, PLAN_BYTES + 1):
        text = told(update={"num_bytes": num_bytes, "sha256": "0" * 64}).model_dump_json().encode()
        assert not stage.take(operator.signed("plan", text))
    assert stage.box.refused["operator"]["size"] == 2


def test_frames_that_wait_take_their_own_members_room(stage: Stage) -> None:
    waiting = Waiting(share_bytes=20_000)
    loud, quiet = stage.state(1), stage.state(2)
    assert sum(waiting.put(1, loud, 0.0) for _ in range(1000)) < 20
    assert waiting.put(2, quiet, 0.0)
    assert sum(waiting.put(3, wrong, 0.0) for wrong in [b"", b"\2", b"x" * 10_000, quiet] * 20) < 20
    assert len(waiting) < 40
    assert [arrived.frame for arrived in iter(lambda: waiting.get(0.0), None)][:2] == [loud, quiet]
    assert waiting.put(1, loud, 0.0)


def test_a_flood_does_not_make_a_slot_longer() -> None:
    taken: list[bytes] = []
    link = SimpleNamespace(received=lambda until: b"noise", num_waiting=lambda: 3, look_due=False, proofs=dict)
    Agent._listen(SimpleNamespace(_link=link, _take=taken.append), time.monotonic(), lambda: len(taken) > 100)  # type: ignore[arg-type]
    assert 3 <= len(taken) <= 4


# whose it is


def test_equal_packets_of_two_neighbours_are_both_theirs(stage: Stage) -> None:
    one, two = stage.model(1), stage.model(2)
    arrived = stage.take(one[0], two[0], *one[1:], *two[1:])
    assert [mail.manifest.origin for mail in arrived] == [1, 2]
    assert not stage.box.refused


def test_nobody_spoils_or_claims_the_packet_of_another(stage: Stage) -> None:
    manifest, *chunks = stage.model(1, value=1.0)
    stage.take(manifest)
    for chunk in chunks:
        body = bytearray(chunk[70:])
        body[-1] ^= 1
        assert not stage.take(stage.sender(2).signed("chunk", bytes(body)), chunk[:70] + bytes(body))
        assert not stage.take(stage.sender(2).signed("chunk", chunk[70:]))
    assert not stage.take(stage.sender(2).signed("model", manifest[70:]))
    (mail,) = stage.take(*chunks)
    assert mail.manifest.origin == 1
    assert mail.content == CODEC.encoded(Packet(1.0, torch.ones(CODEC.num_parameters)))
    assert set(stage.box.refused) == {"2", "unknown"}


def test_content_that_was_not_announced_is_refused(stage: Stage) -> None:
    """A signer that contradicts itself harms nobody else."""
    manifest, *chunks = stage.model(1)
    body = chunks[-1][70:]
    stage.take(manifest, *chunks[:-1])
    assert not stage.take(stage.sender(1).signed("chunk", body[:-1] + b"\1"))
    assert stage.box.refused["1"] == {"chunk": 1}


def test_chunks_of_other_lengths_and_numbers_are_refused(stage: Stage) -> None:
    manifest, *chunks = stage.model(1)
    stage.take(manifest)
    for number in (0, 1, 2, 3, 4, (1 << 32) - 1):
        for piece in (b"", b"x", b"x" * 59_000):
            assert not stage.take(
                stage.sender(1).signed("chunk", chunks[0][70:102] + number.to_bytes(4, "big") + piece)
            )
    assert not stage.take(stage.sender(1).signed("chunk", chunks[0][70:100]))
    assert len(stage.take(*chunks)) == 1


def test_messages_of_the_plan_before_are_not_let_in_under_the_next(stage: Stage) -> None:
    for mail in stage.take(stage.state(1, 6, energy=2), *stage.model(2, 6)):
        stage.box.hold(mail)
    *_, last = stage.model(1, 6)
    stage.take(*stage.model(1, 6)[:-1])
    stage.box.agreement = replace(stage.box.agreement, plan="next", sizes={energy(1): 2})
    assert stage.box.enter(6) == []
    assert not stage.take(last)


# the clock


def test_the_clock_hears_each_word_of_a_neighbour_once(stage: Stage) -> None:
    state, later = stage.state(1, 5, at=100.0), stage.state(1, 6, at=110.0)
    for device in (1, 2):
        stage.box.proven(device, 1, 0.0, 0.0)
    stage.clock.heard_of.clear()
    assert len(stage.take(state, state, later, state, later)) == 2
    stage.take(stage.state(3, at=1.0), stage.state(1, 6, to=3, at=130.0), stage.state(1, 7, to=99, at=140.0))
    stage.take(stage.sender(2, device=1).signed("state", state[70:]), stage.state(2, at=1e308, energy=1 << 30))
    stage.box.enter(7)
    assert not stage.take(state, later, stage.state(1, 6, at=111.0))  # the last is late, and new
    assert stage.clock.heard_of == [(1, 100.0), (1, 110.0), (2, 1e308), (1, 111.0)]


def test_replayed_frames_do_not_make_a_clock_lose_itself(people: dict[int, Identity]) -> None:
    now = [1000.0]
    stage = Stage(people, clock=WallClock(ClockSettings(guard_second=1.0), lambda: now[0]))
    for device in (1, 2):
        stage.box.proven(device, 1, 999.0, 5.0)
    old = [stage.state(device, 5, at=1000.0) for device in (1, 2)]
    assert len(stage.take(*old)) == 2
    now[0] = 1010.0
    stage.box.enter(6)
    assert len(stage.take(*(stage.state(device, 6, at=1010.0) for device in (1, 2)))) == 2
    stage.take(*old)
    stage.box.look()
    stage.take(*old)
    stage.clock._offset_second = None  # this clock does not jump
    assert stage.clock.trouble() is None
    assert stage.box.refused["1"]["replay"] == 2


def test_what_was_sent_before_a_neighbour_answers_does_not_reach_the_clock(stage: Stage) -> None:
    assert len(stage.take(stage.state(1, 5, at=50.0))) == 1  # it may be a copy: who is not proven yet tells no time
    stage.box.proven(1, 1, 100.0, 2.0)
    stage.take(stage.state(1, 6, at=99.0))
    stage.box.take(stage.state(1, 7, at=103.0), waited_second=0.5)
    assert stage.clock.heard_of == [(1, 102.0), (1, 103.5)]  # the own clock is far later than the answer


def test_who_was_ahead_by_mistake_is_heard_again(people: dict[int, Identity]) -> None:
    stage = Stage(people, clock=WallClock(ClockSettings()))
    stage.box.look()
    assert len(stage.take(stage.state(1, 500))) == 1
    stage.box.enter(6)
    assert len(stage.take(stage.state(1, 6, at=2.0))) == 1
