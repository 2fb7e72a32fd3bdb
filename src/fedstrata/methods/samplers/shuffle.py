"""McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

With `batch = "capacity"`, batches as large as a device can take, as FedPBS (arXiv 2603.13909) asks for: B_q = min(n_q,
max(least, floor(B r_q))), where r_q is the device's speed. The paper gives no rule; this one is ours.

With `steps`, every client takes as many local steps, however many samples it has, as FedTAN (TNNLS 2023) and other
papers count them: its samples pass by again and again, each time in a new order, until enough batches are full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Literal

import numpy as np

from fedstrata.core.client_context import ClientContext
from fedstrata.core.client_parts import Order
from fedstrata.core.messages import Value
from fedstrata.core.options import Count
from fedstrata.core.sampler import Sampler


@dataclass(frozen=True)
class Shuffle(Sampler):
    """Every epoch passes over all samples in a new random order."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"

    batch: Literal["fixed", "capacity"] = "fixed"  # train.batch_size, or that times a device's speed
    least: Count = 8  # smallest batch that a slow device is given
    steps: Count | None = None  # so many local steps, whatever train.epochs says; None: whole epochs

    def width(self, batch_size: int, largest: int, fastest: float = 1.0) -> int:
        """Return the batch of the fastest device."""
        return min(largest, self._batch_size(batch_size, fastest))

    def plan(self, context: ClientContext) -> Order:
        """Shuffle what each epoch passes over; each epoch has a stream of its own."""
        size = self._batch_size(context.batch_size, context.client.speed)
        passes, metrics = self.passes(context)
        if self.steps is not None and len(passes[-1]):  # what is left to do goes on as the last epoch
            more = self.steps * size - sum(map(len, passes))
            passes = [*passes, *[passes[-1]] * ceil(max(more, 0) / len(passes[-1]))]
        shuffled = [
            positions[context.rng(f"epoch-{e}").permutation(len(positions))] for e, positions in enumerate(passes)
        ]
        if self.steps is not None:
            shuffled = [np.concatenate(shuffled)[: self.steps * size]]
        return Order(tuple(shuffled), size, metrics)

    def passes(self, context: ClientContext) -> tuple[Sequence[np.ndarray], Mapping[str, Value]]:
        """Return the positions of each epoch, in order, and what to report about them."""
        return [np.arange(context.client.samples)] * context.epochs, {}

    def _batch_size(self, nominal: int, speed: float) -> int:
        return nominal if self.batch == "fixed" else max(self.least, int(nominal * speed + 1e-9))
