"""Who is who: every party has an Ed25519 key, and the roll of public ones reaches all of them out of band."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedstrata.core.errors import RequestError

Entropy = Callable[[int], bytes]  # so many secret bytes: `os.urandom`, or in a simulation a seeded stream


@dataclass(frozen=True)
class Identity:
    """A party's own key."""

    private: Ed25519PrivateKey

    @classmethod
    def new(cls, entropy: Entropy) -> Identity:
        """Draw one."""
        return cls(Ed25519PrivateKey.from_private_bytes(entropy(32)))

    @property
    def public(self) -> bytes:
        """The half that everybody may have."""
        return self.private.public_key().public_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        """Sign."""
        return self.private.sign(data)


@dataclass(frozen=True)
class KeyDirectory:
    """The public keys of the server and of all clients, the same at every party."""

    server: bytes
    clients: tuple[bytes, ...]

    def __post_init__(self) -> None:
        everybody = (self.server, *self.clients)
        if len(set(everybody)) != len(everybody):
            raise RequestError("two parties of the roll have the same key")

    @cached_property
    def digest(self) -> bytes:
        """What two parties compare to know that they have the same roll."""
        return sha256(b"fedstrata roll" + b"".join((self.server, *self.clients))).digest()

    def key(self, party: int) -> Ed25519PublicKey:
        """Return a party's key; -1 is the server."""
        if not -1 <= party < len(self.clients):
            raise RequestError(f"the roll has no party {party}")
        return Ed25519PublicKey.from_public_bytes(self.server if party < 0 else self.clients[party])

    @classmethod
    def of(cls, server: Identity, clients: Sequence[Identity]) -> KeyDirectory:
        """Write down who is there."""
        return cls(server.public, tuple(client.public for client in clients))
