"""Messages as frames of bytes: a signed manifest, and chunks of what is too long for it.

The manifest of a message says who sends what to whom in which slot, under which plan, and the sha256 of its content.
Its origin signs it, so neither a member in between nor a copy from an earlier slot passes for it. A model follows in
chunks of at most 60 kB: Zenoh drops what is much longer under congestion.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from heliomesh.agents.codec import Codec
from heliomesh.agents.identity import SIGNATURE_BYTES, Identity, Members
from heliomesh.engine.fleet.messages import Message, Packet
from heliomesh.problem.factor import Variable

CHUNK_BYTES = 60_000
_MANIFEST, _CHUNK = b"M", b"C"
_DIGEST_BYTES, _INDEX_BYTES = 32, 4
_CONTENT_BYTES = CHUNK_BYTES - 1 - _DIGEST_BYTES - _INDEX_BYTES
_MOST_MANIFEST_BYTES = 16_384
_MOST_COMING = 64  # messages in chunks: what a member announces takes memory

MailKind = Literal["state", "model", "silence", "plan"]  # a silence says that no model comes in a slot
_MOST_PLAN_BYTES = 1 << 24


@dataclass(frozen=True)
class Manifest:
    """What is signed."""

    network: str
    plan: str  # sha256 of the scenario and tables in force
    origin: int
    destination: int
    kind: MailKind
    slot: int  # of a plan: the first in which it is in force
    started: int  # when the origin's process began [ns since 1970]: it tells two processes apart
    sent_second: float  # by the origin's clock, since 1970
    power_watt: float = 0.0
    states: tuple[tuple[str, int, int], ...] = ()  # kind, owner, value
    num_bytes: int = 0  # of the content that follows
    sha256: str = ""  # of that content

    @property
    def key(self) -> tuple[int, int, str, int]:
        """A device sends one message of a kind to another in a slot."""
        return (self.origin, self.destination, self.kind, self.slot)


@dataclass(frozen=True)
class Mail:
    """A message that came whole, with the frames to pass on."""

    manifest: Manifest
    content: bytes
    frames: tuple[bytes, ...]

    def message(self, codec: Codec) -> Message:
        """As a device reads it; raises ValueError for a model that cannot be averaged."""
        told = self.manifest
        content: Packet | dict[Variable, int]
        if told.kind == "model":
            content = Packet(told.power_watt, codec.decoded(self.content))
        else:
            content = {Variable(kind, owner): value for kind, owner, value in told.states}  # type: ignore[arg-type]
        kind: Literal["state", "model"] = "model" if told.kind == "model" else "state"
        return Message(told.origin, told.destination, kind, told.slot, content, len(self.content))


class RefusedError(Exception):
    """A frame that is not from who it says, or not what was agreed on."""


@dataclass(frozen=True)
class Sender:
    """What all messages of an agent have in common."""

    identity: Identity
    network: str
    plan: str
    device: int
    started: int

    def silence(self, neighbour: int, slot: int, now_second: float) -> tuple[bytes, ...]:
        """Frames that say: no model in this slot."""
        return self._frames(neighbour, "silence", slot, now_second, b"", {})

    def new_plan(self, device: int, first_slot: int, now_second: float, tables: bytes) -> tuple[bytes, ...]:
        """Frames with a device's tables of a new plan, in force from a slot on."""
        return self._frames(device, "plan", first_slot, now_second, tables, {})

    def frames(self, message: Message, now_second: float, codec: Codec) -> tuple[bytes, ...]:
        """The frames of a message of the device's own."""
        content = message.content
        if isinstance(content, Packet):
            body, own = codec.encoded(content), {"power_watt": content.power_watt}
            return self._frames(message.destination, "model", message.slot, now_second, body, own)
        if not isinstance(content, dict):
            raise TypeError(f"expected states or a model, actual: {type(content).__name__}")
        states = tuple((variable.kind, variable.owner, value) for variable, value in content.items())
        return self._frames(message.destination, "state", message.slot, now_second, b"", {"states": states})

    def _frames(
        self, to: int, kind: MailKind, slot: int, now_second: float, body: bytes, more: Mapping[str, Any]
    ) -> tuple[bytes, ...]:
        digest = hashlib.sha256(body).digest()
        told = Manifest(
            self.network, self.plan, self.device, to, kind, slot, self.started, now_second, num_bytes=len(body),
            sha256=digest.hex() if body else "", **more,
        )  # fmt: skip
        text = json.dumps(asdict(told), separators=(",", ":")).encode()
        pieces = [body[start : start + _CONTENT_BYTES] for start in range(0, len(body), _CONTENT_BYTES)]
        chunks = [_CHUNK + digest + n.to_bytes(_INDEX_BYTES, "big") + piece for n, piece in enumerate(pieces)]
        return (_MANIFEST + self.identity.sign(text) + text, *chunks)


