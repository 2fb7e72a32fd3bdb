"""k-means over label shares that no client tells: every step is one secure sum.

The server broadcasts centres; each client finds its own and contributes, to a sum of which the server learns nothing
but the total, what k-means needs of a cluster:

    move:  the client's vector in the row of its centre, and 1         -> the mean of every cluster
    look:  in that row, squared distances by label, 1, the distance,   -> inertia, the Davies-Bouldin index, which
           and how much farther the next centre is (squared)              cluster to split, which centre to give up
    tell:  at the end, the number of its cluster, to the server

Nobody's vector can be a first centre, as in k-means++. Instead clusters grow by splitting: the cluster with the largest
inertia becomes two, a standard deviation apart along the label in which it varies most, and all centres move until
they rest. One sweep has a clustering for every number of clusters, and so the curve by which FLIPS chooses among them;
for a given number many clusters are split at once. In the end wrong splits are mended by swaps: the centre that is
missed least is given up, another cluster is split, and that stays if the inertia is smaller. Nothing is random.

What the server sees: in every step centres, sizes and spreads of clusters; in the end who is in which. It must keep to
the protocol: sums over clusters that differ in one client differ by that client's vector, so centres that were chosen
for it would read single clients, and even honest steps give a cluster of one away. Clients that do not want to
rely on that begin from a histogram with noise (`histograms.py`): whatever the server then sees has that epsilon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.methods.selectors.clusters import Rule, elbow, fewest_clusters, most_clusters, overlap
from fedstrata.privacy import FEWEST
from fedstrata.privacy.frames import SERVER, Frame, RefusedError, open_frame
from fedstrata.privacy.identity import Identity, KeyDirectory

Task = Literal["move", "look", "tell"]
SumOf = Callable[[Mapping[int, np.ndarray]], np.ndarray]  # what clients contribute -> its sum, and nothing else

STEPS = 1_000  # that a client serves
LARGEST = 2.0  # number that a client ever contributes
LLOYD = 50  # moves until centres must rest
SWAPS = 2  # in vain, one after the other
REST = 1e-4  # of the mean variance: a shift that is rest enough while searching
TINY = 1e-9
WORD = 8  # bytes of a number in a masked sum


class ClusterMember:
    """A client: it holds its vector, and knows of the others only what centres tell."""

    def __init__(self, me: int, vector: np.ndarray, identity: Identity, key_directory: KeyDirectory, job: bytes):
        if vector.ndim != 1 or not np.isfinite(vector).all() or vector.min() < 0 or vector.max() > 1:
            raise RequestError("a client is clustered by shares of labels: numbers from 0 to 1")
        self.me, self.labels, self._vector = me, len(vector), vector.astype(np.float64)
        self._identity, self._key_directory, self._job = identity, key_directory, job
        self._step, self._done = 0, False

    def contribution(self, asked: bytes) -> np.ndarray:
        """Return what this client adds to the sum of a step; no number is above `LARGEST`, whatever the centres are."""
        task, centres = self._opened(asked)
        if task == "tell":
            raise RefusedError("the server asks for a cluster where a contribution is due")
        far = ((self._vector - centres) ** 2).sum(1)
        own = int(far.argmin())
        if task == "move":
            row = np.append(self._vector, 1.0)
        else:
            next_best = np.delete(far, own).min(initial=far[own] + LARGEST)
            row = np.array([*(self._vector - centres[own]) ** 2, 1.0, np.sqrt(far[own]), next_best - far[own]])
        sums = np.zeros((len(centres), len(row)))
        sums[own] = np.minimum(row, LARGEST)
        return sums.ravel()

    def cluster(self, asked: bytes) -> bytes:
        """Tell the server the number of this client's cluster; that is the last thing it says."""
        task, centres = self._opened(asked)
        if task != "tell":
            raise RefusedError("the server asks for a contribution where a cluster is due")
        self._done = True
        own = int(((self._vector - centres) ** 2).sum(1).argmin())
        return Frame("cluster", self._job, self.me, (own.to_bytes(4, "little"),)).sign(self._identity)

    def _opened(self, asked: bytes) -> tuple[str, np.ndarray]:
        if self._done or self._step >= STEPS:
            raise RefusedError(f"clustering is over, after {self._step} steps")
        fields = open_frame(asked, self._key_directory, f"centres {self._step}", self._job, SERVER).fields
        if len(fields) != 2 or fields[0] not in (b"move", b"look", b"tell") or len(fields[1]) % 4:
            raise RefusedError("a step of clustering has a task and centres")
        centres = np.frombuffer(fields[1], dtype="<f4").astype(np.float64)
        if not len(centres) or len(centres) % len(self._vector) or not ((centres >= 0) & (centres <= 1)).all():
            raise RefusedError(f"centres have {len(self._vector)} shares each, from 0 to 1")
        self._step += 1
        return fields[0].decode(), centres.reshape(-1, len(self._vector))


