"""Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019.

Each client draws its own mix of labels from Dir(alpha * prior) and takes its samples by it, without replacement, from
the classes' pools. A class that has run out is left aside and the rest of the mix renormalised. Departures: where all
the classes of a mix have run out the client goes on by the prior, then by what is left; the test set is dealt out by
what the clients really hold of each label, so that a client is tested on what it trains on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.options import Count, NonNegative, Positive
from fedstrata.core.rng import Rng
from fedstrata.data.partitions.base import Deal, Labelled, Partition
from fedstrata.data.partitions.dealing import apportion, classes_of, deal_alike, deal_out, shuffle


@dataclass(frozen=True)
class DirichletClient(Partition):
    """Each client draws its own mix of labels from Dir(alpha * prior), and takes its samples by it."""

    paper: ClassVar[str] = "Hsu et al., 2019"

    alpha: Positive = 0.1
    sizes: Literal["equal"] | Count | tuple[Count, ...] = "equal"  # samples of every client, or of each
    prior: Literal["global", "uniform"] | tuple[NonNegative, ...] = "global"
    use_all: bool = False  # scale the sizes up until no sample is left over

    def split(self, train: Labelled, test: Labelled, clients: int, rng: Rng) -> Deal:
        """Draw mixes, let the clients take their samples one after another, and deal the test set out alike."""
        pools = np.bincount(train.labels, minlength=classes_of(train, test))
        sizes, prior = self._sizes(clients, len(train)), self._prior(pools)
        mixes = _mixes(self.alpha, prior, clients, rng)
        counts = np.zeros((len(pools), clients + 1), dtype=np.int64)
        left = pools.copy()
        for client in range(clients):
            counts[:, client] = _take(int(sizes[client]), mixes[client], prior, left, rng)
            left -= counts[:, client]
        counts[:, -1] = left
        notes = [f"{left.sum()} samples are left over: use_all = true deals them out too"] if left.any() else []
        parts = deal_out(shuffle(train.labels, rng), counts)[:-1]
        test_parts, left_out = deal_alike(counts[:, :-1], test.labels, rng)
        return Deal(parts, test_parts, [*notes, *left_out])

    def _sizes(self, clients: int, samples: int) -> np.ndarray:
        """Return the number of samples each client takes."""
        if isinstance(self.sizes, tuple):
            sizes = np.array(self.sizes, dtype=np.int64)
            if len(sizes) != clients:
                raise RequestError(
                    f"data.partition.sizes = {list(self.sizes)} gives {len(sizes)} sizes for {clients} clients; "
                    "give one for each"
                )
        else:
            sizes = np.full(clients, samples // clients if self.sizes == "equal" else self.sizes)
        if sizes.sum() > samples:
            said = list(self.sizes) if isinstance(self.sizes, tuple) else self.sizes
            raise RequestError(
                f"data.partition.sizes = {said} for {clients} clients needs {sizes.sum()} samples, "
                f"but there are {samples}; lower sizes or clients"
            )
        return apportion(sizes, samples) if self.use_all else sizes

    def _prior(self, pools: np.ndarray) -> np.ndarray:
        """Return the expected mix of labels; a class without training samples has no part in it."""
        if isinstance(self.prior, tuple):
            if len(self.prior) != len(pools):
                raise RequestError(
                    f"data.partition.prior = {list(self.prior)} has {len(self.prior)} numbers, but the data has "
                    f"{len(pools)} classes; give one for each"
                )
            weights = np.array(self.prior, dtype=np.float64)
        else:
            weights = pools.astype(np.float64) if self.prior == "global" else np.ones(len(pools))
        weights = np.where(pools > 0, weights, 0.0)
        if not weights.any():
            raise RequestError(
                f"data.partition.prior = {self.prior} is 0 for every class that has samples; give one a weight"
            )
        weights /= weights.max()  # first, so that the sum of large weights stays finite
        return np.asarray(weights / weights.sum())


def _mixes(alpha: float, prior: np.ndarray, clients: int, rng: Rng) -> np.ndarray:
    """Draw a label mix a client, [N, C]."""
    mixes, likely = np.zeros((clients, len(prior))), np.flatnonzero(prior)
    mixes[:, likely] = rng.dirichlet(np.maximum(min(alpha, 1e6) * prior[likely], 1e-300), size=clients)
    # Where a draw underflows, alpha is so small that a mix is one label, drawn from the prior.
    for client in np.flatnonzero(~(np.isfinite(mixes).all(1) & (mixes.sum(1) > 0))):
        mixes[client] = np.eye(len(prior))[rng.choice(len(prior), p=prior)]
    return mixes


def _take(number: int, mix: np.ndarray, prior: np.ndarray, left: np.ndarray, rng: Rng) -> np.ndarray:
    """Take samples from the pools by a mix; what an exhausted class cannot give is drawn anew from the others.

    Ends: each pass but the last empties at least one pool, and the pools hold enough. The same in distribution as
    sample by sample, where a draw of an exhausted class is repeated.
    """
    taken = np.zeros_like(left)
    while missing := number - int(taken.sum()):
        room = left - taken
        chances = next(q for p in (mix, prior, room) if (q := np.where(room > 0, p, 0.0)).sum() > 0)
        chances = chances / chances.max()
        taken += np.minimum(rng.multinomial(missing, chances / chances.sum()), room)
    return taken
