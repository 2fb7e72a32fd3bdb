"""Stratified batches whose samples no server deals out: every holder draws lots for how many it gives.

For a batch with f_p entries of stratum p, a client with n_k(p) of the N(p) samples draws Binomial(f_p, n_k(p) / N(p)):
weighted choice by counts that only the client itself knows. It sends one gradient whether it drew many samples or none.
Under masked sums the server so learns the gradient of the batch, and of who gave what nothing but what the label
protocol told it before: who holds which placeholder, and the totals N(p).

Samples are given as if with replacement, so nobody runs out and nobody refuses. A batch has f_p samples of stratum p on
average; dividing by the number that was asked for, not drawn, keeps the gradient's expectation exact and the number
unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedstrata.core.client_context import ClientContext, Done, Program
from fedstrata.core.client_parts import Order
from fedstrata.core.rng import PRIVATE
from fedstrata.core.sampler import Sampler
from fedstrata.methods.schedules.epoch import Epoch
from fedstrata.methods.schedules.supply import Pools


@dataclass(frozen=True)
class DrawLots:
    """Ask clients to draw lots for a batch, and to give the gradient of what they drew; somebody may be missing."""

    clients: tuple[int, ...]
    strata: tuple[int, ...]
    entries: tuple[int, ...]  # of each stratum


def lots(
    epoch: Epoch, pools: Pools, until: int, size: int, fewest: int = 1
) -> Generator[DrawLots, Collection[int], None]:
    """Go through an epoch until so many entries are over; the answer to a move is who was there."""
    while epoch.over < until and epoch.left:
        entries = epoch.take(min(size, until - epoch.over))
        epoch.batches += 1
        epoch.over += len(entries)
        f = Counter(stratum for stratum in entries if pools.ready(stratum))
        clients = _holders(f, pools)
        for stratum in _others(epoch, pools) if 0 < len(clients) < fewest else ():
            # The server knows who holds what: with too few holders, the sum would show what they gave.
            if not clients.issuperset(pools.supply.available[stratum]):
                f[stratum] += 1
                clients = _holders(f, pools)
            if len(clients) >= fewest:
                break
        if not clients:
            continue
        if len(clients) < fewest:
            why = f"fewer than {fewest} clients are left, and a sum over them shows what one of them sent"
            pools.note("batch_left_out", samples=f.total(), why=why)
            epoch.lost += f.total()
            continue
        there = yield DrawLots(tuple(sorted(clients)), tuple(f), tuple(f.values()))
        if fewest > 1 and not there:  # under masks one that goes missing can spoil the sum of all
            pools.note("batch_left_out", samples=f.total(), why="what its clients sent could not be summed")
            epoch.lost += f.total()
            continue
        for stratum, samples in f.items():
            pools.count(stratum, samples)
        for client in clients.difference(there):
            pools.leave(client)


def _holders(f: Mapping[int, int], pools: Pools) -> set[int]:
    return {client for stratum in f for client in pools.supply.available[stratum]}


def _others(epoch: Epoch, pools: Pools) -> list[int]:
    """Return all strata of the schedule, in random order."""
    strata = np.unique(epoch.strata).tolist()
    return sorted(strata, key=lambda _: pools.draws.uniform())


@dataclass(frozen=True)
class Lots(Sampler):
    """Samples of a batch's labels, as many as the client draws lots for."""

    strata: Literal["labels", "none"] = "labels"

    def width(self, batch_size: int, largest: int, fastest: float = 1.0) -> int:
        """One client may draw everything that is asked for."""
        return 2 * batch_size  # and what is asked beside the schedule

    def plan(self, context: ClientContext) -> Order:
        """Never reached: there are no local steps."""
        raise NotImplementedError

    @property
    def programs(self) -> Mapping[str, Program]:
        """Give the gradient of what was drawn."""
        return {"gradient": self.gradient}

    def gradient(self, context: ClientContext) -> Done:
        """Return minus the gradient of the samples drawn, so that the mean over all who are asked is that of a batch.

        What the report says is the same whatever was drawn.
        """
        config: Any = context.task.config
        drawn, entries = self.draw(context), int(sum(config["entries"]))
        share = int(config["asked"]) / entries
        g = context.gradient(drawn)
        return Done(aggregated={"update": -share * g.sum}, samples=entries, loss=share * len(drawn) * g.loss)

    def draw(self, context: ClientContext) -> np.ndarray:
        """Draw lots, and that many samples of each stratum; positions."""
        config: Any = context.task.config
        labels = context.client.labels if self.strata == "labels" else np.zeros_like(context.client.labels)
        rng, drawn = context.rng(f"{PRIVATE} lots"), []
        for stratum, f, total in zip(config["strata"], config["entries"], config["totals"], strict=True):
            own = np.flatnonzero(labels == stratum)
            samples = rng.binomial(f, min(len(own) / total, 1.0))
            drawn.append(rng.choice(own, samples, replace=samples > len(own)))
        return np.concatenate(drawn)
