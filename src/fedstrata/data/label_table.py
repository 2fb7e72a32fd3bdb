"""Who holds how much of which label, and how far that is from an even spread.

Everything here is read off one table of counts, [clients, labels], so it works as well on placeholders, where nobody
says which label is which. Measures are of clients that hold something; labels that nobody holds do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.data.reading import Label


@dataclass(frozen=True)
class LabelTable:
    """Label counts of clients that hold something, and names for both sides of the table."""

    counts: np.ndarray  # [N, C]
    labels: tuple[Label, ...]
    clients: tuple[str, ...]  # names
    empty: int = 0  # clients that hold nothing, and have no row here

    @classmethod
    def of(
        cls, counts: np.ndarray, labels: Sequence[Label] | None = None, clients: Sequence[str] | None = None
    ) -> LabelTable:
        """Check a table, and leave out clients that hold nothing and labels that nobody holds."""
        table = _whole(np.asarray(counts))
        labels = range(table.shape[1]) if labels is None else labels
        clients = [str(i) for i in range(len(table))] if clients is None else clients
        for what, names, size in (("labels", labels, table.shape[1]), ("clients", clients, len(table))):
            if len(names) != size:
                raise RequestError(f"{len(names)} names of {what}, but the table of counts has {size}")
        rows, columns = np.flatnonzero(table.sum(1)), np.flatnonzero(table.sum(0))
        if not len(rows):
            raise RequestError("no client holds any sample: all counts are 0")
        if len(columns) < 2:
            raise RequestError(f'only the label "{labels[columns[0]]}" has samples; skew needs at least 2 labels')
        held = table[np.ix_(rows, columns)]
        kept, holders = [labels[i] for i in columns.tolist()], [clients[i] for i in rows.tolist()]
        return cls(held, tuple(kept), tuple(holders), empty=len(table) - len(rows))

    def __len__(self) -> int:
        return len(self.counts)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Samples of every client, [N]."""
        return np.asarray(self.counts.sum(1))

    @cached_property
    def mix(self) -> np.ndarray:
        """Share of each label over all clients, [C]."""
        return np.asarray(self.counts.sum(0) / self.counts.sum())

    @cached_property
    def shares(self) -> np.ndarray:
        """Share of each label at every client, [N, C]."""
        return np.asarray(self.counts / self.sizes[:, None])

    @cached_property
    def emd(self) -> np.ndarray:
        """Earth mover's distance to the global mix, [N]: the sum of |share - mix|, from 0 to below 2 (Zhao et al.)."""
        return np.asarray(np.abs(self.shares - self.mix).sum(1))

    @cached_property
    def js(self) -> np.ndarray:
        """Jensen-Shannon divergence to the global mix in bits, [N], from 0 to below 1."""
        middle = (self.shares + self.mix) / 2
        own, of_all = _entropy(self.shares), _entropy(self.mix[None])
        return np.asarray(np.maximum(_entropy(middle) - (own + of_all) / 2, 0) / np.log(2))

    @cached_property
    def effective(self) -> np.ndarray:
        """Effective number of labels, [N]: the exponential of the entropy of a client's own mix."""
        return np.asarray(np.exp(_entropy(self.shares)))

    @cached_property
    def missing(self) -> np.ndarray:
        """Labels that a client does not hold, [N]."""
        return np.asarray((self.counts == 0).sum(1))

    @cached_property
    def gini(self) -> float:
        """Return the Gini coefficient of the sizes.

        0 where all are equal, towards 1 where one client has everything.
        """
        ascending = np.sort(self.sizes)
        n = len(ascending)
        return float((2 * np.arange(1, n + 1) - n - 1) @ ascending / (n * ascending.sum()))


def _whole(table: np.ndarray) -> np.ndarray:
    """Read counts as whole numbers."""
    if table.ndim != 2 or not table.size:
        raise RequestError(f"counts must be a table [clients, labels]; got shape {table.shape}")
    if table.dtype.kind not in "biuf":
        raise RequestError(f"counts must be numbers, not {table.dtype}")
    if (bad := np.argwhere(~np.isfinite(table) | (table < 0) | (table != np.floor(table)))).size:
        client, label = bad[0]
        raise RequestError(f"counts[{client}, {label}] = {table[client, label]:g}; allowed: whole numbers from 0")
    return table.astype(np.int64)


def _entropy(shares: np.ndarray) -> np.ndarray:
    """Return the entropy of every row, in nats."""
    logs = np.log(shares, where=shares > 0, out=np.zeros_like(shares))
    return np.asarray(-(shares * logs).sum(1))
