"""A secret between two parties that only meet through the server: X25519, HKDF-SHA256, AES-256-GCM.

Public keys travel signed (`frames.py`); everything derived from them is bound to the transcript of all keys, so parties
that were shown different keys share nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedstrata.privacy.frames import RefusedError, join
from fedstrata.privacy.identity import Entropy


@dataclass(frozen=True)
class Pair:
    """What two parties share: a key for masks that cancel, and one to wrap what only the other may read."""

    mask: bytes
    wrap: bytes


@dataclass(frozen=True)
class Agreement:
    """A party's own half."""

    me: int
    private: X25519PrivateKey

    @classmethod
    def new(cls, me: int, entropy: Entropy) -> Agreement:
        """Draw a key."""
        return cls(me, X25519PrivateKey.from_private_bytes(entropy(32)))

    @property
    def public(self) -> bytes:
        """What the others need."""
        return self.private.public_key().public_bytes_raw()

    def pair(self, other: int, public: bytes, transcript: bytes) -> Pair:
        """Work out what is shared with another party."""
        try:
            shared = self.private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:  # a point that gives the same secret to everybody
            raise RefusedError(f"party {other} has no proper public key") from None
        low, high = sorted((self.me, other))
        key = derive(shared, transcript, b"pair|%d|%d" % (low, high), 64)
        return Pair(key[:32], key[32:])


def transcript_of(domain: bytes, job: bytes, keys: Mapping[int, bytes]) -> bytes:
    """Return what all keys of a job are bound to."""
    told = [part for party, key in sorted(keys.items()) for part in (b"%d" % party, key)]
    return sha256(join([domain, job, *told])).digest()


def derive(secret: bytes, salt: bytes, info: bytes, size: int = 32) -> bytes:
    """Derive a key (RFC 5869)."""
    return HKDF(SHA256(), size, salt, info).derive(secret)


def wrap(key: bytes, sender: int, receiver: int, text: bytes, bound_to: bytes) -> bytes:
    """Encrypt for the other end of a pair; a key wraps one text in each direction."""
    return AESGCM(key).encrypt(_nonce(sender, receiver), text, bound_to)


def unwrap(key: bytes, sender: int, receiver: int, data: bytes, bound_to: bytes) -> bytes:
    """Decrypt."""
    try:
        return AESGCM(key).decrypt(_nonce(sender, receiver), data, bound_to)
    except InvalidTag:
        raise RefusedError(f"what party {sender} wrapped for party {receiver} was changed on the way") from None


def _nonce(sender: int, receiver: int) -> bytes:
    return sender.to_bytes(6, "little", signed=True) + receiver.to_bytes(6, "little", signed=True)
