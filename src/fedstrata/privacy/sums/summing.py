"""The server of a secure sum: it passes messages on, adds masked words, and takes the masks off the sum.

What members send is taken one by one; the next step ends the one before, and what comes later is refused, so whoever
has not sent by then is a drop-out.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedstrata.core.errors import RequestError
from fedstrata.privacy import FEWEST
from fedstrata.privacy.agreement import Agreement
from fedstrata.privacy.frames import SERVER, Frame, Inbox, RefusedError, join
from fedstrata.privacy.identity import Identity, KeyDirectory
from fedstrata.privacy.masks import add_streams
from fedstrata.privacy.sums.protocol import (
    ADVERTISE,
    AGREE,
    AGREED,
    DELIVERY,
    INPUT,
    KEYS,
    REVEAL,
    SHARES,
    SURVIVORS,
    TOO_LIGHT,
    SumTask,
    fields_of,
    listed,
    listing,
    pack_fields,
)
from fedstrata.privacy.sums.shamir import SHARE, UnrecoverableError, recover_secret

Told = TypeVar("Told")
STEPS = (ADVERTISE, SHARES, INPUT, AGREE, REVEAL)


class Summing:
    """The server's part of one sum."""

    def __init__(self, task: SumTask, identity: Identity, key_directory: KeyDirectory):
        if task.key_directory != key_directory.digest:
            raise RequestError("a sum's task names another roll")
        self._task, self._identity, self._inbox = task, identity, Inbox(key_directory, task.job)
        self._step = 0
        self._frames: dict[int, bytes] = {}  # ADVERTISE, as it came
        self._advertised: dict[int, tuple[bytes, ...]] = {}
        self._boxes: dict[int, dict[int, bytes]] = {}
        self._survivors: list[int] = []
        self._agreed: dict[int, dict[int, bytes]] = {}
        self._shares: dict[int, list[tuple[int, bytes]]] = {member: [] for member in task.members}
        self._words = np.zeros(task.size, task.encoding.dtype)

    def take_keys(self, member: int, data: bytes) -> None:
        """Take a member's public keys."""
        fields = fields_of(self._take(ADVERTISE, member, data), 4, 32, 32, 32, 32)
        if fields[0] != self._task.digest:
            raise RefusedError(f"member {member} was told another task")
        self._frames[member], self._advertised[member] = data, fields

    def pass_keys(self) -> dict[int, bytes]:
        """Tell every member who its neighbours are."""
        self._ends(ADVERTISE, self._frames)
        return {member: self._sent(KEYS, listing(self._of_near(member, self._frames))) for member in self._frames}

    def take_shares(self, member: int, data: bytes) -> None:
        """Take the shares that a member dealt; nobody but their receivers can read them."""
        near = self._of_near(member, self._frames)
        boxes = listed(self._take(SHARES, member, data), near)
        if set(boxes) != set(near):
            raise RefusedError(f"member {member} did not deal shares to all of its neighbours")
        self._boxes[member] = boxes

    def deliver_shares(self, weights: Mapping[int, float]) -> dict[int, bytes]:
        """Tell every member its weight and hand it its shares."""
        self._ends(SHARES, self._boxes)
        sent = {}
        for member in self._boxes:
            boxes = {other: theirs[member] for other, theirs in self._of_near(member, self._boxes).items()}
            sent[member] = self._sent(DELIVERY, (struct.pack("<d", weights[member]), *listing(boxes)))
        return sent

    def add_words(self, member: int, data: bytes) -> None:
        """Add a member's masked words."""
        if member not in self._boxes:
            raise RefusedError(f"member {member} dealt no shares")
        (field,) = fields_of(self._take(INPUT, member, data), 1, self._words.nbytes)
        self._words += np.frombuffer(field, self._words.dtype)
        self._survivors.append(member)

    def name_survivors(self) -> dict[int, bytes]:
        """Tell who is in the sum."""
        if len(self._survivors) < FEWEST:
            raise UnrecoverableError(f"{len(self._survivors)} inputs arrived: fewer than {FEWEST} are not summed")
        if self._task.shows_one(self._survivors):
            raise UnrecoverableError(TOO_LIGHT)
        self._ends(INPUT, self._survivors)
        self._survivors.sort()
        told = self._sent(SURVIVORS, (pack_fields(self._survivors),))
        return dict.fromkeys(self._survivors, told)

    def take_agreement(self, member: int, data: bytes) -> None:
        """Take a member's agreement with the list."""
        open_tensors, *rest = self._take(AGREE, member, data) or (b"",)
        if open_tensors != sha256(pack_fields(self._survivors)).digest():
            raise RefusedError(f"member {member} agrees with another list of those in the sum")
        near = self._of_near(member, dict.fromkeys(self._survivors))
        told = listed(tuple(rest), near)
        if set(told) != set(near):
            raise RefusedError(f"member {member} did not tell all of its neighbours that it agrees")
        self._agreed[member] = told

    def pass_agreements(self) -> dict[int, bytes]:
        """Show every member that its neighbours saw the same list."""
        self._ends(AGREE, self._agreed)
        sent = {}
        for member in self._agreed:
            told = {other: theirs[member] for other, theirs in self._of_near(member, self._agreed).items()}
            sent[member] = self._sent(AGREED, listing(told))
        return sent

    def take_reveal(self, member: int, data: bytes) -> None:
        """Take a member's shares of its neighbours' secrets."""
        shares = listed(self._take(REVEAL, member, data), self._of_near(member, self._boxes))
        fields_of(tuple(shares.values()), len(shares), *[SHARE] * len(shares))
        for other, share in shares.items():
            self._shares[other].append((member, share))

    def total(self) -> np.ndarray:
        """Take the masks off: those of its own from each survivor, and those with the missing ones."""
        self._due(REVEAL)
        self._step += 1
        plus: list[bytes] = []
        minus = [self._task.own_mask(self._seed(member)) for member in self._survivors]
        for missing in sorted(set(self._boxes).difference(self._survivors)):
            half = self._half(missing)
            for other in self._of_near(missing, dict.fromkeys(self._survivors)):
                (minus if other < missing else plus).append(self._mask(half, other))
        add_streams(self._words, plus, minus)
        return self._task.encoding.numbers(self._words)

    def _seed(self, member: int) -> bytes:
        seed = self._recovered(member)
        if self._task.commitment(seed) != self._advertised[member][3]:
            raise UnrecoverableError(f"the shares of member {member}'s own mask are not those it dealt")
        return seed

    def _half(self, missing: int) -> Agreement:
        half = Agreement(missing, X25519PrivateKey.from_private_bytes(self._recovered(missing)))
        if half.public != self._advertised[missing][1]:
            raise UnrecoverableError(f"the shares of member {missing}'s key are not those it dealt")
        return half

    def _mask(self, half: Agreement, other: int) -> bytes:
        its, others = self._advertised[half.me], self._advertised[other]
        return half.pair(other, others[1], self._task.between(half.me, join(its), other, join(others))).mask

    def _recovered(self, member: int) -> bytes:
        try:
            return recover_secret(self._shares[member], self._task.threshold)
        except UnrecoverableError as error:
            raise UnrecoverableError(f"a secret of member {member} is lost: {error}") from None

    def _of_near(self, member: int, told: Mapping[int, Told]) -> dict[int, Told]:
        return {other: told[other] for other in self._task.neighbours[member] if other in told}

    def _take(self, kind: str, member: int, data: bytes) -> tuple[bytes, ...]:
        self._due(kind)
        if member not in self._task.members:
            raise RefusedError(f"client {member} is no member of this sum")
        return self._inbox.take(data, kind, member).fields

    def _ends(self, kind: str, present: Collection[int]) -> None:
        """End a step: with fewer members than could recover everybody's secrets there is no way on."""
        self._due(kind)
        if not present or self._task.alone(present):
            raise UnrecoverableError(
                f"after {kind!r} {len(present)} of {len(self._task.members)} members are there, and "
                f"some have fewer than the {self._task.threshold} neighbours that are needed"
            )
        self._step += 1

    def _due(self, kind: str) -> None:
        if STEPS[self._step :][:1] != (kind,):
            raise RefusedError(f"{kind!r} is not what comes next")

    def _sent(self, kind: str, fields: tuple[bytes, ...]) -> bytes:
        return Frame(kind, self._task.job, SERVER, fields).sign(self._identity)
