"""Who is who in a network of agents: a private authority, a certificate for each device, and signatures.

Certificates keep strangers out: both ends of a connection show one (mutual TLS). A member could still claim another's
name, so each message is signed with its origin's key. The key is Ed25519 and serves both: TLS signs texts that begin
otherwise than ours (RFC 8446, section 4.4.3), so a signature of one kind is never one of the other.

A member is a device's number or "watch", the operator. Its certificate names it and its key: access is by that name.
"""

import datetime
import hashlib
import inspect
import ipaddress
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import Field

from heliomesh.common.durable import write_bytes, written_whole
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.section import Section, validated

OPERATOR = -1  # in place of a device's number: who may change the plan
WATCHER = "watch"  # the operator's name as a member
VALID_DAYS = 180  # a season
SIGNATURE_BYTES = 64  # of Ed25519
_PURPOSE = b"heliomesh agent message\x00"
_AUTHORITY_DAYS = 3650  # it outlasts the certificates that it signs
_CLOCK_DAYS = 1  # a device's clock may be behind when it starts
_PRIVATE = 0o600
ROSTER = "roster.txt"
_Parsed = TypeVar("_Parsed")
_USAGES = inspect.signature(x509.KeyUsage).parameters  # of a key
_Member = Annotated[str, Field(pattern=r"^(\d{1,9}|watch)$")]
_PublicKey = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class Identity:
    """A private key and the certificate that names its owner."""

    key: Ed25519PrivateKey
    certificate: x509.Certificate

    def sign(self, content: bytes) -> bytes:
        """A signature of a message; 64 bytes."""
        return self.key.sign(_PURPOSE + content)

    @property
    def public_key(self) -> str:
        """The public key, 64 letters."""
        return self.key.public_key().public_bytes_raw().hex()

    @property
    def days_left(self) -> int:
        """Whole days until the certificate ends; negative afterwards."""
        return (self.certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days

    def write(self, certificate: Path, key: Path) -> None:
        """Write both as PEM."""
        write_bytes(certificate, certificate_pem(self.certificate))
        _write_key(key, self.key)


def _write_key(target: Path, key: Ed25519PrivateKey) -> None:
    """Write a private key that only its owner may read."""
    with written_whole(target) as path:
        path.chmod(_PRIVATE)  # before anything is in it
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """A certificate as PEM."""
    return certificate.public_bytes(Encoding.PEM)


def certificate_name(member: str, public_key: str) -> str:
    """How a certificate names a member: with a hash of its key, so that another key is another name."""
    return f"{member} {hashlib.sha256(bytes.fromhex(public_key)).hexdigest()[:32]}"


def new_authority(network: str) -> Identity:
    """The authority of one network: whoever it has signed is a member."""
    key = Ed25519PrivateKey.generate()
    usage = x509.KeyUsage(**dict.fromkeys(_USAGES, False) | {"digital_signature": True, "key_cert_sign": True})
    name = _named(f"heliomesh {network}")
    builder = (
        _dated(key.public_key(), name, name, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return Identity(key, builder.sign(key, None))


def certified(authority: Identity, member: str, host: str, public_key: str, days: int) -> x509.Certificate:
    """A certificate for the key of a member, reached at a host: an address, or a name of the domain name system."""
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    name, key = _named(certificate_name(member, public_key)), _public(public_key)
    builder = (
        _dated(key, name, authority.certificate.subject, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_place(host)]), critical=False)
        .add_extension(usages, critical=False)
    )
    return builder.sign(authority.key, None)


def new_member(authority: Identity, member: str, host: str, days: int = VALID_DAYS) -> Identity:
    """A member with a key that is made here."""
    key = Ed25519PrivateKey.generate()
    return Identity(key, certified(authority, member, host, key.public_key().public_bytes_raw().hex(), days))


def write_request(key: Path, request: Path, network: str, member: str) -> str:
    """Write a member's request for a certificate of its key, which is made where there is none; the public key."""
    if not key.exists():
        _write_key(key, Ed25519PrivateKey.generate())
    own = _read_key(key)
    name = _named(member, network)
    asked = x509.CertificateSigningRequestBuilder().subject_name(name).sign(own, None)
    write_bytes(request, asked.public_bytes(Encoding.PEM))
    return own.public_key().public_bytes_raw().hex()


def read_request(path: Path, network: str) -> tuple[str, str]:
    """Who asks for a certificate, and for which public key; raises ScenarioError."""
    asked, key = _read(path, _requested, "a request for a certificate")
    member = asked.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if not asked.is_signature_valid or not isinstance(key, Ed25519PublicKey) or not member:
        raise ScenarioError(str(path), "expected a request that its own Ed25519 key signed, actual: it is not")
    foreign = asked.subject != _named(str(member[0].value), network)
    refuse(foreign, path, f"a request of a device of {network}", ": of another network")
    return str(member[0].value), key.public_bytes_raw().hex()


def read_identity(certificate: Path, key: Path) -> Identity:
    """Read what `Identity.write` wrote; raises ScenarioError."""
    found, own = _read_key(key), read_certificate(certificate)
    refuse(found.public_key() != own.public_key(), key, f"the key of {certificate.name}", ": another one")
    return Identity(found, own)


def _read_key(path: Path) -> Ed25519PrivateKey:
    return _read(path, _ed25519, "an Ed25519 key as PEM")


def _ed25519(content: bytes) -> Ed25519PrivateKey:
    found = load_pem_private_key(content, None)
    if not isinstance(found, Ed25519PrivateKey):
        raise TypeError
    return found


def _requested(content: bytes) -> tuple[x509.CertificateSigningRequest, object]:
    asked = x509.load_pem_x509_csr(content)
    return asked, asked.public_key()


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate; raises ScenarioError."""
    return _read(path, x509.load_pem_x509_certificate, "a certificate as PEM")


def _read(path: Path, parse: Callable[[bytes], _Parsed], expected: str) -> _Parsed:
    """What a file holds; raises ScenarioError for anything else."""
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise ScenarioError(str(path), f"expected a readable file, actual: {error.strerror}") from None
    except (ValueError, TypeError):
        raise ScenarioError(str(path), f"expected {expected}, actual: something else") from None


def newer_certificate(content: bytes, authority: Path, key: Path, before: Path) -> bool | None:
    """Whether a certificate for a key was signed later than the one before; None where it is another key's.

    Raises ScenarioError where the authority did not sign it.
    """
    try:
        found = x509.load_pem_x509_certificate(content)
        found.verify_directly_issued_by(read_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        raise ScenarioError("certificate", f"expected one that {authority.name} signed, actual: it is not") from None
    if not key.exists() or _read_key(key).public_key() != found.public_key():
        return None
    old = read_certificate(before) if before.exists() else None
    if old is None or old.public_key() != found.public_key():
        return True
    return old != found and found.not_valid_before_utc >= old.not_valid_before_utc


class Roster(Section):
    """The members of a network and the keys that were revoked: a numbered list that the network's authority signs.

    Who is not on it is no member. The list with the highest number counts.
    """

    number: Annotated[int, Field(ge=0)] = 0
    keys: dict[_Member, _PublicKey] = Field({})
    revoked: tuple[_PublicKey, ...] = Field((), strict=False)

    def admitting(self, keys: Mapping[str, str]) -> "Roster":
        """The next list, with other keys for some members; the ones before are revoked."""
        before = [old for name, old in self.keys.items() if keys.get(name, old) != old]
        return Roster(number=self.number + 1, keys={**self.keys, **keys}, revoked=(*self.revoked, *before))

    def without(self, names: Iterable[str]) -> "Roster":
        """The next list, without some members."""
        gone = {name: self.keys[name] for name in names}
        left = {name: key for name, key in self.keys.items() if name not in gone}
        return Roster(number=self.number + 1, keys=left, revoked=(*self.revoked, *gone.values()))

    def signed(self, authority: Identity) -> bytes:
        """As a file: the signature, and below it the list."""
        text = self.model_dump_json().encode()
        return authority.sign(text).hex().encode() + b"\n" + text


def roster_of(content: bytes, authority: Path) -> Roster:
    """Read a list; raises ScenarioError for one that the authority did not sign."""
    signature, _, text = content.partition(b"\n")
    key = read_certificate(authority).public_key()
    try:
        sealed = bytes.fromhex(signature.decode("ascii"))
        if not isinstance(key, Ed25519PublicKey) or not _verified(key, text, sealed):
            raise ValueError
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ScenarioError(ROSTER, f"expected a list that {authority.name} signed, actual: it is not") from None
    return validated(Roster, found, ROSTER)


Members = Mapping[int, Ed25519PublicKey]  # those whose messages an agent may hear, by their numbers


def signed_by(members: Members, device: int, content: bytes, signature: bytes) -> bool:
    """Whether a device is a member and signed a message."""
    return device in members and _verified(members[device], content, signature)


def members_of(public_keys: Mapping[str, str]) -> Members:
    """Members by their names and public keys."""
    return {OPERATOR if name == WATCHER else int(name): _public(key) for name, key in public_keys.items()}


def _verified(key: Ed25519PublicKey, content: bytes, signature: bytes) -> bool:
    try:
        key.verify(signature, _PURPOSE + content)
    except InvalidSignature:
        return False
    return True


def _public(public_key: str) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))


def _dated(key: Ed25519PublicKey, subject: x509.Name, issuer: x509.Name, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=_CLOCK_DAYS))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _named(name: str, network: str | None = None) -> x509.Name:
    of = [] if network is None else [x509.NameAttribute(NameOID.ORGANIZATION_NAME, network[-64:])]
    return x509.Name([*of, x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])  # no more is allowed there


def _place(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
