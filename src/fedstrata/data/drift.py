"""Data that move: label mixes that change, samples that arrive over time. Both are pure functions of the round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedstrata.core.index import Split
from fedstrata.core.options import Count, Fraction, Natural
from fedstrata.core.rng import Streams


@dataclass(frozen=True)
class Drift:
    """At each given round, a share of the clients pass their samples on among themselves: their label mixes change.

    No sample is lost, and a client's test data go with its training data.

    Attributes
    ----------
    at
        Rounds, counted from 1, before which the change happens.
    share
        Of the clients, each time.

    Examples
    --------
    >>> from fedstrata import Drift
    >>> Drift(at=(20, 40), share=0.3)
    Drift(at=(20, 40), share=0.3)
    """

    at: tuple[Count, ...] = ()
    share: Fraction = 0.5

    def holders(self, clients: int, round: int, streams: Streams) -> np.ndarray:
        """Say whose first samples each client holds in a round.

        Parameters
        ----------
        clients
            How many there are.
        round
            Counted from 0.
        streams
            Of what is drawn.

        Returns
        -------
        numpy.ndarray
            A client for each client.
        """
        held = np.arange(clients)
        for when in sorted(self.at):
            if when - 1 <= round:
                rng = streams("drift", round=when)
                moved = rng.choice(clients, int(self.share * clients + 1e-9), replace=False)
                held[moved] = held[np.roll(moved, 1)]
        return held


@dataclass(frozen=True)
class Stream:
    """A client's samples arrive over time: a share at the start, the rest evenly until a round; old ones may expire.

    Attributes
    ----------
    start
        Share that is there at the start.
    until
        The round, counted from 1, by which everything has arrived.
    window
        Rounds after which a sample expires; 0: never.

    Examples
    --------
    >>> import numpy as np
    >>> from fedstrata import Federation, Stream
    >>> x, y = np.zeros((100, 2)), np.arange(100) % 2
    >>> still = Federation.from_arrays(x, y, [range(50), range(50, 100)], test=0.0)
    >>> moving = still.moving(stream=Stream(start=0.5, until=10))
    >>> moving.at(0).samples < moving.at(9).samples == still.samples
    True
    """

    start: Fraction = 0.2
    until: Count = 50
    window: Natural = 0

    def arrivals(self, samples: int, streams: Streams) -> np.ndarray:
        """Return the round in which each sample of the shared arrays arrives.

        Parameters
        ----------
        samples
            How many there are.
        streams
            Of what is drawn.

        Returns
        -------
        numpy.ndarray
            Rounds, counted from 0.
        """
        order = streams("stream").random(samples)  # a place in time, the same whoever holds the sample
        late = (order - self.start) / max(1 - self.start, 1e-12)
        return np.where(order < self.start, 0, np.ceil(late * (self.until - 1))).astype(np.int64)

    def present(self, arrivals: np.ndarray, round: int) -> np.ndarray:
        """Say which samples are there in a round.

        Parameters
        ----------
        arrivals
            As `arrivals` gives them.
        round
            Counted from 0.

        Returns
        -------
        numpy.ndarray
            True for those that are there.
        """
        here = arrivals <= round
        return here & (arrivals > round - self.window) if self.window else here


@dataclass(frozen=True)
class Moves:
    """All movement of a federation."""

    drift: Drift | None
    stream: Stream | None
    streams: Streams

    def splits(self, train: Split, test: Split, round: int) -> tuple[Split, Split]:
        """Say who holds what in a round."""
        if self.drift is not None:
            held = self.drift.holders(len(train), round, self.streams)
            train, test = train.reorder(held), test.reorder(held)
        if self.stream is not None:
            arrivals = self.stream.arrivals(int(train.rows.max(initial=-1)) + 1, self.streams)
            train = train.only(self.stream.present(arrivals, round))
        return train, test
