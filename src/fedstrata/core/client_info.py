"""What the server may know of its clients: only what its parts declared they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from fedstrata.core.contract import calling_part
from fedstrata.core.errors import RequestError, UnknownFieldError
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.index import Split
from fedstrata.core.rng import Streams

ALWAYS = ("clients", "classes", "holders", "key")  # what every part may read
TOLD = ("sizes", "labels", "totals", "counts", "speeds", "proxy")  # what a part may name in `needs`


@dataclass(frozen=True)
class GroundTruth:
    """What is true of clients that live on this machine, whether or not the server may know it."""

    samples: Split
    labels: np.ndarray  # of every training sample
    classes: int
    speeds: np.ndarray | None = None  # relative device capacity; None: all alike
    bandwidths: np.ndarray | None = None  # bytes a second; None: without limit

    @cached_property
    def stock(self) -> np.ndarray:
        """Label counts of every client, [N, C]."""
        return self.samples.counts(self.labels, self.classes)

    @cached_property
    def mix(self) -> np.ndarray:
        """Share of each label over all clients."""
        counts = np.bincount(self.labels[self.samples.rows], minlength=self.classes)
        mix: np.ndarray = counts / max(counts.sum(), 1)
        return mix

    def counts(self, clients: Sequence[int]) -> np.ndarray:
        """Label counts of some clients together, [C], at the cost of their own samples only."""
        own = [self.labels[self.samples[client]] for client in clients]
        return np.bincount(np.concatenate(own), minlength=self.classes) if own else np.zeros(self.classes)


def label_facts(counts: Callable[[], np.ndarray]) -> dict[str, Callable[[], np.ndarray]]:
    """Return what can be told of labels from the label counts of every client, [N, C]."""
    return {"labels": lambda: counts() > 0, "totals": lambda: counts().sum(0), "counts": counts}


@dataclass(frozen=True)
class ClientInfo:
    """What the server knows of its clients: `view.client_info`.

    `sizes`, `labels`, `totals`, `counts` and `speeds` can be read by parts that declare them in `needs`; clients are
    charged for telling.

    Attributes
    ----------
    clients
        How many there are; ids go from 0.
    classes
        How many labels there are.
    holders
        Ids of clients with data.
    key
        A seeded order of the clients, to break ties by.
    known
        What was told, by name; None: it was not.
    ground_truth
        What is true of clients that live here; for engines and devices, not for methods.
    later
        Where data move: what is known in a round.
    proxy
        A model's loss on samples that the server holds; None where `data.proxy` is 0 or no part needs "proxy".
    setup
        Bytes it took to tell, where that was not done in plain numbers.
    features
        Bytes it took to tell sums of features beside, for means and deviations over all clients.
    clusters
        Of every client, found without label counts being told; -1: it has no data.
    """

    clients: int
    classes: int
    holders: np.ndarray
    key: np.ndarray
    known: Mapping[str, np.ndarray | None] = field(default_factory=dict)
    ground_truth: GroundTruth | None = None
    later: Callable[[int], ClientInfo] | None = None
    proxy: Callable[[FlatModel], float] | None = None
    setup: int | None = None
    features: int = 0
    clusters: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        sizes: np.ndarray,
        classes: int,
        facts: Mapping[str, Callable[[], np.ndarray]],
        needs: frozenset[str],
        streams: Streams,
    ) -> ClientInfo:
        """Tell what parts need of the facts, and no more; `sizes` only says who has data.

        Parameters
        ----------
        sizes
            Training samples of every client.
        classes
            How many labels there are.
        facts
            What could be told, by name; each is called only where it is needed.
        needs
            What parts declared they need.
        streams
            Random streams of the run, for the tie-break.

        Returns
        -------
        ClientInfo
        """
        clients = len(sizes)
        known = {name: fact() if name in needs else None for name, fact in facts.items()}
        return cls(clients, classes, np.flatnonzero(sizes), streams("tiebreak").permutation(clients), known)

    def at(self, round: int) -> ClientInfo:
        """Return what is known in a round.

        Parameters
        ----------
        round
            Counted from 0.

        Returns
        -------
        ClientInfo
        """
        return self if self.later is None else replace(self.later(round), proxy=self.proxy, clusters=self.clusters)

    @property
    def told(self) -> frozenset[str]:
        """What the clients told: names of the fields that can be read."""
        return frozenset(name for name, value in self.known.items() if value is not None)

    @property
    def sizes(self) -> np.ndarray:
        """Training samples of every client."""
        return self._get("sizes")

    @property
    def labels(self) -> np.ndarray:
        """Which labels each client holds, [N, C]."""
        return self._get("labels")

    @property
    def totals(self) -> np.ndarray:
        """How many samples of each label all clients hold together, [C]."""
        return self._get("totals")

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
        """What it cost the clients to tell: 4 bytes a label held or a label count, 8 a size, a speed or a sum."""
        if self.setup is not None:
            return self.setup + self.features
        told = {name: a.size for name, a in self.known.items() if a is not None}
        if "labels" in told:
            told["labels"] = int(self.labels.sum())
        if "totals" in told:
            told["totals"] *= self.clients  # everybody's counts, though only their sum is read
        each = {name: 4 if name in ("labels", "totals", "counts") else 8 for name in told}
        return self.features + sum(numbers * each[name] for name, numbers in told.items())

    def without_ground_truth(self) -> ClientInfo:
        """Return the same for clients that live elsewhere: nobody can answer in their place.

        Returns
        -------
        ClientInfo
        """
        later = self.later
        return replace(
            self, ground_truth=None, later=None if later is None else lambda round: later(round).without_ground_truth()
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say what there is, where a part reads what is not there."""
            if name.startswith("_"):  # what copying and pickling look for
                raise AttributeError(name)
            raise UnknownFieldError(
                f"{calling_part()} reads client_info.{name}, which is not there; there are {', '.join(ALWAYS)}, and, "
                f"where its `needs` names them, {', '.join(TOLD)} (sizes: training samples, counts: those of a label)"
            )

    def _get(self, name: str) -> np.ndarray:
        value = self.known.get(name)
        if value is None:
            raise RequestError(
                f'{calling_part()} reads client_info.{name} without declaring it: add "{name}" to its `needs`'
            )
        return value
