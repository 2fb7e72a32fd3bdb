"""Balakrishnan et al., Diverse Client Selection for Federated Learning via Submodular Maximization, ICLR 2022 (DivFL).

Picks clients one after another so that every client has a picked one with a similar gradient: each pick makes
sum_i min_j ||g_i - g_j|| as small as it can (facility location), over the clients that are available. With
`stochastic`, every pick is the best of a random share of the clients.

As in the authors' code, everybody is asked for the gradient of its samples before the first pick, and whoever is picked
tells it anew under the model that it is going to train. That is charged: a probe of all clients, then one of the picked
in every round. `refresh = "all"` asks everybody in every round. `start = "nothing"` asks nobody: what is compared then
are the updates of those that trained, and a client never seen has the update zero, so that little more than one such
client is found in a round. A gradient and an update differ in sign and length, and are never compared with each other.

Departures: a client that is away at first is asked when it first comes, and a client that does not answer is not asked
again until it is picked; its gradient is zero till then. The authors' code sends a picked client's gradient with its
update, and so spares it the second download. Where all clients are wanted, nobody is asked.
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
from fedstrata.methods.selectors.remembered import SAME, Remembered, check_memory, lengths, refuse_beyond, sketch


def whole_gradient(context: ClientContext) -> Done:
    """Return the mean gradient of the received model over this client's samples."""
    places = np.array_split(np.arange(context.client.samples), -(-context.client.samples // context.batch_size))
    parts = [context.gradient(batch).sum for batch in places]
    return Done(aggregated={"update": sum(parts[1:], parts[0]) / context.client.samples})


@dataclass
class Collected:
    """What is known of clients."""

    last: Remembered  # gradients, or with `start = "nothing"` updates
    asked: np.ndarray  # by client: whether it was ever asked for a gradient


@dataclass(frozen=True)
class DivFl(Selector):
    """Clients are picked so that every client is near to one of them; combine with uniform weights."""

    paper: ClassVar[str] = "Balakrishnan et al., ICLR 2022"
    programs: ClassVar[Mapping[str, Program]] = MappingProxyType({"probe-gradient": whole_gradient})
    individual: ClassVar[bool] = True
    LIMIT: ClassVar[int] = 5_000

    stochastic: Fraction = 0.0  # share of clients that are looked at for each pick, at least k; 0 looks at all
    refresh: Literal["selected", "all"] = "selected"  # who tells its gradient anew in a round
    sketch: Natural = 0  # numbers kept of a gradient or update; 0 keeps all
    start: Literal["all", "nothing"] = "all"  # whose gradient is known before the first pick; nothing: updates are kept

    def init(self, view: View) -> Collected:
        """Remember nothing."""
        looked_at = self._look_at(view.client_info.clients, view.k)
        if looked_at == view.client_info.clients:
            instead = "Set method.selector.stochastic, such as 0.001, to look at that share of clients for each pick"
            refuse_beyond(self.LIMIT, view, "DivFl", instead)
        if looked_at * view.client_info.clients > self.LIMIT**2:
            raise RequestError(
                f"DivFl would compare {looked_at:,} clients with {view.client_info.clients:,} for each pick, "
                f"and is limited to {self.LIMIT**2:,} pairs; "
                "use a smaller method.selector.stochastic or train.clients_per_round"
            )
        nothing = Remembered.nothing(check_memory(self.sketch or view.space.P, view))
        return Collected(nothing, np.zeros(view.client_info.clients, dtype=bool))

    def select(self, state: Collected, view: View) -> Generator[Step, Outcome, list[int]]:
        """Collect gradients, if asked to; pick."""
        ids = view.eligible[np.argsort(view.client_info.key[view.eligible])]
        if view.k >= len(ids):
            return list(map(int, ids))
        asked = list[int]()
        if self.refresh == "all":
            asked = ids.tolist()
        elif self.start == "all":
            asked = ids[~state.asked[ids]].tolist()
        yield from self._collect(state, view, asked)
        updates, looked_at = state.last.of(ids), self._look_at(len(ids), view.k)
        if len(ids) <= self.LIMIT:
            apart = lengths(updates, updates)
            picks = greedy(len(ids), view.k, lambda some: apart[:, some], looked_at, view.rng("select"))
        else:
            picks = greedy(
                len(ids), view.k, lambda some: lengths(updates, updates[some]), looked_at, view.rng("select")
            )
        picked = [int(ids[i]) for i in picks]
        if self._of_gradients:
            yield from self._collect(state, view, sorted({*picked} - {*asked}))
        return picked

    def feedback(self, state: Collected, view: View, outcomes: Sequence[Outcome], scores: Scores) -> None:
        """Remember the updates that arrived, unless gradients are remembered."""
        if not self._of_gradients:
            self._remember(state, view, [r for outcome in outcomes if outcome.step.combine for r in outcome.reports])

    @property
    def _of_gradients(self) -> bool:
        """Whether gradients are compared: updates are of another sign and length, and must not stand beside them."""
        return self.refresh == "all" or self.start == "all"

    def _collect(self, state: Collected, view: View, clients: Sequence[int]) -> Generator[Step, Outcome, None]:
        """Ask clients for their gradients, and remember them."""
        if clients:
            probe = yield Step(tuple(Ask(i) for i in sorted(clients)), kind="probe-gradient", combine=False)
            state.asked[clients] = True
            self._remember(state, view, probe.reports)

    def _remember(self, state: Collected, view: View, reports: Sequence[Report]) -> None:
        state.last.keep(sketch({report.client: report.aggregated["update"] for report in reports}, self.sketch, view))

    def _look_at(self, clients: int, k: int) -> int:
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
