"""The live page, and who serves it: few visitors at a time, none of whom can keep it busy.

A visitor has seconds to ask and to read, and a request has a few kilobytes. The page is made once for what was heard,
however many ask for it.
"""

import io
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from heliomesh.field.agents.heard import Heard
from heliomesh.pages.packing import estimated_characters
from heliomesh.pages.page import render
from heliomesh.pages.page_data import LIMIT_MIB, described
from heliomesh.pages.run_folder import RunFolder, no_curves
from heliomesh.planning import chosen_options

_SILENT_SLOTS = 3  # after which a device is called silent
_MOST_SLOTS = 5000  # on the page
_MOST_NAMED = 10  # devices, one sentence each
_MOST_VISITORS = 8  # at a time
_MOST_REQUEST_BYTES = 8192
_ASK_SECOND, _READ_SECOND = 5.0, 30.0  # for a request to come whole, and for the page to be taken
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_WAITING = (
    b'<!doctype html><meta name="color-scheme" content="light dark"><title>heliomesh</title>'
    b"<p>No slot has ended yet. "
)
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 0\r\n\r\n"


@dataclass
class LivePage:
    """The page of all that was heard so far."""

    heard: Heard
    planner: str
    options: Mapping[str, Any]  # of the planner
    training_seed: int  # of the devices
    _made: tuple[tuple[int, ...], bytes] | None = None  # for what it was made, and the page
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def html(self) -> bytes:
        """The page, made anew where something has changed."""
        with self._lock:
            now = self.heard.slot_now()
            state = (self.heard.count, len(self.heard.refused), -1 if now is None else now)
            if self._made is None or self._made[0] != state:
                self._made = state, self._page()
            return self._made[1]

    def _page(self) -> bytes:
        problem = self.heard.problem
        per_slot = estimated_characters(1, problem.num_devices, problem.topology.num_edges)
        found = self.heard.trace(self.planner, min(_MOST_SLOTS, int(LIMIT_MIB * 2**20 / per_slot)))
        if found is None:
            return _WAITING + escape(" ".join(self.troubles())).encode()
        trace, live = found
        scenario = problem.scenario.first_slots(len(live.slots))
        run = RunFolder(
            path=Path("agents"),
            scenario=scenario,
            topology=problem.topology,
            planner=self.planner,
            seed=self.training_seed,
            episode=0,
            finished=False,
            curves=no_curves(scenario),
            trace=trace,
            plan={},
            options=chosen_options(self.planner, self.options),
            provenance={},
            missing=("Devices have no test set, so no accuracy is known.", *self.silences(), *self.troubles()),
            live=live,
        )
        title = f"{problem.scenario.name}: live, the agents' slots {live.slots[0]} to {live.slots[-1]}"
        return render(described([run], title) | {"refusals": {}}).encode()

    def silences(self) -> list[str]:
        """A sentence on every device that has not been heard for some slots."""
        latest, now = self.heard.latest, self.heard.slot_now()
        if now is not None and min(now, self.heard.problem.slots) - latest > _SILENT_SLOTS:
            return [f"No device has been heard since slot {latest}; by the clock it is slot {now}."]
        last = enumerate(self.heard.last_slot.tolist())
        silent = [(device, slot) for device, slot in last if latest - slot >= _SILENT_SLOTS]
        sentences = [
            f"Device {device} has not been heard since slot {slot}; its battery is drawn as it was then."
            if slot >= 0
            else f"Device {device} has never been heard."
            for device, slot in silent[:_MOST_NAMED]
        ]
        more = len(silent) - len(sentences)
        return [*sentences, f"{more} more devices have not been heard for some slots."] if more else sentences

    def troubles(self) -> list[str]:
        """A sentence on every device whose lines were refused, and one where nothing can be kept."""
        sentences = [
            f"Device {device} has sent lines that cannot be true, {found.count} of them; first: {found.first_reason}."
            for device, found in sorted(self.heard.refused.items())[:_MOST_NAMED]
        ]
        kept = f"What is heard is not kept for a restart: {self.heard.not_kept}."
        return [*sentences, kept] if self.heard.not_kept else sentences


class PageServer(ThreadingHTTPServer):
    """Serves one page at ``/`` to few visitors at a time; `server_close` sends them away and waits for them."""

    daemon_threads = False
    request_queue_size = _MOST_VISITORS

    def __init__(self, place: tuple[str, int], page: Callable[[], bytes], refresh_second: float) -> None:
        super().__init__(place, _Visit)
        self.page, self.refresh_second = page, refresh_second
        self.local = place[0] in _LOOPBACK
        self._visitors: set[socket.socket] = set()
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Let a visitor in, or send it away."""
        with self._lock:
            full = len(self._visitors) >= _MOST_VISITORS
            if not full:
                self._visitors.add(request)
        if not full:
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.setblocking(False)
            request.send(_BUSY)
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """A visitor leaves."""
        with self._lock:
            self._visitors.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of visitors that left or were too slow."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        """Send all visitors away."""
        with self._lock:
            for request in self._visitors:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)
        super().server_close()


class _Visit(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "heliomesh", ""

    def setup(self) -> None:
        """Read the request within its limits."""
        super().setup()
        self.rfile = io.BytesIO(_request(self.connection))

    def do_GET(self) -> None:
        """The page, for whoever asks this machine by its own name: other pages must not read it."""
        name = self.headers.get("Host", "").rsplit(":", 1)[0].strip("[]")
        if self.server.local and name not in _LOOPBACK:
            self.send_error(403)
        elif self.path != "/":
            self.send_error(404)
        else:
            page = self.server.page()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Refresh", f"{self.server.refresh_second:g}")
            self.end_headers()
            self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        """Say nothing of every visit."""


def _request(connection: socket.socket) -> bytes:
    """A request's head; nothing where it is too long. Raises TimeoutError where it does not come in time."""
    until, head = time.monotonic() + _ASK_SECOND, b""
    while b"\r\n\r\n" not in head:
        connection.settimeout(max(until - time.monotonic(), 1e-3))
        part = connection.recv(_MOST_REQUEST_BYTES)
        head += part
        if not part or len(head) > _MOST_REQUEST_BYTES:
            return b""
    connection.settimeout(_READ_SECOND)
    return head
