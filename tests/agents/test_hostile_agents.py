"""A compromised member beside live agents: they go on, average and end whole, as if it were idle."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from heliomesh.field.fleet.messages import Message, Packet
from heliomesh.interop.export_tables import PlanTables
from heliomesh.model.factor import energy, site
from tests.agents.network import deployed, final_weights, planned, running, small, told

from heliomesh.field.agents.agent import installed  # isort: skip
from heliomesh.field.agents.codec import Codec
from heliomesh.field.agents.folder import AgentFolder, ClockSettings
from heliomesh.field.agents.identity import OPERATOR
from heliomesh.field.agents.link import Link
from heliomesh.field.agents.tables import fits
from heliomesh.field.agents.wire import CHUNK_BYTES, Sender
from tests.agents.lines import read_journal
from tests.agents.test_hostile_frames import CODEC, HONEST, STRANGE, altered

WHEEL = [[0, 1], [1, 2], [2, 3], [0, 3], [0, 4], [1, 4], [2, 4], [3, 4]]
SLOTS, ROGUE = 6, 4
PATIENT = ClockSettings(kind="ready", patience_second=300.0)  # nobody is given up on a busy machine
LIVE: dict[str, Any] = {
    "network.devices": 5, "network.topology": "edges", "network.edges": WHEEL, "slots": SLOTS,
    "link.noise_watt": 1e-3, "harvest.scale": 2.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> list[AgentFolder]:
    problem = small(**LIVE)
    return deployed(problem, planned(problem), tmp_path_factory.mktemp("hostile") / "net", PATIENT)


def test_a_device_passes_on_only_what_it_has_a_way_for(network: list[AgentFolder]) -> None:
    device, _ = installed(network[0], network[0].view(), 1.0)
    nowhere = Message(4, 99, "state", 0, {energy(4): 0}, 1)
    assert device.deliver(4, [nowhere]) == {}
    assert device.deliver(4, [replace(nowhere, destination=1)]) == {1: [replace(nowhere, destination=1)]}


def test_tables_that_have_no_action_for_what_a_device_sees_do_not_fit(network: list[AgentFolder]) -> None:
    plan, problem = network[0].plan, network[0].problem
    assert isinstance(plan, PlanTables)
    (own,) = plan.devices

    def changed(**changes: Any) -> PlanTables:
        return plan.model_copy(update={"devices": (own.model_copy(update=changes),)})

    smaller = tuple(seen.model_copy(update={"size": 1}) for seen in own.scope)
    shifted = tuple(tuple(127 for _ in table) for table in own.tables)
    assert fits(plan, problem, 0)
    assert not fits(plan, problem, 1)
    assert not fits(plan.model_copy(update={"step_joule": ()}), problem, 0)
    for wrong in (
        changed(tables=own.tables[:0]),
        changed(tables=tuple(table[:-1] for table in own.tables)),
        changed(tables=shifted),
        changed(table_of_slot=()),
        changed(table_of_slot=(len(own.tables),)),
        changed(scope=smaller, tables=tuple(table[:1] for table in own.tables)),
    ):
        assert not fits(wrong, problem, 0)


@contextmanager
def rogue_of(folders: list[AgentFolder]) -> Iterator[tuple[Link, Sender]]:
    """The fifth device: four agents run, and find that it is ahead of them, idle."""
    settings, started = folders[ROGUE].settings, time.time_ns()
    own = Sender(folders[ROGUE].identity(), settings.network, settings.plan, ROGUE, started)
    link = Link(folders[ROGUE], started)
    try:
        yield link, own
    finally:
        link.close()


def lasting(folders: list[AgentFolder], own: Sender, victim: int) -> list[bytes]:
    """A state that says what agents assume of whom they never heard, and a silence, in the last slot."""
    measured = {energy(ROGUE): 0, **dict.fromkeys(map(site, folders[0].problem.sites_into(ROGUE)), 0)}
    state = own.frames(Message(ROGUE, victim, "state", SLOTS - 1, measured, 1), time.time(), CODEC)
    return [*state, *own.silence(victim, SLOTS - 1, time.time())]


def attacks(own: Sender, victim: int, draw: random.Random) -> Iterator[bytes]:
    """One round of all that a member can think of."""
    honest = HONEST | {
        "network": own.network, "plan": own.plan, "origin": ROGUE, "destination": victim, "slot": SLOTS - 1,
        "states": [["energy", ROGUE, 0]],
    }  # fmt: skip
    yield from (b"", b"x", b"\2S", b"\2" * 70, b"\0" * CHUNK_BYTES, b"\2C" + b"\xff" * 70_000)
    for value in STRANGE:
        name = draw.choice(list(HONEST))
        yield own.signed("state", altered(honest, name, value))
    yield from own.frames(Message(ROGUE, 99, "state", 0, {energy(ROGUE): 0}, 1), 1.0, CODEC)
    other = (victim + 1) % 4
    yield from own.frames(Message(ROGUE, other, "model", 0, Packet(1.0, torch.zeros(1)), 1), 1.0, CODEC)
    for slot in (0, 1, SLOTS - 1, 10**9, *range(20)):  # of another device's route, so that none isolates its sender
        yield own.frames(Message(ROGUE, other, "model", slot, Packet(1.0, torch.randn(10)), 1), 1.0, CODEC)[0]
    forged = replace(own, device=other)
    yield from forged.silence(victim, SLOTS - 1, 1e9)
    yield from forged.frames(Message(other, victim, "model", 0, Packet(1.0, torch.zeros(10)), 1), 1.0, CODEC)
    yield from own.new_plan(victim, 0, time.time(), b"{}")
    yield from replace(own, device=OPERATOR).new_plan(victim, 0, time.time(), b"{}")
    for frame in own.silence(victim, 0, time.time()) * 2:
        yield frame
        yield frame[: draw.randrange(len(frame))]
        yield own.signed("chunk", frame[70:])


def harass(link: Link, own: Sender, over: threading.Event) -> None:
    draw = random.Random(1)  # noqa: S311
    while not over.is_set():
        for victim in range(4):
            with suppress(Exception):  # agents leave at the end
                link.send(victim, attacks(own, victim, draw))
        over.wait(0.05)


def lived(folders: list[AgentFolder], *, hostile: bool) -> list[list[dict[str, Any]]]:
    """Journals of four agents, beside a fifth that is idle or hostile."""
    over = threading.Event()
    with rogue_of(folders) as (link, own), running(folders, range(4)) as agents:
        until = time.monotonic() + 120
        while not all(map(link.alive, range(4))):
            assert time.monotonic() < until
            time.sleep(0.02)
        for victim in range(4):  # nobody goes on before it has read all of this
            first = attacks(own, victim, random.Random(0)) if hostile else ()  # noqa: S311
            link.send(victim, [*first, *lasting(folders, own, victim)])
        attack = threading.Thread(target=harass, args=(link, own, over))
        if hostile:
            attack.start()
        try:
            agents.wait(400)
            codes = [process.exitcode for process in agents.processes.values()]
        finally:
            over.set()
            if hostile:
                attack.join()
    assert codes == [0] * 4, "".join(map(told, folders[:4]))
    return [read_journal(folder) for folder in folders[:4]]


def test_four_agents_do_the_same_beside_a_hostile_member_as_beside_an_idle_one(
    tmp_path: Path, network: list[AgentFolder]
) -> None:
    calm = lived(network, hostile=False)
    problem = small(**LIVE)
    attacked = deployed(problem, planned(problem), tmp_path / "net", PATIENT)
    rough = lived(attacked, hostile=True)
    assert any(any(line["delivered"]) for lines in calm for line in lines)
    for before, after in zip(calm, rough, strict=True):
        assert [line["slot"] for line in after] == list(range(SLOTS))
        for name in ("battery_joule", "power_watt", "trained", "delivered", "loss", "isolated"):
            assert [line[name] for line in after] == [line[name] for line in before], name
        refused = after[-1]["refused"]
        assert set(refused) == {"unknown", str(ROGUE)}
        assert {"right", "unreadable", "chunk", "replay"} <= set(refused[str(ROGUE)])
        assert {"unsigned", "size"} <= set(refused["unknown"])
    assert torch.equal(final_weights(attacked[:4]), final_weights(network[:4]))


def test_an_agent_isolates_a_flooder_of_models_and_goes_on(tmp_path: Path) -> None:
    """Validly signed, of the right size, and not to be averaged."""
    problem = small(**{"network.devices": 3, "slots": 4})
    folders = deployed(problem, planned(problem, hops=0), tmp_path / "net")
    codec = Codec(len(installed(folders[0], folders[0].view(), 1.0)[0].weights()))
    settings = folders[2].settings
    own = Sender(folders[2].identity(), settings.network, settings.plan, 2, 1)
    link = Link(folders[2], 1)
    try:
        with running(folders, [0, 1]) as agents:
            until = time.monotonic() + 120
            while not (link.alive(0) and link.alive(1)):
                assert time.monotonic() < until
                time.sleep(0.02)
            for victim in (0, 1):
                for slot in (0, 1, 2, 3):
                    packet = Packet(1.0, torch.full((codec.num_parameters,), 3e38 if slot == 3 else 0.0))
                    frames = own.frames(Message(2, victim, "model", slot, packet, 1), time.time(), codec)
                    link.send(victim, [frames[0], *frames[1:-1] * 20, *frames])
            agents.wait(400)
            assert [process.exitcode for process in agents.processes.values()] == [0, 0]
    finally:
        link.close()
    for folder in folders[:2]:
        last = read_journal(folder)[-1]
        assert (last["slot"], last["isolated"]) == (3, [2])
        assert "a number above 1e+06 among its weights" in told(folder)
    assert bool(final_weights(folders[:2]).isfinite().all())
