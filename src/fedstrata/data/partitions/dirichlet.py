"""Li et al., Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022 (NIID-Bench).

For each class, shares over the clients are drawn from Dir(alpha) and its shuffled samples are cut by them. With
`balance`, a client that holds its fair share n/N already gets nothing of the next class. The draw is repeated until
the smallest client has `min_size` samples. Departures: the number of draws is bounded, after which samples move one
by one from the largest client to those that are short; a class for which every share vanished goes to one client that
has room; and the test set is cut by the same shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedstrata.errors import RequestError
from fedstrata.options import Count, Natural, Positive
from fedstrata.partition import Deal, Labelled, Partition
from fedstrata.rng import Rng


@dataclass(frozen=True)
class DirichletClass(Partition):
    """Each class is spread over the clients by shares drawn from Dir(alpha); small alpha is strong skew."""

    paper: ClassVar[str] = "Li et al., ICDE 2022"

    alpha: Positive = 0.1
    balance: bool = True
    min_size: Natural = 10
    max_tries: Count = 1000

    def split(self, train: Labelled, test: Labelled, clients: int, rng: Rng) -> Deal:
        """Draw shares until everybody has enough, then cut."""
        labels, test_labels = train.labels, test.labels
        if self.min_size * clients > len(labels):
            raise RequestError(
                f"data.partition.min_size = {self.min_size} for {clients} clients needs "
                f"{self.min_size * clients} samples, but there are {len(labels)}; lower min_size or clients"
            )
        classes = int(max(labels.max(), test_labels.max(initial=0))) + 1
        sizes = np.bincount(labels, minlength=classes)
        best = None
        for _ in range(self.max_tries):
            shares = self._shares(sizes, clients, rng)
            cuts = _cuts(shares, sizes)
            counts = np.diff(cuts, axis=1, prepend=0)
            smallest = counts.sum(0).min()
            if best is None or smallest > best[0]:
                best = (smallest, shares, counts)
            if smallest >= self.min_size:
                break
        assert best is not None
        smallest, shares, counts = best
        notes = []
        if smallest < self.min_size:
            notes.append(f"no draw of {self.max_tries} gave every client {self.min_size} samples; some were moved")
            _top_up(counts, self.min_size)
        dealt = _dealt(labels, counts, rng)
        test_sizes = np.bincount(test_labels, minlength=classes)
        test_counts = np.diff(_cuts(shares, test_sizes), axis=1, prepend=0)
        return Deal(dealt, _dealt(test_labels, test_counts, rng), notes)

    def _shares(self, sizes: np.ndarray, clients: int, rng: Rng) -> np.ndarray:
        """Draw the shares of every class over the clients, [C, N]."""
        fair, held = sizes.sum() / clients, np.zeros(clients)
        alpha = min(self.alpha, 1e6)  # even by then; a sum of larger ones overflows
        shares = rng.dirichlet(np.full(clients, alpha), size=len(sizes))
        for label, size in enumerate(sizes):
            if self.balance:
                shares[label, held >= fair] = 0.0
            total = shares[label].sum()
            if total > 0 and np.isfinite(total):
                shares[label] /= total
            else:
                room = np.flatnonzero(held < fair) if (held < fair).any() else np.arange(clients)
                shares[label] = np.eye(clients)[rng.choice(room)]
            held += shares[label] * size
        return shares


def _cuts(shares: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Give where each client's part of each class ends, [C, N]; the last always takes the remainder."""
    cuts = np.floor(np.cumsum(shares, axis=1) * sizes[:, None] + 1e-9).astype(np.int64)
    cuts[:, -1] = sizes
    return np.maximum.accumulate(cuts, axis=1)


def _top_up(counts: np.ndarray, least: int) -> None:
    """Move samples one at a time from the largest client to those with fewer than `least`."""
    held = counts.sum(0)
    for poor in np.flatnonzero(held < least):
        while held[poor] < least:
            rich = int(held.argmax())
            label = int(counts[:, rich].argmax())
            counts[label, rich] -= 1
            counts[label, poor] += 1
            held[rich] -= 1
            held[poor] += 1


def _dealt(labels: np.ndarray, counts: np.ndarray, rng: Rng) -> list[np.ndarray]:
    """Shuffle each class and cut it by the counts, [C, N]."""
    parts = [
        np.split(rng.permutation(np.flatnonzero(labels == label)), np.cumsum(counts[label])[:-1])
        for label in range(len(counts))
    ]
    return [np.concatenate(of_client) for of_client in zip(*parts, strict=True)]
