"""The live page shows what agents do, nobody else can read it, and it ends when it is told to."""

import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heliomesh.simulation.trace import simulate
from tests.agents.lines import idle_line, signed
from tests.agents.network import READY, deployed, planned, running, small

from heliomesh.field.agents.deploy import WATCHER  # isort: skip
from heliomesh.common.durable import BusyFolderError
from heliomesh.field.agents import live_page
from heliomesh.field.agents.folder import AgentFolder
from heliomesh.field.agents.heard import Heard
from heliomesh.field.agents.link import Link
from heliomesh.field.agents.live_page import PageServer
from heliomesh.field.agents.watch import watch
from tests.agents.lines import read_journal


def test_the_live_page(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 3, "slots": 150})
    folders = deployed(problem, planned(problem, hops=0), tmp_path / "net")
    with watch(tmp_path / "net" / WATCHER, "127.0.0.1", 0, 1.0) as watcher:
        address = f"http://127.0.0.1:{watcher.port}/"
        assert b"No slot has ended yet" in _read(address)
        with running(folders) as network:
            network.wait()
        _until(lambda: b"live, the agents" in _read(address))
        assert b"player" in _read(address)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            _read(address, {"Host": "elsewhere.example"})
        with pytest.raises(urllib.error.HTTPError, match="404"):
            _read(address + "other")
        with pytest.raises(BusyFolderError), watch(tmp_path / "net" / WATCHER, "127.0.0.1", 0, 1.0):
            pass
        last = watcher.heard.latest
    with watch(tmp_path / "net" / WATCHER, "127.0.0.1", 0, 1.0) as watcher:  # the network has ended
        assert watcher.heard.latest == last >= 0
        assert b"live, the agents" in _read(f"http://127.0.0.1:{watcher.port}/")


def test_journals_make_the_simulators_trace(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 3, "slots": 6})
    plan = planned(problem)
    folders = deployed(problem, plan, tmp_path / "net", seed=2)
    with running(folders) as network:
        network.wait()
    heard = Heard(problem, READY)
    for device, folder in enumerate(folders):
        for line in read_journal(folder):
            heard.hear(device, signed(line))
    found, expected = heard.trace("decentralized", 5000), simulate(problem, plan, 1, 2)
    assert found is not None
    for column in expected.recorded:
        assert np.array_equal(getattr(found[0], column.name), getattr(expected, column.name)), column.name


@contextmanager
def linked(folders: list[AgentFolder]) -> Iterator[list[Link]]:
    """The devices' connections, without the devices."""
    with ExitStack() as leaving:
        links = [Link(folder, time.time_ns()) for folder in folders]
        for link in links:
            leaving.callback(link.close)
        yield links


def test_a_malformed_signed_line_breaks_nothing(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 3, "slots": 20})
    folders = deployed(problem, planned(problem, hops=0), tmp_path / "net")
    with linked(folders) as links, watch(tmp_path / "net" / WATCHER, "127.0.0.1", 0, 1.0) as watcher:
        heard = watcher.heard

        def told() -> bool:
            for wrong in ({"slot": True}, {"error_prob": "x"}, {"battery_joule": float("inf")}, {"x": "y" * 100_000}):
                links[2].tell_watchers(idle_line(problem, 2, 0) | {"trained": 3} | wrong)
            for device in (0, 1):
                links[device].tell_watchers(idle_line(problem, device, 0))
            return 2 in heard.refused and heard.refused[2].count > 9 and heard.heard_in(0) == {0, 1}

        _until(told)
        page = _read(f"http://127.0.0.1:{watcher.port}/")
    assert b"Device 2 has sent lines that cannot be true" in page
    assert b"live, the agents" in page


@contextmanager
def _served(page: Callable[[], bytes]) -> Iterator[PageServer]:
    server = PageServer(("127.0.0.1", 0), page, 1.0)
    serving = threading.Thread(target=server.serve_forever, args=(0.05,))
    serving.start()
    try:
        yield server
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def test_a_page_has_few_visitors_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "_ASK_SECOND", 600.0)
    with _served(lambda: b"the page") as server, ExitStack() as leaving:
        place = ("127.0.0.1", server.server_address[1])
        slow = [leaving.enter_context(socket.create_connection(place, 60)) for _ in range(8)]
        for one in slow:
            one.sendall(b"GET / HTTP/1.0\r\nHost: localh")
        _until(lambda: len(server._visitors) == 8)
        with socket.create_connection(place, 60) as one_more:
            assert one_more.recv(1000).startswith(b"HTTP/1.0 503 ")
        slow[0].sendall(b"ost\r\n\r\n")
        assert slow[0].recv(1000).startswith(b"HTTP/1.0 200 ")
        _until(lambda: len(server._visitors) == 7)
        assert _read(f"http://127.0.0.1:{place[1]}/") == b"the page"


def test_a_slow_request_and_a_long_one_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with _served(lambda: b"the page") as server:
        place = ("127.0.0.1", server.server_address[1])
        address = f"http://127.0.0.1:{place[1]}/"
        assert _read(address, {"X": "y" * 4000}) == b"the page"
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            _read(address, {"X": "y" * 10_000})
        monkeypatch.setattr(live_page, "_ASK_SECOND", 0.2)
        with socket.create_connection(place, 60) as slow:
            slow.sendall(b"GET / HTTP/1.0\r\nHost: localh")
            assert slow.recv(1000) == b""  # its time is over
    assert not server._visitors


def test_a_page_closes_though_visitors_are_there() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def page() -> bytes:
        asked.set()
        go_on.wait(60)
        return b"x" * 50_000_000

    started = time.monotonic()
    with ExitStack() as leaving:
        with _served(page) as server:
            place = ("127.0.0.1", server.server_address[1])
            visitor, idle = (leaving.enter_context(socket.create_connection(place, 30)) for _ in range(2))
            visitor.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
            idle.sendall(b"GET")
            assert asked.wait(60)
            go_on.set()
        assert not server._visitors
    assert time.monotonic() - started < live_page._READ_SECOND


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_a_watcher_that_plans_in_one_line(tmp_path: Path, number: int, code: int) -> None:
    problem = small(**{"network.devices": 3, "slots": 1000})  # to calibrate its detectors takes seconds
    options = {"rounds": 1, "hops": 0}
    folders = deployed(problem, planned(problem, hops=0), tmp_path / "net", options=options)
    folder = tmp_path / "net" / WATCHER
    words = [sys.executable, "-m", "heliomesh", "device", "watch", str(folder), "--port", "0", "--replan"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with linked(folders) as links, subprocess.Popen(words, **pipes) as process:  # noqa: S603
        try:
            assert process.stdout is not None
            assert "shows the network; Ctrl-C ends" in process.stdout.readline()

            def kept() -> bool:
                for device, link in enumerate(links):
                    for slot in (700, 701, 702):  # the watcher comes in the middle
                        link.tell_watchers(idle_line(problem, device, slot))
                file = folder / "heard.jsonl"
                return file.exists() and len(file.read_text().splitlines()) == 9

            _until(kept)
            time.sleep(0.3)  # it plans now, or is about to
            process.send_signal(number)
            out, told = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (code, "")
    assert told == f"watch ended; a restart goes on with what is kept in {folder}\n"


def _until(reached: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.05)


def _read(address: str, headers: dict[str, str] | None = None) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers or {})) as answer:  # noqa: S310
        return bytes(answer.read())
