"""Bhope et al., FLIPS: Federated Learning using Intelligent Participant Selection, 2023.

Clients are clustered by their labels, in the first round. A round takes from the clusters in turn, and from each the
member that was taken least often; where clients were missing, more are asked, from the clusters that lost them.

Repaired in Algorithm 1: a small cluster that is visited twice gives no client twice and leaves no gap; extras count as
picks of the client, not of the cluster; the straggler rate is a mean, where line 46 adds up without bound
(`rate = "literal"`; "reset" counts each round anew). Label vectors are shares, with which the paper's ten clusters
are found, not counts. Beyond the paper, clients that join or whose labels changed go to the nearest centre, and
clusters are found anew once most labels have changed. Where a rehearsal of some rounds says that random clients would
be nearer to both the mix of all labels and to even shares, an event warns.

Where clusters were found without label counts being told (`client_info.clusters`), those are taken as they are.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import ClassVar, Literal

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.options import Count, Fraction
from fedstrata.core.server_parts import Selector
from fedstrata.core.steps import Outcome, Scores, View
from fedstrata.methods.selectors.clusters import Rule, find_clusters, nearest
from fedstrata.methods.selectors.members import Members, fingerprints
from fedstrata.server.metrics import CLIENTS_LISTED, label_divergence

REHEARSED, ROUNDS = 20_000, 50  # most clients with whom rounds are rehearsed, and how many


@dataclass
class Fairness:
    """Who is in which cluster, how often everybody was picked, and who did not report."""

    centres: np.ndarray  # [k, C]; [0, C] before the first round, and where clusters were found elsewhere
    cluster: np.ndarray  # of each client; -1: it never had data
    told: np.ndarray  # fingerprint of the label counts by which each client was put into its cluster
    found: np.ndarray  # the same when the clusters were found
    picks: np.ndarray  # by client
    cluster_picks: np.ndarray
    straggler: np.ndarray  # whether a client's last report is missing
    selected: int = 0
    missing: int = 0
    rate: float = 0.0

    def __post_init__(self) -> None:
        self.members: Members | None = None  # found again after a restart, so it is not saved


@dataclass(frozen=True)
class Flips(Selector):
    """Clusters of clients with similar labels take turns; those that lost clients send more."""

    paper: ClassVar[str] = "Bhope et al., FLIPS, 2023"
    needs: ClassVar[frozenset[str]] = frozenset({"counts"})

    features: Literal["l1", "counts"] = "l1"  # shares of labels, or their counts
    clusters: Count | None = None  # None: found by the elbow
    elbow: Rule = "min"  # how many clusters: where the Davies-Bouldin index is lowest, or bends; or as Equation 3 says
    repeats: Count = 20  # T: runs of k-means for each number of clusters
    over_provision: bool = True  # where reports were lost, more clients are asked
    rate: Literal["mean", "literal", "reset"] = "mean"  # of lost clients: so far, added up, or in the last round
    recluster: Fraction = 0.5  # share of clients whose labels changed, above which clusters are found anew

    def init(self, view: View) -> Fairness:
        """Begin with nobody clustered: that is done in the first round, and not again when a run is resumed."""
        clients, classes = view.client_info.clients, view.client_info.classes
        none = np.zeros(0, dtype=np.int64)
        state = Fairness(np.zeros((0, classes)), none, none, none, none, none, none.astype(bool))
        _grow(state, clients)
        return state

    def select(self, state: Fairness, view: View) -> list[int]:
        """Take k clients from the clusters in turn, and extras where clients were missing."""
        here = self._refresh_members(state, view).only(view.eligible)
        chosen = self._pick(state, here, view.k)
        return chosen + (self._extras(state, view, here, chosen) if self.over_provision else [])

    def _pick(self, state: Fairness, here: Members, k: int) -> list[int]:
        """Take k clients from the clusters in turn, and from each the member that was taken least often."""
        queue = [(int(state.cluster_picks[c]), here.first(c), c) for c in here.filled()]
        heapq.heapify(queue)
        turns: list[int] = []
        taken = np.zeros(len(state.cluster_picks), dtype=np.int64)
        while queue and len(turns) < k:
            picks, first, c = heapq.heappop(queue)
            if taken[c] < here.size(c):  # else its members are all in, and it waits for the next round
                turns.append(c)
                taken[c] += 1
                heapq.heappush(queue, (picks + 1, first, c))
        least = {c: iter(here.least(c, int(taken[c]), state.picks)) for c in np.flatnonzero(taken).tolist()}
        chosen = [next(least[c]) for c in turns]
        state.picks[chosen] += 1
        state.cluster_picks += taken
        return chosen

    def feedback(self, state: Fairness, view: View, outcomes: Sequence[Outcome], scores: Scores) -> None:
        """Learn who is missing and who is back."""
        trained = [o for o in outcomes if o.step.combine]
        missing = sum(len(o.missing) for o in trained)
        for outcome in trained:
            state.straggler[list(outcome.missing)] = True
            state.straggler[[r.client for r in outcome.reports]] = False
        state.selected += sum(len(o.step.asks) for o in trained)
        state.missing += missing
        if self.rate == "mean":
            state.rate = state.missing / max(state.selected, 1)
        else:
            late = state.missing if self.rate == "literal" else missing
            state.rate = min(1.0, state.rate + late / max(view.k, 1))

    def _extras(self, state: Fairness, view: View, here: Members, chosen: list[int]) -> list[int]:
        """Go round the clusters that lost clients, most losses first, and take members that do not straggle."""
        wanted, late = int(state.rate * view.k + 1e-9), np.flatnonzero(state.straggler)
        late = late[_among(late, view.client_info.holders)]  # who left for good is not missed
        if not wanted or not len(late):
            return []
        lost = np.bincount(state.cluster[late], minlength=len(state.cluster_picks))
        busy = state.straggler.copy()
        busy[chosen] = True
        by_losses = sorted(np.flatnonzero(lost).tolist(), key=lambda c: (-lost[c], here.first(c)))
        queues = [iter(here.least(c, wanted, state.picks, busy)) for c in by_losses]
        extras: list[int] = []
        turns = cycle(queues)
        idle = 0
        while len(extras) < wanted and idle < len(queues):
            found = next(next(turns), None)
            idle = idle + 1 if found is None else 0
            if found is not None:
                extras.append(found)
        state.picks[extras] += 1
        return extras

    # ---- clusters

    def _refresh_members(self, state: Fairness, view: View) -> Members:
        """Return the members of clusters, found anew where something was told since. Fairness is kept."""
        client_info = view.client_info
        told = client_info.counts if client_info.clusters is None else client_info.clusters
        if state.members is not None and state.members.told is told:
            return state.members
        _grow(state, client_info.clients)
        if client_info.clusters is None:
            self._cluster(state, view)
        else:
            _take_over(state, view, client_info.clusters)
        state.members = Members.of(state.cluster, len(state.cluster_picks), client_info.holders, client_info.key, told)
        return state.members

    def _cluster(self, state: Fairness, view: View) -> None:
        """Cluster everybody at first, and when most have changed; otherwise, who joined or has other label counts."""
        counts, ids = view.client_info.counts, view.client_info.holders
        told = fingerprints(counts)
        changed = ids[(state.cluster[ids] < 0) | (state.told[ids] != told[ids])]
        before = state.cluster[changed]
        if not len(state.centres) or np.mean(state.found[ids] != told[ids]) > self.recluster:
            self._find(state, view, ids)
            state.found[ids] = told[ids]
        elif len(changed):
            state.cluster[changed] = nearest(self._vectors(counts[changed]), state.centres)
            moved = int((state.cluster[changed] != before).sum())
            view.note("clusters", round=view.round + 1, changed=len(changed), moved=moved)
        if len(changed) < len(ids):
            _welcome(state, view, changed[before < 0])
        state.told[changed] = told[changed]

    def _find(self, state: Fairness, view: View, ids: np.ndarray) -> None:
        """Find clusters among all clients; everybody keeps the picks they had."""
        counts, again = view.client_info.counts[ids], {"round": view.round + 1} if len(state.centres) else {}
        vectors = self._vectors(counts)
        found = find_clusters(vectors, self.clusters, self.elbow, self.repeats, view.rng("select"), view.note)
        state.centres = found.centres
        state.cluster[ids] = nearest(vectors, state.centres)
        state.cluster_picks = np.zeros(len(found.centres), dtype=np.int64)
        curve = {str(k): round(dbi, 6) for k, dbi in found.curve.items()}
        members = {"members": state.cluster.tolist()} if len(state.cluster) <= CLIENTS_LISTED else {}
        about = {"davies_bouldin": curve, "searched": found.searched} | members
        view.note("clusters", **again, clusters=len(found.centres), **about)
        if len(found.centres) > view.k:
            why = (
                f"{len(found.centres)} clusters take turns in rounds of {view.k} clients, so no round has them all; "
                f"method.selector.clusters={view.k} makes as many as a round has clients"
            )
            view.note("warning", what="method.selector", why=why)
        self._rehearse(state, view, ids)

    def _rehearse(self, state: Fairness, view: View, ids: np.ndarray) -> None:
        """Warn where random clients would give rounds that are better balanced."""
        if len(ids) > REHEARSED or view.k >= len(ids):
            return
        counts, key = view.client_info.counts, view.client_info.key
        members = Members.of(state.cluster, len(state.cluster_picks), ids, key, counts)
        trial, rng = copy.deepcopy(state), view.rng("rehearse")
        ours = [self._pick(trial, members, view.k) for _ in range(ROUNDS)]
        drawn = [rng.choice(ids, view.k, replace=False) for _ in range(ROUNDS)]
        mix = counts[ids].sum(0) / counts[ids].sum()
        even = (mix > 0) / np.count_nonzero(mix)
        gaps = [
            [float(np.mean([label_divergence(counts[some].sum(0), to) for some in rounds])) for to in (mix, even)]
            for rounds in (ours, drawn)
        ]
        if gaps[0][0] > gaps[1][0] and gaps[0][1] > gaps[1][1]:
            why = (
                f"rounds would be less balanced than random ones: {gaps[0][0]:.3f} nats from the mix of all labels "
                f"against {gaps[1][0]:.3f}, {gaps[0][1]:.3f} from even shares against {gaps[1][1]:.3f}; set "
                "method.selector.clusters so that a round is a multiple of it, from the number of labels on"
            )
            view.note("warning", what="method.selector", why=why)

    def _vectors(self, counts: np.ndarray) -> np.ndarray:
        if self.features == "counts":
            return counts.astype(np.float32)
        shares: np.ndarray = np.divide(counts, counts.sum(1, keepdims=True), dtype=np.float32)
        return shares


def _take_over(state: Fairness, view: View, clusters: np.ndarray) -> None:
    """Let everybody be in the cluster that was found elsewhere."""
    ids = view.client_info.holders
    if (clusters[ids] < 0).any():
        lost = ids[clusters[ids] < 0].tolist()
        raise RequestError(f"clients {lost[:5]} have data but are in no cluster: cluster again after clients joined")
    joined = ids[state.cluster[ids] < 0]
    more = max(int(clusters.max(initial=-1)) + 1 - len(state.cluster_picks), 0)
    first = not len(state.cluster_picks)
    state.cluster_picks = np.concatenate([state.cluster_picks, np.zeros(more, dtype=np.int64)])
    state.cluster[ids] = clusters[ids]
    if first:
        view.note("clusters", clusters=more, told="memberships")
    else:
        _welcome(state, view, joined)


def _among(some: np.ndarray, all: np.ndarray) -> np.ndarray:
    """Say which of some ids are among all, of which there may be many; those are in order."""
    at = np.searchsorted(all, some)
    at[at == len(all)] = 0
    return all[at] == some if len(all) else np.zeros(len(some), dtype=bool)


def _grow(state: Fairness, clients: int) -> None:
    """Make room for clients that joined; of a client that nobody knew yet there is nothing to say."""
    more = max(clients - len(state.cluster), 0)
    state.cluster = np.concatenate([state.cluster, np.full(more, -1)])
    state.told = np.concatenate([state.told, np.zeros(more, dtype=np.int64)])
    state.found = np.concatenate([state.found, np.zeros(more, dtype=np.int64)])
    state.picks = np.concatenate([state.picks, np.zeros(more, dtype=np.int64)])
    state.straggler = np.concatenate([state.straggler, np.zeros(more, dtype=bool)])


def _welcome(state: Fairness, view: View, joined: np.ndarray) -> None:
    """Let a client that joins begin with as many picks as the least picked of its cluster: it need not catch up."""
    if not len(joined):
        return
    most = np.iinfo(np.int64).max
    least = np.full(len(state.cluster_picks), most)
    old = np.setdiff1d(view.client_info.holders, joined)
    np.minimum.at(least, state.cluster[old], state.picks[old])
    least[least == most] = 0  # nobody else is in the cluster
    state.picks[joined] = least[state.cluster[joined]]
