"""Chai et al., TiFL: A Tier-based Federated Learning System, HPDC 2020.

Clients are profiled once and sorted into tiers by latency; each round takes its clients from one tier, so that nobody
waits for a much slower client. Every few rounds, if the last tier's accuracy on its clients' own test data did not
grow, tiers that do badly become likelier, in order of accuracy; credits bound how often a tier is used.

Departures: tiers of equal count (the paper: of equal width); weights n, n-1, ..., 1 (the paper's give the best tier 0);
a tier that is too small is filled up from the next slower one; once all credits are spent they are dealt anew. Clients
that were away are profiled when they first come, and all are sorted into tiers again. Only a round whose model was
scored at the clients is looked at, and a round in which no report came is not: with `train.evaluate.every` above 1
there are fewer looks, at most one in so many rounds, and each compares two accuracies that were measured.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from fedstrata.core.client_context import ClientContext, Done, Program
from fedstrata.core.options import Count, Natural, NonNegative
from fedstrata.core.server_parts import Selector
from fedstrata.core.steps import Ask, Outcome, Scores, Step, View


def profile(context: ClientContext) -> Done:
    """Do a round's work, so that the server sees how long it takes."""
    return Done(work=context.epochs * context.client.samples)


@dataclass
class Tiers:
    """Who is in which tier, and how the tiers are doing."""

    latency: np.ndarray  # of every client; NaN: not profiled yet
    tier: np.ndarray  # of every client, the fastest is 0; -1: in none
    credits: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # of every tier
    probability: np.ndarray = field(default_factory=lambda: np.zeros(0))
    accuracy: np.ndarray = field(default_factory=lambda: np.zeros(0))  # as last measured; NaN: it never was
    before: np.ndarray = field(default_factory=lambda: np.zeros(0))  # the same, at the last look
    looked: int = -1  # round of the last look; -1: none yet
    current: int = -1  # the tier of this round


def change_probabilities(accuracy: np.ndarray, credits: np.ndarray) -> np.ndarray:
    """Return tiers with credits a probability by rank: the lowest accuracy n shares, the highest one, unknown last."""
    ranked = [t for t in np.argsort(accuracy, kind="stable") if credits[t] > 0]
    probability = np.zeros(len(accuracy))
    n = len(ranked)
    probability[ranked] = np.arange(n, 0, -1) / (n * (n + 1) / 2) if n else 0.0
    return probability


