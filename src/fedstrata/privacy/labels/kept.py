"""Placeholders that outlive a run, so that a model trained on them can go on in another (Stratify's hybrid, III-D).

In every run clients and server agree on placeholders anew: the rows of a trained head would mean other labels. So every
client's own map is kept beside the model, sealed with a key that only the client has. In the next run it says which new
placeholder is which old one, never a label, and the server takes up the old numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedstrata.core.errors import RequestError
from fedstrata.core.storage.event_lines import read_events
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.labels.masking import MaskedLabels

EVENT = "labels_masked"  # keeps sealed maps in a run's folder
NONCE = 12  # bytes


@dataclass(frozen=True)
class OwnMap:
    """A client's own labels, how many placeholders there are, and what opens the names of all (`names.py`)."""

    own: Mapping[Any, int]
    placeholders: int
    names_key: bytes = b""

    def seal(self, key: bytes, nonce: bytes, run: str) -> bytes:
        """Seal it for a run."""
        text = json.dumps([self.placeholders, list(self.own.items()), self.names_key.hex()]).encode()
        return nonce + AESGCM(key).encrypt(nonce, text, run.encode())

    @classmethod
    def open(cls, key: bytes, sealed: bytes, run: str) -> OwnMap:
        """Undo `seal`."""
        try:
            text = AESGCM(key).decrypt(sealed[:NONCE], sealed[NONCE:], run.encode())
        except (InvalidTag, ValueError):
            raise RefusedError("the map of labels is not one that this client sealed") from None
        placeholders, own, names_key = json.loads(text)
        return cls({label: int(place) for label, place in own}, int(placeholders), bytes.fromhex(names_key))

    def renumber(self, own: Mapping[Any, int]) -> dict[int, int]:
        """Say which new placeholder, of labels that are held now, is which old one."""
        if any(label not in self.own for label in own):
            raise RefusedError("it holds a label that the model was not trained on")
        return {place: self.own[label] for label, place in own.items()}


def read_kept(init: str) -> dict[str, Any]:
    """Read what a run whose model is to go on keeps of labels."""
    try:
        events = read_events((Path(init).parent / "events.jsonl").read_bytes())
    except OSError:
        events = []
    event = next((event for event in events if event["event"] == EVENT), None)
    if event is None or "sealed" not in event:
        raise RequestError(
            f'model.init = "{init}" does not fit privacy.labels: which row of its head is which label, only the '
            "clients of a run with masked labels know; give the model in that run's folder"
        )
    return dict(event)


def take_up(masked: MaskedLabels, old: Mapping[int, int], placeholders: int) -> MaskedLabels:
    """Renumber what a job gave by what clients said; placeholders that nobody holds now stay empty."""
    order = np.array([old[place] for place in range(masked.placeholders)], dtype=np.int64)

    def placed(table: np.ndarray) -> np.ndarray:
        whole = np.zeros((*table.shape[:-1], placeholders), dtype=table.dtype)
        whole[..., order] = table
        return whole

    return replace(
        masked,
        placeholders=placeholders,
        own=[{label: old[place] for label, place in own.items()} for own in masked.own],
        holds=placed(masked.holds),
        totals=placed(masked.totals),
        counts=None if masked.counts is None else placed(masked.counts),
        bytes_up=masked.bytes_up + 8 * np.array([len(own) for own in masked.own]),  # for pairs of placeholders
    )


def join_renumberings(told: Mapping[int, Mapping[int, int]], placeholders: int) -> dict[int, int]:
    """Put together what clients say; all must say the same."""
    old: dict[int, int] = {}
    for client, pairs in told.items():
        for place, before in pairs.items():
            if old.setdefault(place, before) != before or not 0 <= before < placeholders:
                raise RefusedError(f"client {client} knows other placeholders than the rest")
    if len(set(old.values())) != len(old):
        raise RefusedError("clients name one placeholder twice")
    return old
