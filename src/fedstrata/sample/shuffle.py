"""McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstrata.clientside import Order, Sampler, Visit


@dataclass(frozen=True)
class Shuffle(Sampler):
    """Every epoch passes over all samples in a new random order."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"

    def plan(self, visit: Visit) -> Order:
        """Shuffle; each epoch has a stream of its own."""
        n = visit.client.samples
        return Order(tuple(visit.rng(f"epoch-{e}").permutation(n) for e in range(visit.epochs)), visit.batch_size)
