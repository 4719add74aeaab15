"""What a member with a valid certificate can neither say nor read: real sessions, no rules on the rogue's side."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.agents.network import deployed, planned, small

from heliomesh.field.agents.deploy import WATCHER  # isort: skip
from heliomesh.field.agents.folder import AgentFolder
from heliomesh.field.agents.link import Link, Proof, opened

RING = {"network.devices": 4, "slots": 4}  # device 2 is no neighbour of device 0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[AgentFolder]:
    problem = small(**RING)
    found = deployed(problem, planned(problem, hops=0), tmp_path_factory.mktemp("net") / "net")
    assert sorted(found[0].settings.neighbours) == ["1", "3"]
    return found


@contextmanager
def attacked(folders: list[AgentFolder], ignored: set[int] | None = None) -> Iterator[Link]:
    """Device 0 at work."""
    with closing(Link(folders[0], 5, set() if ignored is None else ignored)) as link:
        yield link


@contextmanager
def rogue(folder: AgentFolder, place: str) -> Iterator[Any]:
    """A session with a member's certificate that obeys no rules."""
    with closing(opened(folder, None, [place])) as session:
        until(lambda: session.info.links())
        yield session


def until(reached: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.05)


def base(folders: list[AgentFolder]) -> str:
    return f"heliomesh/{folders[0].settings.network}"


def frames(link: Link) -> list[bytes]:
    return [arrived.frame for arrived in iter(lambda: link.received(time.monotonic()), None)]


def test_only_neighbours_and_the_operator_deliver_and_each_as_itself(folders: list[AgentFolder]) -> None:
    place, key = folders[0].settings.listen, f"{base(folders)}/to/0/from"
    watcher = AgentFolder(folders[0].path.parent / WATCHER)
    heard: set[bytes] = set()
    with (
        attacked(folders) as link,
        rogue(folders[1], place) as one,
        rogue(folders[2], place) as two,
        rogue(watcher, place) as operator,
    ):

        def delivered() -> bool:
            for speaker in ("2", "1", "3", WATCHER, "*", "**"):
                two.put(f"{key}/{speaker}", f"2 as {speaker}")
            for speaker in ("3", "2", WATCHER, "*", "**", "1"):
                one.put(f"{key}/{speaker}", f"1 as {speaker}")
            operator.put(f"{key}/1", "the operator as 1")
            operator.put(f"{key}/{WATCHER}", "the operator")
            heard.update(frames(link))
            return heard >= {b"1 as 1", b"the operator"}

        until(delivered)
        until(delivered)
    assert heard == {b"1 as 1", b"the operator"}


def test_a_member_reads_its_own_link_and_no_status(folders: list[AgentFolder]) -> None:
    place, heard = folders[0].settings.listen, set[str]()
    watcher = AgentFolder(folders[0].path.parent / WATCHER)
    seen: set[str] = set()
    with attacked(folders) as link, rogue(folders[1], place) as one, rogue(watcher, place) as operator:
        keys = ("**", "to/3/from/*", "to/3/from/0", "status/**", "status/watch/from/*", "to/1/from/*")
        kept = [
            one.declare_subscriber(f"{base(folders)}/{key}", lambda x: heard.add(str(x.key_expr))) for key in keys
        ]
        status = f"{base(folders)}/status/watch/from/*"
        kept.append(operator.declare_subscriber(status, lambda x: seen.add(str(x.key_expr))))

        def read() -> bool:
            link.send(3, [b"to 3"])
            link.tell_watchers({"slot": 0})
            link.send(1, [b"to 1"])
            return bool(heard and seen)

        until(read)
        until(read)
    assert heard == {f"{base(folders)}/to/1/from/0"}
    assert seen == {f"{base(folders)}/status/watch/from/0"}


def test_nobody_gives_a_sign_of_life_for_another(folders: list[AgentFolder]) -> None:
    with attacked(folders) as link, rogue(folders[1], folders[0].settings.listen) as one:
        kept = [one.liveliness().declare_token(f"{base(folders)}/alive/{key}") for key in ("3/7", "0/7", "1/7")]
        until(lambda: link.alive(1))
        assert not link.alive(3)
        assert not link.alive(0)
        assert len(kept) == 3


def test_only_a_device_itself_proves_that_it_has_a_twin(folders: list[AgentFolder]) -> None:
    asked: list[bytes] = []
    liar, own = folders[1].identity(), folders[0].identity()

    def lie(query: Any) -> None:
        nonce = query.payload.to_bytes()
        asked.append(nonce)
        for proof in (
            b"[7]",
            b"",
            liar.sign(nonce + b"7") + b"7",
            own.sign(bytes(16) + b"7") + b"7",  # of another question
            own.sign(nonce + b"7")[:-1],
        ):
            query.reply(query.key_expr, proof)

    with attacked(folders) as link, rogue(folders[1], folders[0].settings.listen) as one:
        kept = one.declare_queryable(f"{base(folders)}/twin/1/from/*", lie)
        until(lambda: link.twins() or asked)
        assert link.twins() == []
        kept.undeclare()
    assert len(set(asked)) == len(asked) >= 2
    twin = opened_twin(folders)
    with closing(Link(folders[1], 6)), attacked(folders) as link, closing(twin):
        until(lambda: link.twins() == [9])


