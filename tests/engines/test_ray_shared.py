"""A cluster that others use too: workers go where there is room, and wait where there is none."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("ray")

import ray
from ray_cluster import several_nodes

import fedstrata

pytestmark = [
    pytest.mark.extended,
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning:ray"),  # Ray's own files and sockets
]
ASKED = {"engine.kind": "ray", "engine.address": "auto", "train.rounds": 2, "train.clients_per_round": 4}


@pytest.fixture(scope="module")
def nodes():
    with several_nodes([1, 1]):
        yield sorted(node["NodeID"] for node in ray.nodes())


@pytest.fixture(autouse=True)
def _free(nodes):
    """Wait until nodes have said that nothing is left of the test before."""
    deadline = time.monotonic() + 120
    while ray.available_resources().get("CPU") != 2.0:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def take(node):
    """Take a node's CPU, as another user does."""

    class Somebody:  # in here, so that nodes need not import this file
        def here(self):
            return ray.get_runtime_context().get_node_id()

    where = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    actor = ray.remote(Somebody).options(num_cpus=1, scheduling_strategy=where).remote()
    assert ray.get(actor.here.remote()) == node
    return actor


def remarks(run):
    return [said for event in run.events() if event["event"] == "engine" and (said := event["wall"].get("remark"))]


@pytest.mark.parametrize("first", [0, 1])
def test_one_worker_goes_to_the_node_that_nobody_uses(nodes, tmp_path, first):
    other = take(nodes[first])
    try:
        run = fedstrata.train(overrides=ASKED | {"engine.workers": 1}, out=tmp_path / "run")
    finally:
        ray.kill(other)
    assert run.summary["rounds"] == 2
    assert remarks(run) == []


def test_as_many_as_fit_beside_others_and_the_rest_when_there_is_room(nodes, tmp_path):
    others = [take(nodes[0])]
    seen = []

    def watch(event):
        if event["event"] == "round" and others:
            ray.kill(others.pop())
        if event["event"] == "engine":
            seen.append(event["wall"].get("workers") or event["wall"]["remark"])
        return fedstrata.STOP if len(seen) == 3 else None

    fedstrata.train(overrides=ASKED | {"train.rounds": 100_000}, out=tmp_path / "run", watch=watch)
    assert seen[0] == "1 of 2 workers have no room, 1 CPU each: other work takes it; they join when it is free"
    assert seen[1] == 1
    assert seen[2].startswith("joined: 1 worker(s)")


def test_a_run_waits_where_others_have_every_node_and_says_so(nodes, tmp_path):
    others = [take(node) for node in nodes]

    def watch(event):
        if event["event"] == "engine" and "waiting for it" in (event["wall"].get("remark") or ""):
            ray.kill(others.pop())

    run = fedstrata.train(overrides=ASKED | {"engine.workers": 1}, out=tmp_path / "run", watch=watch)
    ray.kill(others.pop())
    waits, goes_on = remarks(run)
    assert waits == "no node has room for a worker, 1 CPU: other work takes it; waiting for it"
    assert goes_on.startswith("there was room for a worker after ")
    assert run.summary["rounds"] == 2
