"""A party's own key and the roll of all parties, as `fedstrata deploy keys` wrote them; no server can change them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedstrata.core.errors import RequestError
from fedstrata.privacy.identity import Identity, Roll


@dataclass(frozen=True)
class Papers:
    """What proves who one is, and who the others are."""

    identity: Identity
    server: bytes
    sites: Mapping[str, bytes]  # public keys by name

    @classmethod
    def load(cls, folder: Path) -> Papers:
        """Read them."""
        try:
            own = json.loads((folder / "identity.json").read_text())
            roll = json.loads((folder / "roll.json").read_text())
            key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(own["private"]))
            sites = {name: bytes.fromhex(public) for name, public in roll["sites"].items()}
            return cls(Identity(key), bytes.fromhex(roll["server"]), sites)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RequestError(
                f"{folder} holds no keys of a federation ({error}); make them with deploy keys"
            ) from None

    def roll(self, names: Sequence[str]) -> Roll:
        """Give the roll of a run: client i is the i-th site."""
        if strange := [name for name in names if name not in self.sites]:
            raise RequestError(f"site {strange[0]} is not on the roll that the keys came with")
        return Roll(self.server, tuple(self.sites[name] for name in names))
