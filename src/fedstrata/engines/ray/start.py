"""How the engine on a cluster is started: where the cluster is, and what each worker takes of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt

from fedstrata.core.client_parts import ClientPlan
from fedstrata.core.errors import RequestError
from fedstrata.core.events import Log
from fedstrata.core.options import Count, LocalPath
from fedstrata.core.part import Part
from fedstrata.data.federation import Federation
from fedstrata.engines.local.engine import InProcessPool
from fedstrata.engines.local.gpu import set_precision, uses_gpu
from fedstrata.engines.ray.cluster import LOCAL, Cluster, ClusterNode
from fedstrata.engines.ray.engine import RayEngine
from fedstrata.engines.ray.members import ClusterWorkers, Share
from fedstrata.engines.ray.samples import SamplePlacement
from fedstrata.engines.ray.shards import Outline
from fedstrata.engines.ray.worker import ClientWorker


@dataclass(frozen=True)
class RayEngineOptions(Part):
    """Workers on the machines of a Ray cluster; without an address, one is started here and ended with the run."""

    address: str = LOCAL  # one that is started here; "auto": the cluster that runs here; or host:port
    workers: Count | Literal["auto"] = "auto"  # in all; "auto": as many as fit
    cpus: Annotated[float, Gt(0)] = 1.0  # that each worker takes of a node
    gpus: Annotated[float, Ge(0)] = 0.0  # the same, which may be a share of one
    replicas: Count = 2  # nodes that hold a client's samples
    shared_folder: LocalPath | None = None  # a folder that every node sees: samples go there, and not through Ray
    object_store: Count | None = None  # megabytes, of a cluster that is started here
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "tf32", "bf16", "fp64"] = "fp32"
    client_state: Literal["memory", "disk"] = "memory"  # of the copy that the checkpoint needs
    cuda_graphs: bool = True  # whether a GPU replays recorded steps

    def start(self, local: ClientPlan, federation: Federation, client_updates: int, log: Log) -> RayEngine:
        """Connect to the cluster, or start one, and start the workers.

        Parameters
        ----------
        local
            The client side of the plan.
        federation
            The clients' samples.
        client_updates
            About how many there will be; it does not matter here.
        log
            Where events go.

        Returns
        -------
        RayEngine

        Raises
        ------
        RequestError
            Where Ray is not installed, no cluster answers, or there is no room for a worker.
        """
        on_gpu = self.gpus > 0 and self.device != "cpu"
        if self.device == "cuda" and not self.gpus:
            raise RequestError('engine.device = "cuda" needs engine.gpus: the share of a GPU that each worker takes')

        def remark(text: str) -> None:  # what may differ between equal runs stands under `wall`
            log("engine", wall={"remark": text})

        cluster = Cluster(self.address, self.object_store)
        with ExitStack() as on_failure:
            on_failure.callback(cluster.close)
            make = self._prepare(cluster, local, federation, on_gpu)
            members = ClusterWorkers(cluster, Share(self.workers, self.cpus, self.gpus), make, remark)
            on_failure.callback(members.close)
            members.start()
            samples = SamplePlacement(cluster, members, federation, self.replicas, self.shared_folder)
            here = partial(InProcessPool, local, federation, False, remark)
            device = "cuda" if on_gpu and uses_gpu(self.device) else "cpu"
            if device == "cuda":  # models are evaluated here
                set_precision(self.precision)
            engine = RayEngine(cluster, members, samples, here, remark, device, self.client_state)
            on_failure.pop_all()
        about = {"workers": len(members.present), "nodes": len(members.by_node), "address": cluster.address}
        about |= {"device": "cuda" if on_gpu else "cpu", "precision": self.precision, "vmap": False, "remark": None}
        log("engine", wall={**about, "torch": torch.__version__, "ray": cluster.ray.__version__})
        return engine

    def _prepare(
        self, cluster: Cluster, local: ClientPlan, federation: Federation, on_gpu: bool
    ) -> Callable[[ClusterNode], tuple[Any, Any]]:
        """Put what every worker knows into the object store; return what starts one on a node."""
        try:
            known = cluster.ray.put(local), cluster.ray.put(Outline.of(federation))
        except Exception as error:  # whatever a part that cannot be sent raises
            raise RequestError(f'engine.kind = "ray": the plan cannot be sent to other machines ({error})') from None
        worker = cluster.ray.remote(ClientWorker)

        def make(node: ClusterNode) -> tuple[Any, Any]:
            where = {"max_restarts": 0, "scheduling_strategy": cluster.at(node.name)}
            share = {"num_cpus": self.cpus, "num_gpus": self.gpus, **where}
            # Ray's server would remember every call, for a dashboard, and grow by kilobytes a round
            actor = worker.options(**share, enable_task_events=False).remote(on_gpu, self.cuda_graphs, self.precision)
            return actor, actor.prepare.remote(*known)

        return make
