"""Messages as frames of bytes, each signed by the origin of its message.

    version     1 byte
    kind        1 byte: S state, B bid, G grant, M model, N silence, P plan, C chunk
    signer      4 bytes: the origin's number
    signature   64 bytes, of all the rest
    body        of a chunk: sha256 of its manifest's body, its number in 4 bytes, and a piece of the content;
                of all others: the manifest as JSON

The manifest of a message says who sends what to whom in which slot, under which plan, and the sha256 of its content.
A model follows in chunks of at most 60 kB: Zenoh drops what is much longer under congestion. A frame's signature is
checked before its body is read. So neither a member in between nor a copy from an earlier slot passes for a message,
and nobody but its signer can claim or spoil one.
"""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from heliomesh.field.agents.codec import Codec
from heliomesh.field.agents.identity import OPERATOR, SIGNATURE_BYTES, Identity, Members, signed_by
from heliomesh.field.fleet.messages import Message, Packet
from heliomesh.model.factor import Variable
from heliomesh.scenario.section import NonNegative, Section

WIRE_VERSION = 3
CHUNK_BYTES = 60_000
_HEAD = struct.Struct(">Bci")
_BODY_START = _HEAD.size + SIGNATURE_BYTES
_DIGEST_BYTES, _INDEX_BYTES = 32, 4
_CONTENT_BYTES = CHUNK_BYTES - _BODY_START - _DIGEST_BYTES - _INDEX_BYTES
_MOST_MANIFEST_BYTES = 16_384

# a silence says that no model comes in a slot
MailKind = Literal["state", "bid", "grant", "model", "silence", "plan"]
FrameKind = MailKind | Literal["chunk"]
_LETTERS: dict[FrameKind, bytes] = {
    **{"state": b"S", "bid": b"B", "grant": b"G", "model": b"M"},
    **{"silence": b"N", "plan": b"P", "chunk": b"C"},
}
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}

_Number = Annotated[int, Field(ge=0, lt=1 << 31)]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]  # of a plan: files are called after it
_Key = tuple[int, int, MailKind, int]


class Manifest(Section):
    """What is signed."""

    network: str
    plan: _Name  # sha256 of the scenario and tables in force
    origin: Annotated[int, Field(ge=OPERATOR, lt=1 << 31)]
    destination: _Number
    kind: MailKind
    slot: _Number  # of a plan: the first in which it is in force
    started: Annotated[int, Field(ge=0, lt=1 << 63)]  # of the origin's process [ns since 1970]: tells two apart
    sent_second: NonNegative  # by the origin's clock, since 1970
    power_watt: NonNegative = 0.0
    states: tuple[tuple[Literal["site", "energy"], _Number, _Number], ...] = ()  # kind, owner, value
    said: Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$", max_length=8192)] = ""  # bid, grant, or a model's account
    num_bytes: _Number = 0  # of the content that follows
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""  # of that content

    @property
    def key(self) -> _Key:
        """A device sends one message of a kind to another in a slot; the operator sends one plan at a time."""
        return (self.origin, self.destination, self.kind, 0 if self.kind == "plan" else self.slot)


class RefusedError(Exception):
    """What does not come in: who signed it (None: nobody known), a word and what is said of it."""

    def __init__(self, signer: int | None, reason: str, said: str) -> None:
        super().__init__(said if signer in (None, OPERATOR) else f"device {signer}: {said}")
        self.signer, self.reason = signer, reason


@dataclass(frozen=True)
class Frame:
    """What a member signed; its body is still to be read."""

    kind: FrameKind
    signer: int
    body: bytes
    whole: bytes


def verified(frame: bytes, members: Members) -> Frame:
    """A frame by its size, version, kind and signature; raises RefusedError."""
    if not _BODY_START < len(frame) <= CHUNK_BYTES:
        raise RefusedError(None, "size", f"refused: a frame of {len(frame)} bytes")
    version, letter, signer = _HEAD.unpack_from(frame)
    if version != WIRE_VERSION or letter not in _KINDS:
        raise RefusedError(None, "version", f"refused: a frame that is not of version {WIRE_VERSION}")
    signature, body = frame[_HEAD.size : _BODY_START], frame[_BODY_START:]
    if not signed_by(members, signer, frame[: _HEAD.size] + body, signature):
        raise RefusedError(None, "unsigned", f"refused: signed by somebody else than device {signer}, whom it names")
    kind = _KINDS[letter]
    if kind != "chunk" and len(body) > _MOST_MANIFEST_BYTES:
        raise RefusedError(signer, "size", f"refused a manifest of {len(body)} bytes")
    return Frame(kind, signer, body, frame)


def manifest_of(frame: Frame) -> Manifest:
    """A frame's manifest, with the right types, and of its signer; raises RefusedError."""
    try:
        told = Manifest.model_validate_json(frame.body)
    except ValidationError:
        told = None
    if told is None or (told.origin, told.kind) != (frame.signer, frame.kind):
        raise RefusedError(frame.signer, "unreadable", "refused a manifest that cannot be read")
    return told


