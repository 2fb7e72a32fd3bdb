"""Who can still be asked for which stratum in this epoch, as far as the server knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedstrata.core.events import Log
from fedstrata.methods.schedules.draws import Draws
from fedstrata.methods.schedules.turns import SpreadTurns, Turns


@dataclass
class Supply:
    """The server's belief, by stratum: it learns only from what clients grant and refuse."""

    available: list[list[int]]  # clients that may hold unused samples
    holders: list[list[int]]  # all that hold any
    passes: list[int]  # how often everybody started over
    granted: list[int]  # samples since then
    taken: list[dict[int, int]]  # the same, by client
    pools: list[list[int]]  # clients drawn ahead, the earliest first, for single-sample learning
    gone: set[int] = field(default_factory=set)  # clients that did not answer: skipped until the next epoch
    dropped: set[int] = field(default_factory=set)  # strata given up until then

    @classmethod
    def of(cls, holders: Sequence[Sequence[int]]) -> Supply:
        """Start an epoch."""
        strata = len(holders)
        return cls(
            [list(h) for h in holders],
            [list(h) for h in holders],
            [0] * strata,
            [0] * strata,
            [{} for _ in range(strata)],
            [[] for _ in range(strata)],
        )


@dataclass
class Pools:
    """Chooses clients from a supply, uniformly or by their counts, and keeps the supply true.

    The pool of a stratum holds a constant number of clients drawn ahead, the earliest first. Each of them serves one
    entry and is then replaced by another draw, while the others stay: whoever picks from a pool changes when a client
    is asked, by a few entries, and never how often.
    """

    supply: Supply
    draws: Draws
    note: Log
    counts: np.ndarray | None = None  # [N, strata] where the choice is not uniform
    clients: str = "uniform"  # as in Stratified
    refill: bool = True
    size: int = 7  # of a pool
    trained: list[int] = field(init=False)  # samples by stratum
    _where: list[dict[int, int] | None] = field(init=False)  # client -> place in `available`, made when needed
    _turns: list[Turns | None] = field(init=False)  # likewise

    def __post_init__(self) -> None:
        self.trained = [0] * len(self.supply.available)
        self._where = [None] * len(self.supply.available)
        self._turns = [None] * len(self.supply.available)

    def code(self, stratum: int) -> int:
        """Return what a client is sent for an entry: the stratum, and which pass over its samples is meant."""
        return stratum + len(self.supply.passes) * self.supply.passes[stratum]

    def ready(self, stratum: int) -> list[int]:
        """Return who can be asked. If nobody is left, everybody starts over, or the stratum is given up."""
        supply = self.supply
        if supply.available[stratum] or stratum in supply.dropped:
            return supply.available[stratum]
        back = [client for client in supply.holders[stratum] if client not in supply.gone]
        # Starting over helps only those who gave something: a stock that yields nothing must not be asked for ever.
        if self.refill and back and supply.granted[stratum]:
            supply.passes[stratum] += 1
            supply.granted[stratum], supply.taken[stratum] = 0, {}
            supply.available[stratum] = back
            self._where[stratum] = self._turns[stratum] = None
        else:
            supply.dropped.add(stratum)
            why = "no holder is left" if not back else "its samples are used up" if self.refill else "on_empty = drop"
            self.note("label_dropped", stratum=stratum, why=why)
        return supply.available[stratum]

    def one(self, stratum: int) -> int | None:
        """Choose a client; None if the stratum was given up."""
        pool = self.ready(stratum)
        if not pool:
            return None
        if self.counts is None:
            return pool[int(self.draws.uniform() * len(pool))]
        turns = self._turns[stratum]
        client = None if turns is None else turns.next()
        while client is None:  # those who are believed to be used up have yet to say so
            turns = self._turns[stratum] = self._make_turns(stratum, pool)
            client = turns.next()
        return client

    def each(self, strata: list[int]) -> tuple[list[int], list[int]]:
        """Choose a client for each of several entries; gives the entries whose stratum was not given up, and clients.

        As `one` after `one` would: who is ready does not change while nobody answers.
        """
        ready = {stratum: self.ready(stratum) for stratum in dict.fromkeys(strata)}
        if not all(ready.values()):
            strata = [stratum for stratum in strata if ready[stratum]]
        if self.counts is not None:
            return strata, [client for client in map(self.one, strata) if client is not None]
        pools = zip(map(ready.__getitem__, strata), self.draws.uniforms(len(strata)), strict=True)
        return strata, [pool[int(chance * len(pool))] for pool, chance in pools]

    def pool(self, stratum: int) -> list[int]:
        """Return the clients drawn ahead, as many as a pool holds; nobody if the stratum was given up."""
        pool = self.supply.pools[stratum]
        while len(pool) < self.size:
            turns = self._turns[stratum] if pool else None
            client = self.one(stratum) if turns is None else turns.next()
            if client is None:  # nobody is believed to have more than the pool takes
                break
            pool.append(client)
        return pool

    def use(self, stratum: int, client: int) -> None:
        """Let a client of a pool serve an entry; another draw takes its place."""
        self.supply.pools[stratum].remove(client)
        self.pool(stratum)

    def strata(self, codes: Sequence[int]) -> list[int]:
        """Undo `code`."""
        return [code % len(self.supply.passes) for code in codes]

    def grant(self, client: int, codes: Sequence[int], refused: Sequence[int]) -> list[int]:
        """Take a client's answer in: give the codes it has samples for; for the others it is asked no more."""
        supply, strata = self.supply, len(self.supply.passes)
        granted = without(codes, refused) if refused else list(codes)
        for code in set(refused) if refused else ():
            turn, stratum = divmod(code, strata)
            if turn == supply.passes[stratum]:  # what it says of an earlier pass is old news
                self.exhaust(stratum, client)
        for code in granted:
            stratum = code % strata
            taken = supply.taken[stratum]
            taken[client] = taken.get(client, 0) + 1
            self.count(stratum, 1)
        return granted

    def count(self, stratum: int, samples: int) -> None:
        """Count samples that somebody gave."""
        self.supply.granted[stratum] += samples
        self.trained[stratum] += samples

    def give_back(self, client: int, codes: Sequence[int]) -> list[int]:
        """Undo `grant`: the samples were not used after all. Gives their strata."""
        strata = self.strata(codes)
        for code, stratum in zip(codes, strata, strict=True):
            self.trained[stratum] -= 1
            if code == self.code(stratum):  # otherwise everybody has started over since
                self.supply.taken[stratum][client] -= 1
                if (turns := self._turns[stratum]) is not None:
                    turns.give_back(client)
        return strata

    def leave(self, client: int) -> None:
        """Ask a client for nothing more in this epoch."""
        if client not in self.supply.gone:
            self.supply.gone.add(client)
            for stratum in range(len(self.supply.available)):
                self.exhaust(stratum, client)

    def exhaust(self, stratum: int, client: int) -> None:
        """Ask a client no more for a stratum."""
        pool, where = self.supply.available[stratum], self._where[stratum]
        if where is None:
            where = self._where[stratum] = {c: i for i, c in enumerate(pool)}
        place = where.pop(client, None)
        if place is not None:
            last = pool.pop()
            if place < len(pool):
                pool[place], where[last] = last, place
            self.supply.pools[stratum] = [drawn for drawn in self.supply.pools[stratum] if drawn != client]
            if (turns := self._turns[stratum]) is not None:
                turns.leave(client)

    def _make_turns(self, stratum: int, pool: list[int]) -> Turns:
        """Begin with what is left; by `weighted`, or where nothing is, with what there was."""
        assert self.counts is not None
        counts = dict(zip(pool, np.maximum(self.counts[pool, stratum], 1).tolist(), strict=True))
        gone = Counter(self.supply.taken[stratum])
        gone.update(self.supply.pools[stratum])
        left = {client: max(count - gone[client], 0) for client, count in counts.items()}
        if self.clients == "weighted" or not any(left.values()):
            left = counts
        if self.clients == "spread":
            return SpreadTurns(left, self.draws)
        return Turns(left, self.draws, put_back=self.clients == "weighted")


def without(codes: Sequence[int], refused: Sequence[int]) -> list[int]:
    """Return what is left of a request: a client serves in order, so what it refuses of a stratum comes last."""
    left, out = [], Counter(refused)
    for code in reversed(codes):
        if out[code]:
            out[code] -= 1
        else:
            left.append(code)
    return left[::-1]
