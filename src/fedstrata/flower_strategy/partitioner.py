"""Our partitions for those who use Flower Datasets: a partitioner that deals as one of ours does."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr_datasets.partitioner import Partitioner

from fedstrata.core.registry import build
from fedstrata.core.rng import Streams
from fedstrata.data.partitions.base import Labelled, Partition


class FedstrataPartitioner(Partitioner):  # type: ignore[misc]  # Flower Datasets has no types
    """A partition of fedstrata as a partitioner of Flower Datasets.

    Parameters
    ----------
    kind
        A name of `fedstrata list partitions`, or the import path of one's own.
    num_partitions
        How many clients; None, where the partition counts them itself.
    partition_by
        The column of labels.
    group_by
        The column of domains, subjects or writers, for partitions that deal by them.
    seed
        Of what is drawn.
    **options
        Those of the partition.

    Examples
    --------
    >>> from datasets import Dataset
    >>> from fedstrata.flower_strategy import FedstrataPartitioner
    >>> partitioner = FedstrataPartitioner("labels-per-client", 5, partition_by="label", labels=2)
    >>> partitioner.dataset = Dataset.from_dict({"label": [i % 10 for i in range(200)]})
    >>> [len(set(partitioner.load_partition(i)["label"])) for i in range(5)]
    [2, 2, 2, 2, 2]
    """

    def __init__(
        self,
        kind: str,
        num_partitions: int | None = None,
        partition_by: str = "label",
        group_by: str | None = None,
        seed: int = 0,
        **options: Any,
    ):
        super().__init__()
        self._partition: Partition = build("partitions", kind, options, "partition")
        self._clients, self._seed = num_partitions, seed
        self._columns = partition_by, group_by
        self._parts: list[np.ndarray] | None = None

    def load_partition(self, partition_id: int) -> Any:
        """Return the samples of one client.

        Parameters
        ----------
        partition_id
            Which one, counted from 0.

        Returns
        -------
        datasets.Dataset
        """
        return self.dataset.select(self._dealt()[partition_id])

    @property
    def num_partitions(self) -> int:
        """How many clients there are."""
        return len(self._dealt())

    def _dealt(self) -> list[np.ndarray]:
        if self._parts is None:
            label, group = self._columns
            _, codes = np.unique(np.asarray(self.dataset[label]), return_inverse=True)
            groups = None if group is None else np.asarray(self.dataset[group])
            train = Labelled(codes, groups)
            none = Labelled(codes[:0], None if groups is None else groups[:0])
            rng = Streams(self._seed)("partition")
            self._parts = [np.asarray(rows) for rows in self._partition.deal(train, none, self._clients, rng).train]
        return self._parts
