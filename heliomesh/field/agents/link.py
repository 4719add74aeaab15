"""An agent's connections to its neighbours, over Zenoh: the only file that imports it.

Every agent listens, and connects to its neighbours; nobody stands between them. Both ends show a certificate of the
network's authority, and `access_control` says what may pass. Frames are sent reliably and in order, and a sender
waits while a receiver is busy: what arrives stands in a queue of limited length for each speaker, and while that is
full nothing more is read from it.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from secrets import token_bytes
from typing import Any, NamedTuple

import zenoh

from heliomesh.common.mistakes import MistakeError
from heliomesh.field.agents import identity
from heliomesh.field.agents.folder import AgentFolder
from heliomesh.field.agents.identity import OPERATOR, SIGNATURE_BYTES, WATCHER, signed_by
from heliomesh.field.agents.waiting import ReceivedFrame, Waiting
from heliomesh.field.agents.wire import CHUNK_BYTES

SMALL_SHARE_BYTES = 1 << 22  # of a speaker's frames that wait, beside its models
_LOOK_SECOND = 0.1
_ANSWER_SECOND = 2.0
_RELAY_SECOND = 1.0  # within an answer
_MOST_STATUS_BYTES = 1 << 16  # of a journal's line
_MOST_PAPER_BYTES = 1 << 20
_MOST_MESSAGE_BYTES = 1 << 20  # Zenoh drops longer ones before they are whole
_NONCE_BYTES = 16
_MOST_PROOF_BYTES = 128  # a signature, two times of 19 digits and a slot
_MOST_DIGITS = 9  # of a device's number
_MOST_START_DIGITS = 20  # of nanoseconds since 1970
_NANO = 1e-9


class LinkError(MistakeError):
    """The network cannot be used as the settings say."""


class Proof(NamedTuple):
    """That a process of a member lives, in answer to a fresh number."""

    started: int  # [ns since 1970]
    day_second: float  # by its clock, since 1970
    next_slot: int  # in which one can still join it
    elapsed_second: float  # between question and answer


class _Station(ABC):
    """A member's session with others, opened anew when its certificate or the list of members is another."""

    def __init__(
        self, folder: AgentFolder, own: str, network: str, listen: str | None, places: Mapping[str, str]
    ) -> None:
        self._folder, self._own, self._listen, self._places = folder, own, listen, places
        self._base = f"heliomesh/{network}"
        self._closing, self._looked_second = False, 0.0
        self._open()

    def send(self, member: int, frames: Iterable[bytes]) -> None:
        """Send frames; waits while the other is busy. What a dead one does not read is lost."""
        key = self._to("to", member)
        for frame in frames:
            self._session.put(key, frame, congestion_control=zenoh.CongestionControl.BLOCK, express=True)

    def renew(self) -> bool:
        """Open the session anew where the folder's certificate or list of members was replaced."""
        self._looked_second = time.monotonic()
        if self._folder.papers() == self._papers:
            return False
        self.close()
        self._closing = False
        self._open()
        return True

    @property
    def look_due(self) -> bool:
        """Whether it is time for `renew`: files need not be looked at for every frame."""
        return time.monotonic() >= self._looked_second + _LOOK_SECOND

    def close(self) -> None:
        """Leave the network."""
        self._closing = True
        self._session.close()  # type: ignore[no-untyped-call]

    def _open(self) -> None:
        self._papers, self._identity = self._folder.papers(), self._folder.identity()
        self._processes: dict[int, set[int]] = {}  # when living processes of a device began, by device
        self._roster, roster = self._folder.roster_file.read_bytes(), self._folder.roster()
        gone = roster.keys.get(self._own) != self._identity.public_key
        LinkError.when(gone, "own.pem", "a member's certificate", f": {self._own} was revoked or replaced")
        self._members = identity.members_of(roster.keys)
        others = {*self._places, WATCHER} & set(roster.keys) - {self._own}
        names = {other: identity.certificate_name(other, roster.keys[other]) for other in sorted(others)}
        access = access_control(self._base, self._own, names)
        self._session = opened(self._folder, self._listen, self._places.values(), access)
        self._kept: list[Any] = [
            self._session.declare_queryable(self._from_all("papers"), self._given),
            self._session.liveliness().declare_subscriber(f"{self._base}/alive/*/*", self._noticed, history=True),
            *self._declared(),
        ]

    @abstractmethod
    def _declared(self) -> Iterator[Any]:
        """What else to hear and to say."""

    def _to(self, kind: str, member: int | str) -> str:
        return f"{self._base}/{kind}/{member}/from/{self._own}"

    def _from_all(self, kind: str) -> str:
        return f"{self._base}/{kind}/{self._own}/from/*"

    def _given(self, query: zenoh.Query) -> None:
        """Keep papers that the authority signed, whoever brings them."""
        if query.payload is not None and len(query.payload) <= _MOST_PAPER_BYTES:
            with suppress(MistakeError, OSError):
                self._folder.install(query.payload.to_bytes())
                query.reply(query.key_expr, b"")

    def _noticed(self, sample: zenoh.Sample) -> None:
        """Show the list of members to whoever appears: it may have missed the newest one."""
        *_, member, started = str(sample.key_expr).split("/")
        if member in self._places and started.isdecimal() and len(started) <= _MOST_START_DIGITS:
            processes = self._processes.setdefault(int(member), set())
            if sample.kind != zenoh.SampleKind.PUT:
                processes.discard(int(started))
                return
            processes.add(int(started))
            with suppress(zenoh.ZError):  # of a session that ends
                place = self._to("papers", member)
                self._session.get(place, lambda _: None, payload=self._roster, timeout=_ANSWER_SECOND)


