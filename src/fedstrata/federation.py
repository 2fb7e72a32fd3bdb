"""Clients and their data, and what the server may know of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from numbers import Integral
from typing import Any

import numpy as np
import torch

from fedstrata.clientside import Client
from fedstrata.errors import RequestError
from fedstrata.intake import Label, Samples, joined, read_dataset, read_samples
from fedstrata.partition import Partition, hold_out
from fedstrata.rng import Streams


@dataclass(frozen=True)
class Split:
    """Which rows belong to which client: client i owns rows[starts[i]:starts[i + 1]]."""

    rows: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[np.ndarray]) -> Split:
        """Join one array of rows a client."""
        starts = np.concatenate([[0], np.cumsum([len(p) for p in parts])]).astype(np.int64)
        rows = np.concatenate([np.sort(p) for p in parts]) if len(parts) else np.zeros(0)
        return cls(rows.astype(np.int64), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, client: int) -> np.ndarray:
        return self.rows[self.starts[client] : self.starts[client + 1]]

    @property
    def sizes(self) -> np.ndarray:
        """Samples of every client."""
        return np.diff(self.starts)

    def counts(self, labels: np.ndarray, classes: int) -> np.ndarray:
        """Give the label counts of every client, [N, C]."""
        owner = np.repeat(np.arange(len(self)), self.sizes)
        flat = np.bincount(owner * classes + labels[self.rows], minlength=len(self) * classes)
        return flat.reshape(len(self), classes)


@dataclass(frozen=True)
class Federation:
    """All clients: data by index into shared arrays, never a copy a client.

    Make one with `from_arrays` (rows per client, or a partition) or `from_clients` (one data set a client).
    """

    train: Samples
    test: Samples
    train_split: Split
    test_split: Split
    classes: tuple[Label, ...]  # the user's own labels, by class index
    name: str = "given"
    speeds: np.ndarray | None = None  # relative device capacity, 1 if unknown
    left_out: int = 0  # training samples that no client holds
    notes: tuple[str, ...] = ()  # what the partition had to do to fulfil the request

    def __post_init__(self) -> None:
        if len(self.train_split) != len(self.test_split):
            raise RequestError("the train and test parts speak of different numbers of clients")
        if not len(self.train_split.rows):
            raise RequestError("no client has any training samples")
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            shapes = f"{tuple(self.train.x.shape[1:])} and {tuple(self.test.x.shape[1:])}"
            raise RequestError(f"training and test samples have different shapes: {shapes}")
        if self.speeds is not None and not (
            self.speeds.shape == (len(self),) and np.isfinite(self.speeds).all() and (self.speeds > 0).all()
        ):
            raise RequestError(f"speeds must hold one number > 0 for each of the {len(self)} clients")
        if len(self.classes) < 2:
            raise RequestError(f"the data has {len(self.classes)} class; at least 2 are needed")

    def __len__(self) -> int:
        return len(self.train_split)

    @cached_property
    def labels(self) -> np.ndarray:
        """Class index of every training sample."""
        return self.train.y.numpy()

    @cached_property
    def counts(self) -> np.ndarray:
        """Label counts of every client, [N, C]."""
        return self.train_split.counts(self.labels, len(self.classes))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the data, of who holds what, and of what is known of them."""
        digest = sha256(repr((self.classes, None if self.speeds is None else self.speeds.tolist())).encode())
        for samples in (self.train, self.test):
            digest.update(samples.x.contiguous().numpy().data)
            digest.update(samples.y.contiguous().numpy().data)
            digest.update(repr(None if samples.groups is None else samples.groups.tolist()).encode())
        for split in (self.train_split, self.test_split):
            digest.update(split.rows.data)
            digest.update(split.starts.data)
        return digest.hexdigest()

    def client(self, id: int) -> Client:
        """Give one client's view of itself."""
        rows = self.train_split[id]
        speed = 1.0 if self.speeds is None else float(self.speeds[id])
        return Client(id, rows, self.labels[rows], len(self.classes), speed)

    def roster(self, needs: frozenset[str], streams: Streams) -> Roster:
        """Tell the server what its parts declared they need, and no more."""
        sizes = self.train_split.sizes
        return Roster(
            clients=len(self),
            classes=len(self.classes),
            holders=np.flatnonzero(sizes),
            key=streams("tiebreak").permutation(len(self)),
            _known={
                "sizes": sizes if "sizes" in needs else None,
                "counts": self.counts if "counts" in needs else None,
                "speeds": (np.ones(len(self)) if self.speeds is None else self.speeds) if "speeds" in needs else None,
            },
        )

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        clients: int | Sequence[Any] | None,
        *,
        partition: Partition | None = None,
        test: tuple[Any, ...] | float = 0.2,
        test_clients: Sequence[Any] | None = None,
        groups: Any = None,
        speeds: Any = None,
        seed: int = 0,
        name: str = "given",
    ) -> Federation:
        """Build from arrays or tensors.

        `clients` is a number, to be dealt out by `partition` (None: as many as it finds), or the rows of each client.
        `test` is (x, y),
        (x, y, groups) or the fraction to hold out. A partition deals test samples out too; for clients given
        by rows, `test_clients` gives each one's rows of `test`, and without it they have no test data of their
        own. `groups` names each sample's domain, subject or writer; `speeds` is a device capacity a client.
        """
        samples, classes = read_samples(x, y, groups)
        if not len(samples):
            raise RequestError("there are no samples")
        streams = Streams(seed)
        if isinstance(test, tuple):
            test_samples, _ = read_samples(*test, classes=classes)
            train_rows, test_rows = np.arange(len(samples)), np.arange(len(test_samples))
        else:
            test_samples, codes = samples, samples.y.numpy()
            train_rows, test_rows = hold_out(np.arange(len(codes)), codes, test, streams("hold-out"))

        notes: tuple[str, ...] = ()
        if clients is None or isinstance(clients, int | Integral):
            if partition is None:
                raise RequestError(f"clients = {clients}: say with `partition` how to deal the samples out")
            count = None if clients is None else int(clients)
            both = samples.labelled(train_rows), test_samples.labelled(test_rows)
            deal = partition.deal(*both, count, streams("partition"))
            notes = tuple(deal.notes)
            parts, test_parts = [train_rows[p] for p in deal.train], [test_rows[p] for p in deal.test]
        else:
            given = [_rows(rows) for rows in clients]
            parts = [rows[np.isin(rows, train_rows)] for rows in given]
            if not isinstance(test, tuple):
                test_parts = [rows[np.isin(rows, test_rows)] for rows in given]
            else:
                of_clients: Sequence[Any] = [[]] * len(parts) if test_clients is None else test_clients
                test_parts = [_rows(rows) for rows in of_clients]
            _check_rows(given, len(samples))
            _check_rows(test_parts, len(test_samples))
        if test_samples is samples:
            test_samples, test_parts = _kept(samples, test_rows, test_parts)
        left_out = len(train_rows) - sum(map(len, parts))
        return cls(
            samples,
            test_samples,
            Split.of(parts),
            Split.of(test_parts),
            classes,
            name,
            _speeds(speeds),
            left_out,
            notes,
        )

    @classmethod
    def from_dataset(cls, dataset: Any, clients: int | Sequence[Any] | None, **how: Any) -> Federation:
        """Build from a torch Dataset of (sample, label) pairs; the rest as in `from_arrays`."""
        return cls.from_arrays(*read_dataset(dataset), clients, **how)

    @classmethod
    def from_clients(cls, clients: Sequence[Any], *, test: Sequence[Any] | float = 0.2, seed: int = 0) -> Federation:
        """Build from one data set a client: a torch Dataset, or a pair (x, y)."""
        x, y, rows = joined(clients)
        if isinstance(test, float | int):
            return cls.from_arrays(x, y, rows, test=test, seed=seed)
        test_x, test_y, test_rows = joined(test)
        return cls.from_arrays(x, y, rows, test=(test_x, test_y), test_clients=test_rows)


