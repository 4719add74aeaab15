"""The live page shows what agents do, and ends when it is told to."""

import signal
import subprocess
import sys
import threading
import time
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
from heliomesh.field.agents.watch import PAGE, watch
from tests.agents.lines import read_journal


def test_the_live_page(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 3, "slots": 150})
    folders = deployed(problem, planned(problem, hops=0), tmp_path / "net")
    folder = tmp_path / "net" / WATCHER
    page = folder / PAGE
    with watch(folder, 0.2) as watcher:
        _until(lambda: page.exists() and "No slot has ended yet" in page.read_text())
        with running(folders) as network:
            network.wait()
        _until(lambda: "live, the agents" in page.read_text())
        with pytest.raises(BusyFolderError), watch(folder, 1.0):
            pass
        last = watcher.heard.latest
    assert f"slots 0 to {last}" in page.read_text() or "live, the agents" in page.read_text()
    assert '<head><meta http-equiv="refresh" content="0.2">' in page.read_text()
    page.unlink()
    with watch(folder, 1.0) as watcher:  # the network has ended
        assert watcher.heard.latest == last >= 0
        _until(page.exists)
    assert "live, the agents" in page.read_text()
    assert "player" in page.read_text()


def test_a_page_without_room_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, ended, room = Heard(small(**{"network.devices": 3, "slots": 6}), READY), threading.Event(), [False, True]

    def write(target: Path, text: str) -> None:
        if not room.pop(0):
            raise OSError("no room")
        target.write_text(text)
        ended.set()

    monkeypatch.setattr(live_page, "write_text", write)
    live_page.LivePage(heard, "decentralized", {}, 0).keep(tmp_path / PAGE, 0.01, ended)
    assert "No slot has ended yet" in (tmp_path / PAGE).read_text()
    assert not room  # nothing has changed, and nothing was written again


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
    with linked(folders) as links, watch(tmp_path / "net" / WATCHER, 0.2) as watcher:
        heard = watcher.heard

        def told() -> bool:
            for wrong in ({"slot": True}, {"error_prob": "x"}, {"battery_joule": float("inf")}, {"x": "y" * 100_000}):
                links[2].tell_watchers(idle_line(problem, 2, 0) | {"trained": 3} | wrong)
            for device in (0, 1):
                links[device].tell_watchers(idle_line(problem, device, 0))
            return 2 in heard.refused and heard.refused[2].count > 9 and heard.heard_in(0) == {0, 1}

        _until(told)
    page = (tmp_path / "net" / WATCHER / PAGE).read_text()
    assert "Device 2 has sent lines that cannot be true" in page
    assert "live, the agents" in page


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_a_watcher_that_plans_in_one_line(tmp_path: Path, number: int, code: int) -> None:
    problem = small(**{"network.devices": 3, "slots": 1000})  # to calibrate its detectors takes seconds
    options = {"rounds": 1, "hops": 0}
    folders = deployed(problem, planned(problem, hops=0), tmp_path / "net", options=options)
    folder = tmp_path / "net" / WATCHER
    words = [sys.executable, "-m", "heliomesh", "device", "watch", str(folder), "--replan"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with linked(folders) as links, subprocess.Popen(words, **pipes) as process:  # noqa: S603
        try:
            assert process.stdout is not None
            assert "shows the network in a browser; Ctrl-C ends" in process.stdout.readline()

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
