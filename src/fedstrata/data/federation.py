"""Clients and their data, and what the server may know of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from numbers import Integral
from typing import Any

import numpy as np
import torch

from fedstrata.core.client_info import ClientInfo, GroundTruth
from fedstrata.core.client_parts import Client
from fedstrata.core.errors import RequestError
from fedstrata.core.index import Split
from fedstrata.core.inputs import Inputs
from fedstrata.core.rng import Streams
from fedstrata.data.drift import Drift, Moves, Stream
from fedstrata.data.noise import Noise
from fedstrata.data.partitions.base import Deal, Labelled, Partition, hold_out
from fedstrata.data.reading import Label, Samples, join_samples, read_dataset, read_samples


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
    bandwidths: np.ndarray | None = None  # bytes a second, without limit if unknown
    left_out: int = 0  # training samples that no client holds
    notes: tuple[str, ...] = ()  # what the partition had to do to fulfil the request
    inputs: Inputs = field(default_factory=Inputs)  # from stored samples to what a network sees
    moves: Moves | None = None  # how who holds what changes by round
    true_labels: np.ndarray | None = None  # class indices before label noise
    proxy: Samples | None = None  # training samples that the server holds
    codes: np.ndarray | None = None  # class index of each label where another order than the labels' own is used
    _now: tuple[int, Federation] | None = field(default=None, repr=False, compare=False)  # the round asked for last

    def __post_init__(self) -> None:
        if len(self.train_split) != len(self.test_split):
            raise RequestError("the train and test parts speak of different numbers of clients")
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

    def __repr__(self) -> str:
        held = len(self.train_split.rows)
        return f"Federation({self.name}: {len(self)} clients, {held} training samples, {len(self.classes)} classes)"

    @property
    def samples(self) -> int:
        """Training samples that clients hold."""
        return len(self.train_split.rows)

    @property
    def tests(self) -> int:
        """Test samples."""
        return len(self.test)

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
        traits = [None if t is None else t.tolist() for t in (self.speeds, self.bandwidths)]
        digest = sha256(repr((self.classes, traits, self.inputs, self.moves)).encode())
        for samples in (self.train, self.test, *([] if self.proxy is None else [self.proxy])):
            digest.update(samples.x.contiguous().numpy().data)
            digest.update(samples.y.contiguous().numpy().data)
            digest.update(repr(None if samples.groups is None else samples.groups.tolist()).encode())
        for split in (self.train_split, self.test_split):
            digest.update(split.rows.data)
            digest.update(split.starts.data)
        return digest.hexdigest()

    @property
    def identity(self) -> str:
        """What a checkpoint belongs to."""
        return self.fingerprint

    def with_noise(self, noises: Sequence[Noise], seed: int = 0) -> Federation:
        """Disturb what clients train on; the labels as they were stay in `true_labels`."""
        x, y = self.train.x.numpy(), self.labels
        if not noises:
            return self
        clients = [self.train_split[i] for i in range(len(self))]
        for place, noise in enumerate(noises):  # two of a kind must not draw the same numbers
            x, y = noise.apply(x, y, clients, len(self.classes), Streams(Streams(seed).torch_seed("noise", step=place)))
        train = replace(self.train, x=torch.from_numpy(x), y=torch.from_numpy(y))
        known = self.labels if self.true_labels is None else self.true_labels
        return replace(self, train=train, true_labels=known)

    def relabel(self, codes: np.ndarray) -> Federation:
        """Use other class indices: label i, in the present order, becomes `codes[i]`. All else stays as it is."""
        to = torch.from_numpy(codes)

        def coded(samples: Samples) -> Samples:
            return replace(samples, y=to[samples.y])

        return replace(
            self,
            train=coded(self.train),
            test=coded(self.test),
            proxy=None if self.proxy is None else coded(self.proxy),
            true_labels=None if self.true_labels is None else codes[self.true_labels],
            classes=tuple(self.classes[i] for i in np.argsort(codes)),
            codes=codes if self.codes is None else codes[self.codes],
        )

    def moving(self, drift: Drift | None = None, stream: Stream | None = None, seed: int = 0) -> Federation:
        """Let label mixes change and samples arrive over time."""
        return replace(self, moves=Moves(drift, stream, Streams(seed)) if drift or stream else None)

    def at(self, round: int) -> Federation:
        """Return the federation as it is in a round, counted from 0."""
        if self.moves is None:
            return self
        if self._now is None or self._now[0] != round:
            train, test = self.moves.splits(self.train_split, self.test_split, round)
            now = replace(self, train_split=train, test_split=test, moves=None, _now=None)
            object.__setattr__(self, "_now", (round, now))
        assert self._now is not None
        return self._now[1]

    def client(self, id: int) -> Client:
        """Return one client's view of itself."""
        start, stop = self.train_split.starts[id : id + 2]
        rows = self.train_split.rows[start:stop]
        speed = 1.0 if self.speeds is None else float(self.speeds[id])
        return Client(id, rows, self.labels[rows], len(self.classes), speed)

    def client_info(self, needs: frozenset[str], streams: Streams) -> ClientInfo:
        """Tell the server what its parts declared they need, and no more."""
        sizes = self.train_split.sizes
        return ClientInfo(
            clients=len(self),
            classes=len(self.classes),
            holders=np.flatnonzero(sizes),
            key=streams("tiebreak").permutation(len(self)),
            _known={
                "sizes": sizes if "sizes" in needs else None,
                "labels": self.counts > 0 if "labels" in needs else None,
                "totals": self.counts.sum(0) if "totals" in needs else None,
                "counts": self.counts if "counts" in needs else None,
                "speeds": (np.ones(len(self)) if self.speeds is None else self.speeds) if "speeds" in needs else None,
            },
            ground_truth=GroundTruth(self.train_split, self.labels, len(self.classes), self.speeds, self.bandwidths),
            later=None if self.moves is None else lambda round: self.at(round).client_info(needs, streams),
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
        inputs: Inputs | None = None,
        proxy: int = 0,
        seed: int = 0,
        name: str = "given",
    ) -> Federation:
        """Build from arrays or tensors.

        `clients` is a number, to be dealt out by `partition` (None: as many as it finds), the rows of each client, or
        one owner a sample. `test` is (x, y), (x, y, groups) or the fraction to hold out. A partition deals test samples
        out too; for other clients, `test_clients` gives each one's rows of `test`, and without it they have none of
        their own. `groups` names each sample's domain, subject or writer; `speeds` is a device capacity a client;
        `inputs` says how samples are normalised (uint8 is divided by 255 without it). `proxy` is a number of training
        samples that the server gets and no client holds, evenly over the labels.
        """
        if not isinstance(test, tuple | float | int):
            raise RequestError("test must be a tuple (x, y), (x, y, groups) or the fraction to hold out")
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

        train_rows, held = _for_server(proxy, train_rows, samples.y.numpy(), streams)
        if clients is None or isinstance(clients, int | Integral):
            deal = _dealt(partition, clients, samples.labelled(train_rows), test_samples.labelled(test_rows), streams)
            split, test_split = Split.of(deal.train).among(train_rows), Split.of(deal.test).among(test_rows)
            notes = tuple(deal.notes)
        else:
            own_test = test_samples is samples
            split, test_split = _held(clients, train_rows, len(samples), test_clients, test_rows, own_test)
            notes = ()
        if test_samples is samples:
            test_samples, test_split = _kept(samples, test_rows), test_split.numbered(test_rows)
        if not len(split.rows):
            raise RequestError("no client has any training samples")
        return cls(
            train=samples,
            test=test_samples,
            train_split=split,
            test_split=test_split,
            classes=classes,
            name=name,
            speeds=_speeds(speeds),
            left_out=len(train_rows) - len(split.rows),
            notes=notes,
            inputs=inputs or Inputs(scale=255.0 if samples.x.dtype == torch.uint8 else 1.0),
            proxy=_kept(samples, held) if len(held) else None,
        )

    @classmethod
    def from_dataset(cls, dataset: Any, clients: int | Sequence[Any] | None, **how: Any) -> Federation:
        """Build from a torch Dataset of (sample, label) pairs; the rest as in `from_arrays`."""
        return cls.from_arrays(*read_dataset(dataset), clients, **how)

    @classmethod
    def from_clients(cls, clients: Sequence[Any], *, test: Sequence[Any] | float = 0.2, seed: int = 0) -> Federation:
        """Build from one data set a client: a torch Dataset, or a pair (x, y)."""
        x, y, rows = join_samples(clients)
        if isinstance(test, float | int):
            return cls.from_arrays(x, y, rows, test=test, seed=seed)
        test_x, test_y, test_rows = join_samples(test)
        return cls.from_arrays(x, y, rows, test=(test_x, test_y), test_clients=test_rows)


