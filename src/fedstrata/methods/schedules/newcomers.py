"""Enough clients for a batch whose sum is masked: who joins, with which entry, where too few would give samples.

An entry goes from one that has several to another holder of its stratum: to one that has samples left, or else to one
whose samples are used up, which starts over on its own while the others go on with theirs. Where no holder of the
batch's strata can join, one of another stratum gives a sample beside the schedule. So no entry is lost as long as
enough clients are there, and few samples are used twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedstrata.methods.schedules.epoch import Epoch
from fedstrata.methods.schedules.supply import Pools, without


class Newcomer(NamedTuple):
    """A client that can join a batch, and with what."""

    client: int
    stratum: int
    code: int


class Newcomers:
    """Finds clients for one batch."""

    def __init__(self, epoch: Epoch, pools: Pools):
        self._epoch, self._pools = epoch, pools
        self._refused: Counter[tuple[int, int]] = Counter()  # by stratum and client, though it was to start over

    def join(self, held: Mapping[int, list[int]], fewest: int) -> dict[int, list[int]] | None:
        """Return who is to give what, so that there are enough clients; None: there are not."""
        wanted = {client: list(codes) for client, codes in held.items()}
        while len(wanted) < fewest:
            several = {client: codes for client, codes in wanted.items() if len(codes) > 1}
            strata = {stratum for codes in several.values() for stratum in self._pools.strata(codes)}
            one = self._find(strata, wanted)
            if one is not None:
                self._take_over(one.stratum, several)
            elif (one := self._find(self._scheduled, wanted)) is None:
                return None
            wanted[one.client] = [one.code]
        return wanted

    def note_answers(self, wanted: Mapping[int, list[int]], held: Mapping[int, list[int]]) -> None:
        """Remember who has begun which pass of its own, and who could not."""
        passes = self._pools.supply.passes
        for client, codes in wanted.items():
            for code in codes:
                turn, stratum = divmod(code, len(passes))
                if turn <= passes[stratum]:
                    continue
                granted = code in held.get(client, ())
                self._epoch.ahead.setdefault(stratum, {})[client] = turn if granted else turn + 1
                self._refused[stratum, client] += not granted

    def _find(self, strata: Iterable[int], wanted: Mapping[int, object]) -> Newcomer | None:
        """Draw a client that holds one of some strata: before all others, one that has samples left."""
        supply = self._pools.supply
        for pools in (supply.available, supply.holders):
            able: dict[int, list[int]] = {}
            for stratum in sorted(strata):
                for client in pools[stratum]:
                    # Twice refused, though a pass of its own was to begin: it holds nothing.
                    if client not in wanted and client not in supply.gone and self._refused[stratum, client] < 2:
                        able.setdefault(client, []).append(stratum)
            if able:
                client = self._draw(sorted(able))
                stratum = self._draw(able[client])
                return Newcomer(client, stratum, self._code(stratum, client, pools is supply.available))
        return None

    def _code(self, stratum: int, client: int, left: bool) -> int:
        """Return what to ask for: the present pass, or one of the client's own after it."""
        passes = self._pools.supply.passes
        if left:
            return self._pools.code(stratum)
        turn = max(self._epoch.ahead.get(stratum, {}).get(client, 0), passes[stratum] + 1)
        return stratum + len(passes) * turn

    def _take_over(self, stratum: int, several: Mapping[int, list[int]]) -> None:
        """Take an entry of a stratum away from the client that has most."""
        own = {
            client: [c for c in codes if c % len(self._pools.supply.passes) == stratum]
            for client, codes in several.items()
        }
        donor = max((client for client in own if own[client]), key=lambda client: len(several[client]))
        several[donor][:] = without(several[donor], own[donor][-1:])

    def _draw(self, of: list[int]) -> int:
        return of[int(self._pools.draws.uniform() * len(of))]

    @cached_property
    def _scheduled(self) -> list[int]:
        return [int(stratum) for stratum in np.unique(self._epoch.strata)]
