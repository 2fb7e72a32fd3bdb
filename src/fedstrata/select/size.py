"""Li et al., On the Convergence of FedAvg on Non-IID Data, ICLR 2020: selection by size goes with a plain mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedstrata.serverside import Selector, View


def draw_by_size(view: View, count: int) -> np.ndarray:
    """Draw clients without replacement, one after another, each in proportion to its number of samples."""
    sizes = view.roster.sizes[view.eligible].astype(np.float64)
    return view.rng("select").choice(view.eligible, count, replace=False, p=sizes / sizes.sum())


@dataclass(frozen=True)
class Size(Selector):
    """A client is drawn in proportion to its number of samples; combine with uniform weights."""

    paper: ClassVar[str] = "Li et al., ICLR 2020"
    needs: ClassVar[frozenset[str]] = frozenset({"sizes"})

    def select(self, state: None, view: View) -> list[int]:
        """Draw k clients."""
        ids: list[int] = draw_by_size(view, view.k).tolist()
        return ids
