"""The partition without skew, against which the others are measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedstrata.core.rng import Rng
from fedstrata.data.partitions.base import Deal, Labelled, Partition


@dataclass(frozen=True)
class Iid(Partition):
    """Samples are shuffled and dealt out evenly; sizes differ by at most one."""

    def split(self, train: Labelled, test: Labelled, clients: int, rng: Rng) -> Deal:
        """Permute and cut."""
        shuffled, test_shuffled = rng.permutation(len(train)), rng.permutation(len(test))
        return Deal(np.array_split(shuffled, clients), np.array_split(test_shuffled, clients))
