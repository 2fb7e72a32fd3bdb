"""The roll of a federation: who takes part in it and with which keys, signed by the authority that made the keys.

    {"serial": 3, "issued": "2026-01-31T12:00:00+00:00", "server": IDENTITY, "sites": {NAME: IDENTITY},
     "nodes": {NAME: NODE KEY}, "operators": {NAME: IDENTITY}, "signature": ...}

Identities are Ed25519 keys, as hexadecimal digits. Whoever holds a roll takes a later one in its place while he runs,
if it has a higher serial number and the signature of the same authority; so it does not matter who brings it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384

from fedstrata.core.errors import FedstrataError

FILE = "roll.json"
LONGEST = 1 << 20  # bytes
DOMAIN = b"fedstrata roll\n"


class RollError(FedstrataError):
    """A roll is not taken in; the text says why."""


class UnreadableRollError(RollError):
    """It is none, or half of one."""


@dataclass(frozen=True)
class Roll:
    """Everybody's public keys, by name."""

    server: bytes
    sites: Mapping[str, bytes]
    nodes: Mapping[str, str] = field(default_factory=dict)  # with which sites connect, in OpenSSH's form
    operators: Mapping[str, bytes] = field(default_factory=dict)
    serial: int = 0
    issued: str = ""
    signature: bytes = b""

    @classmethod
    def read(cls, data: bytes) -> Roll:
        """Read one; whether it is signed is another question."""
        try:
            told: Any = json.loads(data) if len(data) <= LONGEST else None
            identities = {k: {n: bytes.fromhex(v) for n, v in told.get(k, {}).items()} for k in ("sites", "operators")}
            nodes = {str(name): str(key) for name, key in told.get("nodes", {}).items()}
            server, signature = bytes.fromhex(told["server"]), bytes.fromhex(told.get("signature", ""))
            serial, issued = int(told.get("serial", 0)), str(told.get("issued", ""))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise UnreadableRollError("the roll cannot be read") from None
        return cls(server, identities["sites"], nodes, identities["operators"], serial, issued, signature)

    def write(self) -> bytes:
        """Write it."""
        return (json.dumps({**self._table(), "signature": self.signature.hex()}, indent=2) + "\n").encode()

    @property
    def text(self) -> str:
        """It, as it is written."""
        return self.write().decode()

    def signed(self, authority: ec.EllipticCurvePrivateKey) -> Roll:
        """Return the next one: dated now, with the next serial number, and signed."""
        issued = datetime.now(UTC).isoformat(timespec="seconds")
        following = replace(self, serial=self.serial + 1, issued=issued, signature=b"")
        return replace(following, signature=authority.sign(following._body(), ec.ECDSA(SHA384())))

    def check(self, authority: bytes) -> None:
        """Raise unless the authority, whose certificate is given as PEM, signed it."""
        try:
            key = x509.load_pem_x509_certificate(authority).public_key()
            assert isinstance(key, ec.EllipticCurvePublicKey)
            key.verify(self.signature, self._body(), ec.ECDSA(SHA384()))
        except (InvalidSignature, ValueError, AssertionError):
            raise RollError(f"roll {self.serial} is not signed by this federation's authority") from None

    def followed_by(self, data: bytes, authority: bytes) -> Roll:
        """Return the roll to go by from here on, of this one and of what somebody brings; refuse what is older."""
        brought = Roll.read(data)
        if brought == self:
            return self
        brought.check(authority)
        if brought.serial <= self.serial:
            raise RollError(f"roll {brought.serial} is not newer than roll {self.serial}, which holds here")
        return brought

    def _table(self) -> dict[str, Any]:
        return {
            "serial": self.serial,
            "issued": self.issued,
            "server": self.server.hex(),
            "sites": {name: key.hex() for name, key in sorted(self.sites.items())},
            "nodes": dict(sorted(self.nodes.items())),
            "operators": {name: key.hex() for name, key in sorted(self.operators.items())},
        }

    def _body(self) -> bytes:
        return DOMAIN + json.dumps(self._table(), sort_keys=True).encode()
