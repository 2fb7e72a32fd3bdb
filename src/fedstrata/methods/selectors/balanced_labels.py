"""Rounds whose labels are near to a target mix, without clusters: ours, with the purpose of FLIPS.

Of the clients that were picked least often, `pool` times as many as wanted are candidates. Every `pool`-th place of a
round goes to those whose turn it is, so that nobody is left out for ever. The others are taken one after another, each
time the candidate whose samples bring the labels of the round nearest to the target (Kullback-Leibler, in counts of
samples): the mix of all clients, or even shares of all labels, which shows rare labels more often. `pool` is the knob
between fairness and balance: with 1, everybody takes turns and nothing is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Literal

import numpy as np

from fedstrata.core.options import AtLeastOne
from fedstrata.core.server_parts import Selector
from fedstrata.core.steps import View


@dataclass
class Picks:
    """How often everybody was picked."""

    picks: np.ndarray


@dataclass(frozen=True)
class BalancedLabels(Selector):
    """Clients whose labels together come nearest to a target mix, of those that were picked least often."""

    paper: ClassVar[str] = "ours, after FLIPS"
    needs: ClassVar[frozenset[str]] = frozenset({"counts"})

    target: Literal["global", "even"] = "global"  # the labels of all clients, or every label as often as any other
    pool: AtLeastOne = 3.0  # times as many of the least picked as wanted are chosen from; every so many-th has its turn

    def init(self, view: View) -> Picks:
        """Nobody was picked yet."""
        return Picks(np.zeros(view.client_info.clients, dtype=np.int64))

    def select(self, state: Picks, view: View) -> list[int]:
        """Take candidates by fairness, then clients by balance."""
        more = view.client_info.clients - len(state.picks)  # somebody may have joined, and need not catch up
        state.picks = np.concatenate([state.picks, np.full(max(more, 0), state.picks.min(initial=0))])
        ids, counts = view.eligible, view.client_info.counts
        turn = state.picks[ids] + view.rng("select").random(len(ids))
        candidates = ids[np.argsort(turn)[: ceil(self.pool * view.k - 1e-9)]]
        mix = counts[view.client_info.holders].sum(0).astype(np.float64)
        target = mix if self.target == "global" else (mix > 0).astype(np.float64)
        in_turn = ceil(view.k / self.pool - 1e-9)
        chosen = candidates[towards(counts[candidates], target / max(target.sum(), 1), view.k, in_turn)]
        state.picks[chosen] += 1
        picked: list[int] = chosen.tolist()
        return picked


def towards(counts: np.ndarray, target: np.ndarray, count: int, first: int = 0) -> list[int]:
    """Take the first rows, then one after another the one that brings the sum nearest to a target; first of equals."""
    taken, free = list(range(min(first, count, len(counts)))), np.ones(len(counts), dtype=bool)
    free[taken], total = False, counts[taken].sum(0)
    wanted = np.log(np.maximum(target, 1e-12))
    for _ in range(min(count, len(counts)) - len(taken)):
        sums = total + counts
        shares = sums / np.maximum(sums.sum(1, keepdims=True), 1)
        gaps = (shares * (np.log(np.maximum(shares, 1e-12)) - wanted)).sum(1)
        best = int(np.argmin(np.where(free, gaps, np.inf)))
        free[best] = False
        total = sums[best]
        taken.append(best)
    return taken
