"""Stratify, Algorithms 2 and 4: batch-data learning. Clients reserve samples for a batch, then give gradients."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

from fedstrata.methods.schedules.epoch import Epoch
from fedstrata.methods.schedules.supply import Pools


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


def batches(
    epoch: Epoch, pools: Pools, until: int, size: int, least: int = 1, fewest: int = 1
) -> Generator[Reserve | Learn, Refused, None]:
    """Play an epoch until so many entries are over; a batch of too few samples or too few clients is left out."""
    while epoch.over < until and epoch.left:
        entries = epoch.take(min(size, until - epoch.over))
        epoch.batches += 1
        held = yield from _reserved(entries, pools, epoch.batches)
        count = sum(map(len, held.values()))
        epoch.over += len(entries) - count  # strata that were given up
        if count < least or 0 < len(held) < fewest:
            few = f"a sum over fewer than {fewest} clients shows what one of them sent"
            why = "batch norm has nothing to normalise over" if count < least else few
            for client, codes in held.items():
                pools.give_back(client, codes)
            if count:
                pools.note("batch_left_out", samples=count, why=why)
            epoch.over += count
            continue
        there = yield Learn(held)
        for client, codes in held.items():
            if client in there:
                epoch.over += len(codes)
                continue
            pools.leave(client)
            for stratum in pools.give_back(client, codes):
                epoch.put_back(stratum, pools.draws)


def _reserved(
    entries: list[int], pools: Pools, batch: int
) -> Generator[Reserve | Learn, Refused, dict[int, list[int]]]:
    """Find a client for every entry, asking again only for those that were refused; codes by client."""
    held: dict[int, list[int]] = {}
    while entries:
        wanted: dict[int, list[int]] = {}
        for stratum, client in zip(*pools.each(entries), strict=True):
            wanted.setdefault(client, []).append(pools.code(stratum))
        if not wanted:
            break
        answers = yield Reserve(wanted, batch)
        entries = []
        for client, codes in wanted.items():
            if client not in answers:  # what it held for this batch is lost with it
                pools.leave(client)
                entries += pools.strata(codes) + pools.give_back(client, held.pop(client, []))
                continue
            entries += pools.strata(answers[client])
            if granted := pools.grant(client, codes, answers[client]):
                held.setdefault(client, []).extend(granted)
    return held