class Link(_Station):
    """Frames to and from neighbours, and who of them is alive; nothing is heard from devices that are ``ignored``."""

    def __init__(
        self,
        folder: AgentFolder,
        started: int,
        ignored: Collection[int] = (),
        share_bytes: int = SMALL_SHARE_BYTES,
        day_second: Callable[[], float] = time.time,
        next_slot: Callable[[], int] = int,
    ) -> None:
        settings = folder.settings
        self._started, self._ignored, self._day_second, self._next_slot = started, ignored, day_second, next_slot
        self._proofs: dict[int, Proof] = {}  # of neighbours, as they came
        self._waiting = Waiting(share_bytes)
        super().__init__(folder, str(settings.device), settings.network, settings.listen, settings.neighbours)

    def _declared(self) -> Iterator[Any]:
        # subscribed before the sign of life: whoever sees that one alive can reach it
        yield self._session.declare_subscriber(self._from_all("to"), self._arrived)
        yield self._session.declare_queryable(self._from_all("twin"), self._asked)
        yield self._session.declare_queryable(self._from_all("prove"), self._prove)
        yield self._session.liveliness().declare_token(f"{self._base}/alive/{self._own}/{self._started}")

    def tell_watchers(self, happened: dict[str, Any]) -> None:
        """Publish what happened, for whoever watches the network; nobody waits for them."""
        text = json.dumps(happened).encode()
        signed = self._identity.sign(text) + text
        self._session.put(self._to("status", WATCHER), signed, congestion_control=zenoh.CongestionControl.DROP)

    def received(self, until: float) -> ReceivedFrame | None:
        """The next frame; None where none comes until a moment of `time.monotonic`, or within a tenth of a second."""
        return self._waiting.get(max(min(until - time.monotonic(), _LOOK_SECOND), 0.001))

    def num_waiting(self) -> int:
        """Frames that are still to be read."""
        return len(self._waiting)

    def alive(self, device: int) -> bool:
        """Whether a neighbour's process lives and is connected."""
        return device not in self._ignored and bool(self._processes.get(device))

    def twins(self) -> list[int]:
        """When other living processes of this very device began: neighbours ask them to sign a fresh number."""
        nonce, asked_second = token_bytes(_NONCE_BYTES), time.monotonic()
        asked = [self._question("twin", other, nonce, _ANSWER_SECOND) for other in self._places]
        answers = (self._proof(self._own, nonce, asked_second, reply) for replies in asked for reply in replies)
        return sorted({proof.started for proof in answers if proof is not None} - {self._started})

    def ask_news(self, device: int) -> None:
        """Ask a neighbour for its time of day and its slot; `proofs` has its answer as soon as it comes."""
        nonce, asked_second = token_bytes(_NONCE_BYTES), time.monotonic()

        def keep(reply: zenoh.Reply) -> None:
            proof = self._proof(str(device), nonce, asked_second, reply)
            if proof is not None and device not in self._ignored:
                self._proofs[device] = proof

        with suppress(zenoh.ZError):  # it has just left
            self._question("prove", str(device), nonce, _ANSWER_SECOND, keep)

    def proofs(self) -> dict[int, Proof]:
        """What neighbours have answered since the last call, by device."""
        return {device: self._proofs.pop(device) for device in list(self._proofs)}

    def _proof(self, member: str, nonce: bytes, asked_second: float, reply: zenoh.Reply) -> Proof | None:
        """What a member has signed in answer to a fresh number; None for anything else."""
        found = b"" if reply.ok is None else reply.ok.payload.to_bytes()[:_MOST_PROOF_BYTES]
        signature, text = found[:SIGNATURE_BYTES], found[SIGNATURE_BYTES:]
        if not signed_by(self._members, int(member), nonce + text, signature):
            return None
        words = text.split(b" ")
        if len(words) != 3 or not all(map(bytes.isdigit, words)):
            return None
        started, day_nanosecond, next_slot = map(int, words)
        return Proof(started, day_nanosecond * _NANO, next_slot, time.monotonic() - asked_second)

    def _question(self, kind: str, member: str, nonce: bytes, second: float, *handler: Any) -> Any:
        every: dict[str, Any] = {"target": zenoh.QueryTarget.ALL, "consolidation": zenoh.ConsolidationMode.NONE}
        return self._session.get(self._to(kind, member), *handler, payload=nonce, timeout=second, **every)

    def _arrived(self, sample: zenoh.Sample) -> None:
        speaker = _speaker(sample.key_expr)
        frame = sample.payload.to_bytes() if len(sample.payload) <= CHUNK_BYTES else b""  # which is refused
        while not self._closing and speaker not in self._ignored:
            if self._waiting.put(speaker, frame, _LOOK_SECOND):
                return

    def _asked(self, query: zenoh.Query) -> None:
        """A neighbour asks for its own other processes: ask them, and hand their answers back."""
        nonce = _nonce(query)

        def answer(reply: zenoh.Reply) -> None:
            if reply.ok is not None:
                query.reply(query.key_expr, reply.ok.payload)

        if nonce is not None and (device := _speaker(query.key_expr)) not in self._ignored:
            self._question("prove", str(device), nonce, _RELAY_SECOND, answer)

    def _prove(self, query: zenoh.Query) -> None:
        """Sign a fresh number, when this process began, the time of day and the slot in which one can join it."""
        if (nonce := _nonce(query)) is not None:
            text = f"{self._started} {round(self._day_second() / _NANO)} {self._next_slot()}".encode()
            query.reply(query.key_expr, self._identity.sign(nonce + text) + text)


