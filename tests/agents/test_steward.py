"""Deviating joules call for a new plan, and devices follow it."""

import json
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from heliomesh.field.living.conditions import Conditions, world_under
from heliomesh.field.living.detector import Watch
from heliomesh.simulation.slot_loop import run_slots
from heliomesh.simulation.trace import simulate
from tests.agents.lines import traced_line
from tests.agents.network import READY, bidding, deployed, planned, running, small, told

from heliomesh.field.agents.deploy import WATCHER  # isort: skip
from heliomesh.field.agents.folder import AgentFolder, Belief, ClockSettings, SentPlan
from heliomesh.field.agents.heard import Heard
from heliomesh.field.agents.identity import OPERATOR
from heliomesh.field.agents.journal import RotatedLines
from heliomesh.field.agents.link import Overlook
from heliomesh.field.agents.tables import fits, parts_of
from heliomesh.field.agents.watch import NewPlan, Steward, Watcher, WatchSettings, send_plan, watch
from heliomesh.field.agents.wire import Sender
from tests.agents.lines import read_journal

OPTIONS = {"rounds": 1, "hops": 0}
BIDS = {"practice": 2, "passes": 1, "talk": "messages"}
RICH: dict[str, Any] = {  # in which less sun changes the plan
    "network.devices": 3,
    "energy.battery_levels": 4,
    "energy.capacity_joule": 3.0,
    "energy.powers_watt": [0.0, 1.0, 2.0],
}

BUSY: dict[str, Any] = {
    "network.devices": 5,
    "link.noise_watt": 1e-3,
    "harvest.scale": 2.0,
}  # silence means something


@contextmanager
def replanning(folder: Path, said: list[str]) -> Iterator[None]:
    """A watcher that plans anew."""
    with watch(folder, 5.0) as watcher:
        following = threading.Thread(target=watcher.follow, args=(said.append,))
        following.start()
        try:
            yield
        finally:
            watcher.stop.set()
            following.join()


def dumped(parts: Iterable[Any]) -> list[dict[str, Any]]:
    """What the parts of a plan say of their devices."""
    return [own.model_dump() for part in parts for own in part.devices]


def test_a_steward_plans_anew_where_harvests_deviate() -> None:
    problem = small(**RICH, slots=40)
    poor = world_under(problem, Conditions(harvest=tuple((device, 0.2) for device in range(3))))
    found = {}
    for name, world in (("usual", problem), ("poor", poor)):
        steward = Steward.of(problem, "decentralized", OPTIONS, Watch(calibration_episodes=80))
        slots = run_slots(problem, planned(problem, hops=0).policy, [0], 0, {0: world})
        found[name] = [plan for number, slot in enumerate(slots) if (plan := steward.look(number, slot))]
    assert found["usual"] == []
    first = found["poor"][0]
    assert all(factor < 0.6 for _, factor in first.belief.harvest)
    assert dumped(first.parts) != dumped(parts_of(planned(problem, hops=0)))


def test_a_steward_plans_without_a_device_that_is_gone_and_with_it_once_it_is_back() -> None:
    problem = small(**BUSY, slots=70)
    gone = world_under(problem, Conditions(away=frozenset({2})))
    steward = Steward.of(problem, "decentralized", OPTIONS, Watch(calibration_episodes=80))
    found = []
    slots = run_slots(problem, planned(problem, hops=0).policy, [0], 0, {10: gone, 45: problem})
    for number, slot in enumerate(slots):
        unheard = frozenset({2} if 10 <= number < 45 else set())
        if (plan := steward.look(number, slot, unheard)) is not None:
            found.append((number, steward.cause, plan))
    assert [(cause, plan.belief) for _, cause, plan in found] == [
        ("silence", Conditions(away=frozenset({2}))),
        ("life of 2", Conditions()),
    ]
    assert 10 < found[0][0] < 45
    assert found[1][0] == 45
    smaller, whole = found[0][2].parts, found[1][2].parts
    assert [len(own["neighbours"]) for own in dumped(smaller)] == [2, 1, 0, 1, 2]
    usual = parts_of(planned(problem, hops=0))
    assert dumped(whole) == dumped(usual)


