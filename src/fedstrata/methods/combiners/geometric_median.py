"""Pillutla et al., Robust Aggregation for Federated Learning, IEEE Transactions on Signal Processing 2022 (RFA).

The point from which the sum of distances to all updates is least, by the smoothed Weiszfeld algorithm: clients are
averaged with weights 1 / max(distance, smoothing), again and again. Every such mean is a weighted sum of updates, so
that distances between updates are all that has to be known: |u_i - v|^2 = (D b)_i - b'Db / 2 for weights b that sum to
1. Departures: clients count alike, because what they say of their samples is not relied on, and iterations go on until
nothing changes (the paper stops after 3, each of which costs it a secure sum).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Sums
from fedstrata.core.options import Count, Positive
from fedstrata.core.server_parts import Arrived, Combiner
from fedstrata.core.steps import View
from fedstrata.methods.combiners.distances import squared_distances

STILL = 1e-12  # change of a weight below which nothing changes any more


@dataclass(frozen=True)
class GeometricMedian(Combiner):
    """The point that is closest to all updates, by the sum of distances."""

    paper: ClassVar[str] = "Pillutla et al., IEEE TSP 2022"
    individual: ClassVar[bool] = True
    fewest: ClassVar[int] = 3

    smoothing: Positive = 1e-6  # distances below this count as this
    iterations: Count = 1000  # at most

    def combine(self, state: None, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Weigh by Weiszfeld's weights."""
        return arrived.sum(self.weiszfeld(squared_distances(arrived.each()), arrived.weights))

    def weiszfeld(self, squared: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the weights of the mean that is the geometric median; `weights` is how often each counts."""
        shares: np.ndarray = weights / weights.sum()
        for _ in range(self.iterations):
            away = np.sqrt(np.maximum(squared @ shares - shares @ squared @ shares / 2, 0.0))
            nearer = weights / np.maximum(away, self.smoothing)
            before, shares = shares, nearer / nearer.sum()
            if np.abs(shares - before).max() < STILL:
                break
        return shares
