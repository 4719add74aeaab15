"""A watcher of the live network: a local page of what agents publish and, if asked for, new plans.

A watcher is a member with a certificate of its own. It connects to all devices and hears what each publishes at the
end of a slot; unless it plans anew, it sends nothing. It keeps what it hears, so a restart goes on where it ended.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from heliomesh.common.catalog import check_trusted
from heliomesh.common.durable import alone_in
from heliomesh.common.mistakes import MistakeError
from heliomesh.field.agents.folder import AgentFolder, ClockSettings, Index, read_settings
from heliomesh.field.agents.heard import Heard
from heliomesh.field.agents.identity import OPERATOR
from heliomesh.field.agents.journal import RotatedLines
from heliomesh.field.agents.link import Overlook
from heliomesh.field.agents.live_page import LivePage, PageServer
from heliomesh.field.agents.steward import Send, Steward, send_plan
from heliomesh.field.agents.wire import Sender
from heliomesh.model.problem import build
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.section import Section

_SLOTS_AHEAD = 3  # for tables to arrive before they are in force
_LOOK_SECOND = 0.1

Notify = Callable[[str], None]


class WatchSettings(Section):
    """Where all devices listen, what they follow, and how much is kept of what they say."""

    network: str
    planner: str
    options: dict[str, Any] = Field(default_factory=dict)
    devices: dict[str, str]  # host:port by number
    clock: ClockSettings = ClockSettings(kind="ready")  # of the devices
    training_seed: Index = 0  # of the devices
    journal_bytes: Annotated[int, Field(ge=1)] = 64 << 20  # at which heard.jsonl becomes heard.old.jsonl


@dataclass
class Watcher:
    """One that is at work."""

    heard: Heard
    port: int  # of the page
    settings: WatchSettings
    sender: Sender  # in the operator's name
    send: Send
    renew: Callable[[], object]  # where the list of members is another
    stop: threading.Event = field(default_factory=threading.Event)

    def follow(self, notify: Notify | None = None) -> None:
        """Work until somebody stops it; with ``notify`` plan anew where joules deviate from the plan, and say so."""
        if notify is not None:
            steward = Steward.of(self.heard.problem, self.settings.planner, self.settings.options)
            try:
                self._plan_anew(steward, notify)
            except MistakeError as error:
                notify(f"no new plan can be made any more, and the page goes on: {error}")
        while not self._stopped():
            pass

    def _stopped(self) -> bool:
        """Whether somebody stops it; waits a moment."""
        self.renew()
        return self.stop.wait(_LOOK_SECOND)

    def _plan_anew(self, steward: Steward, notify: Notify) -> None:
        """Follow the network slot by slot to its end, from the first slot that was heard on.

        Slots in which nobody was heard tell nothing: it may have been the watcher that was away.
        """
        heard, problem = self.heard, self.heard.problem
        battery = torch.zeros(1, problem.num_devices, dtype=torch.float64)
        in_force = 0
        for number in range(problem.slots):
            while not heard.is_over(number):
                if self._stopped():
                    return
            there = heard.heard_in(number)
            if not there:
                continue
            slot, measured = heard.slot(number, battery)
            battery = slot.battery_after_joule
            steward.look(number, slot, measured, frozenset(range(problem.num_devices)) - there)
            newest = number + 1 == problem.slots or not heard.is_over(number + 1)
            if newest and number > in_force:  # what earlier slots called for shows in later ones too
                in_force = self._send(steward, number, there, notify) or in_force

    def _send(self, steward: Steward, number: int, there: frozenset[int], notify: Notify) -> int | None:
        """Send the newest plan to devices that do not follow it; the slot from which on all do, if most do not."""
        plan = steward.plan
        behind = {device for device in there if plan is not None and self.heard.plans[device] != plan.name}
        if plan is None or not behind:
            return None
        new = 2 * len(behind) > len(there)
        first_slot = self.heard.latest + _SLOTS_AHEAD if new else number
        devices = range(self.heard.problem.num_devices) if new else sorted(behind)
        send_plan(plan, first_slot, devices, replace(self.sender, plan=plan.name), time.time(), self.send)
        if not new:
            return None
        what = f"plan {plan.name[:12]} is in force from slot {first_slot} on"
        notify(f"slot {number}: alarm by {steward.cause}; {what}")
        return first_slot


@contextmanager
def watch(folder: Path, host: str, port: int, refresh_second: float) -> Iterator[Watcher]:
    """A watcher that hears and serves the live page as long as the block runs; `Watcher.follow` waits in it."""
    settings = read_settings(WatchSettings, folder / "watch.toml")
    check_trusted(settings.planner)  # re-planning runs it
    problem, own = build(Scenario.load(folder / "scenario.toml")), AgentFolder(folder)
    with alone_in(folder), ExitStack() as leaving:
        kept = RotatedLines(folder / "heard.jsonl", folder / "heard.old.jsonl", settings.journal_bytes)
        heard = Heard(problem, settings.clock, kept)
        page = LivePage(heard, settings.planner, settings.options, settings.training_seed)
        server = _server(host, port, page, refresh_second)
        leaving.callback(server.server_close)
        overlook = Overlook(own, settings.network, settings.devices, heard.hear)
        leaving.callback(overlook.close)
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        leaving.callback(serving.join)
        leaving.callback(server.shutdown)
        sender = Sender(own.identity(), settings.network, "", OPERATOR, time.time_ns())
        watcher = Watcher(heard, server.server_address[1], settings, sender, overlook.send, overlook.renew)
        leaving.callback(watcher.stop.set)
        yield watcher


def _server(host: str, port: int, page: LivePage, refresh_second: float) -> PageServer:
    try:
        return PageServer((host, port), page.html, refresh_second)
    except OSError as error:
        raise ScenarioError("--port", f"expected a free port, actual {host}:{port}: {error.strerror}") from None
