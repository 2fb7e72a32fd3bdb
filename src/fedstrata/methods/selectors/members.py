"""Members of clusters, in order of the seeded tie-break: who was picked least often is found without sorting all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CHUNK = 65_536


@dataclass(frozen=True)
class Members:
    """Clients side by side with those of their cluster."""

    told: np.ndarray  # the label counts or clusters that these are the members by
    ids: np.ndarray  # by cluster, then by key
    starts: np.ndarray  # of each cluster, and the end
    keys: np.ndarray  # least key of each cluster: orders clusters that are otherwise equal

    @classmethod
    def of(cls, cluster: np.ndarray, k: int, clients: np.ndarray, key: np.ndarray, told: np.ndarray) -> Members:
        """Sort clients by cluster and key, once for many rounds."""
        ids = clients[np.lexsort((key[clients], cluster[clients]))]
        sizes = np.bincount(cluster[clients], minlength=k)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        keys = np.full(len(sizes), -1, dtype=key.dtype)
        keys[sizes > 0] = key[ids[starts[:-1][sizes > 0]]]
        return cls(told, ids, starts, keys)

    def only(self, eligible: np.ndarray) -> Members:
        """Leave out who is not eligible."""
        if len(eligible) == len(self.ids):
            return self
        here = np.zeros(max(self.ids.max(initial=-1), eligible.max(initial=-1)) + 1, dtype=bool)
        here[eligible] = True
        stays = here[self.ids]
        before = np.concatenate([[0], np.cumsum(stays)])
        return Members(self.told, self.ids[stays], before[self.starts], self.keys)

    def filled(self) -> list[int]:
        """Return the clusters that have members."""
        filled: list[int] = np.flatnonzero(np.diff(self.starts)).tolist()
        return filled

    def size(self, cluster: int) -> int:
        """Return how many members a cluster has."""
        return int(self.starts[cluster + 1] - self.starts[cluster])

    def first(self, cluster: int) -> float:
        """Return the cluster's tie-break."""
        return float(self.keys[cluster])

    def least(self, cluster: int, count: int, picks: np.ndarray, busy: np.ndarray | None = None) -> list[int]:
        """Return the members with the fewest picks, fewest first, ties by key; those that are busy are left out."""
        own = self.ids[self.starts[cluster] : self.starts[cluster + 1]]
        if busy is not None:
            own = own[~busy[own]]
        had = picks[own]
        if 0 < count < len(own):
            fewest = had.min()  # by counting: numpy's partition takes a hundred times as long where most are equal
            limit = fewest + np.searchsorted(np.cumsum(np.bincount(had - fewest)), count)
            below, at = np.flatnonzero(had < limit), np.flatnonzero(had == limit)
            own = own[np.concatenate([below[np.argsort(had[below], kind="stable")], at[: count - len(below)]])]
        else:
            own = own[np.argsort(had, kind="stable")][:count]
        least: list[int] = own.tolist()
        return least


def fingerprints(counts: np.ndarray) -> np.ndarray:
    """Return one number a client that changes with its label counts; to save the counts would cost every checkpoint."""
    weights = np.random.Generator(np.random.Philox(key=0)).integers(0, 2**63, counts.shape[1], dtype=np.int64)
    parts = [counts[at : at + CHUNK].astype(np.int64) @ weights for at in range(0, len(counts), CHUNK)]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
