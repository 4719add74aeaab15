"""An agent's connections to its neighbours, over Zenoh: the only file that imports it.

Every agent listens, and connects to its neighbours; nobody stands between them. Both ends show a certificate of the
network's authority. Frames are sent reliably and in order, and a sender waits while a receiver is busy: what arrives
stands in a queue of limited length for each member, and while that is full nothing more is read from it.
"""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import zenoh

from heliomesh.agents.folder import AgentFolder
from heliomesh.agents.identity import SIGNATURE_BYTES
from heliomesh.agents.waiting import Waiting
from heliomesh.agents.wire import CHUNK_BYTES
from heliomesh.mistakes import MistakeError

SMALL_SHARE_BYTES = 1 << 22  # of a member's frames that wait, beside its models
_LOOK_SECOND = 0.1
_ANSWER_SECOND = 2.0
_MOST_STATUS_BYTES = 1 << 16  # of a journal's line
_MOST_MESSAGE_BYTES = 1 << 17  # Zenoh drops longer ones before they are whole
_MOST_DIGITS = 9  # of a device's number


class LinkError(MistakeError):
    """The network cannot be used as the settings say."""


class Link:
    """Frames to and from neighbours, and who of them is alive."""

    def __init__(self, folder: AgentFolder, started: int, share_bytes: int = SMALL_SHARE_BYTES) -> None:
        settings = folder.settings
        self._own, self._started, self._identity = settings.device, started, folder.identity()
        self._base = f"heliomesh/{settings.network}"
        self._waiting = Waiting(folder.members().keys, share_bytes)
        self._processes: dict[int, set[int]] = {}  # when living processes of a device began, by device
        self._closing = False
        self._session = opened(folder, settings.listen, settings.neighbours.values())
        # subscribed before the sign of life: whoever sees that one alive can reach it
        self._kept: list[Any] = [
            self._session.declare_subscriber(f"{self._base}/to/{self._own}", self._arrived),
            self._session.liveliness().declare_subscriber(f"{self._base}/alive/*/*", self._noticed, history=True),
            self._session.declare_queryable(f"{self._base}/who/*", self._asked),
            self._session.liveliness().declare_token(f"{self._base}/alive/{self._own}/{started}"),
        ]

    def send(self, neighbour: int, frames: Iterable[bytes]) -> None:
        """Send frames; waits while the neighbour is busy. What a dead neighbour does not read is lost."""
        _put(self._session, f"{self._base}/to/{neighbour}", frames)

    def tell_watchers(self, happened: dict[str, Any]) -> None:
        """Publish what happened, for whoever watches the network; nobody waits for them."""
        key, text = f"{self._base}/status/{self._own}", json.dumps(happened).encode()
        signed = self._identity.sign(text) + text
        self._session.put(key, signed, congestion_control=zenoh.CongestionControl.DROP)

    def received(self, until: float) -> bytes | None:
        """The next frame; None where none comes until a moment of `time.monotonic`, or within a tenth of a second."""
        return self._waiting.get(max(min(until - time.monotonic(), _LOOK_SECOND), 0.001))

    def num_waiting(self) -> int:
        """Frames that are still to be read."""
        return len(self._waiting)

    def alive(self, device: int) -> bool:
        """Whether a neighbour's process lives and is connected."""
        return bool(self._processes.get(device))

    def twins(self) -> list[int]:
        """When other living processes of this very device began, as neighbours see them."""
        found: set[int] = set()
        replies = self._session.get(
            f"{self._base}/who/{self._own}",
            target=zenoh.QueryTarget.ALL,
            consolidation=zenoh.ConsolidationMode.NONE,
            timeout=_ANSWER_SECOND,
        )
        for reply in replies:
            if reply.ok is not None:
                with suppress(ValueError, TypeError):
                    found |= set(json.loads(reply.ok.payload.to_bytes()))
        return sorted(found - {self._started})

    def close(self) -> None:
        """Leave the network."""
        self._closing = True
        self._session.close()  # type: ignore[no-untyped-call]

    def _arrived(self, sample: zenoh.Sample) -> None:
        frame = sample.payload.to_bytes() if len(sample.payload) <= CHUNK_BYTES else b""  # which is refused
        while not self._closing and not self._waiting.put(frame, _LOOK_SECOND):
            pass

    def _noticed(self, sample: zenoh.Sample) -> None:
        *_, device, started = str(sample.key_expr).split("/")
        if device.isdecimal() and started.isdecimal():
            processes = self._processes.setdefault(int(device), set())
            change = processes.add if sample.kind == zenoh.SampleKind.PUT else processes.discard
            change(int(started))

    def _asked(self, query: zenoh.Query) -> None:
        device = str(query.key_expr).rsplit("/", 1)[-1]
        if device.isdecimal():
            known = sorted(self._processes.get(int(device), set()))
            query.reply(query.key_expr, json.dumps(known).encode())


def _put(session: zenoh.Session, key: str, frames: Iterable[bytes]) -> None:
    for frame in frames:
        session.put(key, frame, congestion_control=zenoh.CongestionControl.BLOCK, express=True)


def opened(folder: AgentFolder, listen: str | None, connect: Iterable[str]) -> zenoh.Session:
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
    }
    link = {"protocols": ["tls"], "tls": tls, "rx": {"max_message_size": _MOST_MESSAGE_BYTES}}
    settings = {
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
    }
    try:
        return zenoh.open(zenoh.Config.from_json5(json.dumps(settings)))
    except zenoh.ZError as error:
        reason = str(error).splitlines()[0].split(" at /")[0]  # what follows is a place in Zenoh's own source
        raise LinkError(f"listen: expected to listen at {listen}, actual: {reason:.200}") from None


class Overlook:
    """All devices from outside: ``hear`` gets a device's number and the line that it signed, unread."""

    def __init__(
        self, folder: AgentFolder, network: str, places: Iterable[str], hear: Callable[[int, bytes], None]
    ) -> None:
        self._hear, self._network, self._members = hear, network, folder.members()
        self._session = opened(folder, None, places)
        self._kept = self._session.declare_subscriber(f"heliomesh/{network}/status/*", self._arrived)

    def send(self, device: int, frames: Iterable[bytes]) -> None:
        """Send frames to a device."""
        _put(self._session, f"heliomesh/{self._network}/to/{device}", frames)

    def close(self) -> None:
        """Leave the network."""
        self._session.close()  # type: ignore[no-untyped-call]

    def _arrived(self, sample: zenoh.Sample) -> None:
        device = str(sample.key_expr).rsplit("/", 1)[-1]
        if len(sample.payload) > _MOST_STATUS_BYTES or not device.isdecimal() or len(device) > _MOST_DIGITS:
            return
        payload = sample.payload.to_bytes()
        signature, text = payload[:SIGNATURE_BYTES], payload[SIGNATURE_BYTES:]
        if self._members.signed(int(device), text, signature):
            self._hear(int(device), text)