@dataclass(frozen=True)
class Roster:
    """What the server knows of its clients. Fields a part did not declare in `needs` cannot be read."""

    clients: int
    classes: int
    holders: np.ndarray  # ids of clients with data
    key: np.ndarray  # seeded tie-break
    _known: dict[str, np.ndarray | None] = field(default_factory=dict)

    @property
    def sizes(self) -> np.ndarray:
        """Training samples of every client."""
        return self._get("sizes")

    @property
    def counts(self) -> np.ndarray:
        """Label counts of every client, [N, C]."""
        return self._get("counts")

    @property
    def speeds(self) -> np.ndarray:
        """Relative device capacity of every client."""
        return self._get("speeds")

    @property
    def setup_bytes(self) -> int:
        """What it cost the clients to tell: 4 bytes a label count, 8 a size or speed."""
        return sum(a.size * (4 if name == "counts" else 8) for name, a in self._known.items() if a is not None)

    def _get(self, name: str) -> np.ndarray:
        value = self._known.get(name)
        if value is None:
            raise RequestError(f'a part reads roster.{name} without declaring it: add "{name}" to its `needs`')
        return value


def _kept(samples: Samples, kept: np.ndarray, test_parts: Sequence[np.ndarray]) -> tuple[Samples, list[np.ndarray]]:
    """Make a test set of the held-out rows; rows are numbered anew inside it."""
    rows = torch.from_numpy(kept)
    groups = None if samples.groups is None else samples.groups[kept]
    return Samples(samples.x[rows], samples.y[rows], groups), [np.searchsorted(kept, r) for r in test_parts]


def _rows(rows: Any) -> np.ndarray:
    array = np.asarray(rows)
    return np.flatnonzero(array) if array.dtype == bool else array.astype(np.int64)


def _speeds(speeds: Any) -> np.ndarray | None:
    try:
        return None if speeds is None else np.asarray(speeds, dtype=np.float64)
    except (TypeError, ValueError):
        raise RequestError("speeds must hold one number > 0 for each client") from None


def _check_rows(parts: Sequence[np.ndarray], samples: int) -> None:
    rows = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    if (strange := rows[(rows < 0) | (rows >= samples)]).size:
        raise RequestError(f"a client names row {int(strange[0])}, but there are {samples} samples")
    if len(np.unique(rows)) != len(rows):
        raise RequestError("the same row is listed twice; each sample belongs to one client")
