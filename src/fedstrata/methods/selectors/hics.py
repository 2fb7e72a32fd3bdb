"""Chen and Vikalo, Heterogeneity-Guided Client Sampling: Towards Fast and Efficient Non-IID FL, NeurIPS 2024 (HiCS-FL).

The update of the output layer's bias tells how even a client's labels are: the entropy of its softmax, at a small
temperature, is high where labels are balanced. First everybody trains once, in the order of ids. Then clients are
clustered (Ward) by the angle between their head updates and by their entropies; clusters are drawn with probability
prop. to exp(gamma (1 - t/R) mean entropy), and members of a cluster with equal chances, without replacement.

After warm-up the authors' code learns nothing more of clients where their data were dealt out with several alphas, and
renews updates in every round where all clients share one alpha. A server cannot know which: `refresh = "warm-up"`, as
in most of their experiments, keeps the first update of every client, and `refresh = "always"` the last.

Departures: with "warm-up", a client that warm-up missed is learnt of when it first reports; the authors' code takes its
labels for even for good, and so prefers it. Their code redraws where a cluster has no member left, without end where
the others' probabilities underflow; here the draw is among those that have some. Its signal, row means of the head's
weights, is `signal = "wrow"`; its switch to clustered sampling where entropies differ much is `switch_var = 0.1`.
Beyond `LIMIT` clients the tree is built over a sample of them, which needs `sketch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedstrata.core.client_context import Buffers, ClientContext, Done
from fedstrata.core.client_parts import Correction, LocalPart
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.messages import Tensors
from fedstrata.core.options import Count, Natural, NonNegative, Positive
from fedstrata.core.plan import Plan
from fedstrata.core.rng import Rng
from fedstrata.core.server_parts import Selector
from fedstrata.core.steps import Ask, Outcome, Scores, View
from fedstrata.methods.selectors.remembered import Remembered, angles, check_memory, refuse_beyond, sketch
from fedstrata.methods.selectors.urns import by_group
from fedstrata.methods.selectors.ward import On, ward


@dataclass(frozen=True)
class HeadUpdate(Correction):
    """Shows the server how the head moved."""

    opens_tensors: ClassVar[bool] = True

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        """Show it."""
        return Done(open_tensors={"head": (buf.w - buf.w0)[buf.head]})


@dataclass
class Heads:
    """What is known of clients."""

    last: Remembered  # head updates
    entropy: np.ndarray  # by client; ln C, as of even labels, for those never seen
    asked: np.ndarray  # by client: whether it ever was


@dataclass(frozen=True)
class Hics(Selector):
    """Clusters of clients whose labels seem even train first; combine with uniform weights."""

    paper: ClassVar[str] = "Chen and Vikalo, NeurIPS 2024"
    reads: ClassVar[str] = "every selected client's update of the last layer"
    LIMIT: ClassVar[int] = 5_000

    clusters: Count = 10  # M
    gamma: NonNegative = 4.0  # how much even labels are preferred in the first round
    lam: NonNegative = 10.0  # how much entropies count beside angles
    temperature: Positive = 0.001  # of the softmax whose entropy is taken
    signal: Literal["bias", "wrow"] = "bias"  # the update of the head's bias, or the row means of its weights'
    switch_var: NonNegative | None = None  # variance of entropies from which urns are drawn from, as in GradClus
    ward_on: On = "rows"  # of the distance matrix, or condensed distances
    sketch: Natural = 0  # numbers kept of a head update; 0 keeps all
    refresh: Literal["warm-up", "always"] = "warm-up"  # whose update is kept: a client's first, or its last

    def meters(self, others: Sequence[LocalPart]) -> Sequence[LocalPart]:
        """Clients show how their heads moved."""
        return (HeadUpdate(),)

    @property
    def needs(self) -> frozenset[str]:
        """Know sizes where urns are filled."""
        return frozenset() if self.switch_var is None else frozenset({"sizes"})

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse a head that gives no signal."""
        if self.signal == "bias" and plan.space.head_bias.start == plan.space.head_bias.stop:
            return 'it reads the update of the head\'s bias, and the head has none; use signal = "wrow"'
        return None

    def init(self, view: View) -> Heads:
        """Know nothing: every client's labels may be even."""
        if not self.sketch:
            instead = "Set method.selector.sketch, such as 64: a sample of clients is then compared with all others"
            refuse_beyond(self.LIMIT, view, "Hics", instead)
        numbers = self.sketch or view.space.head.stop - view.space.head.start
        entropy = np.full(view.client_info.clients, np.log(view.client_info.classes))
        return Heads(
            Remembered.nothing(check_memory(numbers, view)), entropy, np.zeros(view.client_info.clients, dtype=bool)
        )

    @property
    def plans_ahead(self) -> bool:
        """The preference for even labels fades out over the run."""
        return True

    def select(self, state: Heads, view: View) -> list[Ask]:
        """Ask everybody once; then draw clusters, and members of them."""
        fresh = np.sort(view.eligible[~state.asked[view.eligible]])
        if view.k >= len(view.eligible):
            return [Ask(int(i)) for i in view.eligible]
        if len(fresh) >= view.k:  # the same as: the round is below floor(N / K), where all are available
            return [Ask(int(i)) for i in fresh[: view.k]]
        ids = view.eligible[np.argsort(view.client_info.key[view.eligible])]
        heads, entropy = state.last.of(ids), state.entropy[ids]
        rng, others = view.rng("select"), view.rng("select", step=1)

        def between(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            apart: np.ndarray = angles(heads[a], heads[b]) + self.lam * np.abs(entropy[a][:, None] - entropy[b])
            return apart

        tree = ward(len(ids), between, self.ward_on, self.LIMIT, others)
        if tree.flat:
            why = "no two head updates differ"
            view.note("fallback", what="clusters of similar clients", used="random clients", why=why)
            return [Ask(int(i)) for i in rng.choice(ids, view.k, replace=False)]
        if self.switch_var is not None and entropy.var() >= self.switch_var:
            sizes = view.client_info.sizes[ids]
            groups = tree.within(view.k * sizes.astype(np.int64), int(sizes.sum()))
            return by_group(groups, ids, sizes, view.k, others).draw(rng)
        groups = tree.cut(min(self.clusters, len(tree.leaves)))
        preference = self.gamma * (1 - view.round / view.rounds) * np.array([entropy[g].mean() for g in groups])
        taken = draw_clusters(preference, np.array([len(g) for g in groups]), view.k, rng)
        picked = [rng.choice(ids[group], n, replace=False) for group, n in zip(groups, taken.tolist(), strict=True)]
        return [Ask(int(i)) for i in np.concatenate(picked)]

    def feedback(self, state: Heads, view: View, outcomes: Sequence[Outcome], scores: Scores) -> None:
        """Remember head updates and their entropies."""
        trained = [outcome for outcome in outcomes if outcome.step.combine]
        for outcome in trained:
            state.asked[[ask.client for ask in outcome.step.asks]] = True
        size = (view.space.head.stop - view.space.head.start,)
        old = set(state.last.ids.tolist()) if self.refresh == "warm-up" else set[int]()
        reports = [r for outcome in trained for r in outcome.reports if r.client not in old]
        shown = {r.client: r.open_tensors.get("HeadUpdate/head") for r in reports}
        heads = {client: head.cpu() for client, head in shown.items() if head is not None and head.shape == size}
        if silent := sorted(shown.keys() - heads.keys()):  # sites are not trusted
            why = "their reports do not show how the head moved"
            view.note("fallback", round=view.round + 1, what="hics", used="what was known", clients=silent, why=why)
        for client, head in heads.items():
            signal = signal_of(head.numpy().astype(np.float64), view.space, self.signal, view.client_info.classes)
            state.entropy[client] = -(likely(signal / self.temperature) * log_likely(signal / self.temperature)).sum()
        state.last.keep(sketch(heads, self.sketch, view))


def signal_of(head: np.ndarray, space: ParameterSpace, signal: str, classes: int) -> np.ndarray:
    """Return one number a class: how its bias moved, or its row of weights on average."""
    own = space.head_bias if signal == "bias" else space.head_weight
    moved = head[own.start - space.head.start : own.stop - space.head.start]
    return np.asarray(moved if signal == "bias" else moved.reshape(classes, -1).mean(1))


def log_likely(scores: np.ndarray) -> np.ndarray:
    """Return the logarithm of the softmax."""
    shifted = scores - scores.max()
    logs: np.ndarray = shifted - np.log(np.exp(shifted).sum())
    return logs


def likely(scores: np.ndarray) -> np.ndarray:
    """Return the softmax."""
    return np.asarray(np.exp(log_likely(scores)))


def draw_clusters(preference: np.ndarray, sizes: np.ndarray, count: int, rng: Rng) -> np.ndarray:
    """Draw clusters by the softmax of a preference, among those that have a member left; say how often each."""
    taken = np.zeros(len(sizes), dtype=np.int64)
    for _ in range(count):
        free = np.flatnonzero(taken < sizes)
        taken[rng.choice(free, p=likely(preference[free]))] += 1
    return taken
