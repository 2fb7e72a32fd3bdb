"""What a GPU's workers do, as far as a CPU can show it: where tensors lie, and what a recorder does around a step.

torch's "meta" device stands for a GPU: its tensors have a shape and a place, and no numbers.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedstrata.client.all_reduce import sum_in_order
from fedstrata.client.local_step import Batches
from fedstrata.client.trainer import Trainer
from fedstrata.core.messages import Report, Task, weighted_sum
from fedstrata.engines.local import cuda_graph, engine, gpu
from fedstrata.engines.local.cuda_graph import Recorder
from fedstrata.engines.local.engine import InProcessPool, Worker
from fedstrata.engines.local.gpu import GpuPool
from fedstrata.engines.ray.grid import add_counts, count_units
from fedstrata.engines.ray.worker import ClientWorker
from fedstrata.testing.tiny import session_of


class OneDevice(TorchDispatchMode):
    """Refuses, as GPUs do, to compute with tensors of two devices; they may be copied."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        places = {t.device for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        assert len(places) < 2 or "copy" in str(func), f"{func} on {places}"
        return func(*args, **(kwargs or {}))


def test_what_comes_from_several_gpus_is_summed_on_the_first():
    reports = {i: Report(i, 5, aggregated={"update": torch.ones(3, device=d)}) for i, d in enumerate(["meta", "cpu"])}
    with OneDevice():
        assert weighted_sum(reports, {0: 1.0, 1: 2.0}).total["update"].is_meta
        assert sum_in_order({i: report.aggregated["update"] for i, report in reports.items()}).is_meta


def test_clients_that_meet_find_the_model_and_their_state_where_they_work(monkeypatch):
    work, met = session_of({"method.corrections": ["scaffold"]}), []
    pool, train_data = object.__new__(GpuPool), work.federation.train
    pool._data, pool._streams = {"meta": None}, []
    monkeypatch.setattr(gpu, "to_device", torch.Tensor.to)
    monkeypatch.setattr(
        GpuPool, "_make_worker", lambda *_: Worker(work.plan.local, train_data.x, train_data.y, 17, device="meta")
    )
    met_nowhere = SimpleNamespace(statistics=lambda _: None)
    monkeypatch.setattr(engine, "run_in_lockstep", lambda updates, *_: (met.extend(updates) or [], met_nowhere))
    InProcessPool.__init__(pool, work.plan.local, work.federation)
    down, kept = {"params": torch.zeros(5), "scaffold/c": torch.zeros(5)}, {"scaffold/c": torch.zeros(5)}
    pool.lockstep([Task(i, 0, 0, down=down) for i in range(2)], {1: kept}, "clients")
    given = [update.args[1] for update in met]
    assert [client.id for client, _, _ in given] == [0, 1]
    assert all(t.is_meta for _, task, state in given for t in (*task.down.values(), *state.values()))
    assert len(given[1][2]) == 1


def test_what_a_worker_of_a_cluster_counted_on_its_gpu_meets_that_of_others():
    with FakeTensorMode():  # which has places for GPUs that are not there
        reports = {0: Report(0, 5, aggregated={"update": torch.ones(3, device="cuda:0")})}
        own, beside = count_units(reports, {0: 1.0}, {"update": 0.5}), {"update": torch.ones(3)}
        assert add_counts([own, beside])["update"].device.type == "cpu"


@pytest.mark.parametrize(("precision", "rounded"), [("tf32", True), ("bf16", True), ("fp32", False), ("fp64", False)])
def test_a_worker_of_a_cluster_computes_as_precisely_as_the_run_says(precision, rounded):
    backends, threads = (torch.backends.cuda.matmul, torch.backends.cudnn), torch.get_num_threads()
    before = [backend.allow_tf32 for backend in backends]
    try:
        for backend in backends:
            backend.allow_tf32 = not rounded
        ClientWorker(on_gpu=True, cuda_graphs=True, precision=precision)
        assert [backend.allow_tf32 for backend in backends] == [rounded, rounded]
    finally:
        torch.set_num_threads(threads)
        for backend, was in zip(backends, before, strict=True):
            backend.allow_tf32 = was


@pytest.fixture
def graphs(monkeypatch):
    """Let graphs be recorded that only count how often they are replayed."""
    replayed = []

    def graph():
        return SimpleNamespace(replay=lambda: replayed.append(1), pool=lambda: None)

    monkeypatch.setattr(cuda_graph.torch.cuda, "CUDAGraph", graph)
    monkeypatch.setattr(Recorder, "_capture", lambda *_: None)
    return replayed


def test_a_step_is_recorded_on_the_last_batch_of_a_ring_too(graphs):
    """A batch of a new size may come there; behind it is nothing that a second trial step could read."""
    work = session_of()
    trainer = Trainer(work.plan.local, work.federation.train.x, work.federation.train.y, 17, pad=True)
    trainer.load(work.initial_state().model.wire())
    trainer._fill_ring(Batches(np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64), np.full(1, 0.1)))
    trainer.buf.t.fill_(len(trainer.buf.weight) - 1)
    before = [t.clone() for t in trainer.state]
    Recorder(trainer.step, trainer.state, SimpleNamespace(synchronize=lambda: None), pytest.fail)(4, True)
    assert len(graphs) == 1
    assert all(map(torch.equal, before, trainer.state))  # trial steps leave nothing behind
