"""Li et al., Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022 (NIID-Bench).

For each class, shares over the clients are drawn from Dir(alpha) and its shuffled samples are cut by them. With
`balance`, a client that holds its fair share n/N already gets nothing of the next class. The draw is repeated until
the smallest client has `min_size` samples. Departures: the number of draws is bounded, and drawing ends early where so
many clients come out short that no further draw will do; then samples move one by one from the largest client to those
that are short; a class for which every share vanished goes to one client that has room; and the test set is cut by the
same shares. The same over domains instead of classes is what Stratify (arXiv 2504.13462) does with PACS and Digits-DG.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.options import Count, Natural, Positive
from fedstrata.core.rng import Rng
from fedstrata.data.partitions.base import Deal, Labelled, Partition
from fedstrata.data.partitions.dealing import by_owner, classes_of, cut, deal_out, domains_of, interleave, shuffle


@dataclass(frozen=True)
class DirichletClass(Partition):
    """Each class is spread over the clients by shares drawn from Dir(alpha); small alpha is strong skew."""

    paper: ClassVar[str] = "Li et al., ICDE 2022"

    alpha: Positive = 0.1
    balance: bool = True
    min_size: Natural = 10
    max_tries: Count = 1000

    def split(self, train: Labelled, test: Labelled, clients: int, rng: Rng) -> Deal:
        """Draw shares until everybody has enough, then cut."""
        counts, notes = self._counts(train.labels, test.labels, classes_of(train, test), clients, rng)
        return Deal(
            deal_out(shuffle(train.labels, rng), counts[0]), deal_out(shuffle(test.labels, rng), counts[1]), notes
        )

    def _counts(
        self, kinds: np.ndarray, test_kinds: np.ndarray, number: int, clients: int, rng: Rng
    ) -> tuple[Sequence[np.ndarray], list[str]]:
        """Say how many samples of each kind clients get, in training and test: [kinds, N] each."""
        refuse_too_few(self.min_size, clients, len(kinds))
        sizes = np.bincount(kinds, minlength=number)
        test_sizes = np.bincount(test_kinds[test_kinds >= 0], minlength=number)
        return drawn(
            lambda: draw_shares(sizes, self.alpha, self.balance, clients, rng),
            [(sizes, self.min_size), (test_sizes, 0)],
            self.max_tries,
        )


@dataclass(frozen=True)
class DirichletDomain(DirichletClass):
    """Each domain is spread over the clients by shares drawn from Dir(alpha), with its own mix of labels."""

    paper: ClassVar[str] = "Stratify, arXiv 2504.13462"
    needs_groups: ClassVar[bool] = True

    alpha: Positive = 0.5

    def split(self, train: Labelled, test: Labelled, clients: int, rng: Rng) -> Deal:
        """Draw shares of domains until everybody has enough, then cut each across its labels."""
        names, kinds, test_kinds, left_out = domains_of(train, test)
        counts, notes = self._counts(kinds, test_kinds, len(names), clients, rng)
        order, test_order = interleave(kinds, train.labels, rng), interleave(test_kinds, test.labels, rng)
        return Deal(deal_out(order, counts[0]), deal_out(test_order, counts[1]), [*notes, *left_out])


def refuse_too_few(min_size: int, clients: int, samples: int) -> None:
    """Refuse a smallest size that there are not enough samples for."""
    if min_size * clients > samples:
        raise RequestError(
            f"data.partition.min_size = {min_size} for {clients} clients needs "
            f"{min_size * clients} samples, but there are {samples}; lower min_size or clients"
        )


def draw_shares(sizes: np.ndarray, alpha: float, balance: bool, clients: int, rng: Rng) -> np.ndarray:
    """Draw the shares of every kind over the clients, [kinds, N]."""
    fair, held = sizes.sum() / clients, np.zeros(clients)
    # A sum of alphas above 1e6 overflows, though shares are even by then.
    shares = rng.dirichlet(np.full(clients, min(alpha, 1e6)), size=len(sizes))
    for kind, size in enumerate(sizes):
        if balance:
            shares[kind, held >= fair] = 0.0
        total = shares[kind].sum()
        if total > 0 and np.isfinite(total):
            shares[kind] /= total
        else:
            room = np.flatnonzero(held < fair) if (held < fair).any() else np.arange(clients)
            shares[kind] = 0.0
            shares[kind, rng.choice(room)] = 1.0
        held += shares[kind] * size
    return shares


def drawn(
    draw: Callable[[], np.ndarray], demands: Sequence[tuple[np.ndarray, int]], max_tries: int
) -> tuple[Sequence[np.ndarray], list[str]]:
    """Draw shares until every client has enough, and cut by them.

    A demand is the sizes of the kinds in one set (train, test) and the least a client must hold of that set. Gives
    the counts, [kinds, N], for each demand. Where no draw will do, the best is kept and topped up; a note says so.
    """
    asked = [(sizes, least) for sizes, least in demands if least > 0]
    best, best_spare, short = draw(), -math.inf, 0
    shares, tries = best, 0
    for tries in range(1, max_tries + 1):
        spare = [cut(shares, sizes).sum(0) - least for sizes, least in asked]
        smallest = min((float(s.min()) for s in spare), default=0.0)
        if smallest > best_spare:
            best, best_spare = shares, smallest
        if smallest >= 0:
            break
        short += sum(int((s < 0).sum()) for s in spare)
        # Clients fall short nearly independently, so a draw leaves none short with a chance of exp(-mean). Where that
        # is below one in a thousand for all the draws together, as with ten thousand clients, drawing on is in vain.
        if tries >= 10 and short / tries > math.log(1000 * max_tries):
            break
        if tries < max_tries:
            shares = draw()
    counts, notes = [cut(best, sizes) for sizes, _ in demands], []
    for table, (_, least) in zip(counts, demands, strict=True):
        if table.sum(0).min() < least:
            notes.append(f"no draw of {tries} gave every client {least} samples; some were moved")
            top_up(table, least)
    return counts, notes


def top_up(counts: np.ndarray, least: int) -> None:
    """Move samples one at a time from the largest client, of its largest kind, to those with fewer than `least`."""
    held = counts.sum(0)
    takers = np.repeat(np.arange(len(held)), np.maximum(least - held, 0))
    givers = _from_the_largest(held, len(takers))
    kinds = np.empty_like(givers)
    for moves in by_owner(np.arange(len(givers)), givers, len(held)):
        if len(moves):
            kinds[moves] = _from_the_largest(counts[:, givers[moves[0]]], len(moves))
    np.subtract.at(counts, (kinds, givers), 1)
    np.add.at(counts, (kinds, takers), 1)


def _from_the_largest(amounts: np.ndarray, number: int) -> np.ndarray:
    """Take one at a time from the largest amount, the first of equals; give which ones, in turn."""
    low, high = 0, int(amounts.max())
    while low < high:  # the lowest level down to which taking everything takes at most `number`
        level = (low + high) // 2
        low, high = (low, level) if np.maximum(amounts - level, 0).sum() <= number else (level + 1, high)
    taken = np.maximum(amounts - low, 0)
    which = np.repeat(np.arange(len(amounts)), taken)
    heights = amounts[which] - (np.arange(len(which)) - np.repeat(np.cumsum(taken) - taken, taken))
    last = np.flatnonzero(amounts >= low)[: number - len(which)]  # one more from some that stand at the level
    return np.concatenate([which[np.lexsort((which, -heights))], last])
