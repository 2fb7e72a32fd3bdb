"""A party's own key and the roll of all parties, as `fedstrata deploy keys` wrote them; no server can change them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedstrata.core.errors import RequestError
from fedstrata.privacy.identity import Identity, KeyDirectory
from fedstrata.remote.roll import FILE, Roll, RollError


@dataclass(frozen=True)
class Credentials:
    """What proves who one is, and who the others are."""

    identity: Identity
    roll: Roll
    authority: bytes = b""  # the certificate of who signs rolls, PEM
    folder: Path | None = None  # where they lie

    @classmethod
    def load(cls, folder: Path, kept: Path | None = None) -> Credentials:
        """Read them; where a later roll was taken in, and kept in another folder, that one holds.

        So it does where the one beside the keys cannot be read: whoever brings a roll may be about to write it.
        """
        try:
            own = json.loads((folder / "identity.json").read_text())
            key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(own["private"]))
            authority = (folder / "ca.crt").read_bytes() if (folder / "ca.crt").exists() else b""
            roll = _newest(folder, kept, authority)
        except (OSError, ValueError, KeyError, TypeError, RollError) as error:
            raise RequestError(
                f"{folder} holds no keys of a federation ({error}); make them with deploy keys"
            ) from None
        return cls(Identity(key), roll, authority, folder)

    @property
    def server(self) -> bytes:
        """The server's public key."""
        return self.roll.server

    @property
    def sites(self) -> Mapping[str, bytes]:
        """Public keys of sites, by name."""
        return self.roll.sites

    def take_in(self, data: bytes) -> Credentials:
        """Return them with a later roll; `RollError` where it is none, and themselves where it is known."""
        roll = self.roll.followed_by(data, self.authority)
        return self if roll is self.roll else replace(self, roll=roll)

    def key_directory(self, names: Sequence[str]) -> KeyDirectory:
        """Return the roll of a run: client i is the i-th site."""
        if strange := [name for name in names if name not in self.sites]:
            raise RequestError(f"site {strange[0]} is not on the roll (number {self.roll.serial})")
        return KeyDirectory(self.server, tuple(self.sites[name] for name in names))


def _newest(folder: Path, kept: Path | None, authority: bytes) -> Roll:
    """Return the later of the roll in a folder and the one that was taken in before, if that was signed."""
    try:
        roll = Roll.read((folder / FILE).read_bytes())
    except (OSError, RollError):
        with suppress(OSError, RollError):
            if kept is not None:
                (before := Roll.read((kept / FILE).read_bytes())).check(authority)
                return before
        raise
    try:
        return roll if kept is None else roll.followed_by((kept / FILE).read_bytes(), authority)
    except (OSError, RollError):
        return roll


def keys_for(credentials: Credentials | None, wish: str) -> Credentials:
    """Return the keys without which a wish cannot be fulfilled."""
    if credentials is None:
        raise RequestError(f"{wish} at sites needs keys; see fedstrata deploy keys")
    return credentials
