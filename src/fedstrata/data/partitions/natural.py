"""Caldas et al., LEAF: A Benchmark for Federated Settings, 2018: clients as the data were collected.

A client is a writer (FEMNIST), a subject (HAR) or a record (ECG). Groups that are too small are left out and listed;
with a number of clients given, groups are merged at random into that many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedstrata.core import options
from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Rng
from fedstrata.data.partitions.base import Deal, Labelled, Partition
from fedstrata.data.partitions.dealing import by_owner, domains_of, list_names


@dataclass(frozen=True)
class Natural(Partition):
    """Each client is one writer, subject or record, as the data came; or several, merged at random."""

    paper: ClassVar[str] = "Caldas et al., 2018"
    counts_clients: ClassVar[bool] = True
    needs_groups: ClassVar[bool] = True

    min_samples: options.Natural = 0  # groups with fewer training samples are left out

    def split(self, train: Labelled, test: Labelled, clients: int, rng: Rng) -> Deal:
        """Keep the groups that are large enough; one a client, or as many as it takes."""
        names, kinds, test_kinds, notes = domains_of(train, test)
        sizes = np.bincount(kinds, minlength=len(names))
        large = np.flatnonzero(sizes >= self.min_samples)
        if not len(large):
            raise RequestError(
                f"data.partition.min_samples = {self.min_samples} leaves no group: the largest has "
                f"{sizes.max()} training samples; lower min_samples"
            )
        if clients > len(large):
            cause = f" of at least data.partition.min_samples = {self.min_samples}" if self.min_samples else ""
            raise RequestError(
                f"data.clients = {clients} but the data has {len(large)} groups{cause}, which natural can merge "
                "but not split; lower data.clients or leave it out"
            )
        client_of = np.full(len(names) + 1, -1)  # the last is nobody's, and what -1 picks
        if clients:
            for client, members in enumerate(np.array_split(rng.permutation(large), clients)):
                client_of[members] = client
        else:
            client_of[large] = np.arange(len(large))
        if len(large) < len(names):
            small = np.flatnonzero(sizes < self.min_samples)
            notes = [
                f"{len(small)} groups ({sizes[small].sum()} samples) were left out, having fewer than "
                f"{self.min_samples} training samples: {list_names(names[small])}",
                *notes,
            ]
        number = clients or len(large)
        return Deal(
            by_owner(np.arange(len(train)), client_of[kinds], number),
            by_owner(np.arange(len(test)), client_of[test_kinds], number),
            notes,
            names=None if clients else [str(name) for name in names[large].tolist()],
        )
