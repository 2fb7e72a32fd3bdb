"""Shamir's secret sharing: any t of the holders recover a secret of 32 bytes, fewer learn nothing of it.

The secret is the value at 0 of a random polynomial of degree t - 1 modulo the prime 2^257 - 93; the share of party p is
its value at p + 1, so a share serves for its holder only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from fedstrata.core.errors import UnsummableError
from fedstrata.privacy.identity import Entropy

PRIME = 2**257 - 93
SECRET, SHARE = 32, 33  # bytes
DRAWN = 48  # bytes behind a coefficient: what the remainder favours is below 2^-120


class UnrecoverableError(UnsummableError):
    """Too many parties are missing, or what they gave does not fit: the sum cannot be unmasked."""


def share_secret(secret: bytes, threshold: int, parties: Iterable[int], entropy: Entropy) -> dict[int, bytes]:
    """Give every party its share."""
    if len(secret) != SECRET:
        raise ValueError(f"a secret has {SECRET} bytes, not {len(secret)}")
    drawn = entropy(DRAWN * (threshold - 1))
    slopes = [int.from_bytes(drawn[at : at + DRAWN], "little") % PRIME for at in range(0, len(drawn), DRAWN)]
    lowest = int.from_bytes(secret, "little")
    shares = {}
    for party in parties:
        value = 0
        for slope in slopes:
            value = (value + slope) * (party + 1) % PRIME
        shares[party] = ((value + lowest) % PRIME).to_bytes(SHARE, "little")
    return shares


def recover_secret(shares: Sequence[tuple[int, bytes]], threshold: int) -> bytes:
    """Return the secret back from (party, share)."""
    if len({party for party, _ in shares}) != len(shares):
        raise UnrecoverableError("two shares of one party were given")
    if len(shares) < threshold:
        raise UnrecoverableError(f"{len(shares)} shares were given where {threshold} are needed")
    points = [(party + 1, int.from_bytes(share, "little")) for party, share in shares[:threshold]]
    secret = 0
    for x, y in points:  # Lagrange's polynomial at 0
        others = [other for other, _ in points if other != x]
        secret += y * prod(others) * pow(prod(other - x for other in others), -1, PRIME)
    secret %= PRIME
    if secret >> (8 * SECRET):
        raise UnrecoverableError("the shares that were given do not fit each other")
    return secret.to_bytes(SECRET, "little")
