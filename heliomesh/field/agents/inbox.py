"""What an agent lets in: whole messages of members, of this plan and of a slot that is not over, each once.

What arrives is checked in this order: its size, its signature, its signer's right, its types, its ranges. What fails
is counted by its signer and forgotten. Each signer has room for its own newest slots only, so none takes another's.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from heliomesh.field.agents.clock import Clock
from heliomesh.field.agents.codec import Codec
from heliomesh.field.agents.identity import OPERATOR, Members
from heliomesh.field.agents.wire import Assembly, Frame, Mail, MailKind, Manifest, RefusedError, manifest_of, verified
from heliomesh.field.fleet.bidder import Bidder
from heliomesh.model.factor import Variable

_SLOTS_AHEAD = 1  # by the time of day: a neighbour may have begun the next slot already
# of each signer, its newest; where slots begin when all are ready, a device k hops away may be k slots ahead
_SLOTS_KEPT: dict[MailKind, int] = {"bid": 2, "grant": 2, "model": 2, "silence": 2, "state": 8}
_MOST_PLAN_BYTES = 1 << 24

Notify = Callable[[str], None]


@dataclass(frozen=True)
class Agreement:
    """What messages must fit to."""

    network: str
    device: int
    slots: int  # of the horizon
    plan: str
    plan_second: float  # when it was sent
    codec: Codec
    powers_watt: frozenset[float]  # with which devices send
    neighbours: frozenset[int]
    told_by: Mapping[int, frozenset[Variable]]  # what each device measures, within the hops
    sizes: Mapping[Variable, int]  # how many values the own table knows of each
    bidder: Bidder | None = None  # where devices bid


@dataclass
class Inbox:
    """Frames in, messages out."""

    agreement: Agreement
    members: Members
    clock: Clock
    notify: Notify
    isolated: set[int]  # devices that sent what no healthy device sends
    refused: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))  # by signer and reason
    _assembly: Assembly = field(default_factory=Assembly)
    _held: list[Mail] = field(default_factory=list)  # of slots that have not begun here
    _first_slot: int = 0
    _joining: bool = True
    _plan_second: float = 0.0  # when the newest plan that came was sent
    _seen: dict[tuple[int, int, str, int], Manifest] = field(default_factory=dict)  # by key
    _newest: dict[tuple[int, MailKind], int] = field(default_factory=dict)  # slot, by origin
    _started: dict[int, int] = field(default_factory=dict)  # when each device's newest process began
    _last_word: dict[int, tuple[int, float]] = field(default_factory=dict)  # of proven neighbours: process and time
    _waited_second: float = 0.0  # since the frame in hand came

    def enter(self, slot: int) -> list[Mail]:
        """A slot begins, and earlier ones are over: the messages of it that were held."""
        self._first_slot, self._joining = slot, False
        self._newest = {which: newest for which, newest in self._newest.items() if newest <= self._last_slot}
        self._forget()
        return [mail for mail in self._held if mail.manifest.slot == slot]

    def look(self) -> None:
        """Let any later slot in: the network may be ahead."""
        self._joining = True

    def hold(self, mail: Mail) -> None:
        """Keep a message until its slot begins."""
        self._held.append(mail)

    def proven(self, device: int, started: int, day_second: float, elapsed_second: float) -> None:
        """A neighbour's process has answered a fresh question: what it said before is no news of its clock.

        It told its time between question and answer, so its time now is taken as near to the own as that allows.
        """
        self._last_word[device] = (started, day_second)
        self.clock.heard(device, min(max(self.clock.day_second(), day_second), day_second + elapsed_second))

    def unproven(self, devices: Iterable[int]) -> list[int]:
        """Those of some devices that have not answered a fresh question yet."""
        return [device for device in devices if device not in self._last_word]

    def take(self, frame: bytes, waited_second: float = 0.0) -> Mail | None:
        """The message that a frame completes, if it may come in; the frame came ``waited_second`` ago."""
        self._waited_second = waited_second
        try:
            return self._admitted(verified(frame, self.members))
        except RefusedError as error:
            signer = {None: "unknown", OPERATOR: "operator"}.get(error.signer, str(error.signer))
            if not self.refused[signer][error.reason]:  # it is said once
                self.notify(str(error))
            self.refused[signer][error.reason] += 1
            return None

    def _admitted(self, frame: Frame) -> Mail | None:
        """A message, where this was its last frame; raises RefusedError."""
        signer = frame.signer
        if signer in self.isolated:
            raise RefusedError(signer, "isolated", "isolated; nothing from it is heard any more")
        if frame.kind == "chunk":
            mail = self._assembly.add(frame)
        elif (frame.kind == "plan") != (signer == OPERATOR):
            raise RefusedError(signer, "right", f"refused a {frame.kind}: the operator sends plans alone")
        else:
            told = manifest_of(frame)
            self._check_right(told)
            (self._check_plan if told.kind == "plan" else self._check_range)(told)
            mail = self._assembly.announce(told, frame)
        if mail is not None:
            self._complete(mail)
        return mail

    def _check_right(self, told: Manifest) -> None:
        """States come from devices within the hops, are for one of them or for this one; models for neighbours."""
        own, origin = self.agreement, told.origin
        if told.network != own.network:
            raise RefusedError(origin, "network", f"refused a message of network {told.network!r:.40}")
        to_own = told.destination == own.device
        known = {"plan": True, "state": origin in own.told_by}.get(told.kind, origin in own.neighbours)
        passed_on = told.kind == "state" and told.destination in own.told_by and told.destination != origin
        if not known or not (to_own or passed_on):
            raise RefusedError(origin, "right", f"refused a {told.kind} for device {told.destination}")
        if told.kind != "plan" and told.plan != own.plan:
            said = f"expected messages under plan {own.plan[:12]}, actual plan {told.plan[:12]}"
            raise RefusedError(origin, "plan", said)
        if told.started < self._started.get(origin, 0):
            raise RefusedError(origin, "twin", "expected one process, actual: an earlier one still sends")
        self._started[origin] = told.started

    def _check_range(self, told: Manifest) -> None:
        """Sizes and values, then the slot."""
        fault = self._fault(told)
        if fault is not None:
            raise self._isolated(told, fault)
        self._compare_clocks(told)
        message = f"refused a message of slot {told.slot}"
        if told.slot > self._last_slot:
            raise RefusedError(told.origin, "early", f"{message} in slot {self._first_slot}")
        if not self._is_open(told) or told.key in self._seen:
            raise RefusedError(told.origin, "replay", f"{message}: it is over, or the message came before")
        if told.slot > self._newest.get((told.origin, told.kind), -1):
            self._newest[told.origin, told.kind] = told.slot
            self._forget()

    def _compare_clocks(self, told: Manifest) -> None:
        """The clock hears what a proven neighbour says itself, and later than all that it said before."""
        word, own = (told.started, told.sent_second), self.agreement
        direct = told.destination == own.device and told.origin in own.neighbours
        if direct and word > self._last_word.get(told.origin, word):
            self._last_word[told.origin] = word
            self.clock.heard(told.origin, told.sent_second + self._waited_second)

    def _check_plan(self, told: Manifest) -> None:
        if told.sent_second <= max(self._plan_second, self.agreement.plan_second):
            raise RefusedError(OPERATOR, "replay", "refused a plan that is not newer than the last one")
        if not 0 < told.num_bytes <= _MOST_PLAN_BYTES:
            raise RefusedError(OPERATOR, "size", f"refused a plan of {told.num_bytes} bytes")

    def _complete(self, mail: Mail) -> None:
        """Check the content of a whole message, and remember it; raises RefusedError."""
        told = mail.manifest
        if told.kind == "plan":
            self._plan_second = told.sent_second
            return
        try:
            mail.message(self.agreement.codec)
        except ValueError as error:
            raise self._isolated(told, str(error)) from None
        self._seen[told.key] = told

    @property
    def _last_slot(self) -> int:
        """The last slot that has begun anywhere, as far as this clock knows."""
        known = self.clock.by_time and not self._joining
        return min(self.agreement.slots - 1, self._first_slot + _SLOTS_AHEAD if known else self.agreement.slots)

    def _is_open(self, told: Manifest) -> bool:
        """Whether a message counts: of this plan, of a slot that is not over, and its origin has room for it."""
        if told.kind == "plan":
            return True
        room = self._newest.get((told.origin, told.kind), -1) + 1 - _SLOTS_KEPT[told.kind]
        heard = told.origin in self.members and told.origin not in self.isolated  # it may be revoked meanwhile
        fits = heard and told.plan == self.agreement.plan
        return fits and max(self._first_slot, room) <= told.slot <= self._last_slot

    def _forget(self) -> None:
        """Drop all that does not count any more."""
        self._seen = {key: told for key, told in self._seen.items() if self._is_open(told)}
        self._held = [mail for mail in self._held if self._is_open(mail.manifest)]
        self._assembly.keep(self._is_open)

    def _isolated(self, told: Manifest, fault: str) -> RefusedError:
        """Content that no healthy device sends isolates its origin."""
        self.isolated.add(told.origin)
        return RefusedError(told.origin, "unfit", f"sent {fault} in slot {told.slot}; it is isolated from now on")

    def _fault(self, told: Manifest) -> str | None:
        """What no healthy device announces."""
        own = self.agreement
        expected_bytes = own.codec.num_bytes if told.kind == "model" else 0
        if told.num_bytes != expected_bytes:
            return f"{told.num_bytes} bytes where a {told.kind} takes {expected_bytes}"
        if told.kind == "model" and told.power_watt not in own.powers_watt:
            return f"a power of {told.power_watt:g} W"
        if told.said or told.kind in ("bid", "grant") or (own.bidder and told.kind == "model"):
            said = bytes.fromhex(told.said)
            if own.bidder is None or told.kind not in ("bid", "grant", "model"):
                return f"{len(said)} bytes beside a {told.kind}"
            fault = own.bidder.fault(told.kind, told.origin, said)
            if fault is not None:
                return fault
        for kind, owner, value in told.states:
            variable = Variable(kind, owner)
            if told.kind != "state" or variable not in own.told_by[told.origin]:
                return f"the {kind} of {owner}, which it does not measure"
            if value >= own.sizes.get(variable, value + 1):
                return f"{value} as the {kind} of {owner}"
        return None
