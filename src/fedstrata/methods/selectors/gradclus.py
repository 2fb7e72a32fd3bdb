"""Fraboni et al., Clustered Sampling: Low-Variance and Improved Representativity for Clients Selection, ICML 2021.

Algorithm 2 (GradClus): clients whose last updates point the same way share an urn, and one client is drawn from each of
k urns. A Ward tree over the distances of updates is climbed while a group's mass fits into an urn; the k heaviest
groups become urns, and the other clients fill the space that is left. `mass_rule = false` is the form that the FLIPS
paper describes: k clusters, one member of each with equal chances.

The authors' code gives the square distance matrix to the linkage as if it held observations; `ward_on = "condensed"`
does not. Where all distances are zero, as before the first report, urns are filled by size. Where all clients are
wanted, all are asked. Beyond `LIMIT` clients the tree is built over a sample of them, which needs `sketch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedstrata.core.options import Natural
from fedstrata.core.server_parts import Selector
from fedstrata.core.steps import Ask, Outcome, Scores, View
from fedstrata.methods.selectors.remembered import (
    Remembered,
    angles,
    blocks,
    check_memory,
    lengths,
    refuse_beyond,
    sketch,
)
from fedstrata.methods.selectors.urns import by_group, by_size, count_draws, everyone
from fedstrata.methods.selectors.ward import On, ward

DISTANCES = {"arccos": angles, "l1": blocks, "l2": lengths}


@dataclass(frozen=True)
class GradClus(Selector):
    """One client is drawn from each of k urns of clients with similar updates; combine with uniform weights."""

    paper: ClassVar[str] = "Fraboni et al., ICML 2021"
    needs: ClassVar[frozenset[str]] = frozenset({"sizes"})
    individual: ClassVar[bool] = True
    LIMIT: ClassVar[int] = 5_000

    distance: Literal["arccos", "l1", "l2"] = "arccos"  # between updates
    ward_on: On = "rows"  # of the distance matrix, or condensed distances
    mass_rule: bool = True  # False: k clusters, one member of each
    start: Literal["zero", "normal"] = "zero"  # the update of a client never seen
    warm_up: Natural = 0  # rounds of draws by size, with replacement, before the first urns
    sketch: Natural = 0  # numbers kept of an update; 0 keeps all

    def init(self, view: View) -> Remembered:
        """Remember nothing."""
        if not self.sketch:
            instead = "Set method.selector.sketch, such as 64: a sample of clients is then compared with all others"
            refuse_beyond(self.LIMIT, view, "GradClus", instead)
        return Remembered.nothing(check_memory(self.sketch or view.space.P, view))

    def select(self, state: Remembered, view: View) -> list[Ask]:
        """Group clients by their last updates, fill the urns, and draw."""
        ids = view.eligible[np.argsort(view.client_info.key[view.eligible])]
        sizes, rng, others = view.client_info.sizes[ids], view.rng("select"), view.rng("select", step=1)
        if view.k >= len(ids):
            return everyone(ids, sizes) if self.mass_rule else count_draws(ids)
        if view.round < self.warm_up:
            return count_draws(rng.choice(ids, view.k, p=sizes / sizes.sum()))
        updates, measure = self._updates(state, view, ids), DISTANCES[self.distance]

        def between(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            own = updates[a]
            return measure(own, own if a is b else updates[b])

        # where a sample stands for all, it must have a client for each of k clusters
        tree = ward(len(ids), between, self.ward_on, max(self.LIMIT, view.k), others)
        if tree.flat:
            used = "urns by size" if self.mass_rule else "random clients"
            view.note("fallback", what="groups of similar updates", used=used, why="no two updates differ")
        if not self.mass_rule:
            groups = list(ids[:, None]) if tree.flat else [ids[group] for group in tree.cut(view.k)]
            picked = groups if len(groups) == view.k else [groups[i] for i in rng.permutation(len(groups))[: view.k]]
            return [Ask(int(rng.choice(group))) for group in picked]
        if tree.flat:
            return by_size(ids, sizes, view.k, view.client_info.key[ids]).draw(rng)
        groups = tree.within(view.k * sizes.astype(np.int64), int(sizes.sum()))
        return by_group(groups, ids, sizes, view.k, others).draw(rng)

    def feedback(self, state: Remembered, view: View, outcomes: Sequence[Outcome], scores: Scores) -> None:
        """Remember the updates that arrived."""
        trained = [report for outcome in outcomes if outcome.step.combine for report in outcome.reports]
        state.keep(sketch({report.client: report.aggregated["update"] for report in trained}, self.sketch, view))

    def _updates(self, state: Remembered, view: View, ids: np.ndarray) -> np.ndarray:
        updates = state.of(ids)
        if self.start == "normal":
            for place in np.flatnonzero(~np.isin(ids, state.ids)):
                stream = view.rng("first-update", round=-1, client=int(ids[place]))
                updates[place] = stream.standard_normal(updates.shape[1], dtype=np.float32)
        return updates
