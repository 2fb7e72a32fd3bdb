"""Who holds which samples: dealt out by a partition, or read from rows of each client or one owner a sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.core.index import Split
from fedstrata.core.rng import Streams
from fedstrata.data.partitions.base import Deal, Labelled, Partition
from fedstrata.data.reading import Samples, is_missing


def deal_samples(partition: Any, clients: Any, train: Labelled, test: Labelled, streams: Streams) -> Deal:
    """Deal samples out by a partition; positions inside what it was shown."""
    if isinstance(partition, str):
        partition = {"kind": partition}
    if isinstance(partition, Mapping) and isinstance(partition.get("kind"), str):
        options = {key: value for key, value in partition.items() if key != "kind"}
        partition = registry.build("partitions", partition["kind"], options, "partition")
    if not isinstance(partition, Partition):
        raise RequestError(
            f"clients = {clients}, partition = {partition!r}: give a partition, such as "
            'partition="iid" or {"kind": "dirichlet-class", "alpha": 0.3}, or the rows of each client'
        )
    registry.check_object(partition, "partition")
    return partition.deal(train, test, None if clients is None else int(clients), streams("partition"))


def read_holders(
    clients: Any, train_rows: np.ndarray, samples: int, test_clients: Any, test_rows: np.ndarray, own_test: bool
) -> tuple[Split, Split]:
    """Read who holds which rows; with `own_test`, what was held out is tested by those who hold it."""
    given = _checked(_given(clients, samples), samples)
    train = given.only(_marked(train_rows, samples))
    if own_test:
        return train, given.only(_marked(test_rows, samples))
    if test_clients is None:
        return train, Split.nothing(len(given))
    return train, _checked(Split.of([_rows(rows) for rows in test_clients]), len(test_rows))


def _marked(rows: np.ndarray, samples: int) -> np.ndarray:
    marked = np.zeros(samples, dtype=bool)
    marked[rows] = True
    return marked


def take_for_server(
    proxy: int, rows: np.ndarray, labels: np.ndarray, streams: Streams
) -> tuple[np.ndarray, np.ndarray]:
    """Take samples for the server, as evenly over the labels as there are any."""
    if not proxy:
        return rows, rows[:0]
    if not 0 < proxy < len(rows):
        raise RequestError(
            f"data.proxy = {proxy}: there are {len(rows)} training samples, and clients need some of them"
        )
    order = streams("proxy").permutation(rows)
    rank = np.zeros(len(order), dtype=np.int64)  # of each sample among those of its label
    for label in np.unique(labels[order]):
        own = labels[order] == label
        rank[own] = np.arange(own.sum())
    held = np.sort(order[np.argsort(rank, kind="stable")[:proxy]])
    return np.setdiff1d(rows, held), held


def copy_rows(samples: Samples, kept: np.ndarray) -> Samples:
    """Make a set of its own of some rows."""
    rows = torch.from_numpy(kept)
    return Samples(samples.x[rows], samples.y[rows], None if samples.groups is None else samples.groups[kept])


def owner_names(clients: Any) -> tuple[str, ...] | None:
    """Return the names of clients that are given by name, or by an owner a sample; None: they have numbers only."""
    if isinstance(clients, Mapping):
        return tuple(map(str, clients))
    return tuple(map(str, np.unique(np.asarray(clients)).tolist())) if _one_owner_each(clients) else None


def _one_owner_each(clients: Any) -> bool:
    plain = isinstance(clients, np.ndarray) and clients.dtype != object  # no need to look at each of millions
    return len(clients) > 0 and (clients.ndim == 1 if plain else all(np.ndim(c) == 0 for c in clients))


def _given(clients: Any, samples: int) -> Split:
    """Take rows a client, or one client name a sample."""
    if isinstance(clients, Mapping):
        clients = list(clients.values())
    if not _one_owner_each(clients):
        return Split.of([_rows(rows) for rows in clients])
    flat = np.asarray(clients)
    if len(flat) != samples:
        raise RequestError(
            f"clients names {len(flat)} owners for {samples} samples; give rows a client, or one owner each"
        )
    missing = [i for i, owner in enumerate(flat.tolist()) if is_missing(owner)] if flat.dtype.kind in "fO" else []
    if missing:
        raise RequestError(f"{len(missing)} owners are missing, the first at row {missing[0]}; drop those rows")
    owner = np.unique(flat, return_inverse=True)[1]
    return Split.sized(np.argsort(owner, kind="stable"), np.bincount(owner))


def _rows(rows: Any) -> np.ndarray:
    array = np.asarray(rows)
    if array.dtype == bool:
        return np.flatnonzero(array)
    if array.size and array.dtype.kind not in "iu":
        raise RequestError(f"a client's rows must be whole numbers or a mask, not {array.dtype}")
    return array.astype(np.int64)


def read_speeds(speeds: Any) -> np.ndarray | None:
    """Read a device capacity a client."""
    try:
        return None if speeds is None else np.asarray(speeds, dtype=np.float64)
    except (TypeError, ValueError):
        raise RequestError("speeds must hold one number > 0 for each client") from None


def _checked(split: Split, samples: int) -> Split:
    rows = split.rows
    if (strange := rows[(rows < 0) | (rows >= samples)]).size:
        raise RequestError(f"a client names row {int(strange[0])}, but there are {samples} samples")
    if np.count_nonzero(_marked(rows, samples)) != len(rows):
        raise RequestError("the same row is listed twice; each sample belongs to one client")
    return split
