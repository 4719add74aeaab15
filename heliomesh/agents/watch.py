"""The live network on a local page: what agents publish becomes a trace, and the trace the page's own player.

A watcher is a member with a certificate of its own. It connects to all devices and hears what each publishes at the
end of a slot; it sends nothing. Slots that were over before it came are not shown.
"""

import threading
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from heliomesh.agents.folder import AgentFolder
from heliomesh.agents.journal import happened_in
from heliomesh.agents.link import Statuses
from heliomesh.engine.fleet.observer import absent, observed, recorded
from heliomesh.jobs.job import Job
from heliomesh.jobs.store import Store
from heliomesh.pages.page import report_page
from heliomesh.problem.problem import Problem, build
from heliomesh.scenario import Scenario, ScenarioError, Section, read_text, validated
from heliomesh.simulation.trace import Trace

_PLANNER = "agents"
_WAITING = b"<!doctype html><title>heliomesh</title><p>No slot has ended yet."
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class WatchSettings(Section):
    """Where all devices listen."""

    network: str
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
            with self._lock:
                self.lines.setdefault(line["slot"], {})[device] = line

    def trace(self) -> Trace | None:
        """The slots from the first that was heard to the last; None where there are none."""
        with self._lock:
            lines = {slot: dict(heard) for slot, heard in self.lines.items()}
        if not lines:
            return None
        first, last = min(lines), max(lines)
        problem = build(self.problem.scenario.first_slots(last - first + 1))
        recorder, trace = recorded(problem, _PLANNER, 0)
        battery = [0.0] * problem.num_devices
        for number, slot in enumerate(range(first, last + 1)):
            heard = lines.get(slot, {})
            seen = [
                happened_in(heard[device]) if device in heard else absent(problem, device, battery[device])
                for device in range(problem.num_devices)
            ]
            battery = [one.battery_after_joule for one in seen]
            levels = torch.zeros(1, problem.channel.num_sites, dtype=torch.long)
            for line in heard.values():
                for site, level in line["channel_level"].items():
                    levels[0, int(site)] = level
            weather = torch.tensor(
                [[int(heard[d]["weather"]) if d in heard else 0 for d in range(problem.num_devices)]]
            )
            recorder.add(observed(problem, number, seen, levels, weather))
        return trace

    def page(self) -> bytes:
        """The page of all slots so far."""
        trace = self.trace()
        if trace is None:
            return _WAITING
        job = Job(Scenario.parse(tomllib.loads(trace.scenario_toml)), "uncoordinated", {})
        with TemporaryDirectory() as folder:
            Store(Path(folder), single=True).put_trace(job, trace)
            title = f"{self.problem.scenario.name}: live, slots {min(self.lines)} to {max(self.lines)}"
            return report_page([folder], title).encode()


def watch(folder: Path, host: str, port: int, refresh_second: float) -> ThreadingHTTPServer:
    """A server of the live page, which hears from now on; `serve_forever` starts it."""
    source = folder / "watch.toml"
    settings = validated(WatchSettings, tomllib.loads(read_text("watch.toml", source)), "watch.toml")
    watched = Watched(build(Scenario.load(folder / "scenario.toml")))
    session = Statuses(AgentFolder(folder), settings.network, settings.devices.values(), watched.hear)
    try:
        return _Server((host, port), watched, refresh_second, session)
    except OSError as error:
        raise ScenarioError("--port", f"expected a free port, actual {host}:{port}: {error.strerror}") from None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, place: tuple[str, int], watched: Watched, refresh_second: float, session: Statuses) -> None:
        super().__init__(place, _Page)
        self.watched, self.refresh_second, self.session = watched, refresh_second, session
        self.local = place[0] in _LOOPBACK

    def server_close(self) -> None:
        """Leave the network too."""
        super().server_close()
        self.session.close()


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
