"""Every way to execute a run gives the same model: one client after another, many at once, in several processes.

In double precision, to 1e-9; ways that compute the same operations agree bit for bit.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sweeping import sweep
from torch import nn

from fedstrata import Federation, train
from fedstrata.client.trainer import Trainer
from fedstrata.client.vmapped import MOST_REPLICAS, VmappedTrainer, worth_grouping
from fedstrata.core import registry
from fedstrata.core.client_parts import Correction
from fedstrata.core.errors import PartError
from fedstrata.core.messages import Task
from fedstrata.engines.local.engine import InProcessPool, LocalEngine, Worker, group_tasks
from fedstrata.engines.local.gpu import GpuPool
from fedstrata.engines.local.processes import ProcessPool
from fedstrata.models.mlp import Mlp
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.testing import tiny_federation
from fedstrata.testing.tiny import alike, run_rounds, same, session_of

pytestmark = pytest.mark.usefixtures("quick_processes")

METHODS = sorted(registry.names("methods"))
SEVERAL = ("scaffold", "moon", "fedpbs", "terraform", "gradclus", "hics", "fedcda", "stratify-batch", "fedtan")
# Methods whose clients do what no other method's do; the rest are methods of the server, and train as FedAvg does.
AT_CLIENTS = (
    *("fedavg", "fedprox", "scaffold", "feddyn", "moon", "fedlc", "fedrs", "fedpbs", "fedbs", "fedbss", "fedsgd"),
    *("fednova", "fedtan", "hics", "oort", "terraform", "divfl", "power-of-choice", "tifl", "fedcda"),
    *("stratify-batch", "stratify-single", "strata"),
)


def asked_for(method):
    return {"method.name": method, "engine.execution": "messages"} | (
        {"model.norm": "batch"} if method == "fedtan" else {}
    )


def here(at_once, remarks=None):
    told = [] if remarks is None else remarks
    return lambda work: LocalEngine(InProcessPool(work.plan.local, work.federation, at_once, told.append))


def together(remarks=None):
    return here(True, remarks)


def in_processes(workers, at_once, client_state=None):
    """Start workers, and remember the engine so that it can be closed."""

    def start(work):
        pool = ProcessPool(work.plan.local, work.federation, workers, at_once)
        engine = LocalEngine(pool, here=lambda: InProcessPool(work.plan.local, work.federation, at_once))
        (client_state if client_state is not None else []).append(engine)
        return engine

    return start


def pids_of(pool):
    return [child.process.pid for child in pool._children]


def gap(one, other):
    return max(float((a - b).abs().max()) for a, b in zip(parts(one), parts(other), strict=True) if a.numel())


def parts(state):
    return state.model.params, state.model.buffers


# ---- many at once ---------------------------------------------------------------------------------------------------


@sweep(lambda method, late: late and method in AT_CLIENTS, method=METHODS, stragglers=[0.0, 0.5])
def test_clients_trained_at_once_give_the_same_model(method, stragglers):
    asked = {**asked_for(method), "system.stragglers.rate": stragglers}
    remarks = []
    one_by_one, outcomes = run_rounds(session_of(asked), rounds=3)
    at_once, others = run_rounds(session_of(asked), rounds=3, engine=together(remarks))
    assert gap(one_by_one, at_once) < 1e-9
    assert one_by_one.traffic == at_once.traffic
    assert [[[r.client for r in o.reports] for o in round] for round in outcomes] == [
        [[r.client for r in o.reports] for o in round] for round in others
    ]
    assert remarks == []


def test_the_other_methods_train_as_fedavg_does():
    local = {method: session_of(asked_for(method)).plan.local for method in METHODS}
    for method in set(METHODS) - set(AT_CLIENTS):
        one, other = local[method], local["fedavg"]
        assert (one.parts, one.optimizer, one.sampler, one.programs) == ({}, other.optimizer, other.sampler, {}), method


@pytest.mark.parametrize("sizes", [(9, 3, 17, 1, 5, 30), (70, 2, 2, 130, 65, 64)])
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_ragged_clients_and_rings_that_are_filled_again(sizes, batch):
    rng = np.random.default_rng(0)
    stops = np.cumsum(sizes)
    rows = [np.arange(stop - n, stop) for stop, n in zip(stops, sizes, strict=True)]
    x, y = rng.normal(size=(stops[-1], 4)), np.arange(stops[-1]) % 3
    federation = Federation.from_arrays(x, y, rows, test=(x[:6], y[:6]))
    asked = {"train.batch_size": batch, "train.clients_per_round": "all", "train.optimizer.momentum": 0.9}
    one, other = (run_rounds(session_of(asked, federation), 2, **how)[0] for how in ({}, {"engine": together()}))
    assert gap(one, other) < 1e-9


@pytest.mark.parametrize(
    "layers",
    [
        OrderedDict(fc=nn.Linear(4, 6), norm=nn.LayerNorm(6), act=nn.Tanh(), head=nn.Linear(6, 3)),
        OrderedDict(fc=nn.Linear(4, 6), drop=nn.Dropout(0.4), act=nn.GELU(), head=nn.Linear(6, 3)),
        OrderedDict(grow=nn.Unflatten(1, (1, 4)), conv=nn.Conv1d(1, 4, 3), norm=nn.GroupNorm(2, 4), flat=nn.Flatten(),
                    head=nn.Linear(8, 3)),
    ],
    ids=["layer norm", "dropout", "group norm"],
)  # fmt: skip
def test_networks_of_ones_own_at_once(layers):
    federation, module = tiny_federation(), nn.Sequential(layers)
    asked = {"train.batch_size": 4, "train.epochs": 2, "engine.precision": "fp64", "train.clients_per_round": "all"}
    remarks = []
    made = [
        build_session(describe_experiment(None, None, asked, federation, module), federation, module) for _ in range(2)
    ]
    one, other = run_rounds(made[0])[0], run_rounds(made[1], engine=together(remarks))[0]
    assert gap(one, other) < 1e-9
    assert remarks == []


class Draws(nn.Module):
    """Draws from torch's own generator, which cannot be mapped over clients."""

    def __init__(self):
        super().__init__()
        self.fc, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(nn.functional.dropout(self.fc(x), 0.3, self.training))


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.Sequential(OrderedDict(fc=nn.Linear(4, 6), norm=nn.BatchNorm1d(6), head=nn.Linear(6, 3))), "batch norms"),
        (Draws(), "random"),
    ],
    ids=["batch norm", "own draws"],
)
def test_what_cannot_be_done_at_once_is_done_one_by_one_with_the_reason(module, why):
    federation = tiny_federation()
    asked = {"train.batch_size": 4, "engine.precision": "fp64", "train.clients_per_round": "all"}
    made = [
        build_session(describe_experiment(None, None, asked, federation, module), federation, module) for _ in range(2)
    ]
    remarks = []
    one, other = run_rounds(made[0])[0], run_rounds(made[1], engine=together(remarks))[0]
    assert same(one, other)
    assert len(remarks) == 1
    assert "one by one" in remarks[0]
    assert why in remarks[0]


