"""What an agent lets in: whole messages of members, of this plan and of a slot that is not over, each once."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from heliomesh.agents.clock import Clock
from heliomesh.agents.codec import Codec
from heliomesh.agents.identity import OPERATOR
from heliomesh.agents.wire import Assembly, Mail, Manifest, RefusedError
from heliomesh.engine.fleet.messages import Content, Packet
from heliomesh.problem.factor import Variable

_SLOTS_AHEAD = 1  # by the time of day: a neighbour may have begun the next slot already

Notify = Callable[[str], None]


@dataclass(frozen=True)
class Agreement:
    """What messages must fit to."""

    device: int
    plan: str
    plan_second: float  # when it was sent
    codec: Codec
    powers_watt: frozenset[float]  # with which devices send
    told_by: Mapping[int, frozenset[Variable]]  # what each device measures, within the hops
    sizes: Mapping[Variable, int]  # how many values the own table knows of each


@dataclass
class Inbox:
    """Frames in, messages out."""

    agreement: Agreement
    assembly: Assembly
    clock: Clock
    notify: Notify
    isolated: set[int]  # devices that sent what no healthy device sends
    refused: Counter[str] = field(default_factory=Counter)  # by reason
    _first_slot: int = 0
    _joining: bool = True
    _seen: set[tuple[int, int, str, int]] = field(default_factory=set)
    _started: dict[int, int] = field(default_factory=dict)  # when each device's newest process began
    _told: set[tuple[int, str]] = field(default_factory=set)

    def enter(self, slot: int) -> None:
        """A slot begins: earlier ones are over."""
        self._first_slot, self._joining = slot, False
        self._seen = {key for key in self._seen if key[-1] >= slot}
        self.assembly.forget_before(slot)

    def look(self) -> None:
        """Let any later slot in: the network may be ahead."""
        self._joining = True

    def take(self, frame: bytes) -> Mail | None:
        """The message that a frame completes, if it may come in."""
        try:
            mail = self.assembly.take(frame)
        except RefusedError as error:
            self._refuse(-1, "unsigned", f"refused: {error}")
            return None
        if mail is None:
            return None
        told = mail.manifest
        if told.destination == self.agreement.device and told.origin not in {OPERATOR, *self.isolated}:
            self.clock.heard(told.origin, told.sent_second)
        reason = self._objection(mail)
        if reason is not None:
            self._refuse(told.origin, *reason)
            return None
        if told.kind != "plan":
            self._seen.add(told.key)
        return mail

    def _objection(self, mail: Mail) -> tuple[str, str] | None:
        """Why a signed message does not come in: a word and a sentence."""
        told, who = mail.manifest, f"device {mail.manifest.origin}"
        if told.origin == OPERATOR or told.kind == "plan":
            return self._plan_objection(told)
        if told.origin in self.isolated:
            return "isolated", f"{who}: isolated; nothing from it is heard any more"
        if told.plan != self.agreement.plan:
            return (
                "plan",
                f"{who}: expected messages under plan {self.agreement.plan[:12]}, actual plan {told.plan[:12]}",
            )
        if told.started < self._started.get(told.origin, 0):
            return "twin", f"{who}: expected one process, actual: an earlier one still sends"
        self._started[told.origin] = told.started
        if told.slot < self._first_slot or told.key in self._seen:
            return "replay", f"{who}: refused a message of slot {told.slot}: it is over, or the message came before"
        if self.clock.by_time and not self._joining and told.slot > self._first_slot + _SLOTS_AHEAD:
            return "early", f"{who}: refused a message of slot {told.slot} in slot {self._first_slot}"
        return self._unfit(mail) if told.destination == self.agreement.device else None

    def _plan_objection(self, told: Manifest) -> tuple[str, str] | None:
        """A plan comes from the operator, is for this device, and is newer than the one in force."""
        if told.origin != OPERATOR or told.kind != "plan" or told.destination != self.agreement.device:
            return (
                "plan",
                f"refused a {told.kind} from {told.origin}: only the operator changes plans, and nothing else",
            )
        if told.sent_second <= self.agreement.plan_second:
            return "replay", "refused a plan that is not newer than the one in force"
        return None

    def _unfit(self, mail: Mail) -> tuple[str, str] | None:
        """Content that no healthy device sends isolates its origin."""
        told = mail.manifest
        try:
            fault = self._wrong(told.origin, mail.message(self.agreement.codec).content)
        except ValueError as error:
            fault = str(error)
        if fault is None:
            return None
        self.isolated.add(told.origin)
        return "unfit", f"device {told.origin}: sent {fault} in slot {told.slot}; it is isolated from now on"

    def _wrong(self, origin: int, content: Content) -> str | None:
        if isinstance(content, Packet) and content.power_watt not in self.agreement.powers_watt:
            return f"a power of {content.power_watt:g} W"
        return self._wrong_state(origin, content) if isinstance(content, dict) else None

    def _wrong_state(self, origin: int, states: Mapping[Variable, int]) -> str | None:
        for variable, value in states.items():
            if variable not in self.agreement.told_by.get(origin, frozenset()):
                return f"the {variable.kind} of {variable.owner}, which it does not measure"
            if not 0 <= value < self.agreement.sizes.get(variable, value + 1):
                return f"{value} as the {variable.kind} of {variable.owner}"
        return None

    def _refuse(self, origin: int, reason: str, sentence: str) -> None:
        """Count it, and say it once for each device and reason."""
        self.refused[reason] += 1
        if (origin, reason) not in self._told:
            self._told.add((origin, reason))
            self.notify(sentence)