def _dealt(partition: Any, clients: Any, train: Labelled, test: Labelled, streams: Streams) -> Deal:
    """Deal samples out by a partition; positions inside what it was shown."""
    if not isinstance(partition, Partition):
        raise RequestError(
            f"clients = {clients}, partition = {partition!r}: give a partition object, such as "
            'fedstrata.make_part("partitions", "iid"), to deal the samples out, or the rows of each client'
        )
    return partition.deal(train, test, None if clients is None else int(clients), streams("partition"))


def _held(
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


def _for_server(proxy: int, rows: np.ndarray, labels: np.ndarray, streams: Streams) -> tuple[np.ndarray, np.ndarray]:
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


def _kept(samples: Samples, kept: np.ndarray) -> Samples:
    """Make a set of its own of some rows."""
    rows = torch.from_numpy(kept)
    return Samples(samples.x[rows], samples.y[rows], None if samples.groups is None else samples.groups[kept])


def _given(clients: Any, samples: int) -> Split:
    """Take rows a client, or one client name a sample."""
    plain = isinstance(clients, np.ndarray) and clients.dtype != object  # no need to look at each of millions
    if not len(clients) or not (clients.ndim == 1 if plain else all(np.ndim(c) == 0 for c in clients)):
        return Split.of([_rows(rows) for rows in clients])
    flat = np.asarray(clients)
    if len(flat) != samples:
        raise RequestError(
            f"clients names {len(flat)} owners for {samples} samples; give rows a client, or one owner each"
        )
    owner = np.unique(flat, return_inverse=True)[1]
    return Split.sized(np.argsort(owner, kind="stable"), np.bincount(owner))


def _rows(rows: Any) -> np.ndarray:
    array = np.asarray(rows)
    if array.dtype == bool:
        return np.flatnonzero(array)
    if array.size and array.dtype.kind not in "iu":
        raise RequestError(f"a client's rows must be whole numbers or a mask, not {array.dtype}")
    return array.astype(np.int64)


def _speeds(speeds: Any) -> np.ndarray | None:
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