@dataclass(frozen=True)
class Tifl(Selector):
    """The clients of a round come from one tier of similar latency; tiers that do badly become likelier."""

    paper: ClassVar[str] = "Chai et al., HPDC 2020"
    reads: ClassVar[str] = "how long each client takes, and how accurate the model is on each client's own test data"
    programs: ClassVar[Mapping[str, Program]] = MappingProxyType({"profile": profile})

    tiers: Count = 5  # of equally many clients, by latency
    interval: Natural = 0  # fewest rounds between two looks at the accuracy; 0: as many as there are tiers
    credits: Natural = 0  # how often each tier may be used; 0: rounds / tiers, which presses nobody
    max_latency: NonNegative = 0.0  # seconds above which a client never trains; 0: no limit

    @property
    def plans_ahead(self) -> bool:
        """Credits are dealt for the whole run, unless their number is given."""
        return not self.credits

    def init(self, view: View) -> Tiers:
        """Know nobody."""
        clients = view.client_info.clients
        return Tiers(np.full(clients, np.nan), np.full(clients, -1, dtype=np.int64))

    def select(self, state: Tiers, view: View) -> Generator[Step, Outcome, list[int]]:
        """Profile whom nobody knows yet, draw a tier, draw its clients."""
        strangers = view.eligible[np.isnan(state.latency[view.eligible])]
        if len(strangers):
            asks = tuple(Ask(i) for i in strangers.tolist())
            probe = yield Step(asks, kind="profile", combine=False)  # with the model: downloads take time too
            for report in probe.reports:
                state.latency[report.client] = report.seconds
            self.sort(state, view)

        rng, members = view.rng("select"), self._members(state, view)
        present = np.array([len(ids) > 0 for ids in members], dtype=bool)
        if not present.any():
            state.current = -1
            why = "no client that is there has a tier: none answered, or all are slower than max_latency"
            view.note("fallback", what="tifl", used="random clients", why=why)
            drawn: list[int] = rng.choice(view.eligible, view.k, replace=False).tolist()
            return drawn
        if not (present & (state.credits > 0)).any():
            view.note("fallback", what="tifl", used="new credits", why="every tier that is there has spent its own")
            self._deal(state, view)
        weight = np.where(present & (state.credits > 0), state.probability, 0.0)
        state.current = int(rng.choice(len(weight), p=weight / weight.sum()))
        state.credits[state.current] -= 1

        if (own := len(members[state.current])) < view.k:
            why = f"tier {state.current} has {own} clients, {view.k} are wanted"
            view.note("fallback", what="tifl", used="clients of slower tiers, then of faster ones", why=why)
        picked: list[int] = []
        slower, faster = range(state.current, len(members)), range(state.current - 1, -1, -1)
        for tier in [*slower, *faster]:
            count = min(view.k - len(picked), len(members[tier]))
            picked += rng.choice(members[tier], count, replace=False).tolist()
        return picked

    def sort(self, state: Tiers, view: View) -> None:
        """Sort profiled clients into tiers of equal count; equal latencies are split by key."""
        known = np.flatnonzero(state.latency <= (self.max_latency or np.inf))
        order = known[np.lexsort((view.client_info.key[known], state.latency[known]))]
        count = min(self.tiers, len(known))
        state.tier[:] = -1
        for tier, ids in enumerate(np.array_split(order, count) if count else []):
            state.tier[ids] = tier
        if count != len(state.credits):
            state.credits, state.looked = np.zeros(count, dtype=np.int64), -1
            state.accuracy, state.before = (np.full(count, np.nan) for _ in range(2))
            self._deal(state, view)

    def _deal(self, state: Tiers, view: View) -> None:
        """Deal credits anew, and forget which tiers were likelier."""
        count = len(state.credits)
        state.credits = np.full(count, self.credits or ceil(view.rounds / max(count, 1)), dtype=np.int64)
        state.probability = np.full(count, 1 / max(count, 1))

    def _members(self, state: Tiers, view: View) -> list[np.ndarray]:
        """Return the clients of each tier that are there."""
        tier = state.tier[view.eligible]
        return [view.eligible[tier == t] for t in range(len(state.credits))]

    def feedback(self, state: Tiers, view: View, outcomes: Sequence[Outcome], scores: Scores) -> None:
        """Note how each tier does on its own test data; look every few rounds whether that helped."""
        measured = self._measure(state, scores)
        if not any(o.reports for o in outcomes if o.step.combine) or np.isnan(measured).all():
            return  # nothing new is known, which is not the same as no progress
        state.accuracy = np.where(np.isnan(measured), state.accuracy, measured)
        if state.looked >= 0 and view.round - state.looked < (self.interval or len(state.credits)):
            return
        last = state.current
        grew = last < 0 or not measured[last] <= state.before[last]  # what was never measured did not fail to grow
        if not grew and (state.credits > 0).any():
            state.probability = change_probabilities(state.accuracy, state.credits)
        state.before, state.looked = state.accuracy.copy(), view.round

    def _measure(self, state: Tiers, scores: Scores) -> np.ndarray:
        """Return the mean accuracy of each tier in this round; NaN where nobody of it was tested."""
        clients = np.array(list(scores.clients), dtype=np.int64)
        own = np.array(list(scores.clients.values()), dtype=np.float64)
        tested = (state.tier[clients] >= 0) & np.isfinite(own)
        tier, count = state.tier[clients][tested], len(state.credits)
        tests = np.bincount(tier, minlength=count)
        sums = np.bincount(tier, weights=own[tested], minlength=count)
        return np.where(tests > 0, sums / np.maximum(tests, 1), np.nan)
