"""The batches of a client update, and how they reach the device: a ring of them at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.client_parts import ClientContext, Order

RING = 64  # batches filled ahead of the step


@dataclass(frozen=True)
class Batches:
    """What is trained on: samples one after another, and how many of them each batch has."""

    rows: np.ndarray
    sizes: np.ndarray  # one a batch
    rates: np.ndarray  # likewise
    keys: np.ndarray | None = None  # one a sample, where the model or its inputs draw

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def starts(self) -> np.ndarray:
        """Say where each batch begins, and where the last one ends."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    def of_ring(self, start: int) -> Batches:
        """Return a ring of them."""
        end = min(start + RING, len(self))
        samples = slice(self.starts[start], self.starts[end])
        keys = None if self.keys is None else self.keys[samples]
        return Batches(self.rows[samples], self.sizes[start:end], self.rates[start:end], keys)


@dataclass(frozen=True)
class BatchPlan:
    """A client update whose batches are planned."""

    context: ClientContext
    order: Order
    batches: Batches


@dataclass(frozen=True)
class Ring:
    """Batches as the local step finds them: so many at a time, at their places in the trainer's buffers."""

    index: np.ndarray  # [clients, batches, width]
    weight: np.ndarray
    keys: np.ndarray
    rate: np.ndarray  # [clients, batches]

    @classmethod
    def of(cls, clients: Sequence[Batches], start: int, width: int) -> Ring:
        """Lay out every client's batches from a step on; what is left of a row has weight 0."""
        cut = [batches.of_ring(start) for batches in clients]
        rows, sizes, rates = (np.concatenate([getattr(b, name) for b in cut]) for name in ("rows", "sizes", "rates"))
        deep = max(map(len, cut))
        slot = np.concatenate([np.arange(i * deep, i * deep + len(b)) for i, b in enumerate(cut)])
        first, at = np.cumsum(sizes) - sizes, np.repeat(slot, sizes)
        place = np.arange(len(rows)) - np.repeat(first, sizes)
        index, weight, keys = (np.zeros((len(cut) * deep, width), dtype=t) for t in (np.int64, np.float64, np.int64))
        index[slot] = rows[first, None]  # padding repeats a sample: no stranger's may overflow
        index[at, place] = rows
        weight[at, place] = np.repeat(1.0 / sizes, sizes)
        own = [b.keys for b in cut if b.keys is not None]
        if own:
            keys[at, place] = np.concatenate(own)
        rate = np.zeros(len(cut) * deep)
        rate[slot] = rates
        shape = len(cut), deep, width
        return cls(index.reshape(shape), weight.reshape(shape), keys.reshape(shape), rate.reshape(shape[:2]))


def copy_to_device(values: np.ndarray, to: Tensor) -> None:
    """Copy from the host to a tensor; the host goes on at once."""
    host = torch.from_numpy(values)
    if not to.is_cuda:
        to.copy_(host)
        return
    pinned = torch.empty(host.shape, dtype=to.dtype, pin_memory=True)
    to.copy_(pinned.copy_(host), non_blocking=True)
