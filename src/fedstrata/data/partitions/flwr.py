"""Flower Datasets' partitioners as partitions: `partition = { kind = "flwr", partitioner = "ShardPartitioner", ... }`.

Flower deals one split; the test samples of a label (or group) are dealt as the training samples of it were, so that a
client is tested on what it trains on. Rows are shuffled before: some of Flower's cut the data as they lie.
"""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, ClassVar, Literal

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.options import Count, NonNegative, Positive
from fedstrata.core.rng import Rng
from fedstrata.data.partitions.base import Deal, Labelled, Partition
from fedstrata.data.partitions.dealing import classes_of, deal_out, domains_of, shuffle

BY_GROUP = ("NaturalIdPartitioner", "GroupedNaturalIdPartitioner")  # which count the clients themselves
GROUP, LABEL = "group", "label"


@dataclass(frozen=True)
class FlowerPartition(Partition):
    """A partitioner of Flower Datasets, by its class; options are those of the class that is named."""

    paper: ClassVar[str] = "Flower Datasets"
    counts_clients: ClassVar[bool] = True

    partitioner: Literal[
        "DirichletPartitioner",
        "IidPartitioner",
        "PathologicalPartitioner",
        "ShardPartitioner",
        "InnerDirichletPartitioner",
        "ContinuousPartitioner",
        "LinearPartitioner",
        "SquarePartitioner",
        "ExponentialPartitioner",
        "SizePartitioner",
        "NaturalIdPartitioner",
        "GroupedNaturalIdPartitioner",
    ] = "IidPartitioner"
    alpha: Positive | None = None  # of the Dirichlet ones; 0.5 if not given
    min_partition_size: Count | None = None
    self_balancing: bool | None = None
    num_classes_per_partition: Count | None = None
    class_assignment_mode: Literal["random", "deterministic", "first-deterministic"] | None = None
    num_shards_per_partition: Count | None = None
    shard_size: Count | None = None
    keep_incomplete_shard: bool | None = None
    strictness: NonNegative | None = None
    partition_sizes: tuple[Count, ...] | None = None
    group_size: Count | None = None
    mode: Literal["allow-smaller", "allow-bigger", "drop-reminder", "strict"] | None = None

    def split(self, train: Labelled, test: Labelled, clients: int, rng: Rng) -> Deal:
        """Let Flower deal the training samples, and deal the test samples alike."""
        order, seed = rng.permutation(len(train)), int(rng.integers(2**31))
        if self.partitioner in BY_GROUP and train.groups is None:
            raise RequestError(f"{self.partitioner} deals by group, but the data has no groups (domains, subjects)")
        columns: dict[str, Any] = {"row": order, LABEL: train.labels[order]}
        if train.groups is not None:
            columns[GROUP] = np.asarray(train.groups)[order].astype(str)
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                dealing = self._make(clients, seed)
                dealing.dataset = import_module("datasets").Dataset.from_dict(columns)
                number = dealing.num_partitions
                parts = [np.sort(np.asarray(dealing.load_partition(i)["row"], dtype=np.int64)) for i in range(number)]
        except (ValueError, TypeError, IndexError) as error:  # what its partitioners raise for what cannot be done
            raise RequestError(f"data.partition: {self.partitioner} refuses: {' '.join(str(error).split())}") from error
        if clients and number != clients:
            raise RequestError(f"data.clients = {clients}, but {self.partitioner} deals to {number}; leave it out")
        kinds, test_kinds, notes = self._kinds(train, test)
        told = {" ".join(str(w.message).split()) for w in said if issubclass(w.category, UserWarning)}
        return Deal(parts, _alike(parts, kinds, test_kinds, rng), [*notes, *sorted(told)])

    def _make(self, clients: int, seed: int) -> Any:
        """Make the partitioner with the options that were given, and refuse those that it does not have."""
        try:
            kind = getattr(import_module("flwr_datasets.partitioner"), self.partitioner)
        except ModuleNotFoundError as error:
            raise RequestError(
                f'data.partition.kind = "flwr" needs {error.name}; get it with: pip install "fedstrata[hf]"'
            ) from None
        known = inspect.signature(kind).parameters
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "partitioner"}
        asked = {name: list(v) if isinstance(v, tuple) else v for name, v in given.items() if v is not None}
        if strange := sorted(set(asked) - set(known)):
            allowed = ", ".join(sorted(set(known) & set(given))) or "none"
            raise RequestError(f"data.partition.{strange[0]} is no option of {self.partitioner}; allowed: {allowed}")
        if "num_partitions" in known and not clients:
            raise RequestError(f"{self.partitioner} needs data.clients: among how many to deal the samples out")
        usual = {"num_partitions": clients, "seed": seed, "alpha": 0.5}
        usual["partition_by"] = GROUP if self.partitioner in BY_GROUP else LABEL  # type: ignore[assignment]
        needed = {name: value for name, value in usual.items() if name in known} | asked
        missing = [n for n, p in known.items() if p.default is inspect.Parameter.empty and n not in needed]
        if missing:
            raise RequestError(f"data.partition.{missing[0]} is required for {self.partitioner}")
        return kind(**needed)

    def _kinds(self, train: Labelled, test: Labelled) -> tuple[np.ndarray, np.ndarray, list[str]]:
        if self.partitioner not in BY_GROUP:
            return train.labels, test.labels, []
        _, kinds, test_kinds, notes = domains_of(train, test)
        return kinds, test_kinds, notes


def _alike(parts: list[np.ndarray], kinds: np.ndarray, test_kinds: np.ndarray, rng: Rng) -> list[np.ndarray]:
    """Deal the test samples of a kind to clients in proportion to how many training samples of it they have."""
    number = classes_of(Labelled(kinds), Labelled(test_kinds))
    held = np.stack([np.bincount(kinds[rows], minlength=number) for rows in parts], axis=1)
    there = np.bincount(test_kinds[test_kinds >= 0], minlength=number)
    shares = np.cumsum(held, axis=1) / np.maximum(held.sum(1, keepdims=True), 1)
    cuts = np.rint(shares * there[:, None]).astype(np.int64)
    known = held.sum(1) > 0  # of a kind that nobody trains on, nobody gets test samples
    order = shuffle(np.where(known[test_kinds] & (test_kinds >= 0), test_kinds, -1), rng)
    return deal_out(order, np.diff(cuts, axis=1, prepend=0))
