"""The live page shows what agents do, and nobody else can read it."""

import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heliomesh.problem.problem import Problem
from heliomesh.simulation.trace import simulate
from tests.agents.network import deployed, planned, running, small

from heliomesh.agents.deploy import WATCHER  # isort: skip
from heliomesh.agents.journal import read_journal
from heliomesh.agents.watch import Watched, watch


def test_the_live_page(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 3, "slots": 150})
    folders = deployed(problem, planned(problem, hops=0), tmp_path / "net")
    server = watch(tmp_path / "net" / WATCHER, "127.0.0.1", 0, 1.0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}/"
    try:
        assert b"No slot has ended yet" in _read(address)
        with running(folders) as network:
            network.wait()
        until = time.monotonic() + 10
        while b"live, the agents" not in (page := _read(address)):
            assert time.monotonic() < until
            time.sleep(0.2)
        assert b"player" in page
        with pytest.raises(urllib.error.HTTPError, match="403"):
            _read(address, {"Host": "elsewhere.example"})
        with pytest.raises(urllib.error.HTTPError, match="404"):
            _read(address + "other")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_journals_make_the_simulators_trace(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 3, "slots": 6})
    plan = planned(problem)
    folders = deployed(problem, plan, tmp_path / "net", seed=2)
    with running(folders) as network:
        network.wait()
    watched = Watched(problem)
    for device, folder in enumerate(folders):
        for line in read_journal(folder):
            watched.hear(device, line)
    found, expected = watched.trace(), simulate(problem, plan, 1, 2)
    assert found is not None
    for column in expected.recorded:
        assert np.array_equal(getattr(found, column.name), getattr(expected, column.name)), column.name


def journal_line(problem: Problem, device: int, slot: int, battery_joule: float) -> dict[str, Any]:
    edges = len(problem.topology.neighbours[device])
    idle = dict.fromkeys(("power_watt", "planned_joule", "harvested_joule", "overflow_joule"), 0.0)
    return {
        **idle,
        "slot": slot,
        "plan": "",
        "measured_joule": None,
        "channel_level": {},
        "weather": 0,
        "battery_joule": battery_joule,
        "battery_after_joule": battery_joule,
        "trained": False,
        "error_prob": [1.0] * edges,
        "delivered": [False] * edges,
        "loss": None,
    }


def test_the_books_of_a_device_that_missed_slots_balance() -> None:
    problem = small(**{"network.devices": 3, "slots": 6})
    watched = Watched(problem)
    for device, slots in enumerate(([0, 1, 2, 3], [0, 3], [2, 3])):
        for slot in slots:
            watched.hear(device, journal_line(problem, device, slot, 1.5 if slot == 3 and device == 1 else 1.0))
    trace = watched.trace()
    assert trace is not None
    assert trace.harvested_joule[0, :4].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0.5, 0], [0, 0, 0]]
    left = trace.battery_joule[:, :-1] + trace.harvested_joule - trace.spent_joule
    assert np.array_equal(left, trace.battery_joule[:, 1:])


def _read(address: str, headers: dict[str, str] | None = None) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers or {})) as answer:  # noqa: S310
        return bytes(answer.read())
