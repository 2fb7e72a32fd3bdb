"""Stratify, Algorithms 1 and 3: single-sample learning. The model travels along runs of labels.

The printed Algorithm 1 never resets its run length, compares an index with itself at the end of a chunk, and breaks on
a short last chunk; this is the corrected form. Our reading of "retaining clients" is that of `Pools`: a client serves
one entry for each time that it was drawn, so longer runs do not change who trains how often. Of several clients with
the longest run the one drawn first is taken; with chunks of one this is the draw itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import NamedTuple

from fedstrata.methods.schedules.epoch import Epoch
from fedstrata.methods.schedules.reorder import reordered_runs
from fedstrata.methods.schedules.supply import Pools


class Hop(NamedTuple):
    """One client update: train on these entries, then hand the model to the next client, or to the server."""

    client: int
    codes: list[int]
    next: int | None


Refused = list[int] | None  # codes that were not trained on; None: the client did not answer


def select_runs(
    chunk: Sequence[int], pools: Mapping[int, Sequence[int]], use: Callable[[int, int], None]
) -> Iterator[tuple[int, list[int]]]:
    """Give clients with the strata of their runs: always one that can serve the most entries in a row.

    `use` takes a client out of the pool of a stratum, which may draw another one.
    """
    at = 0
    while at < len(chunk):
        best, longest = -1, 0
        for client in dict.fromkeys(pools[chunk[at]]):
            end = at + 1
            while end < len(chunk) and pools[chunk[end]].count(client) > chunk[at:end].count(chunk[end]):
                end += 1
            if end > at + longest:
                best, longest = client, end - at
        run = list(chunk[at : at + longest])
        for stratum in run:
            use(stratum, best)
        yield best, run
        at += longest


def hops(epoch: Epoch, pools: Pools, until: int, chunk: int, slack: int = 0) -> Generator[Hop, Refused, None]:
    """Go through an epoch until so many entries are over."""
    queue: deque[tuple[int, list[int]]] = deque()
    planned = 0  # entries in the queue

    def plan_chunk() -> int:
        entries = epoch.take(min(chunk, until - epoch.over - planned))
        ready = {stratum: pools.pool(stratum) for stratum in dict.fromkeys(entries)}
        served = [stratum for stratum in entries if ready[stratum]]
        epoch.over += len(entries) - len(served)
        runs = reordered_runs(served, ready, pools.use, slack) if slack else select_runs(served, ready, pools.use)
        for client, run in runs:
            codes = [pools.code(stratum) for stratum in run]
            if queue and queue[-1][0] == client:
                queue[-1][1].extend(codes)
            else:
                queue.append((client, codes))
        return len(served)

    while True:
        while len(queue) < 2 and epoch.over + planned < until and epoch.left:
            planned += plan_chunk()
        if not queue:
            return
        client, codes = queue.popleft()
        planned -= len(codes)
        refused = yield Hop(client, codes, queue[0][0] if queue else None)
        if refused is None:
            pools.leave(client)
            refused = codes + _withdrawn(queue, client)
            planned -= len(refused) - len(codes)
        else:
            epoch.over += len(codes) - len(refused)
            pools.grant(client, codes, refused)
        for stratum in pools.strata(refused) if refused else ():
            epoch.put_back(stratum, pools.draws)


def _withdrawn(queue: deque[tuple[int, list[int]]], client: int) -> list[int]:
    """Take back what is planned for a client; tasks of one client that become neighbours become one."""
    tasks, lost = list(queue), []
    queue.clear()
    for other, codes in tasks:
        if other == client:
            lost += codes
        elif queue and queue[-1][0] == other:
            queue[-1][1].extend(codes)
        else:
            queue.append((other, codes))
    return lost
