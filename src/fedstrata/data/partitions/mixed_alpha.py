"""Chen & Vikalo, Heterogeneity-Guided Client Sampling, NeurIPS 2024 (HiCS-FL), and Terraform, arXiv 2602.20450.

Clients stand in equal consecutive groups, one for each alpha. A group owns an equal slice of every class, train and
test, and spreads it among its clients by Dir(alpha) with the balance rule, drawn until each client has a fifth of the
fair share n/N in training and in test. Departures: the number of draws is bounded as in dirichlet-class; the samples
by which slices of a class differ go to the groups in turn, so that groups differ by one sample at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.options import Count, Positive
from fedstrata.core.rng import Rng
from fedstrata.data.partitions.base import Deal, Labelled, Partition
from fedstrata.data.partitions.dealing import classes_of, deal_out, shuffle
from fedstrata.data.partitions.dirichlet import draw_shares, drawn


@dataclass(frozen=True)
class MixedAlpha(Partition):
    """Groups of clients, each skewed by its own alpha: some clients hold one label, others nearly all."""

    paper: ClassVar[str] = "Chen and Vikalo, NeurIPS 2024"

    alphas: tuple[Positive, ...] = (0.001, 0.002, 0.005, 0.01, 0.5)
    max_tries: Count = 1000

    def split(self, train: Labelled, test: Labelled, clients: int, rng: Rng) -> Deal:
        """Slice the classes, then draw shares inside each group."""
        groups = len(self.alphas)
        if not 1 <= groups <= clients:
            raise RequestError(
                f"data.partition.alphas = {list(self.alphas)} makes {groups} groups of {clients} clients; "
                "each group needs a client: use more clients, or from one to as many alphas as there are clients"
            )
        classes = classes_of(train, test)
        both = [np.bincount(of.labels, minlength=classes) for of in (train, test)]
        slices = [slice_evenly(sizes, groups) for sizes in both]
        least = [int(0.2 * sizes.sum() / clients + 1e-9) for sizes in both]
        counts: list[list[np.ndarray]] = []
        notes = []
        for group, alpha in enumerate(self.alphas):
            members = clients // groups + (group < clients % groups)
            own = [of_set[:, group] for of_set in slices]

            def draw(own: np.ndarray = own[0], alpha: float = alpha, members: int = members) -> np.ndarray:
                return draw_shares(own, alpha, True, members, rng)

            tables, said = drawn(draw, list(zip(own, least, strict=True)), self.max_tries)
            counts.append(list(tables))
            notes += [f"alpha {alpha:g}: {note}" for note in said]
        in_train, in_test = (np.concatenate(tables, axis=1) for tables in zip(*counts, strict=True))
        return Deal(deal_out(shuffle(train.labels, rng), in_train), deal_out(shuffle(test.labels, rng), in_test), notes)


def slice_evenly(sizes: np.ndarray, groups: int) -> np.ndarray:
    """Cut each class into equal slices, [C, groups]; samples over go to the groups in turn, across the classes."""
    share, extra = np.divmod(sizes, groups)
    turn = (np.arange(groups) - (np.cumsum(extra) - extra)[:, None]) % groups
    return np.asarray(share[:, None] + (turn < extra[:, None]))
