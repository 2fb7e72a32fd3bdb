"""Sums under masks over sites: everybody says hello through the server, and then brings numbers as often as is asked.

The server relays signed keys, and hears words that mean nothing before all of them are added. Whoever is missing ends
the meeting: everybody who was invited takes part in every exchange, so that no two sums differ by one of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.privacy.frames import JOB, RefusedError, join, open_frame, split
from fedstrata.privacy.identity import Identity, KeyDirectory
from fedstrata.privacy.sums.all_reduce import KEY, Participant
from fedstrata.privacy.sums.fixed_point import WIDE
from fedstrata.privacy.sums.protocol import fields_of, listed, listing
from fedstrata.remote.protocol import build_request, to_json

Ask = Callable[[Mapping[int, bytes]], Mapping[int, bytes]]  # requests by client -> the replies that came
Refuse = Callable[[int, RefusedError], None]  # is told of a client whose reply is none


def invite(
    ask: Ask, sites: Sequence[str], members: Sequence[int], key_directory: KeyDirectory, refuse: Refuse
) -> tuple[list[int], bytes]:
    """Let sites say hello; give those who did, and the invitation that all of them must be shown.

    With one hello among them that is none, nobody would come.
    """
    job, hellos = os.urandom(JOB), dict[int, bytes]()
    about = {client: {"client": client, "sites": list(sites), "job": job.hex()} for client in members}
    for client, hello in ask({client: build_request("meet", to_json(told)) for client, told in about.items()}).items():
        try:
            fields_of(open_frame(hello, key_directory, KEY, job, client).fields, 1, 32)
            hellos[client] = hello
        except RefusedError as error:
            refuse(client, error)
    return sorted(hellos), join([job, *listing(hellos)])


def added(brought: Sequence[bytes]) -> np.ndarray:
    """Add up what everybody brought: the masks cancel."""
    if len({len(words) for words in brought}) != 1 or len(brought[0]) % WIDE.dtype.itemsize:
        raise RefusedError("sites bring different numbers of words to a meeting")
    words: np.ndarray = np.sum([np.frombuffer(one, WIDE.dtype) for one in brought], axis=0, dtype=WIDE.dtype)
    return WIDE.numbers(words)


def unmask(total: Tensor, like: torch.dtype) -> Tensor:
    """Read the sum of words that came as tensors."""
    if total.dtype != torch.int64:
        raise RefusedError("a site brings numbers to a meeting without a mask")
    return torch.from_numpy(WIDE.numbers(total.numpy().view(WIDE.dtype))).to(like)


class SiteParticipant:
    """A site's place in a meeting."""

    def __init__(self, me: int, identity: Identity, key_directory: KeyDirectory, job: bytes):
        self.job, self.present = job, list[int]()
        self._participant, self._key_directory, self._exchanges = (
            Participant(me, identity, key_directory, job, os.urandom),
            key_directory,
            0,
        )

    def hello(self) -> bytes:
        """Return the own key, signed."""
        return self._participant.hello()

    def join(self, invitation: bytes) -> None:
        """Learn who else is there."""
        job, *hellos = split(invitation)
        if job != self.job or self.present:
            raise RefusedError("an invitation belongs to another meeting than this site was asked to")
        theirs = listed(tuple(hellos), range(len(self._key_directory.clients)))
        self._participant.meet(theirs)
        self.present = sorted(theirs)

    @property
    def keys(self) -> list[bytes]:
        """Everybody who is there, by public key."""
        return [self._key_directory.clients[client] for client in self.present]

    def masked(self, values: Any) -> np.ndarray:
        """Return words of flat numbers, under masks with everybody who is there."""
        self._exchanges += 1
        return self._participant.masked(values, self._exchanges, self.present)

    def masked_tensor(self, values: Tensor) -> Tensor:
        """Do the same for a tensor; words travel as whole numbers of its shape."""
        words = self.masked(values.detach().reshape(-1))
        return torch.from_numpy(words.view(np.int64)).reshape(values.shape)
