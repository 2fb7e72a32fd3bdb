"""Who holds which rows of the shared arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def stable_order(numbers: np.ndarray) -> np.ndarray:
    """Return what sorts whole numbers from 0, equal ones in the order they have; small ones sort in linear time."""
    small = numbers.astype(np.uint16) if numbers.max(initial=0) < 2**16 else numbers
    return np.argsort(small, kind="stable")


@dataclass(frozen=True)
class Split:
    """Which rows belong to which client: client i owns rows[starts[i]:starts[i + 1]]."""

    rows: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[np.ndarray]) -> Split:
        """Join one array of rows a client, which are sorted."""
        split = cls.sized(np.concatenate(parts) if len(parts) else np.zeros(0), np.array([len(p) for p in parts]))
        rows, owners = split.rows, split.owners
        if ((np.diff(rows) < 0) & (np.diff(owners) == 0)).any():  # where there are millions, sorting takes longest
            return cls(rows[np.lexsort((rows, owners))], split.starts)
        return split

    @classmethod
    def sized(cls, rows: np.ndarray, sizes: np.ndarray) -> Split:
        """Cut rows into parts of so many."""
        return cls(rows.astype(np.int64, copy=False), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    @classmethod
    def nothing(cls, clients: int) -> Split:
        """Return clients that hold nothing."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(clients + 1, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, client: int) -> np.ndarray:
        if not 0 <= client < len(self):
            raise IndexError(f"there is no client {client} among {len(self)}")
        return self.rows[self.starts[client] : self.starts[client + 1]]

    @property
    def sizes(self) -> np.ndarray:
        """Samples of every client."""
        return np.diff(self.starts)

    @property
    def owners(self) -> np.ndarray:
        """Who holds each of the rows."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def counts(self, labels: np.ndarray, classes: int) -> np.ndarray:
        """Return the label counts of every client, [N, C]."""
        flat = np.bincount(self.owners * classes + labels[self.rows], minlength=len(self) * classes)
        return flat.reshape(len(self), classes)

    def among(self, chosen: np.ndarray) -> Split:
        """Read rows as places among chosen ones, which are in order."""
        return Split(chosen[self.rows], self.starts)

    def numbered(self, chosen: np.ndarray) -> Split:
        """Undo `among`."""
        return Split(np.searchsorted(chosen, self.rows), self.starts)

    def reorder(self, held: np.ndarray) -> Split:
        """Let client i hold what client held[i] holds."""
        sizes = self.sizes[held]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        offset = np.repeat(self.starts[held] - starts[:-1], sizes)
        return Split(self.rows[np.arange(starts[-1]) + offset], starts)

    def only(self, present: np.ndarray) -> Split:
        """Keep the rows that are present."""
        here = present[self.rows]
        before = np.concatenate([[0], np.cumsum(here)])
        return Split(self.rows[here], before[self.starts].astype(np.int64))
