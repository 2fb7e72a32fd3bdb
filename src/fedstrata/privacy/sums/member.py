"""A client in a secure sum: bytes in, bytes out. All of its secrets stay here, and it takes every step once."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest, digest
from typing import Any

from fedstrata.core.errors import RequestError
from fedstrata.privacy import FEWEST
from fedstrata.privacy.agreement import Agreement, unwrap, wrap
from fedstrata.privacy.frames import SERVER, Frame, RefusedError, join, open_frame
from fedstrata.privacy.identity import Entropy, Identity, KeyDirectory
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
    magnitude,
    pack_fields,
    unpack_fields,
)
from fedstrata.privacy.sums.shamir import SHARE, share_secret

ORDER = (ADVERTISE, KEYS, DELIVERY, SURVIVORS, AGREED)  # what makes a member act, each once


@dataclass(frozen=True)
class _Pair:
    """What a member shares with a neighbour."""

    mask: bytes
    wrap: bytes
    agree: bytes
    bound_to: bytes


class SumMember:
    """One client's part of one sum."""

    def __init__(self, task: SumTask, me: int, identity: Identity, key_directory: KeyDirectory, entropy: Entropy):
        if me not in task.members or task.key_directory != key_directory.digest:
            raise RequestError(f"client {me} is no member of this sum, or has another roll")
        self._task, self._me, self._identity, self._key_directory, self._entropy = (
            task,
            me,
            identity,
            key_directory,
            entropy,
        )
        self._mask, self._wrap, self._seed = Agreement.new(me, entropy), Agreement.new(me, entropy), entropy(32)
        self._told = (task.digest, self._mask.public, self._wrap.public, task.commitment(self._seed))
        self._steps = 0
        self._pairs: dict[int, _Pair] = {}
        self._held: dict[int, bytes] = {}  # shares of neighbours' secrets: the seed's, then the mask key's
        self._survivors: list[int] = []

    def advertise(self) -> bytes:
        """Begin: public keys."""
        self._due(ADVERTISE)
        self._steps += 1
        return self._sent(ADVERTISE, self._told)

    def share(self, keys: bytes) -> bytes:
        """Agree on keys with the neighbours that are there, and deal shares of both secrets to them."""
        theirs = listed(self._take(keys, KEYS), self._task.neighbours[self._me])
        self._enough(len(theirs), "are there")
        for other, advertised in theirs.items():
            self._pairs[other] = self._pair(other, advertised)
        seeds = share_secret(self._seed, self._task.threshold, theirs, self._entropy)
        secrets = share_secret(self._mask.private.private_bytes_raw(), self._task.threshold, theirs, self._entropy)
        boxes = {}
        for other, pair in self._pairs.items():
            boxes[other] = wrap(pair.wrap, self._me, other, seeds[other] + secrets[other], pair.bound_to)
        return self._sent(SHARES, listing(boxes))

    def mask(self, delivery: bytes, values: Any) -> bytes:
        """Weight and mask an array; `delivery` holds the weight and what the neighbours dealt."""
        fields = self._take(delivery, DELIVERY)
        weight, boxes = self._weight(fields[:1]), listed(fields[1:], self._pairs)
        self._enough(len(boxes), "dealt shares")
        for other, box in boxes.items():
            pair = self._pairs[other]
            self._held[other] = unwrap(pair.wrap, other, self._me, box, pair.bound_to)
        words = self._task.encoding.words(values, len(self._task.members), weight)
        if len(words) != self._task.size:
            raise RequestError(f"the sum is over arrays of {self._task.size} numbers, not of {len(words)}")
        plus = [self._pairs[other].mask for other in boxes if self._me < other]
        minus = [self._pairs[other].mask for other in boxes if self._me > other]
        add_streams(words, [self._task.own_mask(self._seed), *plus], minus)
        return self._sent(INPUT, (words.tobytes(),))

    def agree(self, survivors: bytes) -> bytes:
        """Look at the list of those whose inputs arrived, and put the name to it."""
        (told,) = fields_of(self._take(survivors, SURVIVORS), 1)
        self._survivors = unpack_fields(told, self._task.members)
        if self._me not in self._survivors or len(self._survivors) < FEWEST:
            raise RefusedError(f"a sum over fewer than {FEWEST} members, or one without me, is not unmasked")
        if not set(self._task.neighbours[self._me]).intersection(self._survivors) <= set(self._held):
            raise RefusedError("a neighbour that dealt no shares is said to be in the sum")
        if self._task.shows_one(self._survivors):
            raise RefusedError(TOO_LIGHT)
        if self._task.alone(self._survivors):
            raise RefusedError("some members have too few neighbours in the sum: it is not unmasked")
        near = {other: self._agreement(self._me, other) for other in self._near()}
        return self._sent(AGREE, (sha256(told).digest(), *listing(near)))

    def reveal(self, agreed: bytes) -> bytes:
        """Return one share for every neighbour: of its own mask if it is in the sum, else of its pairwise masks."""
        near = self._near()
        told = listed(self._take(agreed, AGREED), near)
        self._enough(sum(compare_digest(self._agreement(other, other), mac) for other, mac in told.items()), "agreed")
        held = {other: both[:SHARE] if other in near else both[SHARE:] for other, both in self._held.items()}
        self._held.clear()
        return self._sent(REVEAL, listing(held))

    def _pair(self, other: int, advertised: bytes) -> _Pair:
        fields = fields_of(
            open_frame(advertised, self._key_directory, ADVERTISE, self._task.job, other).fields, 4, 32, 32, 32, 32
        )
        if fields[0] != self._task.digest:
            raise RefusedError(f"member {other} was told another task")
        bound_to = self._task.between(self._me, join(self._told), other, join(fields))
        wrap = self._wrap.pair(other, fields[2], bound_to)  # its half for masks is free to authenticate
        return _Pair(self._mask.pair(other, fields[1], bound_to).mask, wrap.wrap, wrap.mask, bound_to)

    def _weight(self, fields: tuple[bytes, ...]) -> float:
        """Read the own weight; it must be what everybody was told of it."""
        (data,) = fields_of(fields, 1, 8)
        weight = float(struct.unpack("<d", data)[0])
        if not 0 <= weight <= 1:  # so that NaN is refused, too
            raise RefusedError(f"a weight of {weight} is outside 0 to 1")
        if magnitude(weight) != self._task.weighs[self._me]:
            raise RefusedError(f"a weight of {weight} is another one than all members were told of")
        return weight

    def _near(self) -> set[int]:
        """Return the neighbours that are in the sum."""
        return set(self._survivors).intersection(self._task.neighbours[self._me])

    def _agreement(self, sender: int, other: int) -> bytes:
        """Authenticate the list to a neighbour, or by it: nobody else has the key."""
        return digest(self._pairs[other].agree, pack_fields([sender, *self._survivors]), "sha256")

    def _enough(self, count: int, what: str) -> None:
        if count < self._task.threshold:
            raise RefusedError(f"{count} neighbours {what} where {self._task.threshold} are needed")

    def _take(self, data: bytes, kind: str) -> tuple[bytes, ...]:
        """Read what the server says; what is not genuine changes nothing, and what is counts, whatever it says."""
        self._due(kind)
        fields = open_frame(data, self._key_directory, kind, self._task.job, SERVER).fields
        self._steps += 1
        return fields

    def _due(self, kind: str) -> None:
        if ORDER[self._steps :][:1] != (kind,):
            raise RefusedError(f"a member acts on {kind!r} once, and in its turn")

    def _sent(self, kind: str, fields: tuple[bytes, ...]) -> bytes:
        return Frame(kind, self._task.job, self._me, fields).sign(self._identity)