def test_the_reason_is_an_event_of_the_run(tmp_path):
    asked = {"train.rounds": 2, "model.norm": "batch", "engine.vmap": "always", "engine.device": "cpu"}
    run = train(overrides=asked, out=tmp_path / "run")
    remarks = [e["wall"].get("remark") for e in run.events() if e["event"] == "engine"]
    assert any(remark and "batch norms" in remark for remark in remarks)


def test_a_part_that_raises_names_its_client_also_where_clients_are_trained_at_once():
    work = session_of({"method.corrections": [BreaksAt(4)], "train.clients_per_round": "all"})
    with pytest.raises(ValueError, match="no more") as caught:
        run_rounds(work, engine=together())
    assert "client 4" in "".join(caught.value.__notes__)


@dataclass(frozen=True)
class BreaksAt(Correction):
    """Fails at one client."""

    client: int = 0

    def fill(self, own, buf, context):
        if context.client.id == self.client:
            raise ValueError("no more")


# ---- groups do not depend on workers -------------------------------------------------------------------------------


def test_groups_are_of_similar_length_and_within_the_replicas():
    sizes = np.arange(300) % 7
    tasks = [Task(i, 0, 0) for i in range(300)]
    groups = group_tasks(tasks, sizes, True, 2)
    assert sorted(i for group in groups for i in group) == list(range(300))
    assert max(map(len, groups)) <= MOST_REPLICAS
    assert len(groups) % 2 == 0
    longest_first = [sizes[i] for group in groups for i in group]
    assert longest_first == sorted(longest_first, reverse=True)
    assert group_tasks(tasks, sizes, False, 2) == [[i] for group in groups for i in group]
    probes = [Task(i, 0, 0, kind="probe-loss") for i in range(4)]
    assert all(len(group) == 1 for group in group_tasks(probes, sizes, True, 2))


