"""Clusters of label vectors: k-means++, the Davies-Bouldin index, and the elbow that says how many there are.

Bhope et al., FLIPS, 2023, section 3. Its K = N gives clusters of one, whose index is 0: the search ends at
min(N - 1, max(2C, 12)). The lowest point from C on (`min`) gives the ten to twelve clusters of the paper's figure 2;
the bend that the text speaks of (`curvature`) gives 3 to 12, and rounds that are often less balanced than random ones.
Lloyd's iterations are written out: sums over threads, as scikit-learn forms them, differ from run to run in the last
bit. With many vectors the number of clusters is searched on a sample of them and the centres are fitted to a larger
one; every vector then goes to the nearest centre.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedstrata.core.events import Log
from fedstrata.core.rng import Rng

Rule = Literal["curvature", "min", "eq3"]
SEARCHED = 2_000  # most vectors among which the number of clusters is searched
FITTED = 20_000  # most vectors to which the centres are fitted
CHUNK = 16_384  # vectors whose distances are held at once
TINY = 1e-12
STEPS = 300  # most moves of the centres
AT_REST = 1e-4  # of the mean variance: centres that move less than this together have come to rest


@dataclass(frozen=True)
class Clusters:
    """Centres, and how their number was found."""

    centres: np.ndarray  # [k, C]
    curve: Mapping[int, float] = field(default_factory=dict)  # mean Davies-Bouldin index by number of clusters
    searched: int = 0  # vectors that were searched


def find_clusters(vectors: np.ndarray, k: int | None, rule: Rule, repeats: int, rng: Rng, note: Log) -> Clusters:
    """Return the best of `repeats` clusterings into k clusters, or into as many as the elbow says."""
    with threadpool_limits(1):  # the products are small: more threads wait for each other, and change the last bit
        return _search(vectors, k, rule, repeats, rng, note)


def _search(vectors: np.ndarray, k: int | None, rule: Rule, repeats: int, rng: Rng, note: Log) -> Clusters:
    fitted = _sample(vectors, max(FITTED, 10 * (k or 0)), rng)
    distinct = len(np.unique(fitted, axis=0))
    curve: dict[int, float] = {}
    searched = 0
    if distinct < 2:
        if k != 1:
            note("fallback", what="clusters", used=1, why="all clients have the same label vector")
        return Clusters(fitted[:1])
    if k is not None and k > distinct:
        note("fallback", what=f"{k} clusters", used=distinct, why=f"there are {distinct} different label vectors")
    elif k is None and most_clusters(*vectors.shape) < 2:
        note("fallback", what="clusters", used=1, why="two clients are too few to search for clusters")
        k = 1
    if k is None:
        sample = _sample(fitted, SEARCHED, rng)
        searched = len(sample)
        last = min(most_clusters(*sample.shape), len(np.unique(sample, axis=0)))
        least = fewest_clusters(int((sample > 0).any(0).sum()), last) if rule == "min" else 2
        for tried in range(least, last + 1):
            runs = [lloyd(sample, k_means_plus_plus(sample, tried, rng)) for _ in range(repeats)]
            curve[tried] = float(np.mean([davies_bouldin(sample, nearest(sample, centres)) for centres, _ in runs]))
        if not curve:
            note("fallback", what="clusters", used=2, why="nearly all clients have the same label vector")
        k = elbow(curve, rule) if curve else 2
    k = min(k, distinct)
    runs = [lloyd(fitted, k_means_plus_plus(fitted, k, rng)) for _ in range(repeats)]
    return Clusters(min(runs, key=lambda run: run[1])[0], curve, searched)


def most_clusters(vectors: int, labels: int) -> int:
    """Return the largest number of clusters to try."""
    return min(vectors - 1, max(2 * labels, 12))


def fewest_clusters(labels: int, last: int) -> int:
    """Return the smallest number of clusters to try: one a label, where there are so many vectors."""
    return max(2, min(labels, last))


def elbow(curve: Mapping[int, float], rule: Rule = "min", least: int = 2) -> int:
    """Return the number of clusters from the index by number, for consecutive numbers.

    `min`: the lowest point, from `least` clusters on; `curvature`: the sharpest bend, or the first number where the
    curve is lowest there; `eq3`: the smallest relative change, as Equation 3 is printed, which is the flattest point.
    """
    ks = sorted(curve)
    if rule == "min":
        return min([k for k in ks if k >= least] or ks, key=lambda k: curve[k])
    lowest = min(ks, key=lambda k: curve[k])
    if rule == "eq3" and len(ks) > 1:
        return min(ks[1:], key=lambda k: abs(curve[k] - curve[k - 1]) / max(curve[k - 1], TINY))
    if lowest == ks[0]:
        return lowest
    if curve[lowest] < 1e-9:  # all vectors of a cluster are the same: behind it the curve is flat
        return lowest
    return max(ks[1:-1], key=lambda k: curve[k - 1] - 2 * curve[k] + curve[k + 1], default=lowest)


def davies_bouldin(vectors: np.ndarray, cluster: np.ndarray) -> float:
    """Return the mean, over clusters, of the largest (s_i + s_j) / |c_i - c_j|.

    S is the mean distance to the centre.
    """
    _, cluster, sizes = np.unique(cluster, return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        return 0.0
    centres = _sums(vectors, cluster, len(sizes)) / sizes[:, None]
    return overlap(centres, np.bincount(cluster, np.linalg.norm(vectors - centres[cluster], axis=1)) / sizes)


def overlap(centres: np.ndarray, spread: np.ndarray) -> float:
    """Return the Davies-Bouldin index of two or more clusters, from their centres and mean distances to them."""
    square = (centres**2).sum(1)
    apart = np.sqrt(np.maximum(square[:, None] + square - 2 * centres @ centres.T, 0))
    ratio = (spread[:, None] + spread) / np.maximum(apart, TINY)
    np.fill_diagonal(ratio, 0)
    return float(ratio.max(1).mean())


def nearest(vectors: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return the nearest centre of each vector, a chunk at a time; the first of equally near ones."""
    half = (centres**2).sum(1) / 2
    parts = [vectors[at : at + CHUNK] for at in range(0, len(vectors), CHUNK)]
    found = [(half - part.astype(np.float64) @ centres.T).argmin(1) for part in parts]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def k_means_plus_plus(vectors: np.ndarray, k: int, rng: Rng) -> np.ndarray:
    """Draw k vectors as first centres, each in proportion to its squared distance from those drawn before."""
    centres = np.empty((k, vectors.shape[1]))
    far = np.ones(len(vectors))
    for i, drawn in enumerate(rng.random(k)):
        reach = np.cumsum(far)
        at = min(int(np.searchsorted(reach, drawn * reach[-1], side="right")), len(vectors) - 1)
        centres[i] = vectors[at]
        away = vectors - centres[i]
        square = np.einsum("ij,ij->i", away, away)
        far = square if i == 0 else np.minimum(far, square)
    return centres


