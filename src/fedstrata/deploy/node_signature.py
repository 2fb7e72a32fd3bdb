"""Requests that sites sign, and whether one is: known from its headers, before any of its body is read.

Flower's SuperNodes sign the time with their node key. Flower itself looks at that only when it has read the body, so
whoever reaches the port could make it read anything.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

KEY, SIGNATURE, TIME = "flwr-public-key", "flwr-signature", "flwr-timestamp"  # Flower 1.41, 1.42
OLD, EARLY = 305.0, 5.0  # seconds that a signature may be behind or before our clock, as Flower has it


class NodeKey:
    """A site's key, read once: a file that is renewed later does not change who the site is."""

    def __init__(self, path: Path):
        key = load_ssh_private_key(path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key

    @property
    def fingerprint(self) -> str:
        """Return what stands for the public key: SHA-256, in hexadecimal."""
        return sha256(self._public()).hexdigest()

    def sign_time(self) -> dict[str, str]:
        """Return the headers of a request that is signed now."""
        now = datetime.now(UTC).isoformat()
        signed = {KEY: self._public(), SIGNATURE: self._key.sign(now.encode(), ec.ECDSA(SHA256()))}
        return {TIME: now, **{name: b64encode(value).decode() for name, value in signed.items()}}

    def _public(self) -> bytes:
        return self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


class KnownKeys:
    """The node keys that a server noted in a file; it is read again when it has changed."""

    def __init__(self, path: Path):
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._keys: dict[bytes, str] = {}  # whose each is

    def signed(self, headers: Mapping[str, str]) -> bool:
        """Say whether a known key signed the request just now."""
        return self.signer(headers) is not None

    def signer(self, headers: Mapping[str, str]) -> str | None:
        """Return the site that signed the request just now; None: it is none that may connect."""
        site, age = self._signed(headers)
        return site if -EARLY < age < OLD else None

    def mistimed(self, headers: Mapping[str, str]) -> bool:
        """Say whether a known key signed the request, but by a clock that is far from ours."""
        site, age = self._signed(headers)
        return site is not None and not -EARLY < age < OLD

    def _signed(self, headers: Mapping[str, str]) -> tuple[str | None, float]:
        """Return the site that signed a request, and how many seconds ago by its clock."""
        try:
            written = b64decode(headers[KEY], validate=True)
            signature, time = b64decode(headers[SIGNATURE], validate=True), headers[TIME]
            age = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
            site = self._known().get(written)
            if site is None:
                return None, 0.0
            key = load_pem_public_key(written)
            assert isinstance(key, ec.EllipticCurvePublicKey)
            key.verify(signature, time.encode(), ec.ECDSA(SHA256()))
        except (KeyError, ValueError, TypeError, binascii.Error, InvalidSignature):
            return None, 0.0
        return site, age

    def _known(self) -> dict[bytes, str]:
        try:
            found = self._path.stat()
            if (now := (found.st_mtime_ns, found.st_size)) != self._seen:
                told = json.loads(self._path.read_text())
                self._keys = {_standard(e["key"]): site for site, e in told.items() if "key" in e}
                self._seen = now
        except (OSError, ValueError):  # nobody is known yet
            return {}
        return self._keys


def _standard(text: str) -> bytes:
    """Return a public key as nodes write it into their headers; its file has it in the form of OpenSSH."""
    return load_ssh_public_key(text.encode()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
