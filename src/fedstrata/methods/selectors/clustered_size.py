"""Fraboni et al., Clustered Sampling: Low-Variance and Improved Representativity for Clients Selection, ICML 2021.

Algorithm 1: clients are laid into k urns of equal mass, from large to small, and one is drawn from each. Every client
counts on average as it does under selection by size, with less variance. Where all clients are wanted, all are asked,
with the weights that the draws would have on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstrata.core.server_parts import Selector
from fedstrata.core.steps import Ask, View
from fedstrata.methods.selectors.urns import by_size, everyone


@dataclass(frozen=True)
class ClusteredSize(Selector):
    """One client is drawn from each of k urns that were filled by size; combine with uniform weights."""

    paper: ClassVar[str] = "Fraboni et al., ICML 2021"
    needs: ClassVar[frozenset[str]] = frozenset({"sizes"})

    def select(self, state: None, view: View) -> list[Ask]:
        """Fill the urns, and draw."""
        ids, sizes = view.eligible, view.client_info.sizes[view.eligible]
        if view.k >= len(ids):
            return everyone(ids, sizes)
        return by_size(ids, sizes, view.k, view.client_info.key[ids]).draw(view.rng("select"))
