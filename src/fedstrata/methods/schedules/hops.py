"""Stratify, Algorithms 1 and 3: single-sample learning. The model travels along runs of labels.

The printed Algorithm 1 never resets its run length, compares an index with itself at the end of a chunk, and breaks on
a short last chunk; this is the corrected form. Of several clients with the longest run one is drawn at random, not by
a fixed key: with pools of two, a fixed key would leave some clients unused until the others have nothing left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

from fedstrata.methods.schedules.epoch import Epoch
from fedstrata.methods.schedules.supply import Pools


class Hop(NamedTuple):
    """One client update: train on these entries, then hand the model to the next client, or to the server."""

    client: int
    codes: list[int]
    next: int | None


Refused = list[int] | None  # codes that were not trained on; None: the client did not answer


def select_runs(
    chunk: Sequence[int], pools: Mapping[int, Sequence[int]], pick: Callable[[Sequence[int]], int]
) -> list[tuple[int, int]]:
    """Return clients with the lengths of their runs: always one that can serve the most entries in a row."""
    runs, i = [], 0
    while i < len(chunk):
        serve, j = pools[chunk[i]], i + 1
        members = set(serve)
        while j < len(chunk) and not members.isdisjoint(pools[chunk[j]]):
            members.intersection_update(pools[chunk[j]])
            j += 1
        longest = serve if j == i + 1 else [client for client in serve if client in members]
        runs.append((pick(longest), j - i))
        i = j
    return runs


def hops(epoch: Epoch, pools: Pools, until: int, chunk: int) -> Generator[Hop, Refused, None]:
    """Play an epoch until so many entries are over."""
    queue: deque[tuple[int, list[int]]] = deque()
    planned = 0  # entries in the queue
    uniform = pools.draws.uniform

    def pick(clients: Sequence[int]) -> int:
        return clients[int(uniform() * len(clients))]

    def plan_chunk() -> int:
        entries = epoch.take(min(chunk, until - epoch.over - planned))
        ready = {stratum: pools.some(stratum) for stratum in dict.fromkeys(entries)}
        served = [stratum for stratum in entries if ready[stratum]]
        epoch.over += len(entries) - len(served)
        at = 0
        for client, length in select_runs(served, ready, pick):
            codes = [pools.code(stratum) for stratum in served[at : at + length]]
            if queue and queue[-1][0] == client:
                queue[-1][1].extend(codes)
            else:
                queue.append((client, codes))
            at += length
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
