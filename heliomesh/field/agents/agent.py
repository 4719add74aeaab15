"""One real device: the fleet's `Device`, with a clock, sensors and neighbours of its own.

A slot has the fleet's three parts: open, act, close. Between them an agent waits until it has heard all whom it
expects, or until its clock says that the time is over. What was not heard by then is missing, as it is in a fleet.
Every slot ends in a journal and in a checkpoint: after a brown-out the agent goes on from there.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

import torch

from heliomesh.common.durable import alone_in, write_tensors
from heliomesh.field.agents.clock import Clock, WallClock
from heliomesh.field.agents.codec import Codec
from heliomesh.field.agents.folder import AgentFolder, SentPlan
from heliomesh.field.agents.inbox import Agreement, Inbox, Notify
from heliomesh.field.agents.journal import journal_of, line_of, sentence_of
from heliomesh.field.agents.link import SMALL_SHARE_BYTES, Link, LinkError
from heliomesh.field.agents.sensor import sensor_of
from heliomesh.field.agents.tables import OwnTables, fits
from heliomesh.field.agents.waiting import ReceivedFrame
from heliomesh.field.agents.wire import Mail, MailKind, Manifest, Sender
from heliomesh.field.fleet.bidder import OwnBids
from heliomesh.field.fleet.device import Device, Happened, Installation, Sensed
from heliomesh.field.fleet.learner import Lesson
from heliomesh.field.fleet.messages import Outgoing
from heliomesh.field.fleet.view import View
from heliomesh.interop.export_tables import PlanTables
from heliomesh.learning.checkpoint import Checkpoint, Checkpoints
from heliomesh.model.factor import energy, site

_MEET_SECOND = 60.0  # to wait for neighbours at the first start
_JOIN_SECOND = 10.0  # to listen for the slot and the time of neighbours that are alive
_CERTIFICATE_DAYS = 14  # fewer are said
_LAST_WORD_SECOND = 1.0  # for frames that are still on their way out


def run_agent(
    folder: AgentFolder,
    notify: Notify,
    *,
    stop_after: int | None = None,
    clock: Clock | None = None,
    report: Notify = lambda _: None,
) -> int:
    """Run a device to its last slot, or for so many slots; returns how many it took part in.

    ``notify`` gets a sentence on every trouble, ``report`` one on every slot. ``clock`` takes the place of the one
    that the settings name.
    """
    torch.set_num_threads(1)
    with alone_in(folder.path):
        kept = folder.settings.clock
        usual = Clock(kept) if kept.kind == "ready" else WallClock(kept)
        agent = Agent(folder, notify, clock or usual, report)
        try:
            return agent.run(stop_after)
        finally:
            agent.close()


def decider_of(plan: PlanTables | OwnBids, hops: int) -> OwnTables | OwnBids:
    """What decides by a part of a plan."""
    return plan if isinstance(plan, OwnBids) else OwnTables(plan, coordinated=hops > 0)


def installed(folder: AgentFolder, view: View, first_battery_joule: float) -> tuple[Device, OwnTables | OwnBids]:
    """The fleet's device, as the folder describes it."""
    settings, samples = folder.settings, folder.samples()
    tables = decider_of(folder.plan, settings.hops)
    shape, own = tuple(samples.inputs.shape[1:]), settings
    lesson = Lesson(samples, shape, own.num_classes, own.training_seed, own.strategy, "fp32")
    return Device(Installation(view, lesson, first_battery_joule, tables, observed=False)), tables


