"""Sums that clients need in the middle of a computation, such as those of batch norm: pairwise masks, no recovery.

Whoever is missing ends the meeting anyway, so nothing is shared out for that case; one agreement a step serves all its
exchanges, each under masks of its own.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.privacy.agreement import Agreement, transcript_of
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.identity import Entropy
from fedstrata.privacy.masks import add_streams
from fedstrata.privacy.sums.fixed_point import WIDE
from fedstrata.privacy.sums.protocol import FEWEST

DOMAIN = b"fedstrata meeting"


def hmac_of(key: bytes, exchange: int) -> bytes:
    """Give the key of one exchange: of those of others it tells nothing."""
    return hmac.digest(key, b"exchange|%d" % exchange, "sha256")


class Attendant:
    """A client in a meeting."""

    def __init__(self, me: int, entropy: Entropy):
        self._own = Agreement.new(me, entropy)
        self.me, self.public = me, self._own.public
        self._pairs: dict[int, bytes] = {}

    def meet(self, keys: Mapping[int, bytes], transcript: bytes) -> None:
        """Learn everybody's keys."""
        others = {other: key for other, key in keys.items() if other != self.me}
        self._pairs = {other: self._own.pair(other, key, transcript).mask for other, key in others.items()}

    def masked(self, values: Any, exchange: int, present: Sequence[int]) -> np.ndarray:
        """Give the words of what one brings, under a mask with everybody who is present."""
        if len(present) < FEWEST:
            raise RefusedError(f"a sum over {len(present)} clients tells one what another brought")
        words = WIDE.words(values, len(present))
        keys = {other: hmac_of(self._pairs[other], exchange) for other in present if other != self.me}
        plus, minus = ([key for other, key in keys.items() if (self.me < other) == adds] for adds in (True, False))
        add_streams(words, plus, minus)
        return words


class MaskedMeeting:
    """Everybody who meets in a step, in one process; calling it adds up what they bring."""

    def __init__(self, clients: Sequence[int], job: bytes, entropies: Sequence[Entropy]):
        self._attendants = [Attendant(*who) for who in zip(clients, entropies, strict=True)]
        keys = {one.me: one.public for one in self._attendants}
        transcript = transcript_of(DOMAIN, job, keys)
        for one in self._attendants:
            one.meet(keys, transcript)
        self._by_client = {one.me: one for one in self._attendants}
        self._exchanges = 0

    def __call__(self, brought: Mapping[int, Tensor]) -> Tensor:
        """Add up tensors, by the places of their owners."""
        like = next(iter(brought.values()))
        flat = {self._attendants[place].me: values.reshape(-1) for place, values in brought.items()}
        return torch.from_numpy(self.sum(flat)).to(like.device, like.dtype).reshape(like.shape)

    def sum(self, brought: Mapping[int, Any]) -> np.ndarray:
        """Add up flat arrays, by their owners."""
        self._exchanges += 1
        sent = [self._by_client[one].masked(values, self._exchanges, list(brought)) for one, values in brought.items()]
        return WIDE.numbers(np.sum(sent, axis=0, dtype=WIDE.dtype))