def _speaker(key: zenoh.KeyExpr) -> int:
    """The device, or the operator, that a key names as its speaker; access control lets nobody else use it."""
    name = str(key).rsplit("/", 1)[-1]
    return int(name) if name.isdecimal() and len(name) <= _MOST_DIGITS else OPERATOR


def _nonce(query: zenoh.Query) -> bytes | None:
    """What is to be signed: always of one length, and never a message."""
    found = b"" if query.payload is None else query.payload.to_bytes()
    return found if len(found) == _NONCE_BYTES else None


def opened(
    folder: AgentFolder, listen: str | None, connect: Iterable[str], access: Mapping[str, Any] | None = None
) -> zenoh.Session:
    """A session that listens at host:port and connects to others, each with its certificate; raises LinkError."""
    own, key = str(folder.certificate.resolve()), str(folder.key.resolve())
    tls = {
        "root_ca_certificate": str(folder.authority.resolve()),
        "listen_certificate": own,
        "listen_private_key": key,
        "connect_certificate": own,
        "connect_private_key": key,
        "enable_mtls": True,
        "verify_name_on_connect": True,
        "close_link_on_expiration": True,
    }
    link = {"protocols": ["tls"], "tls": tls, "rx": {"max_message_size": _MOST_MESSAGE_BYTES}}
    settings: dict[str, Any] = {
        "mode": "peer",
        "listen": {"endpoints": [] if listen is None else [f"tls/{listen}"], "exit_on_failure": True},
        "connect": {
            "endpoints": [f"tls/{place}" for place in connect],
            "timeout_ms": -1,  # whoever is not there is tried again, for ever, while the agent goes on
            "exit_on_failure": False,
            "retry": {"period_init_ms": 200, "period_max_ms": 2000, "period_increase_factor": 2},
        },
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        # shared memory would pass between processes of one machine without TLS
        "transport": {"link": link, "shared_memory": {"enabled": False}},
        "access_control": access or {"enabled": False},
    }
    try:
        return zenoh.open(zenoh.Config.from_json5(json.dumps(settings)))
    except zenoh.ZError as error:
        reason = str(error).splitlines()[0].split(" at /")[0]  # what follows is a place in Zenoh's own source
        raise LinkError(f"listen: expected to listen at {listen}, actual: {reason:.200}") from None


