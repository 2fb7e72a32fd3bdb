"""Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017.

Of n updates, f of which may be anything, each is scored by the sum of its squared distances to its n - f - 2 nearest
neighbours. Krum takes the one with the lowest score, multi-Krum the mean of the m lowest. Both need n >= 2f + 3: of
fewer clients they tolerate fewer attackers than was asked for, which is an event. Clients count alike, whatever they
say of their samples. Under skew a client is far from the others because its labels are rare: `docs/attacks.md` shows
what that costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Sums
from fedstrata.core.options import BelowHalf, Count
from fedstrata.core.server_parts import Arrived, Combiner
from fedstrata.core.steps import View
from fedstrata.methods.combiners.distances import squared_distances


@dataclass(frozen=True)
class Krum(Combiner):
    """The one update that lies closest to its neighbours."""

    paper: ClassVar[str] = "Blanchard et al., NeurIPS 2017"
    individual: ClassVar[bool] = True
    fewest: ClassVar[int] = 3

    attackers: BelowHalf = 0.2  # share of the clients that may send anything; at least one

    def combine(self, state: None, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Take it."""
        return arrived.sum(average_of(self.rank(view, arrived)[:1], arrived))

    def rank(self, view: View, arrived: Arrived) -> np.ndarray:
        """Return places of the reports, best first; of two alike the first is the better one."""
        n = len(arrived.reports)
        asked, possible = count_tolerated(self.attackers, n), (n - 3) // 2
        if asked > possible:
            used, why = f"{possible} attackers", f"{asked} among {n} clients are too many"
            view.note("fallback", what="krum", used=used, why=why)
        distances = np.sort(squared_distances(arrived.each()), 1)  # the first is that to itself
        scores = distances[:, 1 : 1 + n - min(asked, possible) - 2].sum(1)
        return np.argsort(scores, kind="stable")


@dataclass(frozen=True)
class MultiKrum(Krum):
    """The mean of the updates that lie closest to their neighbours."""

    keep: Count | None = None  # how many; none given: all but the attackers

    def combine(self, state: None, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Average them."""
        n = len(arrived.reports)
        keep = n - count_tolerated(self.attackers, n) if self.keep is None else self.keep
        return arrived.sum(average_of(self.rank(view, arrived)[:keep], arrived))


def count_tolerated(share: float, n: int) -> int:
    """Return how many of n clients may be attackers."""
    return max(int(share * n + 1e-9), 1)


def average_of(places: np.ndarray, arrived: Arrived) -> np.ndarray:
    """Return weights with which the reports at some places are averaged, and no others."""
    weights = np.zeros(len(arrived.reports))
    weights[places] = arrived.weights[places]
    shares: np.ndarray = weights / weights.sum()
    return shares
