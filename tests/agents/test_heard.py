"""What a watcher hears: nothing that a device says breaks it, and a restart loses nothing that was kept."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heliomesh.model.problem import Problem
from heliomesh.simulation.trace import Trace, simulate
from tests.agents.lines import idle_line, signed, traced_line
from tests.agents.network import READY, planned, small

from heliomesh.field.agents.folder import ClockSettings  # isort: skip
from heliomesh.field.agents.heard import Heard, Refusal
from heliomesh.field.agents.journal import RotatedLines
from heliomesh.field.agents.live_page import LivePage


@pytest.fixture(scope="module")
def problem() -> Problem:
    return small(**{"network.devices": 3, "slots": 8})


def page_of(heard: Heard) -> LivePage:
    return LivePage(heard, "decentralized", {"hops": 0, "rounds": 1}, 0)


def data_of(page: LivePage) -> dict[str, Any]:
    """What the script of a page reads."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.html(), re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def kept_in(folder: Path, most_bytes: int = 1 << 20) -> RotatedLines:
    return RotatedLines(folder / "heard.jsonl", folder / "heard.old.jsonl", most_bytes)


WRONG: dict[str, Any] = {
    "slot": [True, 1.5, "1", -1, 8, 10**9, 10**400, None, [], float("nan")],
    "device": [0, 2, 10**9, -1, "1", None],
    "plan": [1, None, "x" * 65],
    "channel_level": [{"0": 0}, {"1": 99}, {"1": -1}, {"one": 0}, {"1": 0.5}, [], None, {"9" * 30: 0}],
    "weather": [1, -1, 0.0, None],
    "battery_joule": [float("inf"), float("nan"), -1.0, 1e300, 2.1, "1", None, [1.0], True],
    "battery_after_joule": [float("-inf"), 10.0],
    "power_watt": [0.5, 1e9, None, {}],
    "trained": [1, "yes", None],
    "planned_joule": [-1e-9, 1e9],
    "harvested_joule": [1e9, None],
    "overflow_joule": [1e9],
    "error_prob": [[], [0.5], [0.5] * 1000, [2.0, 0.0], [None, None], "ab", {}, [[0.5], [0.5]]],
    "delivered": [[], [True], [1, 0], ["a", "b"], None],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_line_that_cannot_be_true_is_forgotten(problem: Problem, name: str, value: Any) -> None:
    heard = Heard(problem, READY)
    heard.hear(1, signed(idle_line(problem, 1, 0) | {name: value}))
    assert (heard.count, heard.latest, heard.refused[1].count) == (0, -1, 1)
    assert heard.refused[1].first_reason.startswith(name)
    assert "No slot has ended yet. Device 1 has sent lines that cannot be true" in page_of(heard).html()


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff\xfe", b"null", b"[]", b"1e999", b'{"slot":', b"[" * 60_000, b'{"slot": 0}', b"{}" * 100],
)
def test_a_text_that_is_no_line_is_forgotten(problem: Problem, text: bytes) -> None:
    heard = Heard(problem, READY)
    heard.hear(1, text)
    assert (heard.count, heard.refused[1].count) == (0, 1)


def test_a_page_says_who_sends_what_cannot_be_true_and_shows_the_others(problem: Problem) -> None:
    heard = Heard(problem, READY)
    heard.hear(0, signed(idle_line(problem, 0, 0)))
    for _ in range(1000):
        heard.hear(2, signed(idle_line(problem, 2, 0) | {"battery_joule": float("nan")}))
    heard.hear(1, signed(idle_line(problem, 1, 0)))
    missing = data_of(page_of(heard))["runs"][0]["missing"]
    assert [text for text in missing if text.startswith("Device 2 has sent lines that cannot be true, 1000 of them")]
    assert heard.heard_in(0) == {0, 1}


def test_a_device_counts_once_a_slot_and_not_before_the_slot(problem: Problem, tmp_path: Path) -> None:
    clock = ClockSettings(start_second=1000.0, slot_second=10.0, guard_second=1.0)
    heard = Heard(problem, clock, kept_in(tmp_path))
    heard.slot_now = lambda: 4  # type: ignore[method-assign]
    for _ in range(100):
        heard.hear(1, signed(idle_line(problem, 1, 4)))
        heard.hear(1, signed(idle_line(problem, 1, 4, 0.5)))
        heard.hear(1, signed(idle_line(problem, 1, 5)))
    assert (heard.count, heard.latest) == (1, 4)
    assert heard.refused == {1: Refusal(100, "slot: expected one that has begun, at most 4, actual 5")}
    assert len((tmp_path / "heard.jsonl").read_text().splitlines()) == 1


def test_the_slot_of_the_time_of_day(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(problem, ClockSettings(start_second=1000.0, slot_second=10.0, guard_second=1.0))
    for second, slot in ((990.0, -1), (1000.0, 0), (1008.9, 0), (1009.0, 1), (1075.0, 7)):
        monkeypatch.setattr("heliomesh.field.agents.heard.time.time", lambda now=second: now)
        assert heard.slot_now() == slot
    assert Heard(problem, READY).slot_now() is None


def heard_from(problem: Problem, trace: Trace, slots: list[int], heard: Heard) -> Heard:
    for slot in slots:
        for device in range(problem.num_devices):
            heard.hear(device, signed(traced_line(problem, trace, device, slot)))
    return heard


@pytest.mark.parametrize("slots", [[3, 4, 5, 6, 7], [0, 1, 5, 6], [7]])
def test_a_watcher_that_comes_later_or_was_away_shows_what_it_heard_as_it_was(slots: list[int]) -> None:
    problem = small(**{"network.devices": 3, "slots": 8})
    trace = simulate(problem, planned(problem, hops=0), 1, 1)
    heard = heard_from(problem, trace, slots, Heard(problem, READY))
    found = heard.trace("decentralized", 5000)
    assert found is not None
    assert found[1].slots.tolist() == slots
    for name in ("scheduled", "power_watt", "update_loss", "delivered", "error_prob", "channel_level"):
        assert np.array_equal(getattr(found[0], name), getattr(trace, name)[:, slots]), name
    assert np.array_equal(found[0].battery_joule[:, :-1], trace.battery_joule[:, slots])
    data = data_of(page_of(heard))
    assert f"slots {slots[0]} to {slots[-1]}" in data["title"]
    assert data["runs"][0]["trace"]["cost"] == pytest.approx(trace.update_loss[0, slots].sum(1).mean())


def test_what_happened_unheard_is_booked_before_a_device_is_heard_again(problem: Problem) -> None:
    heard = Heard(problem, READY)
    for device, slots in enumerate(([0, 1, 2, 3, 6], [0, 3, 6], [2, 3, 6])):
        for slot in slots:
            battery = {(1, 3): 1.5, (1, 6): 1.5, (0, 6): 0.25}.get((device, slot), 1.0)
            heard.hear(device, signed(idle_line(problem, device, slot, battery)))
    found = heard.trace("decentralized", 5000)
    assert found is not None
    trace, live = found
    assert live.slots.tolist() == [0, 1, 2, 3, 6]
    assert live.heard.tolist()[1] == [True, False, False]
    assert trace.harvested_joule[0].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0.5, 0], [0, 0, 0], [0, 0, 0]]
    assert trace.spent_joule[0].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [0.75, 0, 0], [0, 0, 0]]
    left = trace.battery_joule[:, :-1] + trace.harvested_joule - trace.spent_joule
    assert np.array_equal(left, trace.battery_joule[:, 1:])


