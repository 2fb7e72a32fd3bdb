"""Lai et al., Oort: Efficient Federated Learning via Guided Participant Selection, OSDI 2021.

A client is worth U = n sqrt(mean loss^2 over the samples it trained on), a bonus for having waited long, and a penalty
if it takes longer than the preferred duration. Most of a round exploits clients of high worth; a share that shrinks
explores clients never heard of, large ones first, and is gone once everybody was heard of. A pacer prefers longer
rounds once utility stops growing. As in the authors' code, utilities are clipped at a quantile, but divided by the
range of all of them, unclipped: one outlier makes the others' differences small beside the bonus for waiting.

Departures: utilities are clipped and ranged over clients that reported, not over sizes of unexplored ones too. The
authors' code still fills the explored share of one round at random before it notices that nobody is left to explore,
and then never explores again; here that round is exploited whole, and a client that gets its first samples later is
explored with the share `epsilon_min`. A duration is unknown until a report came, or failed to. Draws in proportion to a
score are exponential races, which have the distribution of drawing one after another and take linear time. Asking more
clients than are wanted is the system's (`system.over_select`; the paper's is 1.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Interval

from fedstrata.core.client_context import Batch, Buffers, ClientContext, Done
from fedstrata.core.client_parts import Correction, LocalPart
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.messages import Slot, Tensors
from fedstrata.core.options import Count, Fraction, NonNegative, Positive
from fedstrata.core.rng import Rng
from fedstrata.core.server_parts import Selector
from fedstrata.core.steps import Outcome, Scores, View

Percentile = Annotated[float, Interval(gt=0, le=100), "a number above 0, at most 100"]
CountOrOff = Annotated[int, Ge(-1), "a whole number >= 0, or -1 for off"]


@dataclass(frozen=True)
class Utility(Correction):
    """Measures what a client is worth: n sqrt(mean loss^2) over all samples it trained on."""

    paper: ClassVar[str] = "Lai et al., OSDI 2021"

    def declare_slots(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Hold the sum of squared losses, and of how many."""
        return {"squares": Slot(), "seen": Slot()}

    def fill(self, own: Tensors, buf: Buffers, context: ClientContext) -> None:
        """Start from nothing."""
        for slot in own.values():
            slot.zero_()

    def observe(self, own: Tensors, buf: Buffers, batch: Batch) -> None:
        """Add up a batch, without its padding."""
        real = batch.weight > 0
        own["squares"].add_((batch.each.square() * real).sum())
        own["seen"].add_(real.sum())

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        """Tell the utility."""
        mean = own["squares"] / own["seen"].clamp(min=1)
        return Done(metrics={"utility": context.client.samples * mean.sqrt()})


@dataclass
class Experience:
    """What the selector remembers of every client, and of the rounds."""

    utility: np.ndarray  # as last reported
    duration: np.ndarray  # seconds of the last report, or of waiting for it in vain; NaN: never asked
    last: np.ndarray  # selection after which a client last reported, counted from 1; 0: it never did
    count: np.ndarray  # reports that came
    explored: np.ndarray
    epsilon: float  # share of a round that explores
    threshold: float  # percentile of durations that is preferred
    now: int = 0  # selections so far
    exploited: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # in this round
    gains: list[float] = field(default_factory=list)  # mean utility of the exploited, by round, for the pacer


def slowness(duration: np.ndarray, preferred: float, penalty: float) -> np.ndarray:
    """Return the factor of those who take longer than preferred; 1 for the others, and where nothing is known."""
    late = duration > preferred
    return np.where(late, (preferred / np.where(late, duration, 1.0)) ** penalty, 1.0)


