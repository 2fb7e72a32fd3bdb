"""The names of all placeholders, for the sites alone: each can say what a model's answers mean, the server cannot.

Every site seals the names of its own labels under a key that follows from the group key (`prf.py`), which all sites
have and the server has not. Sealing gives the same bytes whoever does it, so that the server can keep one entry a
placeholder and see that sites agree, and no entry tells who wrote it. Names are padded: only very long ones show.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from fedstrata.data.reading import Label
from fedstrata.privacy.frames import RefusedError

KEY = 64  # bytes: AES-256 in SIV mode (RFC 5297), which needs no nonce
PAD = 128  # bytes that a name is padded to


def seal_names(key: bytes, own: Mapping[Label, int]) -> dict[int, bytes]:
    """Seal the names of own labels, each for its placeholder."""
    return {place: AESSIV(key).encrypt(_padded(label), [b"%d" % place]) for label, place in own.items()}


def open_names(key: bytes, entries: Sequence[bytes]) -> tuple[Label, ...]:
    """Return the names of all placeholders, in order."""
    try:
        return tuple(json.loads(AESSIV(key).decrypt(entry, [b"%d" % at])) for at, entry in enumerate(entries))
    except (InvalidTag, ValueError):
        raise RefusedError("the names of placeholders were not sealed by the sites of that run") from None


def _padded(label: Label) -> bytes:
    text = json.dumps(label).encode()
    return text + b" " * (-len(text) % PAD)
