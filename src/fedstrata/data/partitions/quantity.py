"""Li et al., Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022 (NIID-Bench, q ~ Dir(beta)).

Shares of the whole are drawn from Dir(beta) and the shuffled samples cut by them: clients differ in size and not in
what they hold. The draw is repeated until the smallest client has `min_size` samples, and ends as in dirichlet-class.
Departure: the test set is cut by the same shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedstrata.core.options import Count, Natural, Positive
from fedstrata.core.rng import Rng
from fedstrata.data.partitions.base import Deal, Labelled, Partition
from fedstrata.data.partitions.dealing import deal_out
from fedstrata.data.partitions.dirichlet import draw_shares, drawn, refuse_too_few


@dataclass(frozen=True)
class Quantity(Partition):
    """Clients hold the same mix of labels but different amounts, drawn from Dir(beta)."""

    paper: ClassVar[str] = "Li et al., ICDE 2022"

    beta: Positive = 0.5
    min_size: Natural = 10
    max_tries: Count = 1000

    def split(self, train: Labelled, test: Labelled, clients: int, rng: Rng) -> Deal:
        """Draw sizes until everybody has enough, then cut."""
        refuse_too_few(self.min_size, clients, len(train))
        size, test_size = np.array([len(train)]), np.array([len(test)])
        counts, notes = drawn(
            lambda: draw_shares(size, self.beta, False, clients, rng),
            [(size, self.min_size), (test_size, 0)],
            self.max_tries,
        )
        shuffled, test_shuffled = rng.permutation(len(train)), rng.permutation(len(test))
        return Deal(deal_out(shuffled, counts[0]), deal_out(test_shuffled, counts[1]), notes)
