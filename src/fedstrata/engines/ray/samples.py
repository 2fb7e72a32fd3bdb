"""Which node has whose samples; those that a node lacks are sent to it, once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedstrata.data.federation import Federation
from fedstrata.engines.ray.cluster import Cluster
from fedstrata.engines.ray.members import ClusterWorkers
from fedstrata.engines.ray.placement import rank_nodes
from fedstrata.engines.ray.shards import cut_shard, write_samples


class SamplePlacement:
    """Every client's samples lie on its first nodes: `replicas` of them, so that losing one moves nothing at first."""

    def __init__(
        self,
        cluster: Cluster,
        members: ClusterWorkers,
        federation: Federation,
        replicas: int,
        shared_folder: str | None,
    ):
        self._cluster, self._members, self._federation, self._replicas = cluster, members, federation, replicas
        self._folder = "" if shared_folder is None else write_samples(federation, shared_folder)
        self.sizes = federation.train_split.sizes
        self.bytes_placed = 0  # through the object store
        self._nodes: list[str] = []
        self._ranks = np.zeros((len(federation), 0), dtype=np.int64)
        self._not_seen: set[str] = set()  # nodes that do not share the folder

    def nodes_of(self, client: int) -> list[str]:
        """Return the nodes that have a client's samples, its own first."""
        return [self._nodes[place] for place in self._ranks[client]]

    def place(self) -> dict[str, str]:
        """Send nodes the samples that they lack; return workers that were lost meanwhile, and why."""
        by_node = self._members.by_node
        self._nodes = sorted(by_node)
        clients = np.arange(len(self._federation))
        self._ranks = rank_nodes(clients, {node: len(own) for node, own in by_node.items()}, self._replicas)
        lost: dict[str, str] = {}
        for place, node in enumerate(self._nodes):
            lost |= self._place_at(node, by_node[node], (self._ranks == place).any(axis=1))
        return lost

    def place_all_at(self, worker: str) -> None:
        """Give one worker everybody's samples; one that is lost meanwhile is noticed when it is to work."""
        node = self._members.present[worker].node.name
        self._place_at(node, [worker], np.ones(len(self._federation), dtype=bool))

    def best_home(self) -> str:
        """Return the worker on whose node most samples lie."""
        held = {
            name: int(self.sizes[member.clients].sum()) if member.clients is not None else 0
            for name, member in self._members.present.items()
        }
        return min(held, key=lambda name: (-held[name], name))

    def _place_at(self, node: str, workers: Sequence[str], needed: np.ndarray) -> dict[str, str]:
        """Give the workers of a node the samples of clients, where they lack any."""
        present = self._members.present
        lacking = [name for name in workers if (has := present[name].clients) is None or (needed & ~has).any()]
        if not lacking:
            return {}
        folder = "" if node in self._not_seen else self._folder
        shard = cut_shard(self._federation, needed, folder)
        self.bytes_placed += shard.nbytes
        with self._cluster.storing():
            ref = self._cluster.ray.put(shard)
        answers, lost = self._members.gather({name: present[name].actor.place.remote(ref) for name in lacking})
        if not all(answers.values()):
            self._not_seen.add(node)
            return lost | self._place_at(node, [name for name in lacking if name not in lost], needed)
        for name in answers:
            present[name].clients = needed
        return lost
