"""Greedy aggregation: a stand-in for FedGA (Cong et al., Knowledge-Based Systems 2024), whose algorithm we do not have.

The FedPBS paper compares with a FedGA that "reweights clients by contribution to convergence". This is our reading, and
no reproduction: models are ranked by their loss on samples that the server holds (`data.proxy`); starting from the
best, each next one is taken in if the mean of those taken, weighted by size, then has a lower loss. Without such
samples it is the mean by size, and an event says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Sums
from fedstrata.core.plan import Plan
from fedstrata.core.server_parts import Arrived
from fedstrata.core.steps import View
from fedstrata.methods.combiners.size import SizeWeighted

BETTER = 1e-12  # by how much a loss must be lower to count


@dataclass(frozen=True)
class FedGaGreedy(SizeWeighted):
    """Models are taken into the mean, best first, as long as that lowers the loss at the server (a stand-in)."""

    paper: ClassVar[str] = "stand-in for Cong et al., KBS 2024"
    individual: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"proxy"})

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse reports that are no models of one round."""
        return None if plan.driver.side_by_side else "it compares models of clients that train side by side"

    def init(self, view: View) -> None:
        """Say where there is nothing to rank by."""
        if view.client_info.proxy is None:
            why = "the server holds no samples; set data.proxy"
            view.note("fallback", what="fedga-greedy", used="the mean by size", why=why)

    def combine(self, state: None, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Weigh those that are taken in by size, others by 0."""
        proxy, weights = view.client_info.proxy, self.weights(arrived)
        if proxy is None:
            return arrived.sum(weights)
        updates = [r.aggregated for r in arrived.each()]

        def loss(taken: list[int]) -> float:
            share = weights[taken] / weights[taken].sum()

            def mean(name: str, start: Tensor) -> Tensor:
                return sum((s * updates[i][name] for s, i in zip(share.tolist(), taken, strict=True)), start)

            buffers = mean("buffers", model.buffers) if "buffers" in updates[0] else model.buffers
            found = proxy(FlatModel(mean("update", model.params), buffers))
            return inf if isnan(found) else found

        able = np.flatnonzero(weights > 0).tolist()
        alone = {i: loss([i]) for i in able}
        ranked = sorted(able, key=lambda i: (alone[i], view.client_info.key[arrived.reports[i].client]))
        taken, lowest = ranked[:1], alone[ranked[0]]
        for candidate in ranked[1:]:
            if (now := loss([*taken, candidate])) < lowest - BETTER:
                taken, lowest = [*taken, candidate], now
        kept = np.zeros(len(weights))
        kept[taken] = weights[taken] / weights[taken].sum()
        return arrived.sum(kept)