def test_only_tiny_models_without_batch_norm_are_worth_it():
    tiny, normed = Mlp(hidden=(32,)).build((64,), 10), Mlp(hidden=(32,), norm="batch").build((64,), 10)
    wide = Mlp(hidden=(1024, 1024)).build((64,), 10)
    assert worth_grouping(tiny, 1e5, "cpu")
    assert not worth_grouping(tiny, 1e8, "cpu")
    assert not worth_grouping(normed, 1e5, "cpu")
    assert not worth_grouping(wide, 1e5, "cpu")


def test_a_vmapped_trainer_takes_as_many_as_it_has_replicas():
    work = session_of({"train.clients_per_round": "all"})
    train_data = work.federation.train
    trainer = Trainer(work.plan.local, train_data.x, train_data.y, 17, pad=True)
    down = work.initial_state().model.wire()
    clients, tasks = [work.federation.client(i) for i in range(6)], [Task(i, 0, 0, down=down) for i in range(6)]
    wide, narrow = VmappedTrainer(trainer, 64), VmappedTrainer(trainer, 3)
    together = wide.run_tasks(clients, tasks, [{}] * 6)
    apart = narrow.run_tasks(clients[:3], tasks[:3], [{}] * 3) + narrow.run_tasks(clients[3:], tasks[3:], [{}] * 3)
    for (one, _), (other, _) in zip(together, apart, strict=True):
        torch.testing.assert_close(one.aggregated["update"], other.aggregated["update"], rtol=0, atol=1e-12)


class Words(nn.Module):
    """The mean of the embeddings of a sample's tokens."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(9, 4, **options), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.table(x).mean(1))


@pytest.mark.parametrize("options", [{"padding_idx": 0}, {"scale_grad_by_freq": True}, {"max_norm": 0.5}, {}])
def test_embeddings_are_trained_alike_whether_clients_are_trained_at_once_or_not(options):
    rng = np.random.default_rng(0)
    clients = [(rng.integers(0, 9, (12, 5)), np.arange(12) % 3) for _ in range(4)]
    asked = {"train.rounds": 2, "train.clients_per_round": "all", "engine.precision": "fp64", "train.lr": 1.0}
    ways = [
        train(
            model=Words(**options), federation=Federation.from_clients(clients), overrides={**asked, "engine.vmap": w}
        )
        for w in ("never", "auto", "always")
    ]
    for way in ways[1:]:
        for name, tensor in ways[0].model().items():
            torch.testing.assert_close(way.model()[name], tensor, rtol=0, atol=1e-9)
    if "padding_idx" in options:
        assert not ways[1].model()["table.weight"][0].any()


class Centred(nn.Module):
    """Takes the mean of the batch away, as a norm of one's own does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.head(self.drop(x - x.mean(0) if self.training else x))


