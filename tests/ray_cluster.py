"""A real cluster of several nodes on this machine, whose workers serve one test after another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import ray
from ray.cluster_utils import Cluster as SeveralNodes

from fedstrata.core.part import Part
from fedstrata.engines.local.engine import InProcessPool
from fedstrata.engines.ray.cluster import Cluster
from fedstrata.engines.ray.engine import RayEngine
from fedstrata.engines.ray.members import ClusterWorkers, Share
from fedstrata.engines.ray.samples import SamplePlacement
from fedstrata.engines.ray.shards import Outline
from fedstrata.engines.ray.worker import ClientWorker

SMALL = {
    "object_store_memory": 80 * 2**20,
    "include_dashboard": False,
    "_system_config": {"health_check_failure_threshold": 10},  # a starved node is not dead
}


@contextmanager
def several_nodes(cpus: list[int]) -> Iterator[SeveralNodes]:
    """Start nodes with so many CPUs each, and connect."""
    head, *others = cpus
    nodes = _patiently(lambda: SeveralNodes(initialize_head=True, head_node_args={"num_cpus": head, **SMALL}))
    try:
        for more in others:
            _patiently(
                lambda more=more: nodes.add_node(num_cpus=more, object_store_memory=SMALL["object_store_memory"])
            )
        ray.init(address=nodes.address, log_to_driver=False, configure_logging=False, logging_level="ERROR")
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


def _patiently(start):
    """Try again where a node is not up within the half minute that Ray gives it: machines that test are busy."""
    for left in reversed(range(5)):
        try:
            return start()
        except Exception as error:
            if not left or "timed out during startup" not in str(error):
                raise
    raise AssertionError


class LastingWorkers:
    """Workers that stay from engine to engine: to start one takes seconds, and a plan is soon sent."""

    def __init__(self, workers: int):
        self.cluster, self.said = Cluster("auto"), []
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        self._plan = None

        def make(node):
            where = affinity(node.name, soft=False)
            actor = (
                ray.remote(ClientWorker).options(num_cpus=0.25, scheduling_strategy=where).remote(False, False, "fp32")
            )
            return actor, actor.prepare.remote(*(self._plan or (None, None)))

        self.members = ClusterWorkers(self.cluster, Share(workers, cpus=0.25), make, self.said.append)
        self.members.start()

    def engine(self, work, client_state="memory", replicas=2, only=None) -> RayEngine:
        """Return an engine for a session, on all workers or the first ones."""
        local, federation = work.plan.local, work.private.federation
        return self._engine(local, federation, client_state, replicas, only)

    def _engine(self, local, federation, client_state="memory", replicas=2, only=None) -> RayEngine:
        self._plan = ray.put(local), ray.put(Outline.of(federation))
        self.members.refresh()
        self.members._admit(self.members._joining, 120.0)  # who takes the place of a worker that a test killed
        ray.get([member.actor.prepare.remote(*self._plan) for member in self.members.present.values()])
        for member in self.members.present.values():
            member.clients = None
            member.committed, member.moved_away = [], []
        members = self.members if only is None else Some(self.members, only)
        samples = SamplePlacement(self.cluster, members, federation, replicas, None)
        here = partial(InProcessPool, local, federation)
        engine = RayEngine(
            self.cluster,
            members,
            samples,
            here,
            self.said.append,
            "cpu",
            client_state,
        )
        engine.close = lambda: None
        return engine


class Some:
    """The first so many of all workers."""

    def __init__(self, members: ClusterWorkers, count: int):
        self._members = members
        self.present = {name: members.present[name] for name in sorted(members.present)[:count]}

    by_node = ClusterWorkers.by_node

    def gather(self, calls):
        return self._members.gather(calls)

    def refresh(self):
        return []


@dataclass(frozen=True)
class OnLastingWorkers(Part):
    """An engine, as `check_engine` takes it."""

    workers: LastingWorkers = field(repr=False)

    def start(self, local, federation, expected, log):
        return self.workers._engine(local, federation)