def test_a_steward_plans_bids_anew() -> None:
    problem = small(**RICH, slots=40, **{"energy.actions": "separate"})
    poor = world_under(problem, Conditions(harvest=tuple((device, 0.2) for device in range(3))))
    options = {"practice": 2, "passes": 1}
    steward = Steward.of(problem, "bids", options, Watch(calibration_episodes=80))
    slots = run_slots(problem, bidding(problem).policy, [0], 0, {0: poor})
    found = [plan for number, slot in enumerate(slots) if (plan := steward.look(number, slot))]
    assert all(factor < 0.6 for _, factor in found[0].belief.harvest)
    sent = [SentPlan(part=part, belief=Belief.of(found[0].belief)) for part in found[0].parts]
    for device, one in enumerate(sent):
        assert SentPlan.model_validate_json(one.model_dump_json()) == one
        assert fits(one.part, problem, device)
        assert not fits(one.part, problem, (device + 1) % 3)


def test_devices_that_bid_keep_their_plan_where_one_is_gone_and_get_another_for_less_sun() -> None:
    problem = small(**BUSY, slots=90, **{"energy.actions": "separate"})
    gone = Conditions(away=frozenset({2}))
    poor = Conditions(away=frozenset({2}), harvest=tuple((device, 0.2) for device in (0, 1, 3, 4)))
    worlds = {start: world_under(problem, found) for start, found in ((10, gone), (50, poor))}
    steward = Steward.of(problem, "bids", BIDS, Watch(calibration_episodes=80))
    lost, found = {}, []
    for number, slot in enumerate(run_slots(problem, bidding(problem).policy, [0], 0, worlds)):
        plan = steward.look(number, slot, frozenset({2} if number >= 10 else set()))
        lost[number] = steward.lost
        found += [(number, plan)] if plan is not None else []
    assert not lost[10]
    assert lost[49] == {(1, 2), (2, 3)}
    assert found
    assert all(number > 50 for number, _ in found)
    for _, plan in found:
        assert plan.belief.harvest
        assert not plan.belief.away
        assert all(fits(part, problem, device) for device, part in enumerate(plan.parts))


