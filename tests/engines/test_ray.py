"""The engine on a cluster against the local one, on a real cluster of several nodes, some of which are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

pytest.importorskip("ray")

import ray
from ray_cluster import LastingWorkers, OnLastingWorkers, several_nodes

import fedstrata
from fedstrata.core import registry
from fedstrata.data.drift import Drift
from fedstrata.testing.tiny import alike, run_rounds, same, session_of, tiny_federation

pytestmark = [
    pytest.mark.extended,
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning:ray"),  # Ray's own files and sockets
]
SCAFFOLD = {"method.name": "scaffold", "system.stragglers.rate": 0.3}
EVERYBODY = {"method.name": "scaffold", "train.clients_per_round": 6}
STAGES = {
    "methods": "method.name",
    "schedules": "method.schedule",
    "drivers": "method.driver",
    "selectors": "method.selector",
    "samplers": "method.sampler",
    "corrections": "method.corrections",
    "combiners": "method.combiner",
    "server_steps": "method.server_step",
    "optimizers": "train.optimizer",
}
NEEDS = {  # what a part does not go without
    "fedtan": {"model.norm": "batch"},
    "sync": {"method.schedule": "stratified"},
    "stratified": {"method.driver": "chain"},
    "stratify-single": {"method.schedule.length": 12},
}
PARTS = {
    f"{stage}: {name}": {key: [name] if stage == "corrections" else name, **NEEDS.get(name, {})}
    for stage, key in STAGES.items()
    for name in sorted(registry.names(stage))
}
WAYS = {
    "stragglers": SCAFFOLD,
    "stratify, by messages": {"method.name": "stratify-batch", "engine.execution": "messages"},
    "compressed": {
        "method.name": "stratify-batch",
        "method.driver": {"kind": "sync", "up": "int8", "down": "bf16"},
        "engine.execution": "messages",
    },
    "devices": {"system.speed": {"kind": "lognormal"}, "system.deadline": 2.0},
    "names of labels hidden": {"method.name": "flips", "privacy.labels": "prf"},
    "clustered under masks": {"method.name": "flips", "privacy.clustering": "masked"},
    "masked": {"method.name": "scaffold", "privacy.aggregate": "masked"},
    "masked, and they meet": {"method.name": "fedtan", "model.norm": "batch", "privacy.aggregate": "masked"},
    "masked, with noise": {"privacy.aggregate": "masked", "privacy.dp": {"clip": 1.0, "noise": 0.5}},
    "noise of the server": {"privacy.dp": {"clip": 1.0, "noise": 0.5}},
    "noise of clients": {"privacy.dp": {"clip": 1.0, "noise": 0.5, "where": "local"}},
    "clients that are not believed": {"trust.clip": "median", "trust.samples": 2.0},
}


@pytest.fixture(scope="module")
def nodes():
    with several_nodes([1, 1, 1]) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def workers(nodes):
    lasting = LastingWorkers(4)
    assert sorted(map(len, lasting.members.by_node.values())) == [1, 1, 2]
    yield lasting
    lasting.members.close()


@pytest.mark.parametrize("way", [*PARTS, *WAYS])
def test_equals_the_local_engine(workers, way):
    asked = (PARTS | WAYS)[way]
    plain, _ = run_rounds(session_of(asked))
    spread, _ = run_rounds(session_of(asked), engine=workers.engine)
    assert (plain.model.params - spread.model.params).abs().max() < 1e-9
    assert plain.traffic == spread.traffic


def test_data_that_move_between_clients(workers):
    federation = tiny_federation().moving(Drift(at=(1, 2), share=0.5), seed=0)
    plain, _ = run_rounds(session_of({}, federation))
    spread, _ = run_rounds(session_of({}, federation), engine=workers.engine)
    still, _ = run_rounds(session_of({}))
    assert (plain.model.params - spread.model.params).abs().max() < 1e-9
    assert not same(plain, still)


def test_any_placement_gives_the_same_bits(workers):
    def trained(**how):
        engines = []

        def start(work):
            engines.append(workers.engine(work, **how))
            return engines[-1]

        state, _ = run_rounds(session_of(SCAFFOLD), engine=start)
        return state, engines[0].client_states()

    everywhere, states = trained()
    for how in ({"only": 1}, {"only": 3}, {"replicas": 1}, {"client_state": "disk"}):
        again, others = trained(**how)
        assert same(everywhere, again)
        assert alike(dict(sorted(states.items())), dict(sorted(others.items())))


def test_a_worker_has_the_samples_of_its_own_clients_alone(workers):
    session = session_of(SCAFFOLD)
    sizes = session.federation.train_split.sizes
    for replicas in (1, 2, 3):
        workers.engine(session, replicas=replicas)
        held = [workers.members.present[names[0]].clients for names in workers.members.by_node.values()]
        assert (np.array(held).sum(axis=0) == replicas).all()
        for member in workers.members.present.values():
            there = member.actor.__ray_call__.remote(lambda worker: len(worker._resident._federation.train.y))
            assert ray.get(there) == sizes[member.clients].sum()


def test_it_is_an_engine(workers):
    fedstrata.check_engine(OnLastingWorkers(workers))


def test_samples_by_path(nodes, tmp_path):
    asked = {**SCAFFOLD, "model.hidden": (5,), "engine.precision": "fp64", "train.rounds": 2}
    asked |= {"engine.kind": "ray", "engine.address": "auto", "engine.workers": 1, "engine.cpus": 0.5}
    shared = {**asked, "engine.shared_folder": str(tmp_path / "shared")}
    runs = [fedstrata.train(overrides=how, out=tmp_path / str(i)) for i, how in enumerate((asked, shared))]
    models = [dict(sorted(run.model().items())) for run in runs]
    assert alike(*models)
    assert len(list((tmp_path / "shared").glob("fedstrata-*/x.npy"))) == 1


class KilledOnTheWay:
    """Kills something after a step was run and before it is summed, once; `kill` may say False, and is asked again."""

    def __init__(self, engine, kill):
        self._engine, self._kill = engine, kill

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def collect(self, weights):
        kill, self._kill = self._kill, None
        if kill is not None and (self._engine._now.tag[0] < 1 or kill(self._engine, weights) is False):
            self._kill = kill
        return self._engine.collect(weights)


@pytest.mark.parametrize("which", [0, 1], ids=["passes its sum on", "adds what another passes"])
def test_a_killed_worker_changes_nothing_but_the_log(workers, which):
    rounds = []

    def kill(engine, weights):
        (pair,) = [names for names in workers.members.by_node.values() if len(names) == 2]
        if not set(pair) <= set(engine._now.worker.values()):
            return False  # who is quick takes more clients, so that one of the two may have had none this time
        rounds.append(engine._now.tag[0] + 1)
        os.kill(engine.workers[pair[which]], signal.SIGKILL)
        return True

    undisturbed, _ = run_rounds(session_of(EVERYBODY), engine=workers.engine)
    workers.said.clear()
    for _ in range(20):
        state, _ = run_rounds(session_of(EVERYBODY), engine=lambda w: KilledOnTheWay(workers.engine(w), kill))
        if rounds:
            break
    assert same(undisturbed, state)
    (lost,) = [line for line in workers.said if "lost" in line]
    assert f"round {rounds[0]}" in lost
    assert "run again elsewhere" in lost


def test_a_killed_node_changes_nothing_but_the_log_and_a_new_one_is_used(nodes, workers):
    undisturbed, _ = run_rounds(session_of(EVERYBODY), engine=workers.engine)
    new, holders = [], []

    def replace_node(engine, weights):
        head = nodes.head_node.node_id
        name = next(n for n in sorted(engine.workers, reverse=True) if not n.startswith(head))
        gone = next(node for node in nodes.worker_nodes if name.startswith(node.node_id))
        nodes.remove_node(gone, allow_graceful=False)
        new.append(nodes.add_node(num_cpus=1, object_store_memory=80 * 2**20).node_id)

    class Watched(KilledOnTheWay):
        def collect(self, weights):
            holders.append({name.partition("/")[0] for name in self._engine._now.worker.values()})
            return super().collect(weights)

    workers.said.clear()
    state, _ = run_rounds(session_of(EVERYBODY), engine=lambda work: Watched(workers.engine(work), replace_node))
    assert same(undisturbed, state)
    assert len([line for line in workers.said if "lost" in line]) == 1
    assert [new[0] in round for round in holders] == [False, False, True, True]  # from the next round on


def test_workers_take_shares_of_a_gpu(nodes, tmp_path):
    asked = {"engine.kind": "ray", "engine.address": "auto", "engine.gpus": 0.25, "engine.cpus": 0.5}
    node = nodes.add_node(num_cpus=2, num_gpus=1, object_store_memory=80 * 2**20)  # by what it says
    free = []

    def watch(event):
        if event["event"] == "round":
            free.append(ray.available_resources().get("GPU", 0.0))

    try:
        how = {**asked, "train.rounds": 1, "engine.device": "cpu"}
        run = fedstrata.train(overrides=how, out=tmp_path / "run", watch=watch)
        (begun,) = [event for event in run.events() if event["event"] == "engine"]
        assert (begun["wall"]["workers"], begun["wall"]["nodes"]) == (4, 1)  # though others have CPUs
        assert free == [0.0]
        if not torch.cuda.is_available():
            with pytest.raises(fedstrata.FedstrataError, match="torch sees none there"):
                fedstrata.train(overrides=asked, out=tmp_path / "none")
        deadline = time.monotonic() + 120  # nothing is left that holds a share
        while ray.available_resources().get("GPU") != 1.0:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        nodes.remove_node(node)


def begun(out, *more):
    command = [sys.executable, "-m", "fedstrata", "run", "--set", "engine.kind=ray", "--set", "engine.object_store=80"]
    command += ["--set", "train.rounds=40", "--set", "method.name=scaffold", "--out", str(out), *more]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def test_two_clusters_at_once_and_a_killed_driver_goes_on_bit_for_bit(tmp_path):
    whole, cut = begun(tmp_path / "whole"), begun(tmp_path / "cut")
    for line in cut.stderr:
        if "round" in line:
            cut.kill()
            break
    assert cut.wait() == -signal.SIGKILL
    cut.stderr.close()
    said = whole.communicate()[1]
    assert whole.returncode == 0, said
    done = subprocess.run(
        [sys.executable, "-m", "fedstrata", "run", "--resume", str(tmp_path / "cut"), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 40  # and nothing but JSON on standard output
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert models[0] == models[1]
