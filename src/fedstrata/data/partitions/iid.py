"""The partition without skew, against which the others are measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedstrata.partition import Deal, Partition
from fedstrata.rng import Rng


@dataclass(frozen=True)
class Iid(Partition):
    """Samples are shuffled and dealt out evenly; sizes differ by at most one."""

    def split(self, labels: np.ndarray, test_labels: np.ndarray, clients: int, rng: Rng) -> Deal:
        """Permute and cut."""
        train, test = rng.permutation(len(labels)), rng.permutation(len(test_labels))
        return Deal(np.array_split(train, clients), np.array_split(test, clients))
