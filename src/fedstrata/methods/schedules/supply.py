"""Who can still be asked for which stratum in this epoch, as far as the server knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedstrata.methods.schedules.draws import Draws

AHEAD = 16  # pools drawn at once
NOBODY = np.zeros((0, 0), dtype=np.int64)


@dataclass
class Supply:
    """The server's belief, by stratum: it learns only from what clients grant and refuse."""

    available: list[list[int]]  # clients that may hold unused samples
    holders: list[list[int]]  # all that hold any
    passes: list[int]  # how often everybody started over
    granted: list[int]  # samples since then
    taken: list[dict[int, int]]  # the same, by client
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
        )


@dataclass
class Pools:
    """Chooses clients from a supply, uniformly or by their counts, and keeps the supply true."""

    supply: Supply
    draws: Draws
    note: Callable[..., None]
    counts: np.ndarray | None = None  # [N, strata] where the choice is weighted
    remaining: bool = False  # by what is left, not by what there was
    refill: bool = True
    share: float = 0.25  # of the clients that `some` chooses
    least: int = 2
    trained: list[int] = field(init=False)  # samples by stratum
    _where: list[dict[int, int] | None] = field(init=False)  # client -> place in `available`, made when needed
    _sums: list[np.ndarray | None] = field(init=False)  # running sums of the weights, likewise
    _drawn: list[np.ndarray] = field(init=False)  # pools drawn ahead

    def __post_init__(self) -> None:
        self.trained = [0] * len(self.supply.available)
        self._where = [None] * len(self.supply.available)
        self._sums = [None] * len(self.supply.available)
        self._drawn = [NOBODY for _ in self.supply.available]

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
            self._where[stratum] = None
            self._changed(stratum)
        else:
            supply.dropped.add(stratum)
            why = "no holder is left" if not back else "its samples are used up" if self.refill else "on_empty = drop"
            self.note("label_dropped", stratum=stratum, why=why)
        return supply.available[stratum]

    def one(self, stratum: int) -> int | None:
        """Choose a client, with replacement; None if the stratum was given up."""
        pool = self.ready(stratum)
        if not pool:
            return None
        if self.counts is None:
            return pool[int(self.draws.uniform() * len(pool))]
        sums = self._running(stratum, pool)
        return pool[min(int(np.searchsorted(sums, self.draws.uniform() * sums[-1], side="right")), len(pool) - 1)]

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

    def some(self, stratum: int) -> list[int]:
        """Choose a share of the clients, without replacement: those with the shortest waiting times."""
        drawn = self._drawn[stratum]
        if len(drawn):
            self._drawn[stratum] = drawn[1:]
            return drawn[0].tolist()  # type: ignore[no-any-return]
        clients = self.ready(stratum)
        count, pool = self._share(len(clients)), np.array(clients)
        if count == len(clients):
            return clients
        # Several at once cost little more than one; they hold as long as nobody comes or goes.
        waits = self.draws.exponentials(AHEAD * len(pool)).reshape(AHEAD, -1)
        if self.counts is not None:
            waits = waits / self._weights(stratum, pool)
        drawn = pool[np.argpartition(waits, count - 1, axis=1)[:, :count]]
        self._drawn[stratum] = drawn[1:]
        return drawn[0].tolist()  # type: ignore[no-any-return]

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
        if self.remaining:
            self._changed(stratum)

    def give_back(self, client: int, codes: Sequence[int]) -> list[int]:
        """Undo `grant`: the samples were not used after all. Gives their strata."""
        strata = self.strata(codes)
        for code, stratum in zip(codes, strata, strict=True):
            self.trained[stratum] -= 1
            if code == self.code(stratum):  # otherwise everybody has started over since
                self.supply.taken[stratum][client] -= 1
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
            drawn = self._drawn[stratum]
            self._changed(stratum)
            if len(drawn) and self.counts is None and self._share(len(pool)) == drawn.shape[1]:
                # Of pools drawn from all holders, those without this one are as good as drawn from the others.
                self._drawn[stratum] = drawn[(drawn != client).all(1)]

    def _changed(self, stratum: int) -> None:
        """Forget what was worked out for a stratum's clients and weights as they were."""
        self._sums[stratum], self._drawn[stratum] = None, NOBODY

    def _share(self, clients: int) -> int:
        return min(clients, max(self.least, round(self.share * clients)))

    def _weights(self, stratum: int, pool: list[int] | np.ndarray) -> np.ndarray:
        assert self.counts is not None
        weights = self.counts[pool, stratum].astype(np.float64)
        if self.remaining:
            taken = self.supply.taken[stratum]
            weights -= [taken.get(int(client), 0) for client in pool]
        return np.maximum(weights, 1e-9)  # a client that is believed empty is asked last, and then says so

    def _running(self, stratum: int, pool: list[int]) -> np.ndarray:
        sums = self._sums[stratum]
        if sums is None:
            sums = self._sums[stratum] = np.cumsum(self._weights(stratum, pool))
        return sums


def without(codes: Sequence[int], refused: Sequence[int]) -> list[int]:
    """Return what is left of a request: a client serves in order, so what it refuses of a stratum comes last."""
    left, out = [], Counter(refused)
    for code in reversed(codes):
        if out[code]:
            out[code] -= 1
        else:
            left.append(code)
    return left[::-1]