@dataclass(frozen=True)
class Mail:
    """A message that came whole; where it has no content, its frame can be passed on."""

    manifest: Manifest
    content: bytes
    frame: bytes

    def message(self, codec: Codec) -> Message:
        """As a device reads it; raises ValueError for a model that cannot be averaged."""
        told = self.manifest
        said, kind = bytes.fromhex(told.said), told.kind
        content: Packet | dict[Variable, int] | bytes = said
        if kind == "model":
            content = Packet(told.power_watt, codec.decoded(self.content), account=said)
        elif kind not in ("bid", "grant"):
            kind, content = "state", {Variable(of, owner): value for of, owner, value in told.states}
        return Message(told.origin, told.destination, kind, told.slot, content, len(self.content) + len(said))


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
        return self._frames(neighbour, "silence", slot, now_second)

    def new_plan(self, device: int, first_slot: int, now_second: float, tables: bytes) -> tuple[bytes, ...]:
        """Frames with a device's tables of a new plan, in force from a slot on."""
        return self._frames(device, "plan", first_slot, now_second, tables)

    def frames(self, message: Message, now_second: float, codec: Codec) -> tuple[bytes, ...]:
        """The frames of a message of the device's own."""
        content = message.content
        if isinstance(content, Packet):
            more = {"power_watt": content.power_watt, "said": content.account.hex()}
            body = codec.encoded(content)
            return self._frames(message.destination, "model", message.slot, now_second, body, **more)
        if message.kind in ("bid", "grant") and isinstance(content, bytes):
            return self._frames(message.destination, message.kind, message.slot, now_second, said=content.hex())
        if not isinstance(content, dict):
            raise TypeError(f"expected states, a bid, a grant or a model, actual: {type(content).__name__}")
        states = tuple((variable.kind, variable.owner, value) for variable, value in content.items())
        return self._frames(message.destination, "state", message.slot, now_second, states=states)

    def signed(self, kind: FrameKind, body: bytes) -> bytes:
        """A frame."""
        head = _HEAD.pack(WIRE_VERSION, _LETTERS[kind], self.device)
        return head + self.identity.sign(head + body) + body

    def _frames(
        self, to: int, kind: MailKind, slot: int, now_second: float, content: bytes = b"", **more: Any
    ) -> tuple[bytes, ...]:
        told = Manifest(
            network=self.network, plan=self.plan, origin=self.device, destination=to, kind=kind, slot=slot,
            started=self.started, sent_second=now_second, num_bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest() if content else "", **more,
        )  # fmt: skip
        text = told.model_dump_json().encode()
        digest = hashlib.sha256(text).digest()
        pieces = [content[start : start + _CONTENT_BYTES] for start in range(0, len(content), _CONTENT_BYTES)]
        chunks = [digest + number.to_bytes(_INDEX_BYTES, "big") + piece for number, piece in enumerate(pieces)]
        return (self.signed(kind, text), *(self.signed("chunk", chunk) for chunk in chunks))


class Assembly:
    """Messages in chunks, by signer; of two with one key the later sent one counts."""

    def __init__(self) -> None:
        # messages of which chunks are still missing: manifest, sha256 of the manifest's body, pieces by number
        self._coming: dict[_Key, tuple[Manifest, bytes, dict[int, bytes]]] = {}

    def announce(self, told: Manifest, frame: Frame) -> Mail | None:
        """The message of a manifest, if it has no content; else it waits for chunks."""
        if not told.num_bytes:
            return Mail(told, b"", frame.whole)
        if told.key in self._coming and self._coming[told.key][0].sent_second >= told.sent_second:
            raise RefusedError(told.origin, "replay", "refused a message that is on its way")
        self._coming[told.key] = told, hashlib.sha256(frame.body).digest(), {}
        return None

    def add(self, frame: Frame) -> Mail | None:
        """The message that a chunk completes, if it does; raises RefusedError."""
        head = _DIGEST_BYTES + _INDEX_BYTES
        digest, number = frame.body[:_DIGEST_BYTES], int.from_bytes(frame.body[_DIGEST_BYTES:head], "big")
        own = (one for one in self._coming.values() if one[0].origin == frame.signer and one[1] == digest)
        coming = next(own, None)
        if coming is None:
            raise RefusedError(frame.signer, "chunk", "refused a chunk that nobody announced")
        (told, _, pieces), piece = coming, frame.body[head:]
        left = told.num_bytes - number * _CONTENT_BYTES
        if number in pieces or left <= 0 or len(piece) != min(left, _CONTENT_BYTES):
            raise RefusedError(frame.signer, "chunk", "refused a chunk that does not fit")
        pieces[number] = piece
        if len(pieces) * _CONTENT_BYTES < told.num_bytes:
            return None
        del self._coming[told.key]
        content = b"".join(pieces[number] for number in range(len(pieces)))
        if hashlib.sha256(content).hexdigest() != told.sha256:
            raise RefusedError(frame.signer, "chunk", "its content is not what was signed")
        return Mail(told, content, frame.whole)

    def keep(self, is_open: Callable[[Manifest], bool]) -> None:
        """Drop all others."""
        self._coming = {key: one for key, one in self._coming.items() if is_open(one[0])}
