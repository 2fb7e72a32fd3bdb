"""McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Sums
from fedstrata.core.server_parts import Arrived, Combiner
from fedstrata.core.steps import View


@dataclass(frozen=True)
class SizeWeighted(Combiner):
    """A client's update counts in proportion to its number of samples."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"

    def weights(self, arrived: Arrived) -> np.ndarray:
        """Return n_k / sum n."""
        sizes = arrived.weights * np.array([r.samples for r in arrived.reports], dtype=np.float64)
        if not sizes.sum():  # nobody had a sample to train on: their updates are zero, whatever they weigh
            sizes = np.ones(len(sizes))
        shares: np.ndarray = sizes / sizes.sum()
        return shares

    def combine(self, state: None, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Weigh."""
        return arrived.sum(self.weights(arrived))
