"""The live network on a local page: what agents publish becomes a trace, and the trace the page's own player.

A watcher is a member with a certificate of its own. It connects to all devices and hears what each publishes at the
end of a slot; it sends nothing. Slots that were over before it came are not shown.
"""

import threading
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from heliomesh.agents.folder import AgentFolder
from heliomesh.agents.identity import OPERATOR
from heliomesh.agents.journal import happened_in
from heliomesh.agents.link import Overlook
from heliomesh.agents.steward import Send, Steward, send_plan
from heliomesh.agents.wire import Sender
from heliomesh.engine.fleet.device import Happened
from heliomesh.engine.fleet.observer import absent, observed, recorded
from heliomesh.jobs.job import Job
from heliomesh.jobs.store import Store
from heliomesh.pages.page import render
from heliomesh.pages.page_data import page_data
from heliomesh.problem.problem import Problem, build
from heliomesh.scenario import Scenario, ScenarioError, Section, read_text, validated
from heliomesh.simulation.slot_loop import Slot
from heliomesh.simulation.trace import Trace

_PLANNER = "agents"
_SLOTS_AHEAD = 3  # for tables to arrive before they are in force
_LOOK_SECOND = 0.1
_READ = {"plan", "measured_joule", "channel_level", "weather"}  # of a line, beside what happened
_MOST_SLOTS = 5000  # on the page
_WAITING = (
    b'<!doctype html><meta name="color-scheme" content="light dark"><title>heliomesh</title><p>No slot has ended yet.'
)
_NO_ACCURACY = "Devices have no test set, so no accuracy is known."
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class WatchSettings(Section):
    """Where all devices listen."""

    network: str
    planner: str
    options: dict[str, Any] = Field(default_factory=dict)
    devices: dict[str, str]  # host:port by number