@dataclass
class _Coming:
    """A message of which chunks are still missing."""

    manifest: Manifest
    frames: list[bytes]
    chunks: dict[int, bytes] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        return len(self.chunks) == -(-self.manifest.num_bytes // _CONTENT_BYTES)

    def mail(self) -> Mail:
        content = b"".join(self.chunks[number] for number in range(len(self.chunks)))
        if len(content) != self.manifest.num_bytes or hashlib.sha256(content).hexdigest() != self.manifest.sha256:
            raise RefusedError("its content is not what was signed")
        return Mail(self.manifest, content, tuple(self.frames))


class Assembly:
    """Frames become messages; whatever was not signed by its origin is refused."""

    def __init__(self, members: Members, network: str, most_bytes: int) -> None:
        self._members, self._network, self._most_bytes = members, network, most_bytes
        self._coming: dict[bytes, _Coming] = {}

    def take(self, frame: bytes) -> Mail | None:
        """The message that a frame completes, if it does; raises RefusedError."""
        if frame[:1] == _MANIFEST and len(frame) <= _MOST_MANIFEST_BYTES:
            told = self._verified(frame)
            if not told.num_bytes:
                return Mail(told, b"", (frame,))
            if len(self._coming) >= _MOST_COMING:
                raise RefusedError(f"one more message than the {_MOST_COMING} that may be on their way at once")
            self._coming[bytes.fromhex(told.sha256)] = _Coming(told, [frame])
            return None
        if frame[:1] == _CHUNK and len(frame) <= CHUNK_BYTES:
            return self._chunk(frame)
        raise RefusedError("a frame of no known kind")

    def forget_before(self, slot: int) -> None:
        """Drop what was never completed."""
        self._coming = {digest: one for digest, one in self._coming.items() if one.manifest.slot >= slot}

    def _chunk(self, frame: bytes) -> Mail | None:
        head = 1 + _DIGEST_BYTES
        digest, number = frame[1:head], int.from_bytes(frame[head : head + _INDEX_BYTES], "big")
        coming = self._coming.get(digest)
        if coming is None or number * _CONTENT_BYTES >= coming.manifest.num_bytes:
            raise RefusedError("a chunk that nobody announced")
        coming.chunks[number] = frame[head + _INDEX_BYTES :]
        coming.frames.append(frame)
        if not coming.whole:
            return None
        del self._coming[digest]
        return coming.mail()

    def _verified(self, frame: bytes) -> Manifest:
        signature, text = frame[1 : 1 + SIGNATURE_BYTES], frame[1 + SIGNATURE_BYTES :]
        told = _read(text)
        if not self._members.signed(told.origin, text, signature):
            raise RefusedError(f"signed by somebody else than device {told.origin}, whom it names")
        if told.network != self._network:
            raise RefusedError(f"of another network, {told.network!r:.40}")
        if told.num_bytes > (_MOST_PLAN_BYTES if told.kind == "plan" else self._most_bytes):
            raise RefusedError(f"{told.num_bytes} bytes from device {told.origin}, more than a model has")
        return told


def _read(text: bytes) -> Manifest:
    """A manifest whose fields have the right types."""
    try:
        found = json.loads(text)
        found["states"] = tuple((str(kind), int(owner), int(value)) for kind, owner, value in found["states"])
        told = Manifest(**found)
        for name, kind in _TYPES.items():
            if not isinstance(getattr(told, name), kind):
                raise TypeError(name)
        if told.kind not in get_args(MailKind) or (told.num_bytes > 0) != (told.kind in ("model", "plan")):
            raise ValueError("kind")
        if told.num_bytes and len(bytes.fromhex(told.sha256)) != _DIGEST_BYTES:
            raise ValueError("sha256")
    except (ValueError, TypeError, KeyError, RecursionError):
        raise RefusedError("a manifest that cannot be read") from None
    return told


_TYPES: dict[str, Any] = {
    "network": str,
    "plan": str,
    "origin": int,
    "destination": int,
    "slot": int,
    "started": int,
    "sent_second": (int, float),
    "power_watt": (int, float),
    "num_bytes": int,
    "sha256": str,
}