class Agent:
    """A device and all that surrounds it."""

    def __init__(self, folder: AgentFolder, notify: Notify, clock: Clock, report: Notify) -> None:
        settings, problem = folder.settings, folder.problem
        self._folder, self._notify, self._report, self._number = folder, notify, report, settings.device
        self._view = folder.view()
        self._sensor = sensor_of(folder, notify)
        self._device, tables = installed(folder, self._view, self._sensor.first_battery_joule)
        self._clock = clock
        started = time.time_ns()
        self._sender = Sender(folder.identity(), settings.network, settings.plan, settings.device, started)
        self._memory = Checkpoints(folder.memory, {"network": settings.network, "device": settings.device})
        self._next_plan: tuple[Manifest, SentPlan] | None = None
        learning = problem.scenario.learning
        self._codec = Codec(len(self._device.weights()), learning.on_air, learning.top_k_share)
        self._inbox = Inbox(self._agreement(tables), folder.members(), clock, notify, set())
        self._open: int | None = None
        self._heard: set[tuple[MailKind, int]] = set()  # in this slot: kind and origin
        self._ahead: dict[int, int] = {}  # the latest slot heard of each device
        self._unheard: set[int] = set()  # devices that were waited for in vain, until they are heard again
        self._slots = problem.slots
        self._done = self._sensed = self._recalled()
        self._inbox.enter(self._done)
        self._inbox.look()
        share_bytes = SMALL_SHARE_BYTES + 2 * self._codec.num_bytes  # models of this slot and the next
        self._joinable: dict[int, int] = {}  # the slot in which one can join each neighbour, as it has said
        self._link = Link(folder, started, self._inbox.isolated, share_bytes, clock.day_second, self._next_slot)
        self._told_days = _CERTIFICATE_DAYS

    def _agreement(self, tables: OwnTables | OwnBids) -> Agreement:
        """What messages must fit to under the plan in force."""
        problem, settings, view = self._folder.problem, self._folder.settings, self._view
        return Agreement(
            network=settings.network,
            device=self._number,
            slots=problem.slots,
            plan=settings.plan,
            plan_second=settings.plan_second,
            codec=self._codec,
            powers_watt=frozenset(problem.actions.power_watt.tolist()),
            neighbours=frozenset(view.neighbours),
            told_by={one: frozenset({energy(one), *map(site, problem.sites_into(one))}) for one in view.distance},
            sizes=tables.sizes if isinstance(tables, OwnTables) else {},
            bidder=self._device.bidder if isinstance(tables, OwnBids) else None,
        )

    def _recalled(self) -> int:
        """Go back to the newest checkpoint; the number of slots done."""
        found = self._memory.newest(self._notify)
        if found is None:
            return 0
        self._device.restore(found.tensors)
        self._inbox.isolated |= set(found.facts["isolated"])
        for slot in range(found.done):  # sensors know their slots in order
            self._sensor.open(slot)
            self._sensor.close(slot)
        self._notify(f"device {self._number}: going on after slot {found.done - 1}")
        return found.done

    def run(self, stop_after: int | None = None) -> int:
        """All slots that are left, or so many of them; returns in how many it took part."""
        # two processes with one identity would contradict each other: the later one ends
        expected = f"no other agent of device {self._number}"
        LinkError.when(self._link.twins(), "identity", expected, ": neighbours see one at work")
        self._meet()
        count = 0
        for slot in self._slots_to_come():
            self._miss(slot)
            self._live(slot)
            count += 1
            if count == stop_after:
                return count
        if count == 0 and self._done < self._slots:
            self._notify(f"slots: expected the {self._slots} slots to be still to come, actual: the last one is over")
        write_tensors(self._folder.model, {"weights": self._device.weights()})
        return count

    def close(self) -> None:
        """Leave the network, after what was sent last."""
        time.sleep(_LAST_WORD_SECOND if self._open is not None else 0.0)
        self._link.close()

    # joining

    def _meet(self) -> None:
        """Before the first slot of all, wait until neighbours are there; later, find out how far they are."""
        if self._clock.by_time:
            return
        neighbours = self._view.neighbours
        if self._done == 0:
            until = time.monotonic() + min(_MEET_SECOND, self._folder.settings.clock.patience_second)
            while time.monotonic() < until and not all(map(self._link.alive, neighbours)):
                time.sleep(0.05)
            return
        self._inbox.look()
        patience = min(_JOIN_SECOND, self._folder.settings.clock.patience_second)
        asked = set[int]()

        def answered() -> bool:
            for other in filter(self._link.alive, set(neighbours) - asked):
                asked.add(other)
                self._link.ask_news(other)
            return self._joinable.keys() >= set(neighbours)

        self._listen(time.monotonic() + patience, answered)
        # the earliest: one neighbour that says too much moves nobody
        self._done = max(self._done, min([*self._joinable.values(), self._slots]) if self._joinable else 0)

    def _next_slot(self) -> int:
        """The slot in which others can join: what was said in an open one did not reach them."""
        return self._done if self._open is None else self._open + 1

    def _slots_to_come(self) -> Iterator[int]:
        """Slots in which to take part; while the clock is lost, there are none."""
        listening = self._clock.by_time  # for a slot or more, to compare clocks before anything is said
        until = time.monotonic() + _JOIN_SECOND  # neighbours may need time to connect
        lost = False
        while (slot := self._clock.next_slot(self._done)) < self._slots:
            self._listen(self._clock.begins(slot), lambda: False)
            trouble = self._clock.trouble()
            if trouble is None and not listening:
                lost = False
                yield slot
                self._done = slot + 1
                continue
            if trouble is not None and not lost:
                self._notify(f"{trouble}; device {self._number} takes no part until it is right")
            lost, jumped = trouble is not None, trouble is not None and "jumped" in trouble
            self._inbox.look()
            self._ask_times(self._view.neighbours)
            self._listen(self._clock.models_end(slot), lambda: False)
            alone = len(self._inbox.unproven(self._view.neighbours)) == len(self._view.neighbours)
            listening = jumped or (alone and time.monotonic() < until)

    def _ask_times(self, neighbours: Iterable[int]) -> None:
        """Ask those that are alive for their time, where slots go by it."""
        for other in neighbours:
            if self._clock.by_time and self._link.alive(other):
                self._link.ask_news(other)

    def _miss(self, slot: int) -> None:
        """Slots since the last one in which the device took part: it only harvested."""
        while self._sensed < slot:
            self._sensor.open(self._sensed)
            self._device.rest(self._sensor.close(self._sensed).harvested_joule)
            self._sensed += 1

    # a slot

    def _live(self, slot: int) -> None:
        """Open, act, close."""
        self._adopt(slot)
        self._say_days_left()
        held = self._inbox.enter(slot)
        self._ask_times(self._inbox.unproven(self._view.neighbours))
        neighbours = [other for other in self._view.neighbours if self._link.alive(other)]
        around = self._view.distance if self._folder.settings.hops else {}
        self._heard, self._open = set(), slot
        sensed = self._sensor.open(slot)
        self._post(self._device.open(slot, sensed))
        for mail in held:
            self._let_in(mail)
        self._expect("state", [other for other in around if self._reachable(other)], self._clock.states_end(slot))
        bidder = self._inbox.agreement.bidder
        said = bidder is None or bidder.talk is None or self._talk(slot, neighbours)
        sent = self._device.act(slot)
        self._post(sent)
        if said and not sent:
            self._say_nothing(slot)
        self._expect("model", neighbours, self._clock.models_end(slot))
        happened = self._device.close(slot, self._sensor.close(slot))
        self._sensed = slot + 1
        self._remember(slot, sensed, happened)

    def _talk(self, slot: int, neighbours: list[int]) -> bool:
        """Bid, and answer the bids that came in time; whether the device can pay for that."""
        bids = self._device.bid(slot)
        if not bids:
            self._say_nothing(slot)
        self._post(bids)
        self._expect("bid", neighbours, self._clock.states_end(slot, 0.5))
        self._post(self._device.grant(slot))
        self._expect("grant", neighbours, self._clock.states_end(slot))
        return bool(bids)

    def _say_nothing(self, slot: int) -> None:
        """Tell those who wait, and not for the time, that no model comes."""
        for other in () if self._clock.by_time else self._view.neighbours:
            self._link.send(other, self._sender.silence(other, slot, self._clock.day_second()))

    def _say_days_left(self) -> None:
        """Say once a day that the certificate ends soon."""
        days = self._sender.identity.days_left
        if days < _CERTIFICATE_DAYS and days != self._told_days:
            self._notify(
                f"own.pem: expected {_CERTIFICATE_DAYS} days or more until it ends, actual {days}; "
                "the operator renews it by heliomesh device members renew"
            )
        self._told_days = days

    def _adopt(self, slot: int) -> None:
        """Follow a new plan from its slot on."""
        if self._next_plan is None or slot < self._next_plan[0].slot:
            return
        told, sent = self._next_plan
        self._next_plan = None
        self._folder = self._folder.with_plan(sent, told.plan, told.sent_second)
        own = decider_of(sent.part, self._folder.settings.hops)
        self._view = self._folder.view()
        self._device.follow(own, self._view)
        self._inbox.agreement = self._agreement(own)
        self._sender = replace(self._sender, plan=told.plan)
        self._notify(f"device {self._number}: follows plan {told.plan[:12]} from slot {slot} on")

    def _expect(self, kind: MailKind, origins: list[int], until: float) -> None:
        """Listen until all of them were heard, are dead or are slots ahead, or until the time is over."""
        slot = self._open or 0

        def settled(origin: int) -> bool:
            # whoever has said its model says no state any more: that one was said before this device was there
            heard = not {(kind, origin), ("model", origin)}.isdisjoint(self._heard) or origin in self._unheard
            return heard or not self._reachable(origin) or self._ahead.get(origin, 0) > slot

        self._listen(until, lambda: all(map(settled, origins)))
        self._unheard |= {origin for origin in origins if not self._clock.by_time and not settled(origin)}

    def _reachable(self, device: int) -> bool:
        """Whether the neighbour on the way to a device is alive and not isolated."""
        first = self._view.next_hop.get(device, device)
        return self._link.alive(first) and device not in self._inbox.isolated

    def _post(self, outgoing: Outgoing) -> None:
        for neighbour, messages in outgoing.items():
            for message in messages:
                self._link.send(neighbour, self._sender.frames(message, self._clock.day_second(), self._codec))

    def _remember(self, slot: int, sensed: Sensed, happened: Happened) -> None:
        measured_joule = self._sensor.spent_joule()
        if measured_joule is not None:  # the books follow the meter
            self._device.correct(happened.spent_joule - measured_joule)
        away = [other for other in self._view.neighbours if not self._link.alive(other)]
        line = line_of(self._folder, slot, sensed, happened, measured_joule, self._inbox, away)
        journal_of(self._folder).add(json.dumps(line))
        self._memory.write(Checkpoint(slot + 1, self._device.state(), {"isolated": sorted(self._inbox.isolated)}))
        self._link.tell_watchers(line)
        self._report(sentence_of(line, self._view.neighbours))

    # ears

    def _listen(self, until: float, enough: Callable[[], bool]) -> None:
        """Take frames until there are enough, or the time is over; then only those that wait already."""
        late: int | None = None  # frames to take after the time
        while not enough() and late != 0:
            if time.monotonic() >= until:
                late = self._link.num_waiting() if late is None else late - 1
            if self._link.look_due and self._link.renew():
                self._inbox.members = self._folder.members()
                self._sender = replace(self._sender, identity=self._folder.identity())
            for device, proof in self._link.proofs().items():
                self._inbox.proven(device, proof.started, proof.day_second, proof.elapsed_second)
                self._joinable[device] = proof.next_slot
            arrived = self._link.received(until)
            if arrived is not None:
                self._take(arrived)
            elif late is not None:
                return

    def _take(self, arrived: ReceivedFrame) -> None:
        mail = self._inbox.take(arrived.frame, time.monotonic() - arrived.second)
        if mail is None:
            return
        told = mail.manifest
        if told.kind == "plan":
            self._keep_plan(mail)
            return
        self._ahead[told.origin] = max(self._ahead.get(told.origin, 0), told.slot)
        self._unheard.discard(told.origin)
        if told.destination != self._number or told.slot == self._open:  # what is others' is passed on at once
            self._let_in(mail)
        else:
            self._inbox.hold(mail)

    def _keep_plan(self, mail: Mail) -> None:
        """Keep a plan until its slot comes; the newest counts."""
        with suppress(ValueError):
            sent = SentPlan.model_validate_json(mail.content)
            if fits(sent.part, self._folder.problem, self._number, self._folder.plan):
                self._next_plan = (mail.manifest, sent)
                return
        self._notify("plan: expected this device's tables of a plan from the operator, actual: something else")

    def _let_in(self, mail: Mail) -> None:
        """Hand a message to the device, and pass on what it does not keep, as its origin signed it."""
        told = mail.manifest
        if told.destination == self._number:
            heard: MailKind = "model" if told.kind == "silence" else told.kind
            self._heard.add((heard, told.origin))
        if told.kind == "silence":
            return
        for neighbour in self._device.deliver(told.origin, [mail.message(self._codec)]):
            self._link.send(neighbour, (mail.frame,))
