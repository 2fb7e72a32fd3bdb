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

from fedstrata.privacy import FEWEST
from fedstrata.privacy.agreement import Agreement, transcript_of
from fedstrata.privacy.frames import Frame, RefusedError, open_frame
from fedstrata.privacy.identity import Entropy, Identity, KeyDirectory
from fedstrata.privacy.masks import add_streams
from fedstrata.privacy.sums.fixed_point import WIDE

DOMAIN = b"fedstrata meeting"
KEY = "meeting/key"


class Participant:
    """A client in a meeting: its key is signed, and every exchange has a number that only rises."""

    def __init__(self, me: int, identity: Identity, key_directory: KeyDirectory, job: bytes, entropy: Entropy):
        self.me, self._identity, self._key_directory, self._job = me, identity, key_directory, job
        self._own = Agreement.new(me, entropy)
        self._pairs: dict[int, bytes] = {}
        self._last = 0

    def hello(self) -> bytes:
        """Return the public key."""
        return Frame(KEY, self._job, self.me, (self._own.public,)).sign(self._identity)

    def meet(self, hellos: Mapping[int, bytes]) -> None:
        """Learn everybody's keys."""
        keys = {
            one: open_frame(data, self._key_directory, KEY, self._job, one).fields[0] for one, data in hellos.items()
        }
        if keys.get(self.me) != self._own.public:
            raise RefusedError(f"client {self.me} is not in a meeting that it is asked to")
        transcript = transcript_of(DOMAIN, self._job, keys)
        self._pairs = {
            other: self._own.pair(other, key, transcript).mask for other, key in keys.items() if other != self.me
        }

    def masked(self, values: Any, exchange: int, present: Sequence[int]) -> np.ndarray:
        """Return the words of what one brings, under a mask with everybody who is present."""
        if len(set(present)) < FEWEST or not set(present) <= {self.me, *self._pairs}:
            raise RefusedError(f"a sum over {len(present)} clients tells one what another brought")
        if exchange <= self._last:
            raise RefusedError(f"exchange {exchange} of a meeting is over: its masks hide nothing more")
        self._last = exchange
        words = WIDE.words(values, len(present))
        keys = {other: _key(self._pairs[other], exchange) for other in present if other != self.me}
        plus, minus = ([key for other, key in keys.items() if (self.me < other) == adds] for adds in (True, False))
        add_streams(words, plus, minus)
        return words


class MaskedAllReduce:
    """Everybody who meets in a step, in one process; calling it adds up what they bring."""

    def __init__(self, participants: Sequence[Participant]):
        self._participants = list(participants)
        self._by_client = {one.me: one for one in participants}
        hellos = {one.me: one.hello() for one in participants}
        for one in participants:
            one.meet(hellos)
        self._exchanges = 0

    def __call__(self, brought: Mapping[int, Tensor]) -> Tensor:
        """Add up tensors, by the places of their owners."""
        like = next(iter(brought.values()))
        flat = {self._participants[place].me: values.reshape(-1) for place, values in brought.items()}
        return torch.from_numpy(self.sum(flat)).to(like.device, like.dtype).reshape(like.shape)

    def sum(self, brought: Mapping[int, Any]) -> np.ndarray:
        """Add up flat arrays, by their owners."""
        self._exchanges += 1
        sent = [self._by_client[one].masked(values, self._exchanges, list(brought)) for one, values in brought.items()]
        return WIDE.numbers(np.sum(sent, axis=0, dtype=WIDE.dtype))


def _key(pair: bytes, exchange: int) -> bytes:
    """Return the key of one exchange: it tells nothing of those of others."""
    return hmac.digest(pair, b"exchange|%d" % exchange, "sha256")
