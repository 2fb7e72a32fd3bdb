"""Many of Stratify's batches at once: what `fill.py` does entry by entry, in arrays, for as long as nobody refuses.

While nobody refuses, who may be asked does not change, and every entry takes one number from the stream: the clients
are the same as one after another would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedstrata.core.index import stable_order
from fedstrata.methods.schedules.epoch import Epoch
from fedstrata.methods.schedules.supply import Pools

MOST = 64  # batches at once


@dataclass(frozen=True)
class Stretch:
    """Whole batches that everybody serves: strata and clients, one entry after another."""

    strata: np.ndarray
    clients: np.ndarray
    size: int
    refused: bool  # in the batch that comes next

    @property
    def requests(self) -> int:
        """Messages: one to each client of a batch."""
        batch, width = np.arange(len(self.clients)) // self.size, int(self.clients.max()) + 1
        return int(np.count_nonzero(np.bincount(batch * width + self.clients)))


def take_stretch(
    epoch: Epoch, pools: Pools, stock: Sequence[dict[int, int]], batches: int, size: int, replacement: bool
) -> Stretch | None:
    """Take as many whole batches as are served without a refusal, up to some number; None: not even one is."""
    if pools.counts is not None or epoch.again:
        return None
    chances = pools.draws.ahead(batches * size)
    whole = min(len(chances), epoch.length - epoch.at) // size * size
    strata = epoch.strata[epoch.at : epoch.at + whole]
    there = np.unique(strata).tolist()
    if not whole or not all(pools.ready(stratum) for stratum in there):
        return None
    clients = _choose_clients(pools, strata, chances[:whole], there)
    pairs = strata * (width := int(clients.max()) + 1) + clients
    served = whole if replacement else _count_served(pools, stock, pairs, width) // size * size
    if not served:
        return None
    pools.draws.skip(served)
    epoch.skip(served)
    _count(pools, pairs[:served], width)
    return Stretch(strata[:served], clients[:served], size, refused=served < whole)


def _choose_clients(pools: Pools, strata: np.ndarray, chances: np.ndarray, there: list[int]) -> np.ndarray:
    """Choose a client for every entry."""
    clients = np.empty(len(strata), dtype=np.int64)
    for stratum in there:
        own = strata == stratum
        pool = np.array(pools.supply.available[stratum], dtype=np.int64)
        clients[own] = pool[(chances[own] * len(pool)).astype(np.int64)]
    return clients


def _count_served(pools: Pools, stock: Sequence[dict[int, int]], pairs: np.ndarray, width: int) -> int:
    """Return how many entries come before the first that is refused."""
    counts = np.bincount(pairs)
    left = np.zeros_like(counts)  # what a client has left of a stratum
    for pair in np.flatnonzero(counts).tolist():
        stratum, client = divmod(pair, width)
        left[pair] = stock[stratum].get(client, 0) - pools.supply.taken[stratum].get(client, 0)
    if (counts <= left).all():
        return len(pairs)
    order = stable_order(pairs)
    nth = np.empty_like(pairs)  # of each entry among those of its stratum and client
    nth[order] = np.arange(len(pairs)) - np.repeat(np.cumsum(counts) - counts, counts)
    return int(np.flatnonzero(nth >= left[pairs])[0])


def _count(pools: Pools, pairs: np.ndarray, width: int) -> None:
    """Write down what was given."""
    counts = np.bincount(pairs)
    for pair in np.flatnonzero(counts).tolist():
        (stratum, client), samples = divmod(pair, width), int(counts[pair])
        taken = pools.supply.taken[stratum]
        taken[client] = taken.get(client, 0) + samples
        pools.count(stratum, samples)
