"""FedAvg by this project's engine on a Ray cluster of several nodes on this machine, with a core each or shared.

`job.nodes` nodes share the cores. Before the seconds it prints what went through the object store and, of every process
of the cluster and of this one, how fast its memory grows.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import ray
from ray.cluster_utils import Cluster

from benchmarks.peers.job import Job, Stopwatch
from benchmarks.peers.ours import run_rounds, session_of, start
from fedstrata.engines.ray.start import RayEngineOptions

STORE = 2**30  # W1 has 188 MB of samples: in less, Ray spills and restores
PAGE = os.sysconf("SC_PAGE_SIZE")


class Watched(Stopwatch):
    """Looks at the memory of every process now and then."""

    def __init__(self, job: Job, inner: Stopwatch):
        super().__init__(job)
        self._inner, self._every = inner, max(job.rounds // 40, 1)
        self.rss: dict[int, list[tuple[int, float]]] = {}
        self.pids: dict[int, str] = {}

    def lap(self) -> None:
        """End a round."""
        self._inner.lap()
        self._inner.steps, self.steps = self._inner.steps + self.steps, 0
        if len(self._inner.ends) % self._every == 0:
            for pid in self.pids:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                self.rss.setdefault(pid, []).append((len(self._inner.ends), pages * PAGE / 1024))

    def slopes(self) -> dict[str, float]:
        """Return how many kilobytes a round each process grows by, over the second half of the rounds."""
        found = {}
        for pid, seen in self.rss.items():
            later = seen[len(seen) // 2 :]
            if len(later) > 2:
                rounds, kilobytes = np.array(later).T
                found[f"{self.pids[pid]} {pid}"] = float(np.polyfit(rounds, kilobytes, 1)[0])
        return found


def run(job: Job, watch: Stopwatch) -> None:
    """Run the rounds."""
    share = {"num_cpus": job.cores / job.nodes, "object_store_memory": STORE}
    nodes = Cluster(initialize_head=True, head_node_args={**share, "include_dashboard": False})
    for _ in range(job.nodes - 1):
        nodes.add_node(**share)
    ray.init(address=nodes.address, log_to_driver=False, configure_logging=False, logging_level="ERROR")
    work = session_of(job)
    engine = start(work, RayEngineOptions(address="auto", workers=job.cores), job)
    watched = Watched(job, watch)
    watched.pids = {os.getpid(): "driver", **dict.fromkeys(engine.workers.values(), "worker")}
    for node in [nodes.head_node, *nodes.worker_nodes]:
        for kind, processes in node.all_processes.items():
            watched.pids |= {info.process.pid: kind for info in processes}
    run_rounds(work, engine, job, watched)
    told = {"bytes": engine.bytes_stored / job.rounds, "slopes": watched.slopes(), "workers": len(engine.workers)}
    print("\n" + json.dumps(told), flush=True)
    engine.close()
    ray.shutdown()
    nodes.shutdown()
