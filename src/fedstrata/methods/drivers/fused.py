"""Client updates along a schedule, as one step of an engine that holds everybody's samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedstrata.core.index import stable_order
from fedstrata.core.steps import Ask, FusedSteps, Step, View
from fedstrata.methods.schedules.fill import Filled
from fedstrata.methods.schedules.stratified import Stratified
from fedstrata.methods.schedules.supply import Pools

NUMBER = 8  # bytes of a label or a count on the wire


@dataclass
class FusedUpdates:
    """Client updates in a row, to be executed as one."""

    epoch: int
    codes: dict[int, list[int]] = field(default_factory=dict)  # by client, in the order of use
    who: list[int] = field(default_factory=list)  # of each client update: the client, the entries, the step
    runs: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    @classmethod
    def through(cls, epoch: int, filled: Filled) -> FusedUpdates:
        """Train everybody who gives samples to a batch, batch by batch, in the order of their first samples."""
        clients, codes = np.array(filled.clients, dtype=np.int64), np.array(filled.codes, dtype=np.int64)
        turns = np.repeat(np.arange(len(filled.sizes)), filled.sizes)
        by_client = stable_order(clients)  # and, as batches follow each other, then by batch
        codes, whose, when = codes[by_client], clients[by_client], turns[by_client]
        client_updates = np.flatnonzero(np.diff(whose, prepend=-1) | np.diff(when, prepend=-1))
        runs, first = np.diff(client_updates, append=len(whose)), by_client[client_updates]
        in_order = np.argsort(first)
        fused_updates = cls(
            epoch,
            {},
            clients[first][in_order].tolist(),
            runs[in_order].tolist(),
            turns[first][in_order].tolist(),
        )
        for client in dict.fromkeys(fused_updates.who):
            start, end = np.searchsorted(whose, (client, client + 1))
            fused_updates.codes[client] = codes[start:end].tolist()
        return fused_updates

    def add_update(self, client: int, codes: list[int], turn: int) -> None:
        """Add a client update of the `turn`-th step."""
        self.codes.setdefault(client, []).extend(codes)
        self.who.append(client)
        self.runs.append(len(codes))
        self.turns.append(turn)

    def step(
        self, stock: Stock, sizes: Sequence[int], parts: Sequence[int], handed: tuple[int, int, int], **how: Any
    ) -> Step:
        """Return the step that stands for all of them: batches of some sizes, at some times of the round."""
        places = {client: i for i, client in enumerate(self.codes)}
        fused = FusedSteps(
            who=np.array([places[client] for client in self.who], dtype=np.int64),
            runs=np.array(self.runs, dtype=np.int64),
            turns=np.array(self.turns, dtype=np.int64),
            sizes=np.array(sizes, dtype=np.int64),
            parts=np.array(parts, dtype=np.int64),
            handed=handed,
            told=(stock.told_down, stock.told_up),
        )
        about = {"epoch": self.epoch}
        asks = [Ask(client, {"labels": tuple(own), **about}) for client, own in self.codes.items()]
        return Step(tuple(asks), fused=fused, combine=bool(asks), **how)


@dataclass
class Stock:
    """Answers for clients that live on this machine, as they would."""

    counts: list[dict[int, int]]  # by stratum and client
    pools: Pools
    replacement: bool
    told_down: int = 0
    told_up: int = 0
    refused: int = 0

    @classmethod
    def of(cls, schedule: Stratified, view: View, pools: Pools) -> Stock:
        """Look into what everybody holds."""
        assert view.client_info.ground_truth is not None
        counts = schedule.counts(view.client_info.ground_truth.stock)
        own: list[dict[int, int]] = [{} for _ in range(counts.shape[1])]
        clients, strata = np.nonzero(counts)
        for client, stratum, count in zip(
            clients.tolist(), strata.tolist(), counts[clients, strata].tolist(), strict=True
        ):
            own[stratum][client] = count
        return cls(own, pools, bool(schedule.replacement))

    def refuses(self, client: int, codes: Sequence[int], overhead_bytes: int) -> list[int]:
        """Return the codes that a client has no sample for; `overhead_bytes` numbers go with a request."""
        supply, refused = self.pools.supply, []
        seen: dict[int, int] = {}
        strata = len(supply.passes)
        for code in codes:
            turn, stratum = divmod(code, strata)
            used = supply.taken[stratum].get(client, 0) + seen.get(stratum, 0)
            here = self.counts[stratum].get(client, 0)
            if turn < supply.passes[stratum] or (used >= here and not (self.replacement and here)):
                refused.append(code)
            elif len(codes) > 1:
                seen[stratum] = seen.get(stratum, 0) + 1
        self.note_messages(len(codes), 1, len(refused), len(set(refused)), overhead_bytes)
        return refused

    def note_messages(self, codes: int, requests: int, refused: int, exhausted: int, overhead_bytes: int) -> None:
        """Note what was said: requests, beside whose codes go some numbers, and what of them was refused."""
        self.told_down += NUMBER * (codes + overhead_bytes * requests)
        self.told_up += NUMBER * (refused + exhausted)
        self.refused += refused