def test_a_neighbour_signs_its_time_in_answer_to_a_fresh_number(folders: list[AgentFolder]) -> None:
    asked: list[bytes] = []
    own = folders[1].identity()
    day_second = 1_795_000_000.5  # 19 digits of nanoseconds: a shorter time hid that longer answers were cut

    def lie(query: Any) -> None:
        nonce = query.payload.to_bytes()
        asked.append(nonce)
        for text in (b"", b"7", b"7 ", b"7 nan", b"7 -1", b"7 8", b"7 1e9 9", b"\xff \xff \xff", b"7 8 9 9"):
            query.reply(query.key_expr, own.sign(nonce + text) + text)
        query.reply(query.key_expr, own.sign(bytes(16) + b"7 8 9") + b"7 8 9")  # of another question

    with attacked(folders) as link:
        with rogue(folders[1], folders[0].settings.listen) as one:
            kept = one.declare_queryable(f"{base(folders)}/prove/1/from/*", lie)
            until(lambda: link.ask_news(1) or asked)
            assert link.proofs() == {}
            kept.undeclare()
        with closing(Link(folders[1], 6, day_second=lambda: day_second, next_slot=lambda: 3)):
            until(lambda: link.alive(1))
            link.ask_news(1)
            found: dict[int, Proof] = {}
            until(lambda: found.update(link.proofs()) or found)
    assert found[1][:3] == (6, day_second, 3)
    assert 0 < found[1].elapsed_second < 60


def opened_twin(folders: list[AgentFolder]) -> Link:
    """Another process with device 0's folder, at another place."""
    place = folders[2].settings.listen
    other = AgentFolder(folders[0].path)
    other.__dict__["settings"] = folders[0].settings.model_copy(update={"listen": place})
    return Link(other, 9)


class CountedSet(set[int]):
    """A set that counts how often it was asked: each message that reaches a link asks once."""

    asked = 0

    def __contains__(self, item: object) -> bool:
        found = super().__contains__(item)
        self.asked += 1
        return found


def test_nothing_is_heard_from_an_isolated_device(folders: list[AgentFolder]) -> None:
    ignored = CountedSet()
    asked: list[str] = []
    key = base(folders)

    def twins_asked(session: Any) -> int:
        replies = session.get(f"{key}/twin/0/from/1", payload=bytes(16), timeout=5.0)
        return sum(reply.ok is not None for reply in replies)

    with attacked(folders, ignored) as link, rogue(folders[1], folders[0].settings.listen) as one:
        token = one.liveliness().declare_token(f"{key}/alive/1/7")
        kept = one.declare_queryable(
            f"{key}/prove/1/from/*", lambda query: (asked.append("x"), query.reply(query.key_expr, b"proof"))
        )
        until(lambda: link.alive(1))
        until(lambda: twins_asked(one))
        before = len(asked)
        ignored.add(1)
        before_put = ignored.asked
        one.put(f"{key}/to/0/from/1", b"from an isolated device")
        until(lambda: ignored.asked > before_put)  # it has arrived: a query may overtake it
        assert twins_asked(one) == 0
        assert not link.alive(1)
        assert frames(link) == []
        ignored.clear()
        one.put(f"{key}/to/0/from/1", b"welcome")
        until(lambda: link.num_waiting())
        assert frames(link) == [b"welcome"]
        assert len(asked) == before
        token.undeclare()
        kept.undeclare()


def test_isolation_covers_states_relays_and_clocks(tmp_path: Path) -> None:
    from heliomesh.field.fleet.messages import Message
    from heliomesh.model.factor import energy
    from tests.agents.test_intruders import FLOATS, inbox, sender

    problem = small(**{"network.devices": 3, "slots": 4})
    folders = deployed(problem, planned(problem, hops=0), tmp_path / "net")
    said: list[str] = []
    box, times = inbox(folders[0], said, 2), list[tuple[int, float]]()
    box.clock = replace_clock(box.clock, times)
    box.isolated.add(1)
    for destination in (0, 2):
        state = Message(1, destination, "state", 5, {energy(1): 0}, 8)
        for frame in sender(folders[1]).frames(state, 77.0, FLOATS):
            assert box.take(frame) is None
    for frame in sender(folders[1]).silence(0, 5, 77.0):
        assert box.take(frame) is None
    assert box.refused == {"1": {"isolated": 3}}
    assert times == []
    assert said == ["device 1: isolated; nothing from it is heard any more"]
    box.isolated.clear()
    box.proven(1, 0, 0.0, 0.0)  # the clock hears who has answered a fresh question
    times.clear()
    assert [box.take(frame) for frame in sender(folders[1]).silence(0, 5, 77.0)] != [None]
    assert times == [(1, 77.0)]


def replace_clock(clock: Any, times: list[tuple[int, float]]) -> Any:
    """The same clock, which writes down whose time it hears."""
    found = replace(clock)
    found.heard = lambda *told: times.append(told)
    return found