@dataclass
class Watched:
    """What was heard so far, by slot and device."""

    problem: Problem
    lines: dict[int, dict[int, Mapping[str, Any]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hear(self, device: int, line: Mapping[str, Any]) -> None:
        """A device's line of a slot."""
        if 0 <= device < self.problem.num_devices and 0 <= line["slot"] < self.problem.slots:
            happened_in(line)  # what is no line of a journal ends here
            if missing := _READ - line.keys():
                raise KeyError(*missing)
            with self._lock:
                self.lines.setdefault(line["slot"], {})[device] = line
                if len(self.lines) > _MOST_SLOTS:
                    del self.lines[min(self.lines)]

    def trace(self) -> Trace | None:
        """The slots from the first that was heard to the last; None where there are none."""
        with self._lock:
            lines = {slot: dict(heard) for slot, heard in self.lines.items()}
        if not lines:
            return None
        first, last = min(lines), max(lines)
        problem = build(self.problem.scenario.first_slots(last - first + 1))
        recorder, trace = recorded(problem, _PLANNER, 0)
        battery = _first_batteries(problem, lines)
        for number, slot in enumerate(range(first, last + 1)):
            now = slot_of(problem, number, lines.get(slot, {}), battery, lines.get(slot + 1, {}))
            battery = now.battery_after_joule[0].tolist()
            recorder.add(now)
        return trace

    def complete(self, slot: int) -> dict[int, Mapping[str, Any]] | None:
        """The lines of a slot once nothing more is to come; None before."""
        with self._lock:
            heard = self.lines.get(slot, {})
            over = self.latest > slot + 1 or len(heard) == self.problem.num_devices
            return dict(heard) if over else None

    @property
    def latest(self) -> int:
        """The last slot that was heard of; −1 where there is none."""
        return max(self.lines, default=-1)

    def page(self) -> bytes:
        """The page of all slots so far."""
        trace = self.trace()
        if trace is None:
            return _WAITING
        job = Job(Scenario.parse(tomllib.loads(trace.scenario_toml)), "uncoordinated", {})
        with TemporaryDirectory() as scratch:
            folder = Path(scratch) / "agents"
            Store(folder, single=True).put_trace(job, trace)
            title = f"{self.problem.scenario.name}: live, the agents' slots {min(self.lines)} to {max(self.lines)}"
            data = page_data([folder], title)
        data["runs"][0]["missing"] = [_NO_ACCURACY]
        return render(data | {"live": True, "refusals": {}}).encode()


def _first_batteries(problem: Problem, lines: Mapping[int, Mapping[int, Mapping[str, Any]]]) -> list[float]:
    """What each device had in the first slot in which it was heard [J]; 0 where it never was."""
    found: dict[int, float] = {}
    for slot in sorted(lines):
        found = {device: line["battery_joule"] for device, line in lines[slot].items()} | found
    return [found.get(device, 0.0) for device in range(problem.num_devices)]


def slot_of(
    problem: Problem,
    number: int,
    heard: Mapping[int, Mapping[str, Any]],
    battery_joule: Sequence[float],
    after: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
) -> Slot:
    """A slot from the lines of those who were heard; of others the last battery is known, ``battery_joule``.

    ``after`` are lines of the next slot: with what a device comes back was harvested or spent before.
    """
    devices = range(problem.num_devices)
    seen = [
        happened_in(heard[device])
        if device in heard
        else _missed(absent(problem, device, battery_joule[device]), after.get(device))
        for device in devices
    ]
    levels = torch.zeros(1, problem.channel.num_sites, dtype=torch.long)
    for line in heard.values():
        for site, level in line["channel_level"].items():
            levels[0, int(site)] = level
    weather = torch.tensor([[int(heard[device]["weather"]) if device in heard else 0 for device in devices]])
    return observed(problem, number, seen, levels, weather)


def _missed(away: Happened, back: Mapping[str, Any] | None) -> Happened:
    """A slot that a device missed; its battery is the one with which it comes ``back``, if it does."""
    if back is None:
        return away
    change = back["battery_joule"] - away.battery_joule
    return replace(
        away,
        battery_after_joule=back["battery_joule"],
        harvested_joule=max(change, 0.0),
        spent_joule=max(-change, 0.0),
    )


def measured_in(problem: Problem, heard: Mapping[int, Mapping[str, Any]]) -> Tensor:
    """What meters say was spent [J]; (1, device), NaN where there is no meter or nobody was heard."""
    found = [heard[device]["measured_joule"] if device in heard else None for device in range(problem.num_devices)]
    return torch.tensor([[float("nan") if joule is None else joule for joule in found]], dtype=torch.float64)


def plan_anew(watched: Watched, steward: Steward, sender: Sender, send: Send, notify: Callable[[str], None]) -> None:
    """Follow the network slot by slot to its end; where its joules deviate, send it a new plan."""
    battery = [0.0] * watched.problem.num_devices
    in_force = 0
    for number in range(watched.problem.slots):
        while (heard := watched.complete(number)) is None:
            time.sleep(_LOOK_SECOND)
        slot = slot_of(watched.problem, number, heard, battery)
        battery = slot.battery_after_joule[0].tolist()
        unheard = frozenset(range(watched.problem.num_devices)).difference(heard)
        found = steward.look(number, slot, measured_in(watched.problem, heard), unheard)
        if found is not None:
            first_slot = watched.latest + _SLOTS_AHEAD
            sender = replace(sender, plan=found.name)
            send_plan(found, first_slot, range(watched.problem.num_devices), sender, time.time(), send)
            what = f"plan {found.name[:12]} is in force from slot {first_slot} on"
            notify(f"slot {number}: alarm by {steward.cause}; {what}")
            in_force = first_slot
        elif steward.plan is not None and number > in_force:
            behind = [device for device, line in heard.items() if line["plan"] != steward.plan.name]
            send_plan(steward.plan, number, behind, sender, time.time(), send)


def watch(
    folder: Path, host: str, port: int, refresh_second: float, notify: Callable[[str], None] | None = None
) -> ThreadingHTTPServer:
    """A server of the live page, which hears from now on; `serve_forever` starts it.

    With ``notify`` it plans anew where joules deviate from the plan, and says so.
    """
    source = folder / "watch.toml"
    settings = validated(WatchSettings, tomllib.loads(read_text("watch.toml", source)), "watch.toml")
    watched = Watched(build(Scenario.load(folder / "scenario.toml")))
    own = AgentFolder(folder)
    overlook = Overlook(own, settings.network, settings.devices.values(), watched.hear)
    if notify is not None:
        steward = Steward.of(watched.problem, settings.planner, settings.options)
        sender = Sender(own.identity(), settings.network, "", OPERATOR, time.time_ns())
        work = (watched, steward, sender, overlook.send, notify)
        threading.Thread(target=plan_anew, args=work, daemon=True).start()
    try:
        return _Server((host, port), watched, refresh_second, overlook)
    except OSError as error:
        raise ScenarioError("--port", f"expected a free port, actual {host}:{port}: {error.strerror}") from None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, place: tuple[str, int], watched: Watched, refresh_second: float, overlook: Overlook) -> None:
        super().__init__(place, _Page)
        self.watched, self.refresh_second, self.overlook = watched, refresh_second, overlook
        self.local = place[0] in _LOOPBACK

    def server_close(self) -> None:
        """Leave the network too."""
        super().server_close()
        self.overlook.close()


class _Page(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """The page, for whoever asks this machine by its own name: other pages must not read it."""
        name = self.headers.get("Host", "").rsplit(":", 1)[0].strip("[]")
        if self.server.local and name not in _LOOPBACK:
            self.send_error(403)
        elif self.path != "/":
            self.send_error(404)
        else:
            page = self.server.watched.page()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Refresh", f"{self.server.refresh_second:g}")
            self.end_headers()
            self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        """Say nothing of every visit."""
