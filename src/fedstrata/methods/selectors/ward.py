"""Ward, Hierarchical Grouping to Optimize an Objective Function, JASA 1963: the tree that clustered selectors cut.

The tree over all clients needs all pairs of them. Beyond a limit it is built over a random sample of clients, and each
of the others belongs to the one of the sample that is nearest to it: the cost then grows with the number of clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from fedstrata.core.rng import Rng
from fedstrata.methods.selectors.remembered import lengths

On = Literal["rows", "condensed"]
Between = Callable[[np.ndarray, np.ndarray], np.ndarray]  # distances from some positions to others
AT_ONCE = 4096  # clients whose nearest one is looked for together


@dataclass(frozen=True)
class Tree:
    """Which groups were merged, one after another; leaf i is group i, merge j makes group leaves + j."""

    leaves: list[np.ndarray]  # positions of clients: one a leaf, more where a sample stands for all
    merges: np.ndarray  # [leaves - 1, 2]
    flat: bool = False  # whether all distances are zero: the merges mean nothing

    def within(self, masses: np.ndarray, capacity: int) -> list[np.ndarray]:
        """Merge while a group's mass stays within the capacity."""
        mass = [int(masses[leaf].sum()) for leaf in self.leaves]
        for a, b in self.merges:
            mass.append(mass[a] + mass[b])
        return self._groups(np.array(mass[len(self.leaves) :], dtype=np.int64) <= capacity)

    def cut(self, count: int) -> list[np.ndarray]:
        """Merge until so many groups are left."""
        return self._groups(np.arange(len(self.merges)) < len(self.leaves) - count)

    def _groups(self, accepted: np.ndarray) -> list[np.ndarray]:
        groups: dict[int, list[int]] = {i: [i] for i in range(len(self.leaves))}
        for j in np.flatnonzero(accepted).tolist():
            a, b = self.merges[j].tolist()
            groups[len(self.leaves) + j] = groups.pop(a) + groups.pop(b)
        in_order = sorted((sorted(group) for group in groups.values()), key=lambda group: group[0])
        return [np.concatenate([self.leaves[i] for i in group]) for group in in_order]


def ward(count: int, between: Between, on: On, limit: int, rng: Rng) -> Tree:
    """Build the tree; merges of equal height go by position.

    `rows` takes the rows of the distance matrix for points, as the authors' code does; `condensed` takes the
    distances for what they are.
    """
    everybody = np.arange(count)
    sample = everybody if count <= limit else np.sort(rng.choice(count, limit, replace=False))
    apart = between(sample, sample)
    apart = (apart + apart.T) / 2
    np.fill_diagonal(apart, 0.0)
    leaves = np.split(everybody, count) if count <= limit else _nearest(count, between, sample)
    if len(leaves) < 2:
        return Tree(leaves, np.zeros((0, 2), dtype=np.int64), True)
    distances = lengths(apart, apart) if on == "rows" else apart
    merges = linkage(squareform(distances, checks=False), "ward")[:, :2].astype(np.int64)
    return Tree(leaves, merges, not apart.any())


def _nearest(count: int, between: Between, sample: np.ndarray) -> list[np.ndarray]:
    """Return for each of the sample the clients it stands for; it stands for itself, whoever else is as near."""
    owner = np.concatenate(
        [between(np.arange(start, min(start + AT_ONCE, count)), sample).argmin(1) for start in range(0, count, AT_ONCE)]
    )
    owner[sample] = np.arange(len(sample))
    by_owner = np.argsort(owner, kind="stable")
    return np.split(by_owner, np.cumsum(np.bincount(owner, minlength=len(sample)))[:-1])
