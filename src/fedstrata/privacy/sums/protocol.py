"""Sums under double masking: what all parties of a job agree on, and the messages they exchange.

Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, 2017. Every member adds to its
words a mask of its own and one with each neighbour, which the neighbour subtracts. It deals shares of the secrets
behind both to its neighbours; in the end the server gets those of a member's own mask if its input is in the sum, or
those of its pairwise masks if it is not, never both, and so sees the sum and nothing else.

    ADVERTISE  member > server   digest of the task, public keys for masks and for wrapping, commitment to the own mask
    KEYS       server > member   who are the neighbours that are there, and their ADVERTISE
    SHARES     member > server   for each of them, shares of both secrets that only it can read
    DELIVERY   server > member   the member's weight, and the shares that its neighbours dealt to it
    INPUT      member > server   weighted words under masks
    SURVIVORS  server > member   whose inputs arrived: all members get the same list
    AGREE      member > server   digest of that list, and for each neighbour on it a code that only it can check
    AGREED     server > member   the neighbours' codes: at least t must have been shown the same list
    REVEAL     member > server   for every neighbour one share

A member that stops anywhere is a drop-out. Keys are drawn for one job and every derived key serves one mask, bound to
the job, the task, the roll and the two parties' keys.

How much each member weighs, to a factor of two, is part of the task, so all are told the same; each checks that its
own weight is as the task says, and that enough of those in the sum weigh something: a sum in which one weighs all is
not unmasked.

What a server that does not follow the protocol can do: stop the job; choose who counts as missing, as long as every
survivor keeps t neighbours; and choose weights, within that rule. It cannot put in keys of its own: they are signed.
Where all mask with all and fewer than a third collude, it cannot show different lists (of two groups that agree, an
honest member would be in both) and cannot get both secrets of a member. In larger sets the circle of neighbours is safe
against colluding members by chance, but not against a server that tries jobs, and with them circles, until its
colluders sit well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import frexp

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.privacy import FEWEST
from fedstrata.privacy.agreement import derive, transcript_of
from fedstrata.privacy.frames import RefusedError, join
from fedstrata.privacy.sums.fixed_point import NARROW, Encoding
from fedstrata.privacy.sums.neighbours import neighbours, threshold

DOMAIN = b"fedstrata secure sum"
ADVERTISE, KEYS, SHARES, DELIVERY, INPUT = "sum/advertise", "sum/keys", "sum/shares", "sum/delivery", "sum/input"
SURVIVORS, AGREE, AGREED, REVEAL = "sum/survivors", "sum/agree", "sum/agreed", "sum/reveal"
LIGHT = 10  # halvings below the heaviest (a thousandth), from which on an update is lost among the others
NOTHING = -1_000  # the magnitude of no weight
TOO_LIGHT = f"masked updates are not summed where fewer than {FEWEST} clients have any weight"


def magnitude(weight: float) -> int:
    """Return the power of two next to a weight of 0 to 1: all that other members are told of it."""
    return max(frexp(weight)[1], NOTHING) if weight else NOTHING


def one_weighs_all(magnitudes: Collection[int]) -> bool:
    """Say whether all but one or two weigh next to nothing: their sum would show those."""
    heaviest = max(magnitudes, default=NOTHING)
    return heaviest == NOTHING or sum(one >= heaviest - LIGHT for one in magnitudes) < FEWEST


@dataclass(frozen=True)
class SumTask:
    """One sum. Members that were told different tasks share no keys.

    More shares needed (`needed`) withstand more colluding members, and fewer drop-outs.
    """

    job: bytes
    members: tuple[int, ...]  # all who are asked, in ascending order
    size: int  # of every member's array
    key_directory: bytes  # the digest of the roll
    encoding: Encoding = NARROW
    needed: int | None = None
    magnitudes: tuple[int, ...] = ()  # of the members' weights; none: all weigh 1

    def __post_init__(self) -> None:
        if not self.magnitudes:
            object.__setattr__(self, "magnitudes", (magnitude(1.0),) * len(self.members))
        if len(self.members) < FEWEST:
            raise RequestError(f"a secure sum needs at least {FEWEST} members, not {len(self.members)}")
        if list(self.members) != sorted(set(self.members)):
            raise RequestError("the members of a secure sum are told once each, in ascending order")
        if len(self.magnitudes) != len(self.members) or any(type(one) is not int for one in self.magnitudes):
            raise RequestError("the weight of every member of a secure sum has a magnitude, a whole number")
        most = min(map(len, self.neighbours.values()))
        if not 2 <= self.threshold <= most:
            raise RequestError(f"needed = {self.needed}: 2 to {most} shares can be asked for")

    @cached_property
    def digest(self) -> bytes:
        """What two parties compare to know that they were told the same."""
        numbers = [self.size, self.encoding.bits, self.encoding.fraction, self.needed or 0, *self.magnitudes]
        told = [b"%d" % number for number in numbers]
        return sha256(join([DOMAIN, self.job, self.key_directory, pack_fields(self.members), *told])).digest()

    @cached_property
    def neighbours(self) -> dict[int, tuple[int, ...]]:
        """Who masks with whom."""
        return neighbours(self.members, derive(self.job, self.digest, b"neighbours"))

    @cached_property
    def threshold(self) -> int:
        """How many shares recover a secret."""
        k = len(self.neighbours[self.members[0]])
        return self.needed or threshold(len(self.members), k)

    @cached_property
    def weighs(self) -> dict[int, int]:
        """How much each member weighs, to a factor of two."""
        return dict(zip(self.members, self.magnitudes, strict=True))

    def shows_one(self, present: Collection[int]) -> bool:
        """Say whether a sum over those who are present would show one or two of them."""
        return one_weighs_all([self.weighs[member] for member in present])

    def alone(self, present: Collection[int]) -> list[int]:
        """Tell those who have too few neighbours among the ones that are present."""
        there = np.isin(self.members, list(present))
        short = there & (there[self._near].sum(1) < self.threshold)
        return [self.members[at] for at in np.flatnonzero(short)]

    @cached_property
    def _near(self) -> np.ndarray:
        """Neighbours by their places among the members."""
        return np.searchsorted(self.members, [self.neighbours[member] for member in self.members])

    def between(self, one: int, its: bytes, other: int, others: bytes) -> bytes:
        """Return what the keys of two members are bound to: everything that both advertised."""
        return transcript_of(self.digest, self.job, {one: its, other: others})

    def own_mask(self, seed: bytes) -> bytes:
        """Return the key of a member's own mask."""
        return derive(seed, self.digest, b"own mask")

    def commitment(self, seed: bytes) -> bytes:
        """Return what tells the server that it recovered the right seed."""
        return derive(seed, self.digest, b"commitment")


