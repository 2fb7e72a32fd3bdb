"""Whose turn it is to give a sample of a stratum, where the server knows how many samples everybody holds.

Both kinds of turns take constant or logarithmic time a client, however many hold the stratum.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from heapq import heapify, heappop, heapreplace
from itertools import accumulate

from fedstrata.methods.schedules.draws import Draws


class ByCount:
    """Clients drawn with chances as what they hold, or as what they have left.

    A client is found by the sums of an earlier time, and counts only if the number falls into what is left of its
    part. When less than half of all is left, the sums are made anew: two tries a draw on average, and no search.
    """

    def __init__(self, counts: Mapping[int, int], draws: Draws, put_back: bool):
        self._left, self._draws, self._put_back = dict(counts), draws, put_back
        self._total = sum(counts.values())
        self._add_up()

    def next(self) -> int | None:
        """Return a client; None: nobody has anything left."""
        while self._total:
            if 2 * self._total < self._sums[-1] or not self._sums[-1]:
                self._add_up()
            place = self._draws.uniform() * self._sums[-1]
            nth = bisect_right(self._sums, place)
            client = self._clients[nth]
            if self._sums[nth] - place <= self._left.get(client, 0):
                if not self._put_back:
                    self._add(client, -1)
                return client
        return None

    def give_back(self, client: int) -> None:
        """Take back a turn that was not used."""
        if not self._put_back and client in self._left:
            self._add(client, 1)
            self._sums = [0]  # it may have more now than its part is long

    def leave(self, client: int) -> None:
        """Leave a client out from now on."""
        self._total -= self._left.pop(client, 0)

    def _add(self, client: int, samples: int) -> None:
        self._left[client] += samples
        self._total += samples

    def _add_up(self) -> None:
        self._clients, self._sums = list(self._left), list(accumulate(self._left.values()))


class Spread:
    """Clients in turns as even as can be: every stretch has each of them as often as its share says.

    This is systematic sampling: the n turns of a client lie 1/n apart, the first one anywhere in the first interval.
    """

    def __init__(self, counts: Mapping[int, int], draws: Draws):
        first = draws.uniforms(len(counts))
        self._places = [
            (chance / count, 1.0 / count, client)
            for (client, count), chance in zip(counts.items(), first, strict=True)
            if count
        ]
        heapify(self._places)
        self._gone: set[int] = set()

    def next(self) -> int | None:
        """Return a client; None: everybody had all turns."""
        while self._places:
            place, step, client = self._places[0]
            if client in self._gone:
                heappop(self._places)
            elif place + step < 1:
                heapreplace(self._places, (place + step, step, client))
                return client
            else:
                heappop(self._places)
                return client
        return None

    def give_back(self, client: int) -> None:
        """Leave it at that: a turn that was not used is made up for when all turns are over."""

    def leave(self, client: int) -> None:
        """Leave a client out from now on."""
        self._gone.add(client)
