"""A plan: the parts of a run, composed and checked against each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedstrata.clientside import Local
from fedstrata.errors import RequestError
from fedstrata.federation import Roster
from fedstrata.rng import Streams
from fedstrata.serverside import Combiner, Driver, Selector, ServerPart, System, View
from fedstrata.space import Space


@dataclass(frozen=True)
class Plan:
    """Every stage of a run. Frozen and without state; `loop.State` holds what changes."""

    driver: Driver
    select: Selector
    combine: Combiner
    servers: Mapping[str, ServerPart]  # the server step first, then the server halves of corrections
    system: System
    local: Local
    space: Space
    rounds: int
    clients_per_round: float | int | str

    @property
    def streams(self) -> Streams:
        """Random streams of the run."""
        return self.local.streams

    @property
    def needs(self) -> frozenset[str]:
        """What the server must know of its clients."""
        return self.select.needs | self.driver.needs

    def view(self, roster: Roster, round: int, note: Callable[..., None]) -> View:
        """Give what the server's parts see of a round."""
        k = per_round(self.clients_per_round, roster.clients)
        rng = partial(self.streams, round=round)
        view = View(round, self.rounds, k, roster.holders, roster, self.space, rng, note)
        eligible = self.system.available(view)
        return View(round, self.rounds, min(k, len(eligible)), eligible, roster, self.space, rng, note)

    def check(self) -> None:
        """Refuse stages that cannot work together, with the reason."""
        parts = [self.driver, self.select, self.local.sampler, self.combine, self.local.optimizer]
        for part in [*parts, *self.local.parts.values(), *self.servers.values()]:
            if reason := part.conflicts(self):
                raise RequestError(f"{type(part).__name__} does not fit this plan: {reason}")


def per_round(asked: float | int | str, clients: int) -> int:
    """Give the clients of a round from a fraction, a count or "all"."""
    if asked == "all":
        return clients
    if isinstance(asked, int):
        return min(asked, clients)
    return max(1, math.floor(float(asked) * clients + 1e-9))


def initial(plan: Plan, view: View, model: Any) -> dict[str, Any]:
    """Make the first state of every server-side part."""
    state = {
        "driver": plan.driver.init(view),
        "select": plan.select.init(view),
        "combine": plan.combine.init(view),
    }
    return state | {name: part.init(view, model) for name, part in plan.servers.items()}
