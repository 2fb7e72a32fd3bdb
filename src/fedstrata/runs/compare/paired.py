"""What seeds tell: bootstrap intervals, an exact paired test, and ranks.

Few seeds tell little, and no formula changes that. The percentile bootstrap of two or three values is their range; it
becomes an honest 95 % interval with about ten. The test flips the signs of paired differences in all 2^n ways, so its
smallest p is 2 / 2^n: below six seeds nothing is significant at 0.05, however large the difference. Holm's smallest p
of m contrasts is m times that, so that each doubling of the contrasts takes one seed more.

A value may be infinite: what a run never reached is worse than anything that another reached. Means are then over the
finite ones, and the test goes by signed ranks, in which an infinite difference is only the largest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count
from typing import Any

import numpy as np

LEVEL = 0.95
SIGNIFICANT = 0.05  # below this, a p counts
RESAMPLES = 10_000
EXACT = 36  # pairs up to which all ways of flipping signs are gone through; beyond, `DRAWN` of them
DRAWN = 2**16
ENOUGH = 10  # seeds from which on a bootstrap interval is about as wide as it should be


def interval(values: Sequence[float | None]) -> dict[str, Any]:
    """Return the mean of the known, finite values and its percentile bootstrap interval; one value has none."""
    known = np.array([v for v in values if v is not None and math.isfinite(v)], dtype=np.float64)
    if not len(known):
        return {"mean": None, "interval": None}
    if len(known) == 1:
        return {"mean": float(known[0]), "interval": None}
    means = known[_resampled(len(known))].mean(axis=1)
    ends = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="inverted_cdf")
    low, high = np.clip(ends, known.min(), known.max())  # a mean of equal numbers may be off by a rounding
    return {"mean": float(known.mean()), "interval": [float(low), float(high)]}


def difference(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Compare paired values: mean difference, its interval, and how surprising it would be among equals."""
    pairs = [0.0 if a == b else a - b for a, b in zip(ours, theirs, strict=True)]  # two infinite ones are equal
    return {**interval(pairs), "p": p_value(pairs) if pairs else None}


def p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p of the paired permutation test: the share of sign flips whose mean is as far from 0."""
    values = np.array(differences, dtype=np.float64)
    if not np.isfinite(values).all():
        values = np.sign(values) * _places(np.abs(values))
    seen = abs(values.sum()) - 1e-12 * np.abs(values).sum()
    if seen <= 0:
        return 1.0
    n = len(values)
    if n <= EXACT:  # a sum over all pairs is one over the first half of them and one over the second
        first, second = _flipped(values[: n // 2]), np.sort(_flipped(values[n // 2 :]))
        above = len(second) - np.searchsorted(second, seen - first, "left")
        below = np.searchsorted(second, -seen - first, "right")
        return float((above.sum() + below.sum()) / 2**n)
    drawn = _generator().integers(0, 2, (DRAWN, n))
    signs = np.vstack([np.ones(n), 1.0 - 2.0 * drawn])  # the observed signs are one of the ways
    return float(np.mean(np.abs(signs @ values) >= seen))


def _flipped(values: np.ndarray) -> np.ndarray:
    """Return the sums of some values for all ways of flipping their signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums - value, sums + value])
    return sums


def least_p(seeds: int) -> float:
    """Return the smallest p that so many seeds can show."""
    return min(1.0, 0.5 ** (seeds - 1))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for how many there are: the smallest counts so many times, the next once less, and so on."""
    known = sorted((p, at) for at, p in enumerate(ps) if p is not None)
    corrected: list[float | None] = [None] * len(ps)
    so_far = 0.0
    for place, (p, at) in enumerate(known):
        so_far = max(so_far, min(1.0, (len(known) - place) * p))
        corrected[at] = so_far
    return corrected


def ranks(by_method: Mapping[str, Sequence[float]], lower: bool = False) -> dict[str, list[float]]:
    """Rank methods seed by seed: 1 has the best value, equals share the mean of their places."""
    table = np.array(list(by_method.values()), dtype=np.float64).reshape(len(by_method), -1)
    places = _places(table if lower else -table)
    return {name: places[i].tolist() for i, name in enumerate(by_method)}


def caution(seeds: int, contrasts: int = 1) -> list[str]:
    """Say what so few seeds cannot show, where so many methods are compared with the first."""
    if seeds == 1:
        return ["one seed: no interval, no test"]
    said = []
    if (least := min(1.0, contrasts * least_p(seeds))) >= SIGNIFICANT:
        enough = next(n for n in count(seeds) if contrasts * least_p(n) < SIGNIFICANT)
        among, what = ("", "p") if contrasts == 1 else (f" and {contrasts} methods against the first", "Holm's p")
        said.append(
            f"with {seeds} seeds{among} no {what} below {least:.3g} is possible; below {SIGNIFICANT} it takes {enough} "
            "seeds"
        )
    if seeds <= 3:
        said.append(f"the interval of {seeds} seeds is their range, and the true mean is easily outside")
    elif seeds < ENOUGH:
        said.append(f"intervals over {seeds} seeds are too narrow; about {ENOUGH} make them honest")
    return said


def _places(values: np.ndarray) -> np.ndarray:
    """Return the place of each value in its column, the smallest first; equals share the mean of their places."""
    below = (values[None] < values[:, None]).sum(axis=1)
    equal = (values[None] == values[:, None]).sum(axis=1)
    places: np.ndarray = below + (equal + 1) / 2
    return places


@cache
def _resampled(n: int) -> np.ndarray:
    """Return the draws of the bootstrap, the same for every figure and method."""
    return _generator().integers(0, n, (RESAMPLES, n))


def _generator() -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=0))
