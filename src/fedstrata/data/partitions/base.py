"""Dealing samples out to clients: the base of every partition."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedstrata.core import registry
from fedstrata.core.contract import broken, describe, expect
from fedstrata.core.errors import RequestError
from fedstrata.core.part import Part
from fedstrata.core.rng import Rng


@dataclass(frozen=True)
class Labelled:
    """What a partition sees of samples.

    Attributes
    ----------
    labels
        Class index of each.
    groups
        Its domain, subject or writer, if it has one.
    """

    labels: np.ndarray
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Deal:
    """Who gets which samples. Samples in no array are left out.

    Attributes
    ----------
    train, test
        Positions of training and test samples, one array a client.
    notes
        What had to be done to fulfil the request; becomes an event.
    names
        Of the clients, where the data name them.
    """

    train: Sequence[np.ndarray]
    test: Sequence[np.ndarray]
    notes: Sequence[str] = ()
    names: Sequence[str] | None = None


class Partition(Part):
    """How samples are dealt out to clients. Always ends, accounts for every sample, refuses the impossible.

    Write `split`. `check_partition` checks it.

    Attributes
    ----------
    counts_clients
        True: it says itself how many clients there are, where none are asked for.
    needs_groups
        True: it deals by domain, subject or writer.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class InTurn(fedstrata.Partition):
    ...     '''Samples are dealt out like cards.'''
    ...
    ...     def split(self, train, test, clients, rng):
    ...         return fedstrata.Deal(
    ...             [np.arange(client, len(train), clients) for client in range(clients)],
    ...             [np.arange(client, len(test), clients) for client in range(clients)],
    ...         )
    >>> fedstrata.check_partition(InTurn())
    >>> x, y = np.zeros((50, 2)), np.arange(50) % 2
    >>> fedstrata.Federation.from_arrays(x, y, 4, partition=InTurn(), test=0.2).train_split.sizes
    array([10, 10, 10, 10])
    """

    counts_clients: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = False

    def deal(self, train: Labelled, test: Labelled, clients: int | None, rng: Rng) -> Deal:
        """Deal both sets out by the same rule, so that a client is tested on what it trains on.

        Parameters
        ----------
        train, test
            The samples, as `split` sees them.
        clients
            How many; None: as many as the partition finds.
        rng
            Of what is drawn.

        Returns
        -------
        Deal

        Raises
        ------
        RequestError
            If there are fewer samples than clients, or the partition needs a number or groups that are not there.
        """
        if clients is not None and clients < 1:
            raise RequestError(f"data.clients = {clients} must be at least 1")
        if clients is not None and clients > len(train):
            raise RequestError(f"data.clients = {clients} but there are only {len(train)} training samples")
        if clients is None and not self.counts_clients:
            raise RequestError(f"{self._key} needs data.clients: among how many to deal the samples out")
        if self.needs_groups and train.groups is None:
            raise RequestError(
                f"{self._key} deals by group, but the data has no groups (domains, subjects); choose another, such as "
                '"dirichlet-class"'
            )
        deal = expect(self, "split", self.split(train, test, clients or 0, rng), Deal, "Deal(train, test)")
        self._check_rows("train", deal.train, len(train), clients)
        self._check_rows("test", deal.test, len(test), len(deal.train))
        return deal

    @property
    def _key(self) -> str:
        """What asked for it, as an experiment says it."""
        return f'data.partition = "{registry.name_of("partitions", type(self))}"'

    def _check_rows(self, name: str, parts: Sequence[np.ndarray], samples: int, clients: int | None) -> None:
        """Refuse rows that are not there or were dealt twice: what is dealt out is not looked at again."""
        if clients not in (None, len(parts)):
            raise broken(self, "split", f"dealt {name} to {len(parts)} clients; allowed: {clients}, an array each")
        if not all(type(rows) is np.ndarray and rows.ndim == 1 and rows.dtype.kind in "iu" for rows in parts):
            for client, rows in enumerate(map(np.asarray, parts)):
                if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
                    allowed = f"a row of positions from 0 to {samples - 1}"
                    raise broken(self, "split", f"gave client {client} {describe(rows)} in {name}; allowed: {allowed}")
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.int64)
        if len(strange := rows[(rows < 0) | (rows >= samples)]):
            raise broken(self, "split", f"dealt position {strange[0]} of {name}; allowed: 0 to {samples - 1}")
        if len(rows) and np.bincount(rows).max() > 1:
            raise broken(self, "split", f"gave a sample of {name} that was dealt twice; it belongs to one client")

    @abstractmethod
    def split(self, train: Labelled, test: Labelled, clients: int, rng: Rng) -> Deal:
        """Deal the samples out.

        Parameters
        ----------
        train, test
            Class indices, and groups where there are any.
        clients
            How many, at most one a training sample; 0 where the partition counts them itself.
        rng
            A numpy generator.

        Returns
        -------
        Deal
        """
        raise NotImplementedError


def hold_out(rows: np.ndarray, labels: np.ndarray, fraction: float, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Split rows into train and test, the same fraction of every label."""
    if not 0.0 <= fraction < 1.0:
        raise RequestError(f"test = {fraction} must be a fraction from 0 to below 1")
    by_label = [rng.permutation(rows[labels[rows] == label]) for label in np.unique(labels[rows])]
    held = np.sort(np.concatenate([rows[:0], *(r[: round(fraction * len(r))] for r in by_label)]))
    return np.setdiff1d(rows, held), held
