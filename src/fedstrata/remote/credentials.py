"""A party's own key and the roll of all parties, as `fedstrata deploy keys` wrote them; no server can change them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedstrata.core.errors import RequestError
from fedstrata.privacy.identity import Identity, KeyDirectory


@dataclass(frozen=True)
class Credentials:
    """What proves who one is, and who the others are."""

    identity: Identity
    server: bytes
    sites: Mapping[str, bytes]  # public keys by name

    @classmethod
    def load(cls, folder: Path) -> Credentials:
        """Read them."""
        try:
            own = json.loads((folder / "identity.json").read_text())
            key_directory = json.loads((folder / "roll.json").read_text())
            key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(own["private"]))
            sites = {name: bytes.fromhex(public) for name, public in key_directory["sites"].items()}
            return cls(Identity(key), bytes.fromhex(key_directory["server"]), sites)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RequestError(
                f"{folder} holds no keys of a federation ({error}); make them with deploy keys"
            ) from None

    def key_directory(self, names: Sequence[str]) -> KeyDirectory:
        """Return the roll of a run: client i is the i-th site."""
        if strange := [name for name in names if name not in self.sites]:
            raise RequestError(f"site {strange[0]} is not on the roll that the keys came with")
        return KeyDirectory(self.server, tuple(self.sites[name] for name in names))
