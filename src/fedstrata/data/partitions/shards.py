"""McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

Samples are sorted by label and cut into N*S equal shards, of which each client gets S at random. Departures: samples
of a label are shuffled first, and the test set is dealt out by what the clients hold of each label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.options import Count
from fedstrata.core.rng import Rng
from fedstrata.data.partitions.base import Deal, Labelled, Partition
from fedstrata.data.partitions.dealing import by_owner, classes_of, deal_alike, shuffle


@dataclass(frozen=True)
class Shards(Partition):
    """Samples sorted by label are cut into equal shards; each client gets a few of them."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"

    shards: Count = 2  # a client
    remainder: Literal["append", "drop"] = "append"  # samples that fill no shard: to the last one, or to nobody

    def split(self, train: Labelled, test: Labelled, clients: int, rng: Rng) -> Deal:
        """Sort, cut, and give shards to clients at random."""
        number = clients * self.shards
        size, over = divmod(len(train), number)
        if size == 0:
            raise RequestError(
                f"data.partition.shards = {self.shards} for {clients} clients needs {number} samples, "
                f"but there are {len(train)}; lower shards or clients"
            )
        order = shuffle(train.labels, rng)
        holder = rng.permutation(np.repeat(np.arange(clients), self.shards))
        rest = np.full(over, holder[-1] if self.remainder == "append" else -1)
        owner = np.concatenate([np.repeat(holder, size), rest])
        held = np.flatnonzero(owner >= 0)
        classes = classes_of(train, test)
        counts = np.bincount(train.labels[order[held]] * clients + owner[held], minlength=classes * clients)
        test_parts, notes = deal_alike(counts.reshape(classes, clients), test.labels, rng)
        if over and self.remainder == "drop":
            notes = [f"{over} samples were left out: {number} shards of {size} do without them", *notes]
        return Deal(by_owner(order, owner, clients), test_parts, notes)