def test_a_watcher_says_that_devices_keep_their_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = small(**BUSY, slots=40, **{"energy.actions": "separate"})
    folder = deployed(problem, bidding(problem), tmp_path / "net")[0]
    gone = world_under(problem, Conditions(away=frozenset({2})))
    trace = simulate(problem, bidding(problem), 1, 0, truth={10: gone})
    kept = RotatedLines(tmp_path / "heard.jsonl", tmp_path / "heard.old.jsonl", 1 << 20)
    for slot in range(39):
        for device in [0, 1, 3, 4] if slot >= 10 else range(5):
            kept.add(json.dumps(traced_line(problem, trace, device, slot) | {"plan": "first"}))
    settings = WatchSettings(network="n", planner="bids", options=BIDS, devices={})
    sender, said, ended = Sender(folder.identity(), "n", "", OPERATOR, 1), list[str](), threading.Event()
    ended.set()

    def send(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("heliomesh.field.agents.watch.send_plan", send)
    Watcher(Heard(problem, READY, kept), settings, sender, lambda *_: None, lambda: None, ended).follow(said.append)
    assert said
    for sentence in said:
        cause, effect = sentence.split("; ")
        assert re.fullmatch(r"slot \d\d: alarm by silence", cause)
        assert effect == "devices keep their plan, which counts on who bids"
    assert len(set(said)) == len(said)


def test_the_page_goes_on_where_no_plan_can_be_made(tmp_path: Path) -> None:
    problem = small(slots=5, **{"energy.actions": "separate", "energy.control": "paid"})
    kept = RotatedLines(tmp_path / "heard.jsonl", tmp_path / "heard.old.jsonl", 1 << 20)
    settings = WatchSettings(network="n", planner="bids", options=BIDS, devices={})
    folder = deployed(problem, bidding(problem), tmp_path / "net")[0]
    sender, said, ended = Sender(folder.identity(), "n", "", OPERATOR, 1), list[str](), threading.Event()
    ended.set()
    Watcher(Heard(problem, READY, kept), settings, sender, lambda *_: None, lambda: None, ended).follow(said.append)
    (sentence,) = said
    assert sentence.startswith(
        "no new plan can be made any more, and the page goes on: energy.control: expected 'free'"
    )


@pytest.mark.parametrize("planner", ["decentralized", "bids"])
def test_a_steward_forgives_a_short_absence(planner: str) -> None:
    problem = small(**BUSY, slots=40, **({"energy.actions": "separate"} if planner == "bids" else {}))
    plan, options = (bidding(problem), BIDS) if planner == "bids" else (planned(problem, hops=0), OPTIONS)
    steward = Steward.of(problem, planner, options, Watch(calibration_episodes=80))
    for number, slot in enumerate(run_slots(problem, plan.policy, [0], 0)):
        unheard = frozenset({1} if number in (10, 11, 12) else set())
        assert steward.look(number, slot, unheard) is None


@pytest.mark.parametrize("looked", [range(13, 40), [*range(6), *range(14, 40)]])
def test_a_steward_may_begin_late_and_miss_slots(looked: Sequence[int]) -> None:
    problem = small(**RICH, slots=40)
    poor = world_under(problem, Conditions(harvest=tuple((device, 0.2) for device in range(3))))
    found = {}
    for name, world in (("usual", problem), ("poor", poor)):
        steward = Steward.of(problem, "decentralized", OPTIONS, Watch(calibration_episodes=80))
        slots = list(run_slots(problem, planned(problem, hops=0).policy, [0], 0, {0: world}))
        found[name] = [plan for number in looked if (plan := steward.look(number, slots[number]))]
    assert found["usual"] == []
    assert all(factor < 0.6 for _, factor in found["poor"][0].belief.harvest)


def test_a_watcher_that_starts_again_sends_plans_to_those_who_do_not_follow_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = small(**RICH, slots=40)
    folder = deployed(problem, planned(problem, hops=0), tmp_path / "net")[0]
    poor = world_under(problem, Conditions(harvest=tuple((device, 0.2) for device in range(3))))
    trace = simulate(problem, planned(problem, hops=0), 1, 0, truth={0: poor})
    kept = RotatedLines(tmp_path / "heard.jsonl", tmp_path / "heard.old.jsonl", 1 << 20)
    settings = WatchSettings(network="n", planner="decentralized", options=OPTIONS, devices={})
    sender = Sender(folder.identity(), "n", "", OPERATOR, 1)
    sent: list[tuple[str, int, list[int]]] = []
    said: list[str] = []

    def send(plan: NewPlan, first_slot: int, devices: Iterable[int], *_: object) -> None:
        sent.append((plan.name, first_slot, list(devices)))

    def started_after(slots: Iterable[int], plans: Sequence[str]) -> None:
        """A watcher that starts when so much more has been heard."""
        for slot in slots:
            for device in range(3):
                kept.add(json.dumps(traced_line(problem, trace, device, slot) | {"plan": plans[device]}))
        ended = threading.Event()
        ended.set()  # it ends where it would wait for more
        heard = Heard(problem, READY, kept)
        Watcher(heard, settings, sender, lambda *_: None, lambda: None, ended).follow(said.append)

    monkeypatch.setattr("heliomesh.field.agents.watch.send_plan", send)
    started_after(range(10, 30), ["first"] * 3)
    name = sent[0][0]
    assert sent == [(name, 32, [0, 1, 2])]  # once, and early enough for all to change over at once
    (sentence,) = said
    assert re.fullmatch(rf"slot 2\d: alarm by harvest; plan {name[:12]} is in force from slot 32 on", sentence)
    started_after([30], [name] * 3)
    assert len(sent) == 1
    started_after([31], [name, "first", name])
    assert sent[1:] == [(name, 31, [1])]


def test_books_without_a_device_give_its_weight_away(tmp_path: Path) -> None:
    problem = small(**{"network.devices": 5, "slots": 4})
    folder = deployed(problem, planned(problem, hops=1), tmp_path / "net")[1]
    belief = Belief(away=(2,), links_off=((3, 4),))
    folder.write_settings(folder.settings.model_copy(update={"belief": belief}))
    before, view = folder.view(), AgentFolder(folder.path).view()
    own = view.problem.topology.edge_receiver == 1
    assert view.neighbours == before.neighbours == (0, 2)
    assert set(view.distance) == {0}
    assert before.problem.topology.edge_weight[own].tolist() == pytest.approx([1 / 3, 1 / 3])
    assert view.problem.topology.edge_weight[own].tolist() == pytest.approx([1 / 3, 0])
    assert view.problem.topology.self_weight[1] == pytest.approx(2 / 3)


def test_an_agent_follows_a_new_plan_and_remembers_it(tmp_path: Path) -> None:
    problem = small(**RICH, slots=300)
    alone = READY.model_copy(update={"patience_second": 0.2})
    folders = deployed(problem, planned(problem, hops=0), tmp_path / "net", alone)
    poorer = small(**RICH, slots=300, **{"harvest.scale": 0.2})
    plan = NewPlan.of(poorer, planned(poorer, hops=0), Conditions(away=frozenset({2})))
    watcher, heard = AgentFolder(tmp_path / "net" / WATCHER), []
    settings = folders[0].settings
    overlook = Overlook(watcher, settings.network, {"0": settings.listen}, lambda *line: heard.append(line))
    operator = Sender(watcher.identity(), settings.network, plan.name, OPERATOR, 1)
    try:
        with running(folders, [0]) as network:
            until = time.monotonic() + 60
            while not heard:
                assert time.monotonic() < until
                time.sleep(0.02)
            send_plan(plan, 0, [0], operator, time.time(), overlook.send)
            while "follows plan" not in told(folders[0]):
                assert time.monotonic() < until
                time.sleep(0.02)
            network.kill(0)
    finally:
        overlook.close()
    followed = AgentFolder(folders[0].path)
    assert followed.settings.plan == plan.name
    assert followed.settings.belief == Belief(away=(2,))
    assert followed.settings.belief.conditions == plan.belief
    assert set(followed.view().distance) <= {1} < set(folders[0].view().neighbours)
    assert dumped([followed.plan]) == dumped(plan.parts[:1])
    assert {line["plan"] for line in read_journal(followed)} <= {settings.plan, plan.name}


@pytest.mark.slow
def test_a_network_that_deviates_gets_a_new_plan(tmp_path: Path) -> None:
    problem = small(**RICH, slots=60)
    clock = ClockSettings(start_second=time.time() + 60, slot_second=3.0, guard_second=0.5)
    folders = deployed(problem, planned(problem, hops=0), tmp_path / "net", clock, options=OPTIONS)
    for folder in folders:
        sensor = folder.settings.sensor.model_copy(update={"harvest_factor": 0.1})
        AgentFolder(folder.path).write_settings(folder.settings.model_copy(update={"sensor": sensor}))
    said: list[str] = []
    with replanning(tmp_path / "net" / WATCHER, said), running(folders) as network:
        network.wait(400)
    print(said)
    assert "alarm by harvest; " in said[0]
    first = folders[0].settings.plan
    for folder in folders:
        lines = read_journal(folder)
        plans = [line["plan"] for line in lines]
        changed = next(line["slot"] for line in lines if line["plan"] != first)
        assert changed == next(line["slot"] for line in read_journal(folders[0]) if line["plan"] != first)
        assert not any("plan" in words for words in lines[-1]["refused"].values())
        assert len(set(plans)) >= 2


@pytest.mark.slow
def test_a_network_plans_without_a_dead_agent_and_with_it_once_it_is_back(tmp_path: Path) -> None:
    ease = min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), 3.0)  # a busy machine gets longer slots
    problem = small(**BUSY | {"network.devices": 4}, slots=90)
    clock = ClockSettings(start_second=time.time() + 40 * ease, slot_second=1.5 * ease, guard_second=0.3 * ease)
    options = {"rounds": 1, "hops": 1}
    folders = deployed(problem, planned(problem, hops=1), tmp_path / "net", clock, options=options)
    said: list[str] = []

    def wait_for(words: str) -> None:
        until = time.monotonic() + 120 * ease
        while not any(words in text for text in said):
            assert time.monotonic() < until, said
            time.sleep(0.1)

    with replanning(tmp_path / "net" / WATCHER, said), running(folders) as network:
        network.wait_for_slot(0, 8, 120 * ease)
        network.kill(2)
        wait_for("alarm by silence")
        in_force = int(re.findall(r"slot (\d+) on", said[0])[0])
        network.wait_for_slot(0, in_force + 1, 120 * ease)
        without = [AgentFolder(folders[device].path).settings.belief for device in (0, 1, 3)]
        network.start(2)
        wait_for("alarm by life of 2")
        network.wait(400 * ease)
    print(said)
    assert without == [Belief(away=(2,))] * 3
    final = {AgentFolder(folder.path).settings.plan for folder in folders}
    assert len(final) == 1
    assert [AgentFolder(folder.path).settings.belief for folder in folders] == [Belief()] * 4
    last = [read_journal(folder)[-1] for folder in folders]
    assert not any(line["isolated"] for line in last)
    assert all(line["slot"] == 89 for line in last)
