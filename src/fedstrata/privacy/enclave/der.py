"""As much of X.509 as a chain of AMD certificates needs, read strictly: what is not understood is refused.

`cryptography` warns at every VCEK, whose serial number is 0, and will refuse it one day. It also ignores bits that no
signature covers, such as the second copy of the algorithm's name; here every bit of a certificate is either signed or
compared. Keys and signatures are still left to `cryptography`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_der_public_key

from fedstrata.privacy.enclave.attestation import refused, require

INTEGER, BITS, OCTETS, OID, SEQUENCE = 0x02, 0x03, 0x04, 0x06, 0x30
UTC_TIME, LONG_TIME = 0x17, 0x18
VERSION, EXTENSIONS = 0xA0, 0xA3  # explicitly tagged
PSS_SHA384 = bytes.fromhex(  # RSASSA-PSS with SHA-384, MGF1 with SHA-384, salt of 48 bytes, trailer 1
    "304606092a864886f70d01010a3039a00f300d06096086480165030402020500"
    "a11c301a06092a864886f70d010108300d06096086480165030402020500a203020130a303020101"
)


@dataclass(frozen=True)
class Certificate:
    """One certificate of the chain."""

    signed: bytes  # what its issuer signed
    signature: bytes
    issuer: bytes
    subject: bytes
    since: datetime
    until: datetime
    key: bytes  # SubjectPublicKeyInfo
    extensions: Mapping[bytes, bytes]  # by object identifier, encoded

    @property
    def rsa(self) -> RSAPublicKey:
        """The key of a certificate authority."""
        key = _loaded(self.key)
        if not isinstance(key, RSAPublicKey):
            raise refused("an authority's key is not RSA")
        return key

    @property
    def p384(self) -> EllipticCurvePublicKey:
        """The key of a chip."""
        key = _loaded(self.key)
        if not (isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP384R1)):
            raise refused("the chip's key is not on P-384")
        return key

    def check(self, issuer: Certificate, now: datetime) -> None:
        """Refuse a certificate that its issuer did not sign, or that is not valid now."""
        require(self.issuer == issuer.subject, "a certificate names another issuer")
        require(self.since <= now <= self.until, f"a certificate is valid from {self.since} to {self.until}")
        try:
            issuer.rsa.verify(self.signature, self.signed, PSS(MGF1(SHA384()), 48), SHA384())
        except InvalidSignature:
            raise refused("a certificate is not signed by its issuer") from None


def read(data: bytes) -> Certificate:
    """Read one certificate."""
    outer, rest = _value(data, SEQUENCE)
    require(not rest, "a certificate has something behind it")
    signed, after = _cut(outer)
    algorithm, after = _cut(after)
    signature, after = _value(after, BITS)
    require(algorithm == PSS_SHA384 and not after, "a certificate is not signed by RSA-PSS with SHA-384")
    require(signature[:1] == b"\0", "a certificate's signature is no whole number of bytes")
    body, rest = _value(signed, SEQUENCE)
    require(not rest, "a certificate is malformed")
    _, body = _value(body, VERSION)
    _, body = _value(body, INTEGER)  # the serial number, which is 0 for every chip
    algorithm, body = _cut(body)
    require(algorithm == PSS_SHA384, "a certificate is not signed by RSA-PSS with SHA-384")
    issuer, body = _cut(body)
    validity, body = _value(body, SEQUENCE)
    subject, body = _cut(body)
    key, body = _cut(body)
    since, validity = _time(validity)
    until, validity = _time(validity)
    extensions, body = _value(body, EXTENSIONS)
    require(not body and not validity, "a certificate is malformed")
    return Certificate(signed, signature[1:], issuer, subject, since, until, key, _extensions(extensions))


def number(data: bytes) -> int:
    """Read a whole number that is not negative."""
    value, rest = _value(data, INTEGER)
    require(bool(value) and not rest and value[0] < 0x80, "a certificate has no proper number")
    return int.from_bytes(value, "big")


def identifier(dotted: str) -> bytes:
    """Encode an object identifier, such as "1.3.6.1"."""
    first, second, *others = map(int, dotted.split("."))
    out = bytes([40 * first + second])
    for arc in others:
        groups = [arc & 0x7F]
        while arc := arc >> 7:
            groups.append(arc & 0x7F | 0x80)
        out += bytes(reversed(groups))
    return out


def _extensions(data: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    items, rest = _value(data, SEQUENCE)
    require(not rest, "a certificate is malformed")
    while items:
        item, items = _value(items, SEQUENCE)
        name, item = _value(item, OID)
        if item[:3] == b"\x01\x01\xff":  # it is critical
            item = item[3:]
        value, item = _value(item, OCTETS)
        require(not item and name not in found, "a certificate is malformed")
        found[name] = value
    return found


def _time(data: bytes) -> tuple[datetime, bytes]:
    long = data[:1] == bytes([LONG_TIME])
    text, rest = _value(data, LONG_TIME if long else UTC_TIME)
    try:
        when = datetime.strptime(text.decode("ascii"), "%Y%m%d%H%M%SZ" if long else "%y%m%d%H%M%SZ")
    except ValueError:
        raise refused("a certificate has no proper date") from None
    return when.replace(tzinfo=UTC), rest


def _value(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """Return the content of the first element, which must have this tag, and what comes behind it."""
    head, stop = _bounds(data)
    require(data[0] == tag, "a certificate is malformed")
    return data[head:stop], data[stop:]


def _cut(data: bytes) -> tuple[bytes, bytes]:
    """Return the first element whole, and what comes behind it."""
    _, stop = _bounds(data)
    require(data[0] == SEQUENCE, "a certificate is malformed")
    return data[:stop], data[stop:]


def _bounds(data: bytes) -> tuple[int, int]:
    """Return where the content of the first element begins and ends; only the shortest form of a length is read."""
    require(len(data) >= 2, "a certificate is cut off")
    head, size = 2, data[1]
    if size >= 0x80:
        head = 2 + size - 0x80
        size = int.from_bytes(data[2:head], "big")
        require(3 <= head <= 4 and size >= (0x80 if head == 3 else 0x100), "a certificate is malformed")
    require(head + size <= len(data), "a certificate is cut off")
    return head, head + size


def _loaded(key: bytes) -> object:
    try:
        return load_der_public_key(key)
    except (ValueError, UnsupportedAlgorithm):
        raise refused("a certificate has no readable key") from None