def test_a_restart_shows_what_was_kept(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 3, "slots": 8})
    trace = simulate(problem, planned(problem, hops=0), 1, 1)
    before = heard_from(problem, trace, [0, 1, 2], Heard(problem, READY, kept_in(tmp_path)))
    with (tmp_path / "heard.jsonl").open("ab") as file:
        file.write(b'{"slot": 3, "dev\x00\xff')  # the power failed here
    again = Heard(problem, READY, kept_in(tmp_path))
    assert (again.count, again.latest, again.plans) == (9, 2, before.plans)
    assert page_of(again).html() == page_of(before).html()
    heard_from(problem, trace, [5], again)
    third = Heard(problem, READY, kept_in(tmp_path))
    found = third.trace("decentralized", 5000)
    assert found is not None
    assert found[1].slots.tolist() == [0, 1, 2, 5]
    assert np.array_equal(found[0].update_loss, trace.update_loss[:, [0, 1, 2, 5]])


def test_what_is_kept_has_a_limit(tmp_path: Path) -> None:
    problem, size = small(**{"network.devices": 3, "slots": 100}), 4000
    heard = Heard(problem, READY, kept_in(tmp_path, size))
    for slot in range(100):
        heard.hear(0, signed(idle_line(problem, 0, slot)))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * (size + 500)
    again = Heard(problem, READY, kept_in(tmp_path, size))
    assert again.latest == 99
    assert 5 < again.count < 30


def test_a_full_disk_is_told_on_the_page(problem: Problem, tmp_path: Path) -> None:
    (tmp_path / "heard.jsonl").mkdir()
    with pytest.raises(IsADirectoryError):
        kept_in(tmp_path).add("a line")
    heard = Heard(problem, READY)
    heard._kept = kept_in(tmp_path)
    heard.hear(0, signed(idle_line(problem, 0, 0)))
    assert heard.count == 1
    assert "What is heard is not kept for a restart: Is a directory." in data_of(page_of(heard))["runs"][0]["missing"]


def test_a_dead_device_is_told_from_the_others(problem: Problem) -> None:
    heard = Heard(problem, READY)
    for slot in range(7):
        for device in (0, 2) if slot > 2 else (0, 1, 2):
            heard.hear(device, signed(idle_line(problem, device, slot)))
    page = page_of(heard)
    run = data_of(page)["runs"][0]
    assert "Device 1 has not been heard since slot 2; its battery is drawn as it was then." in run["missing"]
    assert run["live"]["heard"]["shape"] == [7, 3]
    found = heard.trace("decentralized", 5000)
    assert found is not None
    assert found[1].heard[:, 1].tolist() == [True] * 3 + [False] * 4
    assert 'id="missing-key"' in page.html()
    silent = Heard(problem, READY)
    silent.hear(0, signed(idle_line(problem, 0, 3)))
    assert page_of(silent).silences() == ["Device 1 has never been heard.", "Device 2 has never been heard."]


def test_a_network_of_which_nobody_is_heard_any_more(problem: Problem) -> None:
    heard = Heard(problem, ClockSettings())
    heard.slot_now = lambda: 7  # type: ignore[method-assign]
    for device in range(3):
        heard.hear(device, signed(idle_line(problem, device, 2)))
    assert page_of(heard).silences() == ["No device has been heard since slot 2; by the clock it is slot 7."]


def test_the_page_names_the_planner_that_was_deployed(problem: Problem) -> None:
    heard = Heard(problem, READY)
    heard.hear(0, signed(idle_line(problem, 0, 0)))
    data = data_of(page_of(heard))
    assert data["runs"][0]["planner"] == "decentralized"
    assert data["schemes"][0]["label"] == "decentralized hops=0 rounds=1 (unfinished)"
    assert "uncoordinated" not in json.dumps(data["schemes"])
    found = heard.trace("decentralized", 5000)
    assert found is not None
    assert found[0].planner == "decentralized"