@dataclass(frozen=True)
class PrivateClusters:
    """What the server knows in the end, and what it cost."""

    cluster: Mapping[int, int]  # of each client
    centres: np.ndarray  # [k, C]
    curve: Mapping[int, float]  # Davies-Bouldin index by number of clusters, where that was searched
    inertia: float
    steps: int
    bytes_up: int  # a client: numbers in sums, and its cluster; what the masks need comes on top
    bytes_down: int

    def of_all(self, clients: int) -> np.ndarray:
        """Return the cluster of every client, as a client info wants it: -1 for those that were not there."""
        clusters = np.full(clients, -1, dtype=np.int64)
        clusters[list(self.cluster)] = list(self.cluster.values())
        return clusters

    def describe(self) -> str:
        """Say what the server saw."""
        return (
            f"clusters were found by secure sums: the server saw centres, sizes and spreads of clusters in {self.steps}"
            f" steps, and in the end which of {len(self.centres)} clusters each client is in; it did not see a client's"
            " label counts, unless the client was alone in a cluster or alone in moving to another, or the server"
            " chose centres against the protocol"
        )


@dataclass
class Organiser:
    """The server: it asks, and hears sums."""

    identity: Identity
    key_directory: KeyDirectory
    job: bytes
    labels: int
    clients: int
    sums: Callable[[bytes], np.ndarray]  # what is broadcast -> the sum of all contributions
    curve: dict[int, float] = field(default_factory=dict, init=False)
    steps: int = field(default=0, init=False)
    down: int = field(default=0, init=False)
    up: int = field(default=0, init=False)

    def clustered(self, k: int | None, rule: Rule, tell: Callable[[bytes], Mapping[int, bytes]]) -> PrivateClusters:
        """Find clusters, and ask each client for its own: `tell` broadcasts, and gives what clients say."""
        if self.clients < FEWEST:
            raise RequestError(f"{self.clients} clients: secure sums need at least {FEWEST}")
        if k is not None and not 1 <= k <= self.clients:
            raise RequestError(f"clusters = {k}: a whole number from 1 to the {self.clients} clients there are")
        centres, curve, inertia = self.find(k, rule)
        told = tell(self.ask("tell", centres))
        cluster = {client: self.heard(client, data, len(centres)) for client, data in told.items()}
        up = self.up + max(map(len, told.values()))
        return PrivateClusters(cluster, centres, curve, inertia, self.steps, up, self.down)

    def find(self, k: int | None, rule: Rule) -> tuple[np.ndarray, dict[int, float], float]:
        """Return centres of k clusters, or of as many as the elbow says; the curve that was searched; the inertia."""
        now = self._rested(np.full((1, self.labels), 1 / self.labels))
        now = self._improved(self._searched(now, rule) if k is None else self._grown(now, k))
        return now.centres, self.curve, now.inertia

    def _grown(self, now: ClusteringPass, k: int) -> ClusteringPass:
        """Split many clusters at once until there are k, or no more different vectors."""
        while len(now.centres) < k and now.inertia > TINY:
            more = min(len(now.centres), k - len(now.centres))
            grown = self._rested(now.split(now.worst(more)))
            if len(grown.centres) <= len(now.centres):
                break
            now = grown
        return now

    def _searched(self, now: ClusteringPass, rule: Rule) -> ClusteringPass:
        """Split one cluster after the other, and go back to where the elbow is."""
        found = {1: now}
        enough = max(REST * now.inertia / (self.clients * self.labels), TINY)
        for k in range(2, min(most_clusters(self.clients, self.labels), self.clients // FEWEST) + 1):
            now = self._rested(now.split(now.worst(1)), enough)
            if len(now.centres) < k:
                break
            found[k], self.curve[k] = now, now.index
        least = fewest_clusters(self.labels, max(self.curve, default=2))
        return found[elbow(self.curve, rule, least) if self.curve else 1]

    def ask(self, task: Task, centres: np.ndarray) -> bytes:
        """Return what is broadcast in the next step."""
        fields = (task.encode(), centres.astype("<f4").tobytes())
        asked = Frame(f"centres {self.steps}", self.job, SERVER, fields).sign(self.identity)
        self.steps += 1
        self.down += len(asked)
        return asked

    def heard(self, client: int, told: bytes, k: int) -> int:
        """Read a client's cluster."""
        fields = open_frame(told, self.key_directory, "cluster", self.job, client).fields
        if len(fields) != 1 or len(fields[0]) != 4 or (own := int.from_bytes(fields[0], "little")) >= k:
            raise RefusedError(f"client {client} tells no cluster")
        return own

    def _sum(self, task: Task, centres: np.ndarray) -> np.ndarray:
        total = self.sums(self.ask(task, centres))
        self.up += WORD * total.size
        return total.reshape(len(centres), -1)

    def _rested(self, centres: np.ndarray, enough: float = TINY) -> ClusteringPass:
        """Move centres to the means of their clusters until they rest; then look."""
        centres = _sent(centres)
        for _ in range(LLOYD):
            sums = self._sum("move", centres)
            sizes = np.rint(sums[:, -1:])
            moved = _sent(np.where(sizes > 0, sums[:, :-1] / np.maximum(sizes, 1), centres))
            shift, centres = float(((moved - centres) ** 2).sum()), moved
            if shift <= enough:
                break
        return ClusteringPass.of(centres, self._sum("look", centres))

    def _improved(self, now: ClusteringPass) -> ClusteringPass:
        """Give up the centre that is missed least and split another cluster, as long as that helps."""
        vain = 0
        while len(now.centres) > 2 and vain < SWAPS and now.inertia > TINY:
            given_up = int(now.missed.argmin())
            worst = [int(c) for c in now.worst(len(now.centres)) if c != given_up]
            if vain >= len(worst):
                break
            tried = self._rested(np.delete(now.split(np.array([worst[vain]])), given_up, 0))
            better = tried.inertia < now.inertia * (1 - 1e-3)
            now, vain = (tried, 0) if better else (now, vain + 1)
        return now


@dataclass(frozen=True)
class ClusteringPass:
    """What sums say of clusters."""

    centres: np.ndarray  # [k, C]
    squares: np.ndarray  # [k, C]: squared distances from the centre, by label
    sizes: np.ndarray
    spread: np.ndarray  # sum of distances
    missed: np.ndarray  # by how much the inertia grows without the centre

    @classmethod
    def of(cls, centres: np.ndarray, sums: np.ndarray) -> ClusteringPass:
        """Read the sums of a look; a cluster without members is none."""
        sizes = np.rint(sums[:, -3])
        some = sizes > 0
        sums = sums[some]
        return cls(centres[some], sums[:, :-3], sizes[some], sums[:, -2], sums[:, -1])

    @property
    def inertia(self) -> float:
        """Sum of squared distances."""
        return float(self.squares.sum())

    @property
    def index(self) -> float:
        """The Davies-Bouldin index."""
        return overlap(self.centres, self.spread / self.sizes)

    def worst(self, many: int) -> np.ndarray:
        """Return the clusters with the largest inertia."""
        worst: np.ndarray = np.argsort(-self.squares.sum(1), kind="stable")[:many]
        return worst

    def split(self, clusters: np.ndarray) -> np.ndarray:
        """Return centres with two for each of some clusters; the second ones stand at the end."""
        label = self.squares[clusters].argmax(1)
        step = np.zeros((len(clusters), self.centres.shape[1]))
        step[np.arange(len(clusters)), label] = np.sqrt(self.squares[clusters, label] / self.sizes[clusters])
        lower = self.centres.copy()
        lower[clusters] -= step
        both: np.ndarray = np.concatenate([lower, self.centres[clusters] + step])
        return both.clip(0, 1)


def masked_k_means(
    members: Mapping[int, ClusterMember],
    identity: Identity,
    key_directory: KeyDirectory,
    job: bytes,
    sum_of: SumOf,
    k: int | None = None,
    rule: Rule = "curvature",
) -> PrivateClusters:
    """Cluster clients that live here; `sum_of` is the secure sum, and all the server hears before the end."""
    labels = next((member.labels for member in members.values()), 0)

    def sums(asked: bytes) -> np.ndarray:
        return sum_of({client: member.contribution(asked) for client, member in members.items()})

    def tell(asked: bytes) -> dict[int, bytes]:
        return {client: member.cluster(asked) for client, member in members.items()}

    return Organiser(identity, key_directory, job, labels, len(members), sums).clustered(k, rule, tell)


def _sent(centres: np.ndarray) -> np.ndarray:
    """Return centres as clients receive them."""
    return centres.astype(np.float32).astype(np.float64)
