"""What is left of an epoch: entries still to come, and who may still be asked for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from fedstrata.methods.schedules.draws import Draws
from fedstrata.methods.schedules.supply import Supply


@dataclass
class Epoch:
    """One schedule in progress. An entry is over when its sample was trained on, or when its stratum was dropped."""

    number: int
    length: int
    strata: np.ndarray  # in the order of their places
    places: np.ndarray
    supply: Supply
    at: int = 0  # entries taken from the front
    now: float = 0.0  # place of the entry taken last
    again: list[tuple[float, int]] = field(default_factory=list)  # entries that came back: a heap of (place, stratum)
    over: int = 0
    batches: int = 0  # begun so far
    lost: int = 0  # samples of batches that were left out
    ahead: dict[int, dict[int, int]] = field(default_factory=dict)  # passes that clients began on their own, by stratum

    @property
    def left(self) -> int:
        """Entries that nobody has been asked for."""
        return self.length - self.at + len(self.again)

    def take(self, most: int) -> list[int]:
        """Take the next entries."""
        if not self.again:  # the usual case: a slice
            taken = self.strata[self.at : self.at + most].tolist()
            self.at += len(taken)
            if taken:
                self.now = float(self.places[self.at - 1])
            return taken  # type: ignore[no-any-return]
        taken, ahead = [], slice(self.at, self.at + most)
        front, again = zip(self.places[ahead].tolist(), self.strata[ahead].tolist(), strict=True), self.again
        first = next(front, None)
        while len(taken) < most and (first or again):
            if first is None or (again and again[0] < first):
                self.now, stratum = heappop(again)
            else:
                (self.now, stratum), first = first, next(front, None)
                self.at += 1
            taken.append(stratum)
        return taken

    def skip(self, entries: int) -> None:
        """Take the next entries, of which none came back."""
        self.at += entries
        self.now = float(self.places[self.at - 1])

    def put_back(self, stratum: int, draws: Draws) -> None:
        """Queue an entry again, at a random position among those still to come."""
        heappush(self.again, (self.now + (1.0 - self.now) * draws.uniform(), stratum))
