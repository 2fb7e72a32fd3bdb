"""Horvitz and Thompson, 1952, as FedAvg may use it: what was unlikely to be drawn counts more.

Weights are prop. to n_k / pi_k, with pi_k the chance that client k was asked, and sum to one over the clients that
arrived (Hajek's form). Clients drawn with equal chances: weights by size. Drawn by size: nearly equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Sums
from fedstrata.core.plan import Plan
from fedstrata.core.server_parts import Arrived, Combiner
from fedstrata.core.steps import View


@dataclass(frozen=True)
class InverseProbability(Combiner):
    """A client's update counts by its samples over the chance that it was asked."""

    paper: ClassVar[str] = "Horvitz and Thompson, JASA 1952"

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse selectors without chances, and drivers that do not keep to a selection."""
        if not plan.driver.side_by_side:
            return "it weighs clients that train side by side against each other"
        if not plan.selector.tells_chances:
            return "it needs the chance of every client to be asked; random, size and everyone know it"
        return None

    def combine(self, state: None, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Weigh by n_k / pi_k."""
        sizes = np.array([r.samples for r in arrived.reports], dtype=np.float64)
        rarity = arrived.chances.max() / arrived.chances  # exactly 1 where all are alike: then this is the mean by size
        weights = arrived.weights * (sizes if sizes.sum() else 1.0) * rarity
        return arrived.sum(weights / weights.sum())