def test_a_module_that_looks_at_the_whole_batch_does_not_see_padding():
    asked = {"data.clients": 6, "data.samples": 200, "train.rounds": 2, "engine.precision": "fp64"}
    runs = {w: train(model=Centred(), overrides={**asked, "engine.vmap": w}) for w in ("never", "always")}
    assert runs["always"].curve("loss_test") == runs["never"].curve("loss_test")
    remarks = [str(e.get("wall")) for e in runs["always"].events() if e["event"] == "engine"]
    assert "one by one: what the model makes of a sample depends on the others of its batch" in "".join(remarks)


# ---- several processes ----------------------------------------------------------------------------------------------


# Methods that differ in what crosses to a process; the others take the same ways.
@sweep(lambda method: method in SEVERAL, method=METHODS)
def test_processes_give_the_same_bits(method):
    asked = {**asked_for(method), "system.stragglers.rate": 0.3}
    engines = []
    try:
        here, outcomes = run_rounds(session_of(asked), rounds=3, engine=together())
        there, others = run_rounds(session_of(asked), rounds=3, engine=in_processes(2, True, engines))
    finally:
        for engine in engines:
            engine.close()
    assert same(here, there)
    assert alike(outcomes, others)


@dataclass(frozen=True)
class DiesOnce(Correction):
    """Kills its process, once in a file's life."""

    marker: str = ""

    def fill(self, own, buf, context):
        if context.client.id == 2 and context.task.round == 1 and not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_worker_that_dies_is_replaced_and_the_result_does_not_change(tmp_path, at_once):
    asked = {"train.clients_per_round": "all", "method.corrections": ["scaffold", DiesOnce(str(tmp_path / "marker"))]}
    (tmp_path / "marker").touch()
    expected, _ = run_rounds(session_of(asked), engine=here(at_once))
    (tmp_path / "marker").unlink()
    work, remarks = session_of(asked), []
    pool = ProcessPool(work.plan.local, work.federation, 2, at_once, remarks.append)
    first = pids_of(pool)
    try:
        state, _ = run_rounds(work, engine=lambda _: LocalEngine(pool))
        assert same(expected, state)
        assert (tmp_path / "marker").exists()
        assert len(set(first) & set(pids_of(pool))) == 1
        assert "exit code -9; another one takes its place" in remarks[0]
    finally:
        pool.close()


def test_nothing_is_left_of_workers_after_success_failure_and_death(tmp_path, monkeypatch):
    (tmp_path / "shared").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "shared"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))  # of memory, where others write too
    work = session_of({"method.corrections": [DiesOnce(str(tmp_path / "marker"))], "train.clients_per_round": "all"})
    pool = ProcessPool(work.plan.local, work.federation, 2)
    run_rounds(work, engine=lambda _: LocalEngine(pool))
    pids = pids_of(pool)
    pool.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not list((tmp_path / "shared").iterdir())


def test_steps_are_recorded_again_after_clients_that_met_failed(monkeypatch):
    """A model of Protected's that is too large for a step is no end of the run."""
    pool, trainer = object.__new__(GpuPool), SimpleNamespace(recorder="recorder", buf=None)
    pool._workers = [SimpleNamespace(trainer=trainer)]

    def fail(*_):
        assert trainer.recorder is None
        raise ValueError("too large")

    monkeypatch.setattr(InProcessPool, "lockstep", fail)
    with pytest.raises(ValueError, match="too large"):
        pool.lockstep([], {}, None)
    assert trainer.recorder == "recorder"


def test_a_worker_goes_on_after_an_error():
    work = session_of()
    data, down = work.federation.train, work.initial_state().model.wire()
    worker = Worker(work.plan.local, data.x, data.y, 17)
    with pytest.raises(PartError, match="nonsense"):
        worker.submit([(work.federation.client(0), Task(0, 0, 0, kind="nonsense", down=down), {})])()
    ((report, _),) = worker.submit([(work.federation.client(0), Task(0, 0, 0, down=down), {})])()
    assert report.read().finite