class Overlook(_Station):
    """All devices from outside: ``hear`` gets a device's number and the line that it signed, unread."""

    def __init__(
        self, folder: AgentFolder, network: str, places: Mapping[str, str], hear: Callable[[int, bytes], None]
    ) -> None:
        self._hear = hear
        super().__init__(folder, WATCHER, network, None, places)

    def _declared(self) -> Iterator[Any]:
        yield self._session.declare_subscriber(self._from_all("status"), self._arrived)

    def _arrived(self, sample: zenoh.Sample) -> None:
        device = _speaker(sample.key_expr)
        if len(sample.payload) > _MOST_STATUS_BYTES:
            return
        payload = sample.payload.to_bytes()
        signature, text = payload[:SIGNATURE_BYTES], payload[SIGNATURE_BYTES:]
        if device != OPERATOR and signed_by(self._members, device, text, signature):
            self._hear(device, text)


def delivered(
    folder: AgentFolder, network: str, places: Mapping[str, str], papers: Mapping[str, list[bytes]], second: float
) -> set[str]:
    """Hand devices their papers, within so many seconds; those that have them.

    There is no access control on this side: papers are no secrets, and a device may still use the key before.
    """
    until, missing = time.monotonic() + second, set(papers)
    with closing(opened(folder, None, [places[device] for device in papers])) as session:
        while missing and time.monotonic() < until:
            time.sleep(_LOOK_SECOND)
            for device in sorted(missing):
                key = f"heliomesh/{network}/papers/{device}/from/{WATCHER}"
                asked = [session.get(key, payload=paper, timeout=_ANSWER_SECOND) for paper in papers[device]]
                if all(any(reply.ok is not None for reply in replies) for replies in asked):
                    missing.discard(device)
    return set(papers) - missing


def access_control(base: str, own: str, names: Mapping[str, str]) -> dict[str, Any]:
    """Who may say what to whom, as rules for Zenoh's access control, by the names in certificates.

    ``names`` are those of others with whom a member may speak. A key is ``kind/LISTENER/from/SPEAKER``, and a sign of
    life ``alive/MEMBER/…``. Each member applies the rules to what it hears and to what it says: connections are
    direct, so the other end of one is the speaker, or the listener.
    """
    rules: list[dict[str, Any]] = []
    policies = []
    for other in names:
        of_other = [*_rules(base, "ingress", other, own), *_rules(base, "egress", own, other)]
        policies.append({"rules": [rule["id"] for rule in of_other], "subjects": [other]})
        rules += of_other
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": [{"id": other, "cert_common_names": [name]} for other, name in names.items()],
        "policies": policies,
    }


def _rules(base: str, flow: str, speaker: str, listener: str) -> list[dict[str, Any]]:
    """What a speaker may say to a listener."""
    allowed = {
        f"*/{listener}/from/{speaker}": ["put", "query"],
        f"*/{speaker}/from/{listener}": ["reply"],
        f"*/{speaker}/from/*": ["declare_subscriber", "declare_queryable"],
        f"alive/{speaker}/*": ["liveliness_token"],
        "alive/*/*": ["declare_liveliness_subscriber", "liveliness_query"],
    }
    return [
        {
            "id": f"{speaker} to {listener}, {flow}, {key}",
            "permission": "allow",
            "flows": [flow],
            "messages": messages,
            "key_exprs": [f"{base}/{key}"],
        }
        for key, messages in allowed.items()
    ]