def pack_fields(parties: Iterable[int]) -> bytes:
    """Write down parties."""
    return np.fromiter(parties, "<i4").tobytes()


def unpack_fields(data: bytes, allowed: Collection[int]) -> list[int]:
    """Read parties, in ascending order, none of them twice."""
    if len(data) % 4:
        raise RefusedError("a list of parties is cut off")
    parties: list[int] = np.frombuffer(data, "<i4").tolist()
    if parties != sorted(set(parties)) or not set(parties) <= set(allowed):
        raise RefusedError("a list of parties names some that do not belong there, or one twice")
    return parties


def fields_of(fields: tuple[bytes, ...], count: int, *sizes: int) -> tuple[bytes, ...]:
    """Check that there are as many fields as there should be, and that the first ones have these sizes."""
    if len(fields) != count or any(len(field) != size for field, size in zip(fields, sizes, strict=False)):
        raise RefusedError("a message has other fields than its kind")
    return fields


def listed(fields: tuple[bytes, ...], allowed: Collection[int]) -> dict[int, bytes]:
    """Read a list of parties and one field for each of them."""
    parties = unpack_fields(fields[0], allowed) if fields else []
    return dict(zip(parties, fields_of(fields, len(parties) + 1)[1:], strict=True))


def listing(told: dict[int, bytes]) -> tuple[bytes, ...]:
    """Undo `listed`."""
    return pack_fields(sorted(told)), *(told[party] for party in sorted(told))
