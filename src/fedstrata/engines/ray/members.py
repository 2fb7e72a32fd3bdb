"""The workers that there are: one or several on every node, more when a node joins, fewer when one is lost.

Workers are started where a node has room that nobody else takes; where others have it, they join when it is free, and
a run that has none yet waits for that. A worker that starts becomes a member when it answers. Those of a node that is
new are waited for, so that it works from the next round on; one that takes the place of a lost worker joins when it is
ready, and nobody waits for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.engines.ray.cluster import Cluster, ClusterNode, say_why
from fedstrata.engines.ray.worker import list_versions

PATIENCE = 120.0  # seconds that workers have to start; they import torch
TRIES = 3  # of starting a worker in one place
SETTLED = 3.0  # seconds after which nodes have said what is free; they do several times a second
LOOK = 0.2  # seconds between looks at what is free


@dataclass(frozen=True)
class Share:
    """What each worker takes of a node, and how many there are."""

    workers: int | Literal["auto"] = "auto"
    cpus: float = 1.0
    gpus: float = 0.0

    def room(self, node: ClusterNode) -> int:
        """Return how many fit on a node that nobody else uses."""
        return self._fit(node.cpus, node.gpus)

    def free(self, node: ClusterNode) -> int:
        """Return how many more fit on a node beside what it does now."""
        return self._fit(min(node.cpus, node.free_cpus), min(node.gpus, node.free_gpus))

    def _fit(self, cpus: float, gpus: float) -> int:
        return min(int(there / each + 1e-9) for there, each in ((cpus, self.cpus), (gpus, self.gpus)) if each)

    def wanted(self, nodes: Iterable[ClusterNode]) -> int:
        """Return how many workers there would be if nobody else used the cluster."""
        room = sum(map(self.room, nodes))
        return room if self.workers == "auto" else min(self.workers, room)

    def places(
        self, nodes: Iterable[ClusterNode], own: Collection[str] = (), avoid: Collection[str] = ()
    ) -> dict[str, ClusterNode]:
        """Return where workers can be started beside our own: the first on every node, then the second, and so on.

        Places to avoid come last: for a while after a node is lost, Ray still lists it.
        """
        places: list[tuple[int, str, ClusterNode]] = []
        for node in nodes:
            left = [i for i in range(self.room(node)) if f"{node.name}/{i}" not in own]
            places += [(i, node.name, node) for i in left[: self.free(node)]]
        ordered = sorted(places, key=lambda place: (f"{place[1]}/{place[0]}" in avoid, place[:2]))
        lacking = len(ordered) if self.workers == "auto" else max(self.workers - len(own), 0)
        return {f"{name}/{i}": node for i, name, node in ordered[:lacking]}

    def __str__(self) -> str:
        return f"{self.cpus:g} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")


@dataclass(eq=False)
class Member:
    """A worker, and what must be known to give it work."""

    name: str
    node: ClusterNode
    actor: Any
    pid: int = 0
    clients: np.ndarray | None = None  # whose samples it has, as a mask
    committed: list[int] = field(default_factory=list)  # what its next order tells it
    moved_away: list[int] = field(default_factory=list)


class ClusterWorkers:
    """Starts workers where there is room, and notices those that are gone."""

    def __init__(
        self,
        cluster: Cluster,
        share: Share,
        make: Callable[[ClusterNode], tuple[Any, Any]],
        remark: Callable[[str], None],
    ):
        self._cluster, self._share, self._make, self._remark = cluster, share, make, remark
        self._errors = cluster.ray.exceptions
        self.present: dict[str, Member] = {}
        self._joining: dict[str, tuple[Member, Any]] = {}
        self._seen: set[str] = set()
        self._tries: Counter[str] = Counter()  # to start a worker, by place
        self._avoid: set[str] = set()  # places where one was lost, or could not be started
        self._why = ""

    @property
    def by_node(self) -> dict[str, list[str]]:
        """Names of workers by node."""
        grouped: dict[str, list[str]] = {}
        for name, member in sorted(self.present.items()):
            grouped.setdefault(member.node.name, []).append(name)
        return grouped

    def start(self) -> None:
        """Start all workers, and wait for them."""
        share = self._share
        room = sum(map(share.room, self._cluster.nodes()))
        if not room:
            raise RequestError(
                f"engine.cpus = {share.cpus:g}, engine.gpus = {share.gpus:g}: no node of the cluster at "
                f"{self._cluster.address} has room for a worker"
            )
        if share.workers != "auto" and share.workers > room:
            self._remark(f"{room} of {share.workers} workers have room, {share} each; more when a node joins")
        self._let_settle()
        self.refresh()
        self.wait()
        wanted = share.wanted(self._cluster.nodes())
        if (lacking := wanted - len(self.present) - len(self._joining)) > 0:
            self._remark(
                f"{lacking} of {wanted} workers have no room, {share} each: other work takes it; they join when it is "
                "free"
            )

    def _let_settle(self) -> None:
        """Give nodes the moment that they need to say that what an earlier run took is free again."""
        until = time.monotonic() + SETTLED
        while time.monotonic() < until:
            nodes = self._cluster.nodes()
            if len(self._share.places(nodes)) >= self._share.wanted(nodes):
                return
            time.sleep(LOOK)

    def refresh(self) -> list[Member]:
        """Look at the nodes: start what is missing, let in who is ready; return those whose node is gone."""
        nodes = self._cluster.nodes()
        there = {node.name for node in nodes}
        lost = [member for member in self.present.values() if member.node.name not in there]
        for member in lost:
            self.lose(member.name)
        for name, node in self._share.places(nodes, {*self.present, *self._joining}, self._avoid).items():
            if self._tries[name] < TRIES:
                self._tries[name] += 1
                actor, ready = self._make(node)
                self._joining[name] = Member(name, node, actor), ready
        new = {name for name, (member, _) in self._joining.items() if member.node.name not in self._seen}
        self._seen = there
        self._admit(new, PATIENCE)
        self._admit(self._joining, 0.0)
        return lost

    def wait(self) -> None:
        """Wait until a worker is there: for room as long as others have it, for one that starts some time."""
        began = None
        while not self.present:
            if not self._joining and not self._room_is_taken():
                why = self._why or f"none answered within {PATIENCE:.0f} seconds"
                raise FedstrataError(f"no worker can be started on the cluster at {self._cluster.address}: {why}")
            if self._joining:
                refs = [ref for _, ref in self._joining.values()]
                ready, _ = self._cluster.ray.wait(refs, num_returns=1, timeout=PATIENCE)
                self._admit(self._joining, 0.0)
                if not ready:
                    self._give_up()
            else:
                if began is None:
                    began = time.monotonic()
                    self._remark(f"no node has room for a worker, {self._share}: other work takes it; waiting for it")
                time.sleep(LOOK)
            if not self.present:
                self.refresh()
        if began is not None:
            self._remark(f"there was room for a worker after {time.monotonic() - began:.0f} s")

    def _room_is_taken(self) -> bool:
        """Say whether a worker can still be started somewhere, once others leave room for it."""
        nodes = self._cluster.nodes()
        places = (f"{node.name}/{i}" for node in nodes for i in range(self._share.room(node)))
        return any(self._tries[place] < TRIES for place in places)

    def _give_up(self) -> None:
        """Look elsewhere for those that did not start in time: somebody else was quicker to take their place."""
        for member, _ in self._joining.values():
            self._cluster.ray.kill(member.actor)
            self._avoid.add(member.name)
        self._joining = {}

    def _admit(self, names: Iterable[str], timeout: float) -> None:
        """Let in those of the workers that answer in time."""
        refs = {self._joining[name][1]: name for name in names}
        if not refs:
            return
        ready, _ = self._cluster.ray.wait(list(refs), num_returns=len(refs), timeout=timeout)
        for ref in ready:
            member, _ = self._joining.pop(refs[ref])
            try:
                about = self._cluster.ray.get(ref)
            except self._errors.RayError as error:
                self._why = say_why(error)
                self._avoid.add(member.name)
                if self._tries[member.name] == TRIES:
                    self._remark(f"no worker can be started on node {member.node.address}: {self._why}")
                continue
            member.pid = about["pid"]
            self._check(member, about)
            self.present[member.name] = member
            self._tries[member.name] = 0
            self._avoid.discard(member.name)

    def _check(self, member: Member, about: Mapping[str, Any]) -> None:
        """Refuse a worker that would compute otherwise, or not understand."""
        if not about["sees_device"]:
            raise FedstrataError(
                f"node {member.node.address} has {member.node.gpus:g} GPU(s) by what Ray says, and torch sees none "
                'there; install a torch that does, or use engine.device = "cpu"'
            )
        own, versions = list_versions(), about["versions"]
        if versions != own:
            other = {name: version for name, version in versions.items() if version != own[name]}
            ours = {name: own[name] for name in other}
            raise FedstrataError(f"node {member.node.address} has {other}, and this machine {ours}; install the same")

    def gather(self, calls: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Wait for what workers answer; return that by worker, and of those that were lost, why."""
        answers, lost = {}, {}
        for name, ref in calls.items():
            try:
                with self._cluster.storing():
                    answers[name] = self._cluster.ray.get(ref)
            except self._losses as error:
                lost[name] = say_why(error)
        return answers, lost

    @property
    def _losses(self) -> tuple[type[Exception], ...]:
        errors = self._errors
        return (
            errors.RayActorError,
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.ObjectLostError,
            errors.OutOfMemoryError,
        )

    def describe(self, lost: Iterable[str]) -> str:
        """Put into words who was lost; they are still present."""
        names, said = set(lost), []
        for node, workers in self.by_node.items():
            gone = names.intersection(workers)
            address = self.present[workers[0]].node.address
            if gone:
                said.append(f"{len(gone)} of {_count(len(workers), 'worker')} on node {address} ({node[:8]})")
        return " and ".join(said)

    def lose(self, name: str) -> None:
        """Strike a worker off; what is left of it ends."""
        member = self.present.pop(name)
        self._avoid.add(name)
        self._cluster.ray.kill(member.actor)

    def close(self) -> None:
        """End all workers."""
        for member in [*self.present.values(), *(member for member, _ in self._joining.values())]:
            self._cluster.ray.kill(member.actor)
        self.present, self._joining = {}, {}


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