@dataclass(frozen=True)
class Oort(Selector):
    """Clients with high loss and short rounds, and a share of clients never heard of."""

    paper: ClassVar[str] = "Lai et al., OSDI 2021"
    reads: ClassVar[str] = "how high each selected client's training losses are, and how long it took"
    needs: ClassVar[frozenset[str]] = frozenset({"sizes"})

    epsilon: Fraction = 0.9  # share of a round that explores, before the first decay; 0 once everybody was heard of
    decay: Fraction = 0.98  # of epsilon, each round
    epsilon_min: Fraction = 0.2  # least epsilon while somebody was never heard of
    clip: Fraction = 0.95  # quantile of utilities above which they count no more
    threshold: Percentile = 30.0  # percentile of durations that is preferred, at first
    pacer_rounds: Count = 20  # between two looks of the pacer
    pacer_step: Positive = 5.0  # by which it moves the percentile
    penalty: NonNegative = 2.0  # exponent for those who take longer than preferred
    cut_off: Fraction = 0.95  # of the score that would just be taken: who is above may be drawn
    window: Count = 5  # times as many unexplored clients as wanted are drawn from
    first: Literal["samples", "batch"] = "samples"  # utility before any report: samples, or at most epochs * batch size
    blacklist_rounds: CountOrOff = -1  # reports after which a client is left out
    blacklist_share: Fraction = 0.3  # most clients that may be left out
    timeout: NonNegative = 0.0  # duration of a client whose report did not come; 0: as long as the slowest so far

    def metrics_read(self, kind: str) -> tuple[str, ...]:
        """Read what a client is worth."""
        return ("utility",) if kind == "train" else ()

    def meters(self, others: Sequence[LocalPart]) -> Sequence[LocalPart]:
        """Clients tell what they are worth."""
        return (Utility(),)

    def init(self, view: View) -> Experience:
        """Know nobody."""
        n = view.client_info.clients
        last, count = (np.zeros(n, dtype=np.int64) for _ in range(2))
        unknown = np.full(n, np.nan)
        return Experience(np.zeros(n), unknown, last, count, np.zeros(n, dtype=bool), self.epsilon, self.threshold)

    def select(self, state: Experience, view: View) -> list[int]:
        """Exploit, explore, and fill up."""
        state.now += 1
        to_explore = not state.explored[view.client_info.holders].all()  # those who are away today count too
        state.epsilon = max(state.epsilon * self.decay, self.epsilon_min) if to_explore else 0.0
        rng, k = view.rng("select"), min(view.k, len(view.eligible))
        preferred, left_out = self.preferred(state), self.blacklist(state, view)
        ids = view.eligible[~left_out[view.eligible]]
        known, unknown = ids[state.explored[ids]], ids[~state.explored[ids]]

        wanted = min(k - _floor(k * state.epsilon, k), len(known))
        state.exploited = self.exploit(rng, known, self.scores(state, known, preferred), wanted)

        worth = view.client_info.sizes[unknown].astype(np.float64)
        if self.first == "batch":
            worth = np.minimum(worth, view.epochs * view.batch_size)
        worth *= slowness(state.duration[unknown], preferred, self.penalty)
        wanted = min(k - len(state.exploited), len(unknown))
        best = _highest(worth, view.client_info.key[unknown], min(self.window * wanted, len(unknown)))
        explored = unknown[best][_draw(rng, worth[best], wanted)]

        picked = np.concatenate([state.exploited, explored])
        if (short := min(k, len(ids)) - len(picked)) > 0:  # fewer unexplored clients are there than may be explored
            picked = np.concatenate([picked, rng.choice(ids[~np.isin(ids, picked)], short, replace=False)])
        if (short := k - len(picked)) > 0:
            why = f"{k} clients are wanted, {len(ids)} are not on the blacklist"
            view.note("fallback", what="oort", used="the least used of the blacklist", why=why)
            rest = view.eligible[~np.isin(view.eligible, picked)]
            picked = np.concatenate([picked, rest[np.lexsort((view.client_info.key[rest], state.count[rest]))[:short]]])
        chosen: list[int] = picked.tolist()
        return chosen

    def scores(self, state: Experience, ids: np.ndarray, preferred: float) -> np.ndarray:
        """Score explored clients: clipped utility over its range, a bonus for waiting, a penalty for slowness."""
        if not len(ids):
            return np.zeros(0)
        utility = state.utility[ids]
        place = _floor(self.clip * len(ids), len(ids) - 1)
        ceiling, floor = np.partition(utility, place)[place], 0.999 * utility.min()
        worth = (np.minimum(utility, ceiling) - floor) / max(utility.max() - floor, 1e-4)
        stale = np.sqrt(0.1 * np.log(state.now) / np.maximum(state.last[ids], 1))
        return np.asarray((worth + stale) * slowness(state.duration[ids], preferred, self.penalty))

    def exploit(self, rng: Rng, known: np.ndarray, scores: np.ndarray, wanted: int) -> np.ndarray:
        """Draw by score among all who come near the score that would just be taken."""
        if not wanted:
            return known[:0]
        place = min(wanted, len(known) - 1)
        cut = -np.partition(-scores, place)[place] * self.cut_off
        pool = np.flatnonzero(scores >= cut)
        return np.asarray(known[pool][_draw(rng, scores[pool], wanted)])

    def preferred(self, state: Experience) -> float:
        """Return the duration above which clients are penalised."""
        known = state.duration[~np.isnan(state.duration)]
        if state.threshold >= 100 or not len(known):
            return float("inf")
        place = _floor(len(known) * state.threshold / 100, len(known) - 1)
        return float(np.partition(known, place)[place])

    def blacklist(self, state: Experience, view: View) -> np.ndarray:
        """Leave out clients that reported often enough; the most used, if there are too many."""
        left_out = np.zeros(len(state.count), dtype=bool)
        if self.blacklist_rounds >= 0:
            often = np.flatnonzero(state.count > self.blacklist_rounds)
            most = _floor(self.blacklist_share * len(left_out), len(often))
            most_used_first = np.lexsort((view.client_info.key[often], -state.count[often]))
            left_out[often[most_used_first[:most]]] = True
        return left_out

    def feedback(self, state: Experience, view: View, outcomes: Sequence[Outcome], scores: Scores) -> None:
        """Learn from reports; of those that did not come, only that they took too long."""
        trained = [o for o in outcomes if o.step.combine]
        reports = [r for o in trained for r in o.reports if "utility" in r.metrics]
        ids = np.array([r.client for r in reports], dtype=np.int64)
        utility = np.array([r.metrics["utility"] for r in reports], dtype=np.float64)
        state.utility[ids] = np.where(np.isfinite(utility), utility, 0.0)  # a client that diverged is worth nothing
        state.duration[ids] = [r.seconds for r in reports]
        state.last[ids] = state.now
        state.explored[ids] = True
        np.add.at(state.count, ids, 1)

        missing = np.setdiff1d(np.array([i for o in trained for i in o.missing], dtype=np.int64), ids)
        if self.timeout or np.isfinite(state.duration).any():  # before anybody reported, too long is no number yet
            state.duration[missing] = self.timeout or np.nanmax(state.duration)
        if len(ids):  # an empty round says nothing about progress
            self._pace(state, np.intersect1d(state.exploited, ids))

    def _pace(self, state: Experience, successful: np.ndarray) -> None:
        """Prefer longer rounds where utility is flat, shorter ones where it jumps."""
        state.gains.append(float(state.utility[successful].mean()) if len(successful) else 0.0)
        if len(state.gains) < 2 * self.pacer_rounds:
            return
        before, now = sum(state.gains[: self.pacer_rounds]), sum(state.gains[self.pacer_rounds :])
        if abs(now - before) <= 0.1 * before:
            state.threshold = min(100.0, state.threshold + self.pacer_step)
        elif abs(now - before) >= 5 * before:
            state.threshold = max(self.pacer_step, state.threshold - self.pacer_step)
        del state.gains[: self.pacer_rounds]


def _floor(value: float, most: int) -> int:
    """Round down as everywhere: what is a whole number but for rounding errors is one."""
    return min(int(value + 1e-9), most)


def _draw(rng: Rng, weights: np.ndarray, count: int) -> np.ndarray:
    """Draw positions without replacement, in proportion to weights: the first to arrive at these rates."""
    if not count:
        return np.zeros(0, dtype=np.int64)
    top = weights.max()
    rates = np.maximum(weights / top, 1e-12) if top > 0 else np.ones(len(weights))
    arrival = rng.standard_exponential(len(weights)) / rates
    return np.argpartition(arrival, count - 1)[:count]


def _highest(values: np.ndarray, key: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the highest values, in linear time; ties by key."""
    if count in (0, len(values)):
        return np.arange(count)
    edge = np.partition(values, len(values) - count)[len(values) - count]
    above, level = np.flatnonzero(values > edge), np.flatnonzero(values == edge)
    return np.concatenate([above, level[np.argsort(key[level], kind="stable")[: count - len(above)]]])
