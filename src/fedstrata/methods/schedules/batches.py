"""Stratify, Algorithms 2 and 4: batch-data learning. Clients reserve samples for a batch, then give gradients.

Where what they give is summed under masks, a batch needs several clients: its sum would show what a single one gave.
With too few, entries go to other holders, used-up ones starting over on their own (`newcomers.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

from fedstrata.methods.schedules.epoch import Epoch
from fedstrata.methods.schedules.newcomers import Newcomers
from fedstrata.methods.schedules.supply import Pools

AGAIN = 3  # batches in a row whose sum came to nothing, until their entries are given up


@dataclass(frozen=True)
class Reserve:
    """Ask clients for samples of some strata; the answer is what each of them refused."""

    codes: Mapping[int, list[int]]
    batch: int  # samples reserved for another batch go back


@dataclass(frozen=True)
class Learn:
    """Take a step on everything reserved; nobody refuses, but somebody may be missing."""

    codes: Mapping[int, list[int]]


Refused = Mapping[int, list[int]]  # by client; a client that did not answer is not there
Held = dict[int, list[int]]  # codes by client
Reserving = Generator[Reserve | Learn, Refused, Held]


def batches(
    epoch: Epoch, pools: Pools, until: int, size: int, least: int = 1, fewest: int = 1
) -> Generator[Reserve | Learn, Refused, None]:
    """Go through an epoch until so many entries are over; a batch of too few samples or too few clients is left out."""
    failed = 0
    while epoch.over < until and epoch.left:
        entries = epoch.take(min(size, until - epoch.over))
        epoch.batches += 1
        held = yield from _reserve(entries, pools, epoch.batches, {})
        if 0 < len(held) < fewest:
            held = yield from _join(held, epoch, pools, fewest)
        count = sum(map(len, held.values()))
        if count < least or 0 < len(held) < fewest:
            few = f"fewer than {fewest} clients are left, and a sum over them shows what one of them sent"
            why = "batch norm has nothing to normalise over" if count < least else few
            for client, codes in held.items():
                pools.give_back(client, codes)
            if count:
                pools.note("batch_left_out", samples=count, why=why)
                epoch.lost += count
            epoch.over += len(entries)
            continue
        there = yield Learn(held)
        # Under masks one that goes missing can spoil the sum of all: the others are not to blame.
        spoilt = fewest > 1 and not there
        failed = failed + 1 if spoilt else 0
        if failed > AGAIN:
            pools.note(
                "batch_left_out", samples=count, why="what its clients sent could not be summed, again and again"
            )
            epoch.over, epoch.lost = epoch.over + len(entries), epoch.lost + count
            continue
        back: list[int] = []
        for client, codes in held.items():
            if client in there:
                continue
            if not spoilt:
                pools.leave(client)
            back += pools.give_back(client, codes)
        for stratum in back[: len(entries)]:  # those that only kept others company need not come back
            epoch.put_back(stratum, pools.draws)
        epoch.over += len(entries) - len(back[: len(entries)])


def _reserve(entries: list[int], pools: Pools, batch: int, held: Held) -> Reserving:
    """Find a client for every entry, asking again only for those that were refused; adds to what is held."""
    while entries:
        wanted: Held = {}
        for stratum, client in zip(*pools.each(entries), strict=True):
            wanted.setdefault(client, []).append(pools.code(stratum))
        if not wanted:
            break
        entries = yield from _ask(wanted, pools, batch, held)
    return held


def _ask(wanted: Held, pools: Pools, batch: int, held: Held) -> Generator[Reserve | Learn, Refused, list[int]]:
    """Ask for samples; adds what is granted to what is held, and gives the entries that are still without a sample."""
    answers, entries = (yield Reserve(wanted, batch)), list[int]()
    for client, codes in wanted.items():
        if client not in answers:  # what it held for this batch is lost with it
            pools.leave(client)
            entries += pools.strata(codes) + pools.give_back(client, held.pop(client, []))
            continue
        entries += pools.strata(answers[client])
        if granted := pools.grant(client, codes, answers[client]):
            held.setdefault(client, []).extend(granted)
    return entries


def _join(held: Held, epoch: Epoch, pools: Pools, fewest: int) -> Reserving:
    """Reserve anew, with clients that join those of a batch, until they are enough or nobody is left to join."""
    newcomers = Newcomers(epoch, pools)
    while 0 < len(held) < fewest and (wanted := newcomers.join(held, fewest)) is not None:
        for client, codes in held.items():
            pools.give_back(client, codes)
        count, held, epoch.batches = sum(map(len, held.values())), {}, epoch.batches + 1
        entries = yield from _ask(wanted, pools, epoch.batches, held)
        newcomers.note_answers(wanted, held)
        short = max(count - sum(map(len, held.values())), 0)  # what was to be given beside the schedule need not be
        held = yield from _reserve(entries[:short], pools, epoch.batches, held)
    return held
