"""Who masks with whom: everybody in small sets, in large ones the neighbours on a circle in a random order.

Bell et al., Secure single-server aggregation with (poly)logarithmic overhead, 2020. Members sit on a circle in an order
drawn from a public seed, and each masks with the k/2 next ones on either side. With a share of `COLLUDING` members who
tell the server all they know and a share of `DROPPING` who go missing, both whoever they are before the order is drawn,
and a server that follows the protocol, k is the smallest even number for which

* the honest members who stay are connected by their masks, so that nothing but the sum over all of them can be seen:
  on a circle they fall apart only where two separate runs of k/2 members are all colluding or missing; there are fewer
  than n^2/2 pairs of runs (`LEAKS` bounds the probability);
* no member has t colluding neighbours, who could put its secrets together (`LEAKS` again);
* every member keeps t neighbours, so that the sum can be unmasked (`FAILS`).

Of k neighbours more than half are needed (t). Where everybody masks with everybody, t is two thirds of the others: then
even a server that lies about who is missing cannot get both secrets of a member, unless a third of the others help it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import ceil, exp, inf, lgamma

import numpy as np

from fedstrata.privacy.masks import stream

EVERYBODY = 25  # members up to which all mask with all
COLLUDING, DROPPING = 0.1, 0.2
LEAKS, FAILS = 2.0**-40, 2.0**-20  # probabilities, for a whole sum


@cache
def degree(n: int) -> int:
    """Return the number of neighbours that each of n members has."""
    for k in range(2, n - 1, 2) if n > EVERYBODY else ():
        if leaks(n, k) <= LEAKS and fails(n, k) <= FAILS:
            return k
    return n - 1


def threshold(n: int, k: int) -> int:
    """Return how many of k neighbours are needed to recover a secret."""
    return ceil(2 * k / 3) if k == n - 1 else k // 2 + 1


def leaks(n: int, k: int) -> float:
    """Bound the probability that more than the sum over all honest members can be seen."""
    colluding, missing = ceil(COLLUDING * n), ceil(DROPPING * n)
    runs = n * n / 2 * exp(_log_choose(colluding + missing, k) - _log_choose(n, k))
    return runs + n * _at_least(threshold(n, k), n - 1, colluding, k)


def fails(n: int, k: int) -> float:
    """Bound the probability that some member keeps too few neighbours."""
    return n * _at_least(k - threshold(n, k) + 1, n - 1, ceil(DROPPING * n), k)


def neighbours(members: Sequence[int], seed: bytes) -> dict[int, tuple[int, ...]]:
    """Return every member's neighbours, in ascending order; a seed of 32 bytes gives the same to everybody."""
    n, k = len(members), degree(len(members))
    if k == n - 1:
        return {member: tuple(sorted(set(members) - {member})) for member in members}
    order = np.argsort(stream(seed, n), kind="stable")
    steps = np.arange(1, k // 2 + 1)
    seats = (np.arange(n)[:, None] + np.concatenate([-steps, steps])) % n
    circle = np.asarray(members)[order]
    near = np.sort(circle[seats], axis=1)
    return {int(member): tuple(row) for member, row in zip(circle, near.tolist(), strict=True)}


def _at_least(least: int, population: int, marked: int, drawn: int) -> float:
    """Return the probability that so many of those drawn are marked."""
    every = _log_choose(population, drawn)
    found = range(least, min(marked, drawn) + 1)
    return sum(exp(_log_choose(marked, i) + _log_choose(population - marked, drawn - i) - every) for i in found)


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) if 0 <= k <= n else -inf
