"""The workers that there are: one or several on every node, more when a node joins, fewer when one is lost.

A worker that starts becomes a member when it answers. Those of a node that is new are waited for, so that it plays from
the next round on; one that takes the place of a lost worker joins when it is ready, and nobody waits for it.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class Share:
    """What each worker takes of a node, and how many there are."""

    workers: int | Literal["auto"] = "auto"
    cpus: float = 1.0
    gpus: float = 0.0

    def room(self, node: ClusterNode) -> int:
        """Return how many fit on a node."""
        shares = [(node.cpus, self.cpus), (node.gpus, self.gpus)]
        return min(int(there / each + 1e-9) for there, each in shares if each)

    def slots(self, nodes: Iterable[ClusterNode], avoid: Collection[str] = ()) -> dict[str, ClusterNode]:
        """Return the places of workers: all, or the first on every node, then the second, and so on.

        Places to avoid come last: for a while after a node is lost, Ray still lists it.
        """
        places = [(i, node.name, node) for node in nodes for i in range(self.room(node))]
        ordered = sorted(places, key=lambda place: (f"{place[1]}/{place[0]}" in avoid, place[:2]))
        wanted = ordered if self.workers == "auto" else ordered[: self.workers]
        return {f"{name}/{i}": node for i, name, node in wanted}


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
        nodes = self._cluster.nodes()
        room = sum(map(self._share.room, nodes))
        share = f"{self._share.cpus:g} CPU" + (f" and {self._share.gpus:g} GPU" if self._share.gpus else "")
        if not room:
            raise RequestError(
                f"engine.cpus = {self._share.cpus:g}, engine.gpus = {self._share.gpus:g}: no node of the cluster at "
                f"{self._cluster.address} has room for a worker"
            )
        if self._share.workers != "auto" and self._share.workers > room:
            self._remark(f"{room} of {self._share.workers} workers have room, {share} each; more when a node joins")
        self.refresh()
        self.wait()

    def refresh(self) -> list[Member]:
        """Look at the nodes: start what is missing, let in who is ready; return those whose node is gone."""
        nodes = self._cluster.nodes()
        slots, there = self._share.slots(nodes, self._avoid), {node.name for node in nodes}
        lost = [member for member in self.present.values() if member.node.name not in there]
        for member in lost:
            self.lose(member.name)
        for name, node in slots.items():
            if name not in self.present and name not in self._joining and self._tries[name] < TRIES:
                self._tries[name] += 1
                actor, ready = self._make(node)
                self._joining[name] = Member(name, node, actor), ready
        new = {name for name, (member, _) in self._joining.items() if member.node.name not in self._seen}
        self._seen = there
        self._admit(new, PATIENCE)
        self._admit(self._joining, 0.0)
        return lost

    def wait(self) -> None:
        """Wait until a worker is there."""
        for _ in range(TRIES):
            self._admit(self._joining, 0.0)
            while not self.present and self._joining:
                refs = [ref for _, ref in self._joining.values()]
                ready, _ = self._cluster.ray.wait(refs, num_returns=1, timeout=PATIENCE)
                if not ready:
                    break
                self._admit(self._joining, 0.0)
            if self.present or self._joining:
                break
            self.refresh()  # somewhere else
        if not self.present:
            why = self._why or f"none answered within {PATIENCE:.0f} seconds; are its CPUs or GPUs taken?"
            raise FedstrataError(f"no worker can be started on the cluster at {self._cluster.address}: {why}")

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
