"""Who is who in a network of agents: a private authority, a certificate for each device, and signatures.

Certificates keep strangers out: both ends of a connection show one (mutual TLS). A member could still claim another's
name, so each message is signed with its origin's key. The key is Ed25519 and serves both: TLS signs texts that begin
otherwise than ours (RFC 8446, section 4.4.3), so a signature of one kind is never one of the other.
"""

import datetime
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from heliomesh.durable import write_bytes, written_whole
from heliomesh.scenario import ScenarioError

OPERATOR = -1  # in place of a device's number: who may change the plan
_PURPOSE = b"heliomesh agent message\x00"
_VALID_DAYS = 3650  # devices in the field outlast the certificates of servers
_CLOCK_DAYS = 1  # a device's clock may be behind when it starts
_PRIVATE = 0o600


@dataclass(frozen=True)
class Identity:
    """A private key and the certificate that names its owner."""

    key: Ed25519PrivateKey
    certificate: x509.Certificate

    def sign(self, content: bytes) -> bytes:
        """A signature of a message; 64 bytes."""
        return self.key.sign(_PURPOSE + content)

    def write(self, certificate: Path, key: Path) -> None:
        """Write both as PEM; only the owner may read the key."""
        write_bytes(certificate, certificate_pem(self.certificate))
        with written_whole(key) as path:
            path.chmod(_PRIVATE)  # before anything is in it
            path.write_bytes(self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """A certificate as PEM."""
    return certificate.public_bytes(Encoding.PEM)


def new_authority(network: str) -> Identity:
    """The authority of one network: whoever it has signed is a member."""
    key = Ed25519PrivateKey.generate()
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    name = _named(f"heliomesh {network}")
    builder = (
        _dated(key, name, name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return Identity(key, builder.sign(key, None))


def new_member(authority: Identity, name: str, host: str) -> Identity:
    """A member by its name, reached at a host: an address, or a name of the domain name system."""
    key = Ed25519PrivateKey.generate()
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = (
        _dated(key, _named(name), authority.certificate.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_place(host)]), critical=False)
        .add_extension(usages, critical=False)
    )
    return Identity(key, builder.sign(authority.key, None))


def read_identity(certificate: Path, key: Path) -> Identity:
    """Read what `Identity.write` wrote; raises ScenarioError."""
    try:
        found = load_pem_private_key(key.read_bytes(), None)
    except (ValueError, TypeError):
        raise ScenarioError(str(key), "expected an Ed25519 key as PEM, actual: something else") from None
    own = read_certificate(certificate)
    if not isinstance(found, Ed25519PrivateKey) or found.public_key() != own.public_key():
        raise ScenarioError(str(key), f"expected the key of {certificate.name}, actual: another one")
    return Identity(found, own)


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate; raises ScenarioError."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise ScenarioError(str(path), "expected a certificate as PEM, actual: something else") from None


SIGNATURE_BYTES = 64  # of Ed25519


@dataclass(frozen=True)
class Members:
    """The devices whose messages an agent may hear, by their keys."""

    keys: Mapping[int, Ed25519PublicKey]

    def signed(self, device: int, content: bytes, signature: bytes) -> bool:
        """Whether a device signed a message."""
        if device not in self.keys:
            return False
        try:
            self.keys[device].verify(signature, _PURPOSE + content)
        except InvalidSignature:
            return False
        return True


def members_of(certificates: Mapping[int, Path], authority: Path) -> Members:
    """The keys of devices' certificates, each of which the authority must have signed; raises ScenarioError."""
    issuer, keys = read_certificate(authority), {}
    for device, path in certificates.items():
        found = read_certificate(path)
        key = found.public_key()
        try:
            found.verify_directly_issued_by(issuer)
        except (ValueError, TypeError, InvalidSignature):
            raise ScenarioError(str(path), f"expected to be signed by {authority.name}, actual: it is not") from None
        if not isinstance(key, Ed25519PublicKey):
            raise ScenarioError(str(path), "expected the certificate of an Ed25519 key, actual: of another kind")
        keys[device] = key
    return Members(keys)


def _dated(key: Ed25519PrivateKey, subject: x509.Name, issuer: x509.Name) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=_CLOCK_DAYS))
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])  # no more is allowed there


def _place(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
