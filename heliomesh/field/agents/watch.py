"""A watcher of the live network: a page of what agents publish and, if asked for, new plans.

A watcher is a member with a certificate of its own. It connects to all devices and hears what each publishes at the
end of a slot; unless it plans anew, it sends nothing. It keeps what it hears, so a restart goes on where it ended.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from heliomesh.common.catalog import check_trusted
from heliomesh.common.durable import alone_in, json_sha256
from heliomesh.common.mistakes import MistakeError
from heliomesh.field.agents.folder import AgentFolder, Belief, ClockSettings, Index, SentPlan, read_settings
from heliomesh.field.agents.heard import Heard
from heliomesh.field.agents.identity import OPERATOR
from heliomesh.field.agents.journal import RotatedLines
from heliomesh.field.agents.link import Overlook
from heliomesh.field.agents.live_page import LivePage
from heliomesh.field.agents.tables import parts_of
from heliomesh.field.agents.wire import Sender
from heliomesh.field.fleet.bidder import OwnBids
from heliomesh.field.living.conditional_plan import Answering
from heliomesh.field.living.conditions import Conditions, Pair, links
from heliomesh.field.living.detector import Watch
from heliomesh.field.living.replanning import Replanning
from heliomesh.interop.export_tables import PlanTables
from heliomesh.model.endless import one_cycle
from heliomesh.model.policy import Noticed, Observation, Plan
from heliomesh.model.problem import Problem, build
from heliomesh.planners.bids.accounts import Accountants
from heliomesh.planning import make_plan
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.section import Section
from heliomesh.simulation.slot_loop import Slot

_SLOTS_AHEAD = 3  # for tables to arrive before they are in force
_LOOK_SECOND = 0.1
PAGE = "page.html"

Notify = Callable[[str], None]
Send = Callable[[int, tuple[bytes, ...]], None]


@dataclass(frozen=True)
class NewPlan:
    """A plan that devices are to follow."""

    name: str
    parts: Sequence[PlanTables | OwnBids]  # by device
    belief: Conditions

    @classmethod
    def of(cls, problem: Problem, plan: Plan, belief: Conditions) -> "NewPlan":
        """Named after all that devices are told of it."""
        told, parts = Belief.of(belief).model_dump(mode="json"), parts_of(plan)
        own = [part.model_dump(mode="json") for part in parts]
        return cls(json_sha256([problem.scenario.content_hash, own, told]), parts, belief)


@dataclass
class Steward:
    """Watches one network from any slot on, and plans anew where what devices notice deviates from the plan.

    A steward hears every device's journal, and hands it to `living/replanning.py` slot by slot. After an alarm it
    plans for the new belief, and sends each device its own tables, signed by the operator. Devices change over in
    the same slot. A device whose packets stay away is planned without, until it is heard again. A plan of `bids`
    stays where links or devices are gone, for who is gone does not bid.

    It may begin in any slot. Sums of evidence start there, and are never larger than those of a longer watch: false
    alarms are as rare. In slots that are left out they stand still.
    """

    problem: Problem
    policy: Replanning
    plan: NewPlan | None = None  # the newest, where it is not the first
    cause: str = ""  # what the last alarm spoke of
    lost: frozenset[Pair] = frozenset()  # links that are thought gone though the plan has them
    _followed: Conditions = field(default_factory=Conditions)  # the belief that devices are to follow
    _memory: tuple[Tensor, ...] = ()  # of the plans
    _before: tuple[int, Noticed] | None = None  # the slot that was looked at last
    _unheard: frozenset[int] = frozenset()

    @classmethod
    def of(cls, problem: Problem, planner: str, options: Mapping[str, Any], watch: Watch | None = None) -> "Steward":
        """A steward of the plan that was deployed."""
        answering = Answering(problem, planner, options)
        first = answering.with_plan(Conditions(), make_plan(problem, planner, options, bound=False))
        return cls(problem, Replanning(answering, first, watch or Watch()))

    def look(self, number: int, slot: Slot, unheard: frozenset[int] = frozenset()) -> NewPlan | None:
        """Look at a slot of all devices, a later one than before; a new plan where one is called for.

        Of devices that are ``unheard`` nothing is known, but that no packet came to them.
        """
        silent = torch.zeros_like(slot.scheduled)
        silent[:, sorted(unheard)] = True
        level = slot.channel_level.clone()
        level[:, [site for device in unheard for site in self.problem.sites_into(device)]] = -1
        draws = torch.zeros_like(slot.battery_joule)
        before, noticed = self._before or (-1, None)
        told = noticed if before == number - 1 else None
        seen = Observation(level, slot.battery_joule, slot.weather, draws, told, self._memory).recalled_by(
            self.policy
        )
        self._memory = seen.memory
        self.policy.decide(number, seen)
        back = (self._unheard - unheard) & self.policy.beliefs[0].away
        if back:
            self.policy.revive(0, back, number)
            self.cause = f"life of {', '.join(map(str, sorted(back)))}"
        elif self.policy.alarms[0]:
            self.cause = self.policy.alarms[0][-1].cause
        harvested = torch.where(silent, torch.nan, slot.harvested_joule)
        self._before = number, Noticed(harvested, slot.delivered, slot.scheduled, slot.power_watt)
        self._unheard = unheard
        return self._changed()

    def _changed(self) -> NewPlan | None:
        """The plan of another belief than the one before."""
        belief, plan = self.policy.beliefs[0], self.policy.answer_in(0).plan
        if isinstance(one_cycle(self.policy.first.plan.policy), Accountants):
            self.lost = frozenset(pair for pair in links(self.problem.topology) if belief.is_lost(pair))
            belief = replace(belief, links_off=frozenset(), away=frozenset())
        if belief == self._followed:
            return None
        self._followed = belief
        if self.lost:  # devices that bid have a part for every link
            first = self.policy.first.plan
            plan = first if belief == Conditions() else self.policy.answering.answer_to(belief, first).plan
        found = NewPlan.of(self.problem, plan, belief)
        before = self.plan or NewPlan.of(self.problem, self.policy.first.plan, Conditions())
        if found.name == before.name:
            return None  # the belief is another, and what devices do is the same
        self.plan = found
        return found


def send_plan(
    plan: NewPlan, first_slot: int, devices: Iterable[int], sender: Sender, now_second: float, send: Send
) -> None:
    """Send devices their own tables, in force from a slot on."""
    for device in devices:
        sent = SentPlan(part=plan.parts[device], belief=Belief.of(plan.belief))
        content = sent.model_dump_json().encode()
        send(device, sender.new_plan(device, first_slot, now_second, content))


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
    settings: WatchSettings
    sender: Sender  # in the operator's name
    send: Send
    renew: Callable[[], object]  # where the list of members is another
    stop: threading.Event

    def follow(self, notify: Notify | None = None) -> None:
        """Work until somebody stops it; with ``notify`` plan anew where joules deviate from the plan, and say so."""
        if notify is not None:
            try:
                steward = Steward.of(self.heard.problem, self.settings.planner, self.settings.options)
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
            slot = heard.slot(number, battery)
            battery, lost = slot.battery_after_joule, steward.lost
            found = steward.look(number, slot, frozenset(range(problem.num_devices)) - there)
            if found is None and steward.lost != lost:
                notify(f"slot {number}: alarm by {steward.cause}; devices keep their plan, which counts on who bids")
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
def watch(folder: Path, refresh_second: float) -> Iterator[Watcher]:
    """A watcher that hears and keeps ``page.html`` as long as the block runs; `Watcher.follow` waits in it."""
    settings = read_settings(WatchSettings, folder / "watch.toml")
    check_trusted(settings.planner)  # re-planning runs it
    problem, own = build(Scenario.load(folder / "scenario.toml")), AgentFolder(folder)
    with alone_in(folder), ExitStack() as leaving:
        kept = RotatedLines(folder / "heard.jsonl", folder / "heard.old.jsonl", settings.journal_bytes)
        heard, ended = Heard(problem, settings.clock, kept), threading.Event()
        page = LivePage(heard, settings.planner, settings.options, settings.training_seed)
        writing = threading.Thread(target=page.keep, args=(folder / PAGE, refresh_second, ended))
        writing.start()
        leaving.callback(writing.join)
        leaving.callback(ended.set)
        overlook = Overlook(own, settings.network, settings.devices, heard.hear)
        leaving.callback(overlook.close)
        sender = Sender(own.identity(), settings.network, "", OPERATOR, time.time_ns())
        yield Watcher(heard, settings, sender, overlook.send, overlook.renew, ended)
