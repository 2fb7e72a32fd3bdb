"""Who holds which rows of the shared arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Split:
    """Which rows belong to which client: client i owns rows[starts[i]:starts[i + 1]]."""

    rows: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[np.ndarray]) -> Split:
        """Join one array of rows a client."""
        starts = np.concatenate([[0], np.cumsum([len(p) for p in parts])]).astype(np.int64)
        rows = np.concatenate([np.sort(p) for p in parts]) if len(parts) else np.zeros(0)
        return cls(rows.astype(np.int64), starts)

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

    def counts(self, labels: np.ndarray, classes: int) -> np.ndarray:
        """Give the label counts of every client, [N, C]."""
        owner = np.repeat(np.arange(len(self)), self.sizes)
        flat = np.bincount(owner * classes + labels[self.rows], minlength=len(self) * classes)
        return flat.reshape(len(self), classes)

    def reordered(self, held: np.ndarray) -> Split:
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
