"""McMahan et al., AISTATS 2017: FedSGD, where a client's one step is on all its samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedstrata.core.client_context import ClientContext
from fedstrata.core.client_parts import Order
from fedstrata.core.sampler import Sampler


@dataclass(frozen=True)
class FullBatch(Sampler):
    """One step on all samples at once, whatever the epochs and the batch size."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"

    def width(self, batch_size: int, largest: int, fastest: float = 1.0) -> int:
        """All samples of the largest client."""
        return largest

    def plan(self, context: ClientContext) -> Order:
        """Take everything once."""
        n = context.client.samples
        return Order((np.arange(n),), batch_size=n)
