"""Sums that clients need in the middle of a computation, such as those of batch norm: pairwise masks, no recovery.

Everybody says hello, is shown the invitation that holds all hellos, and then brings numbers as often as is asked. What
they bring means nothing before all of it is added. Whoever is missing ends the meeting anyway, so nothing is shared out
for that case; one agreement a step serves all its exchanges, each under masks of its own.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.privacy import FEWEST
from fedstrata.privacy.agreement import Agreement, transcript_of
from fedstrata.privacy.frames import Frame, Refuse, RefusedError, join, never, open_frame, split
from fedstrata.privacy.identity import Entropy, Identity, KeyDirectory
from fedstrata.privacy.masks import add_streams
from fedstrata.privacy.sums.fixed_point import WIDE, Encoding
from fedstrata.privacy.sums.protocol import fields_of, listed, listing
from fedstrata.privacy.sums.secure_sum import Parties

DOMAIN = b"fedstrata meeting"
KEY = "meeting/key"
TOO_FEW = f"fewer than {FEWEST} clients do not meet under masks"


class Participant:
    """A client in a meeting: its key is signed, and every exchange has masks of its own."""

    def __init__(self, me: int, identity: Identity, key_directory: KeyDirectory, job: bytes, entropy: Entropy):
        self.me, self.job, self.present = me, job, list[int]()
        self._identity, self._key_directory = identity, key_directory
        self._own = Agreement.new(me, entropy)
        self._pairs: dict[int, bytes] = {}
        self._exchanges = 0

    def hello(self) -> bytes:
        """Return the public key."""
        return Frame(KEY, self.job, self.me, (self._own.public,)).sign(self._identity)

    def join(self, invitation: bytes) -> None:
        """Learn who else is there, and everybody's keys."""
        job, *told = split(invitation) or (b"",)
        if job != self.job or self.present:
            raise RefusedError("an invitation belongs to another meeting than this client was asked to")
        hellos = listed(tuple(told), range(len(self._key_directory.clients)))
        keys = {other: _key_of(hello, self._key_directory, job, other) for other, hello in hellos.items()}
        if keys.get(self.me) != self._own.public:
            raise RefusedError(f"client {self.me} is not in a meeting that it is asked to")
        transcript = transcript_of(DOMAIN, job, keys)
        self._pairs = {
            other: self._own.pair(other, key, transcript).mask for other, key in keys.items() if other != self.me
        }
        self.present = sorted(keys)

    @property
    def keys(self) -> list[bytes]:
        """Everybody who is there, by public key."""
        return [self._key_directory.clients[client] for client in self.present]

    def mask(self, values: Any, present: Collection[int] | None = None, encoding: Encoding = WIDE) -> np.ndarray:
        """Return the words of flat numbers, under a mask with everybody who is still present; by default with all."""
        there = self.present if present is None else present
        if len(set(there)) < FEWEST or not set(there) <= {self.me, *self._pairs}:
            raise RefusedError(f"a sum over {len(there)} clients tells one what another brought")
        self._exchanges += 1  # masks that were used once hide nothing more
        words = encoding.words(values, len(there))
        keys = {other: _exchange_key(self._pairs[other], self._exchanges) for other in there if other != self.me}
        plus, minus = ([key for other, key in keys.items() if (self.me < other) == adds] for adds in (True, False))
        add_streams(words, plus, minus)
        return words

    def mask_tensor(self, values: Tensor) -> Tensor:
        """Do the same for a tensor; words travel as whole numbers of its shape."""
        return torch.from_numpy(self.mask(values.detach().reshape(-1)).view(np.int64)).reshape(values.shape)


def invite(
    hellos: Mapping[int, bytes], key_directory: KeyDirectory, job: bytes, refuse: Refuse
) -> tuple[list[int], bytes]:
    """Return who said hello, and the invitation that all of them must be shown.

    With one hello among them that is none, nobody would come.
    """
    genuine: dict[int, bytes] = {}
    for client, hello in hellos.items():
        try:
            _key_of(hello, key_directory, job, client)
            genuine[client] = hello
        except RefusedError as error:
            refuse(client, error)
    return sorted(genuine), join([job, *listing(genuine)])


def add_words(brought: Sequence[np.ndarray], encoding: Encoding = WIDE) -> np.ndarray:
    """Add up what everybody brought: the masks cancel."""
    if len({words.shape for words in brought}) != 1:
        raise RefusedError("clients bring different numbers of words to a meeting")
    return encoding.numbers(np.sum(brought, axis=0, dtype=encoding.dtype))


def read_words(data: bytes) -> np.ndarray:
    """Read what somebody brought."""
    if len(data) % WIDE.dtype.itemsize:
        raise RefusedError("what a client brings to a meeting is cut off")
    return np.frombuffer(data, WIDE.dtype)


def add_tensors(brought: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Add up words that came as tensors."""
    if any(words.dtype != torch.int64 for words in brought):
        raise RefusedError("a client brings numbers to a meeting without a mask")
    return torch.from_numpy(add_words([words.numpy().view(WIDE.dtype) for words in brought])).to(dtype)


class MaskedAllReduce:
    """Everybody who meets in a step, in one process; calling it adds up what they bring."""

    def __init__(self, parties: Parties, job: bytes):
        self._participants = {
            client: Participant(client, identity, parties.key_directory, job, parties.entropy(client))
            for client, identity in parties.clients.items()
        }
        hellos = {client: one.hello() for client, one in self._participants.items()}
        _, invitation = invite(hellos, parties.key_directory, job, never)
        for one in self._participants.values():
            one.join(invitation)

    def __call__(self, brought: Mapping[int, Tensor]) -> Tensor:
        """Add up tensors, by the places of their owners."""
        like, clients = next(iter(brought.values())), list(self._participants)
        flat = {clients[place]: values.reshape(-1) for place, values in brought.items()}
        return torch.from_numpy(self.sum(flat)).to(like.device, like.dtype).reshape(like.shape)

    def sum(self, brought: Mapping[int, Any]) -> np.ndarray:
        """Add up flat arrays, by their owners."""
        return add_words(
            [self._participants[client].mask(values, brought.keys()) for client, values in brought.items()]
        )


def _key_of(hello: bytes, key_directory: KeyDirectory, job: bytes, client: int) -> bytes:
    """Read the key in a hello."""
    return fields_of(open_frame(hello, key_directory, KEY, job, client).fields, 1, 32)[0]


def _exchange_key(pair: bytes, exchange: int) -> bytes:
    """Return the key of one exchange: it tells nothing of those of others."""
    return hmac.digest(pair, b"exchange|%d" % exchange, "sha256")
