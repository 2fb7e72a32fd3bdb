"""The batches of a visit, and how they reach the device: a ring of them at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedstrata.clientside import Order, Visit

RING = 64  # batches filled ahead of the step


@dataclass(frozen=True)
class Ring:
    """Batches as the local step finds them: so many at a time, at their places in the lane's buffers."""

    index: np.ndarray  # [RING, width]
    weight: np.ndarray
    keys: np.ndarray
    rate: np.ndarray
    sizes: np.ndarray  # of the batches that are there

    @classmethod
    def of(cls, batches: Sequence[np.ndarray], rates: np.ndarray, keys: np.ndarray | None, width: int) -> Ring:
        """Lay batches out; what is left of a row has weight 0."""
        sizes = np.array([len(rows) for rows in batches], dtype=np.int64)
        slot = np.repeat(np.arange(len(sizes)), sizes)
        place = np.arange(len(slot)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        index, weight, own = (np.zeros((RING, width), dtype=t) for t in (np.int64, np.float64, np.int64))
        index[: len(batches)] = [[rows[0]] for rows in batches]  # padding repeats a sample: no stranger's may overflow
        index[slot, place] = np.concatenate(batches)
        weight[slot, place] = 1.0 / sizes[slot]
        if keys is not None:
            own[slot, place] = keys[: len(slot)]
        rate = np.zeros(RING)
        rate[: len(rates)] = rates
        return cls(index, weight, own, rate, sizes)


@dataclass(frozen=True)
class Course:
    """A visit whose batches are planned."""

    visit: Visit
    order: Order
    batches: Sequence[np.ndarray]  # rows
    rates: np.ndarray
    keys: np.ndarray  # one a sample

    def ring(self, start: int, width: int, draws: bool) -> Ring:
        """Give the batches from a step on."""
        keys = self.keys[sum(map(len, self.batches[:start])) :] if draws else None
        return Ring.of(self.batches[start : start + RING], self.rates[start : start + RING], keys, width)
