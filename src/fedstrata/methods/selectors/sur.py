"""Stable update reweighting (SUR), the client ranking of FedBS as the FedPBS paper (arXiv 2603.13909) writes it down.

Asks clients how much their samples' gradients differ under the current model, and trains the k of the smallest
SUR = importance * variance: the subset of k clients with the least sum (Eq. 10). The probe costs a model download each.

The variance is the mean of ||g_i - mean g||^2 (Eq. 8), in eval mode, where g_i is the exact gradient of sample i's
cross-entropy with respect to all parameters, or with respect to the last layer alone: a forward pass. It is taken over
one batch, as in Algorithm 3, or over all samples, as Eq. 8 says.

What comes of it: clients with few labels have samples whose gradients agree, so that Eq. 10 asks the same of them again
and again, and hardly ever those that hold many labels. It is the selection that fails, not the weights: docs/
experiment.md has the numbers. `coverage`, which is ours, moves a client forward in the ranking the longer it was not
asked: by that share of the whole ranking for each turn that it has waited, where a turn is as many rounds as it takes
to ask every candidate once. At 1, who has waited a turn comes before everybody who was asked in the last round.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import ClassVar, Literal

import numpy as np

from fedstrata.core.client_context import ClientContext, Done, Of, Program
from fedstrata.core.options import Natural, NonNegative
from fedstrata.core.server_parts import Selector
from fedstrata.core.steps import Ask, Outcome, Step, View
from fedstrata.methods.variance import Over, Variance


def tell(context: ClientContext, of: Of, over: Over = "batch") -> Done:
    """Tell how much the gradients of this client's samples differ."""
    return Done(metrics={"gradient_variance": Variance(of, over).look(context)})


def smallest(sur: np.ndarray, keys: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the smallest scores, ties by key; what is not a number comes last."""
    return np.lexsort((keys, np.where(np.isnan(sur), np.inf, sur)))[:count]


@dataclass
class Known:
    """What clients said last."""

    variance: np.ndarray  # NaN: nothing so far
    asked: np.ndarray  # round in which a client was last asked to train; -1: never


@dataclass(frozen=True)
class Sur(Selector):
    """The k clients whose samples' gradients differ least train."""

    paper: ClassVar[str] = "FedPBS, arXiv 2603.13909"
    reads: ClassVar[str] = "how much the gradients of each asked client's samples vary"
    programs: ClassVar[Mapping[str, Program]] = MappingProxyType(
        {
            "probe-gradient-variance": partial(tell, of="gradient"),
            "probe-head-variance": partial(tell, of="head-gradient"),
            "probe-gradient-variance-of-all": partial(tell, of="gradient", over="all"),
            "probe-head-variance-of-all": partial(tell, of="head-gradient", over="all"),
        }
    )

    layers: Literal["all", "last"] = "all"  # whose gradients
    over: Over = "batch"  # of one batch (Algorithm 3), or of all samples of a client (Equation 8)
    # a_q: all alike, or a client's number of samples. The formula disfavours clients of large importance.
    importance: Literal["equal", "size"] = "equal"
    candidates: Natural = 0  # clients drawn at random to be probed; 0 means all
    coverage: NonNegative = 0.0  # of the ranking, by which a client moves forward for each turn that it was not asked

    def metrics_read(self, kind: str) -> tuple[str, ...]:
        """Read what probes tell."""
        return ("gradient_variance",) if kind in self.programs else ()

    @property
    def needs(self) -> frozenset[str]:
        """Sizes, if they are the importance."""
        return frozenset({"sizes"}) if self.importance == "size" else frozenset()

    def init(self, view: View) -> Known:
        """Know nothing."""
        n = view.client_info.clients
        return Known(np.full(n, np.nan), np.full(n, -1, dtype=np.int64))

    def select(self, state: Known, view: View) -> Generator[Step, Outcome, list[int]]:
        """Probe, and keep the k smallest scores; who told nothing usable comes after them, by its last answer."""
        d = min(max(self.candidates or len(view.eligible), view.k), len(view.eligible))
        drawn = np.sort(view.rng("select").choice(view.eligible, d, replace=False))
        kind = "probe-gradient-variance" if self.layers == "all" else "probe-head-variance"
        kind += "-of-all" if self.over == "all" else ""
        probe = yield Step(tuple(Ask(int(i)) for i in drawn), kind=kind, combine=False)
        told = {r.client: float(r.metrics["gradient_variance"]) for r in probe.reports}  # type: ignore[arg-type]
        state.variance[list(told)] = list(told.values())
        stable = self.rank_clients(state, view, [client for client, value in told.items() if np.isfinite(value)])
        if len(stable) < view.k:
            why = f"only {len(stable)} of {d} probed clients told a finite variance"
            view.note("fallback", round=view.round + 1, what="sur", used="what clients told before", why=why)
            stable += self.rank_clients(state, view, [client for client in drawn.tolist() if client not in stable])
        if self.coverage:
            stable = self.cover(state, view, stable)
            state.asked[stable[: view.k]] = view.round
        return stable[: view.k]

    def cover(self, state: Known, view: View, ranked: list[int]) -> list[int]:
        """Move clients forward that were not asked for long."""
        turns = (view.round - 1 - state.asked[ranked]) * min(view.k, len(ranked)) / len(ranked)
        return [
            ranked[i] for i in np.argsort(np.arange(len(ranked)) / len(ranked) - self.coverage * turns, kind="stable")
        ]

    def rank_clients(self, state: Known, view: View, clients: list[int]) -> list[int]:
        """Sort clients by their score, those without one last."""
        importance = view.client_info.sizes[clients] if self.importance == "size" else 1.0
        places = smallest(importance * state.variance[clients], view.client_info.key[clients], len(clients))
        return [clients[i] for i in places]
