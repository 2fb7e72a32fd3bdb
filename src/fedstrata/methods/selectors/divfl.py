"""Balakrishnan et al., Diverse Client Selection for Federated Learning via Submodular Maximization, ICLR 2022 (DivFL).

Picks clients one after another so that every client has a picked one with a similar update: each pick makes
sum_i min_j ||g_i - g_j|| as small as it can (facility location), over the clients that are available. A client never
seen has the update zero. `refresh = "selected"` remembers the updates of those that trained; "all" asks everybody for
a gradient in every round, and is charged for it. With `stochastic`, every pick is the best of a random share of the
clients.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

import numpy as np

from fedstrata.core.client_context import ClientContext, Done, Program
from fedstrata.core.errors import RequestError
from fedstrata.core.messages import Report
from fedstrata.core.options import Fraction, Natural
from fedstrata.core.rng import Rng
from fedstrata.core.server_parts import Selector
from fedstrata.core.steps import Ask, Outcome, Scores, Step, View
from fedstrata.methods.selectors.remembered import SAME, Remembered, bounded, lengths, refuse_beyond, sketch


def whole_gradient(context: ClientContext) -> Done:
    """Return the mean gradient of the received model over this client's samples."""
    places = np.array_split(np.arange(context.client.samples), -(-context.client.samples // context.batch_size))
    parts = [context.gradient(batch).sum for batch in places]
    return Done(aggregated={"update": sum(parts[1:], parts[0]) / context.client.samples})


@dataclass(frozen=True)
class DivFl(Selector):
    """Clients are picked so that every client is near to one of them; combine with uniform weights."""

    paper: ClassVar[str] = "Balakrishnan et al., ICLR 2022"
    programs: ClassVar[Mapping[str, Program]] = MappingProxyType({"probe-gradient": whole_gradient})
    individual: ClassVar[bool] = True
    LIMIT: ClassVar[int] = 5_000

    stochastic: Fraction = 0.0  # share of clients that are looked at for each pick, at least k; 0 looks at all
    refresh: Literal["selected", "all"] = "selected"
    sketch: Natural = 0  # numbers kept of an update; 0 keeps all

    def init(self, view: View) -> Remembered:
        """Remember nothing."""
        looked_at = self._looked_at(view.client_info.clients, view.k)
        if looked_at == view.client_info.clients:
            instead = "Set method.selector.stochastic, such as 0.001, to look at that share of clients for each pick"
            refuse_beyond(self.LIMIT, view, "DivFl", instead)
        if looked_at * view.client_info.clients > self.LIMIT**2:
            raise RequestError(
                f"DivFl would compare {looked_at:,} clients with {view.client_info.clients:,} for each pick, "
                f"and is limited to {self.LIMIT**2:,} pairs; "
                "use a smaller method.selector.stochastic or train.clients_per_round"
            )
        return Remembered.nothing(bounded(self.sketch or view.space.P, view))

    def select(self, state: Remembered, view: View) -> Generator[Step, Outcome, list[int]]:
        """Refresh what is remembered, if asked to; pick."""
        ids = view.eligible[np.argsort(view.client_info.key[view.eligible])]
        if view.k >= len(ids):
            return list(map(int, ids))
        if self.refresh == "all":
            asks = tuple(Ask(i) for i in sorted(ids.tolist()))
            probe = yield Step(asks, kind="probe-gradient", combine=False)
            self._remember(state, view, probe.reports)
        updates, looked_at = state.of(ids), self._looked_at(len(ids), view.k)
        if len(ids) <= self.LIMIT:
            apart = lengths(updates, updates)
            picks = greedy(len(ids), view.k, lambda some: apart[:, some], looked_at, view.rng("select"))
        else:
            picks = greedy(
                len(ids), view.k, lambda some: lengths(updates, updates[some]), looked_at, view.rng("select")
            )
        return [int(ids[i]) for i in picks]

    def feedback(self, state: Remembered, view: View, outcomes: Sequence[Outcome], scores: Scores) -> None:
        """Remember the updates that arrived."""
        if self.refresh == "selected":
            self._remember(state, view, [r for outcome in outcomes if outcome.step.combine for r in outcome.reports])

    def _remember(self, state: Remembered, view: View, reports: Sequence[Report]) -> None:
        state.keep(sketch({report.client: report.aggregated["update"] for report in reports}, self.sketch, view))

    def _looked_at(self, clients: int, k: int) -> int:
        return clients if not self.stochastic else min(clients, max(k, int(self.stochastic * clients + 1e-9)))


def greedy(clients: int, count: int, column: Callable[[np.ndarray], np.ndarray], looked_at: int, rng: Rng) -> list[int]:
    """Pick clients, each the one that brings all clients nearest to a picked one; ties go to the first.

    `column` gives the distances from all clients to some, [clients, some].
    """
    nearest, free, picks = np.full(clients, np.inf), np.ones(clients, dtype=bool), list[int]()
    for _ in range(count):
        some = np.flatnonzero(free)
        if looked_at < len(some):
            some = np.sort(rng.choice(some, looked_at, replace=False))
        would_be = np.minimum(nearest[:, None], column(some))
        cost = would_be.sum(0)
        best = int(np.argmax(cost <= cost.min() * (1 + SAME)))
        nearest, pick = would_be[:, best], int(some[best])
        free[pick] = False
        picks.append(pick)
    return picks
