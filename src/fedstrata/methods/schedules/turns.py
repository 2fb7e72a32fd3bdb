"""Whose turn it is to give a sample of a stratum, where the server knows how many samples everybody holds.

Every client has a part of a line, as long as its count; a turn is a place on the line. Counts only shrink, while the
line stays as it was: a place that is no longer its client's is passed over. When less than half of the line counts, it
is made anew. So a turn takes two tries at most, on average, however many clients there are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate, count, islice
from math import gcd

from fedstrata.methods.schedules.draws import Draws

GOLDEN = 0.6180339887498949
CANDIDATES = 16  # that are looked at, from the golden section outwards


class Turns:
    """Clients drawn at random: by what they hold, or, if a turn taken is not put back, by what they have left."""

    def __init__(self, counts: Mapping[int, int], draws: Draws, put_back: bool = False):
        self._left, self._draws, self._put_back = dict(counts), draws, put_back
        self._make_line()

    def next(self) -> int | None:
        """Return a client; None: nobody has anything left."""
        while self._total:
            if 2 * self._total < self._ends[-1]:
                self._make_line()
            place = self._next_place()
            nth = bisect_right(self._ends, place)
            client = self._clients[nth]
            if self._is_left(client, self._ends[nth] - place):
                if not self._put_back:
                    self._change(client, -1)
                return client
        return None

    def give_back(self, client: int) -> None:
        """Take back a turn that was not used."""
        if not self._put_back and client in self._left:
            self._change(client, 1)
            self._make_line()

    def leave(self, client: int) -> None:
        """Leave a client out from now on."""
        self._total -= self._left.pop(client, 0)

    def _next_place(self) -> float:
        return self._draws.uniform() * self._ends[-1]

    def _is_left(self, client: int, before_end: float) -> bool:
        """Say whether a place, so far before the end of a client's part, is still its own."""
        return before_end <= self._left.get(client, 0)

    def _change(self, client: int, by: int) -> None:
        self._left[client] += by
        self._total += by

    def _make_line(self) -> None:
        self._clients, self._ends = list(self._left), list(accumulate(self._left.values()))
        self._total = self._ends[-1]


class SpreadTurns(Turns):
    """Clients in turns as even as can be: systematic sampling.

    From a random start, every place of the line is visited once, in golden steps: each client, and each group of
    neighbours, has its share of every stretch to within a few turns, and a single turn has the chances of a draw.
    """

    def _make_line(self) -> None:
        super()._make_line()
        places = max(self._total, 1)
        self._step = golden_step(places)
        self._place = int(self._draws.uniform() * places)

    def _next_place(self) -> float:
        self._place = (self._place + self._step) % self._ends[-1]
        return self._place

    def _is_left(self, client: int, before_end: float) -> bool:
        return client in self._left


def golden_step(places: int) -> int:
    """Return a step that visits every place of a circle, and leaves no large gap wherever one stops.

    Of the golden section that is known; of the whole numbers next to it, those are good that, divided by the number of
    places, have small quotients throughout Euclid's algorithm.
    """
    middle = round(places * GOLDEN)
    around = (step for away in count() for step in (middle - away, middle + away))
    near = islice((step for step in around if step > 0 and gcd(step, places) == 1), CANDIDATES)
    return min(near, key=lambda step: max(_quotients(places, step)))


def _quotients(a: int, b: int) -> list[int]:
    quotients = []
    while b:
        quotients.append(a // b)
        a, b = b, a % b
    return quotients