def lloyd(vectors: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, float]:
    """Move the centres until they rest; give them and the sum of squared distances to them.

    A centre that loses all its vectors goes on from the one that is farthest from its own.
    """
    enough = AT_REST * float(vectors.var(0).mean())
    square = (vectors**2).sum(1)
    for _ in range(STEPS):
        gap = (centres**2).sum(1) / 2 - vectors @ centres.T
        cluster = gap.argmin(1)
        far = np.maximum(square + 2 * np.take_along_axis(gap, cluster[:, None], 1)[:, 0], 0)
        sizes = np.bincount(cluster, minlength=len(centres))
        moved = _sums(vectors, cluster, len(centres)) / np.maximum(sizes, 1)[:, None]
        if not sizes.all():
            lost = np.flatnonzero(sizes == 0)
            moved[lost] = vectors[np.argsort(-far, kind="stable")[: len(lost)]]
        shift = float(((moved - centres) ** 2).sum())
        centres = moved
        if shift <= enough:
            break
    away = vectors - centres[nearest(vectors, centres)]
    return centres, float((away**2).sum())


def _sums(vectors: np.ndarray, cluster: np.ndarray, k: int) -> np.ndarray:
    """Sum the vectors of each cluster, [k, C]."""
    from scipy.sparse import csr_array  # noqa: PLC0415  scipy takes long to import, and few runs need it

    n = len(vectors)
    member = csr_array((np.ones(n), cluster, np.arange(n + 1)), shape=(n, k))
    return np.asarray(member.T @ vectors)


def _sample(vectors: np.ndarray, most: int, rng: Rng) -> np.ndarray:
    """Return at most so many of the vectors, in double precision."""
    some = vectors if len(vectors) <= most else vectors[np.sort(rng.choice(len(vectors), most, replace=False))]
    return some.astype(np.float64)
