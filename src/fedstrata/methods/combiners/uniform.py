"""Li et al., On the Convergence of FedAvg on Non-IID Data, ICLR 2020: the plain mean, for selection by size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Sums
from fedstrata.core.server_parts import Arrived, Combiner
from fedstrata.core.steps import View


@dataclass(frozen=True)
class Uniform(Combiner):
    """Every client's update counts the same."""

    paper: ClassVar[str] = "Li et al., ICLR 2020"

    def combine(self, state: None, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Weigh by 1 / |S|."""
        return arrived.sum(arrived.weights / arrived.weights.sum())
