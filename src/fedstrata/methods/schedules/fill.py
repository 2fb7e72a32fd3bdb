"""Stratify's global batches, filled on behalf of clients that live here.

What `batches.py` finds by asking, a loop over the entries finds by looking; nobody is ever missing. As long as nobody
refuses either, many batches are filled at once (`stretch.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedstrata.methods.schedules.epoch import Epoch
from fedstrata.methods.schedules.stretch import MOST, Stretch, take_stretch
from fedstrata.methods.schedules.supply import Pools


@dataclass
class Filled:
    """Batches, one sample after another, and what was said to fill them."""

    clients: list[int] = field(default_factory=list)  # of each sample: who gave it, and for which code
    codes: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # of the batches
    asked: int = 0  # codes
    requests: int = 0  # in so many messages
    refused: int = 0  # codes
    exhausted: int = 0  # of them different ones in a message


def fill(
    epoch: Epoch, pools: Pools, stock: Sequence[dict[int, int]], until: int, size: int, least: int, replacement: bool
) -> Filled:
    """Go through an epoch until so many entries are over; `stock` says by stratum what clients hold."""
    filled, ahead = Filled(), MOST
    clients, codes = filled.clients, filled.codes
    while epoch.over < until and epoch.left:
        stretch = take_stretch(epoch, pools, stock, min(ahead, (until - epoch.over) // size), size, replacement)
        if stretch is not None:
            _add(filled, epoch, pools, stretch)
            ahead = max(len(stretch.strata) // size, 1) if stretch.refused else min(2 * ahead, MOST)
            if not stretch.refused:
                continue
        entries, start = epoch.take(min(size, until - epoch.over)), len(clients)
        epoch.batches += 1
        epoch.over += len(entries)  # trained on, given up, or left out
        while entries:
            entries = _ask(entries, pools, stock, replacement, filled)
        count = len(clients) - start
        if count >= least:
            filled.sizes.append(count)
            continue
        if count:
            pools.note("batch_left_out", samples=count, why="batch norm has nothing to normalise over")
            epoch.lost += count
        while len(clients) > start:
            pools.give_back(clients.pop(), [codes.pop()])
    return filled


def _add(filled: Filled, epoch: Epoch, pools: Pools, stretch: Stretch) -> None:
    """Take over batches that nobody refused."""
    batches, code = len(stretch.strata) // stretch.size, np.array([pools.code(s) for s in range(len(pools.trained))])
    filled.clients += stretch.clients.tolist()
    filled.codes += code[stretch.strata].tolist()
    filled.sizes += [stretch.size] * batches
    filled.asked, filled.requests = filled.asked + len(stretch.strata), filled.requests + stretch.requests
    epoch.batches += batches
    epoch.over += len(stretch.strata)


def _ask(
    entries: list[int], pools: Pools, stock: Sequence[dict[int, int]], replacement: bool, filled: Filled
) -> list[int]:
    """Choose a client for every entry and see what it has; give the entries that were refused."""
    entries, clients = pools.each(entries)
    order = dict.fromkeys(clients)
    filled.asked, filled.requests = filled.asked + len(clients), filled.requests + len(order)
    taken_of, refused = pools.supply.taken, []
    for place, stratum, client in zip(range(len(entries)), entries, clients, strict=True):
        taken, here = taken_of[stratum], stock[stratum].get(client, 0)
        used = taken.get(client, 0)
        if used < here or (replacement and here):
            taken[client] = used + 1
        else:
            refused.append(place)
    again: list[int] = []
    if refused:
        again, entries, clients = _sort_out(entries, clients, refused, list(order), pools, filled)
    code = {}
    for stratum, samples in Counter(entries).items():
        pools.count(stratum, samples)
        code[stratum] = pools.code(stratum)
    filled.clients += clients
    filled.codes += [code[stratum] for stratum in entries]
    return again


def _sort_out(
    entries: list[int], clients: list[int], refused: list[int], order: list[int], pools: Pools, filled: Filled
) -> tuple[list[int], list[int], list[int]]:
    """Take refusals out: give entries to ask for again, and those that were served with their clients.

    Clients answer in the order in which they were asked first; whoever refuses is asked for that stratum no more.
    """
    nth = {client: i for i, client in enumerate(order)}
    by_answer = sorted(range(len(entries)), key=lambda place: nth[clients[place]])
    out = set(refused)
    lost = [(entries[place], clients[place]) for place in by_answer if place in out]
    exhausted = dict.fromkeys(lost)
    for stratum, client in exhausted:
        pools.exhaust(stratum, client)
    filled.refused, filled.exhausted = filled.refused + len(lost), filled.exhausted + len(exhausted)
    kept = [place for place in by_answer if place not in out]
    return [stratum for stratum, _ in lost], [entries[place] for place in kept], [clients[place] for place in kept]
