"""What the engine on a cluster is made of, without a cluster: sums on a grid, and who trains which client."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedstrata
from fedstrata.core.messages import Report, weighted_sum
from fedstrata.engines.ray.cluster import ClusterNode
from fedstrata.engines.ray.grid import add_parts, choose_units, count_units, grid_unit, peaks_of, summed_dtypes
from fedstrata.engines.ray.members import Share
from fedstrata.engines.ray.packing import pack, unpack
from fedstrata.engines.ray.placement import choose_home, deal, rank_nodes
from fedstrata.engines.ray.shards import Outline, cut_shard, write_samples
from fedstrata.testing.tiny import tiny_federation


def sum_of(reports, weights, groups):
    """Sum reports as workers do that have these clients each."""
    units = choose_units({client: peaks_of(report.aggregated) for client, report in reports.items()}, weights)
    parts = [count_units(reports, {client: weights[client] for client in group}, units) for group in groups]
    return add_parts(parts, units, summed_dtypes(reports[0].aggregated))


def reports_of(count, scale, seed, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.logspace(0, -scale, count, dtype=torch.float64)
    tensors = [(torch.randn(50, generator=draw, dtype=torch.float64) * size).to(dtype) for size in sizes]
    return {i: Report(i, 1, aggregated={"update": t}) for i, t in enumerate(tensors)}


@given(st.integers(1, 30), st.floats(0, 12), st.integers(0, 2**20), st.randoms(use_true_random=False))
def test_any_grouping_gives_the_same_bits_and_the_right_sum(count, scale, seed, shuffle):
    reports = reports_of(count, scale, seed)
    weights = {i: 1 / (3 + i) for i in range(count)}
    clients = list(range(count))
    alone = sum_of(reports, weights, [clients])
    shuffle.shuffle(clients)
    cut = shuffle.randint(0, count)
    spread = sum_of(reports, weights, [clients[:cut], clients[cut:]])
    assert torch.equal(alone["update"], spread["update"])
    torch.testing.assert_close(alone["update"], weighted_sum(reports, weights).total["update"], rtol=0, atol=1e-11)


def test_plain_sums_depend_on_the_order_which_is_why_there_is_a_grid():
    reports, weights = reports_of(20, 3, 0), {i: 1 / (3 + i) for i in range(20)}
    backwards = dict(reversed(weights.items()))
    plain = [weighted_sum(reports, own).total["update"] for own in (weights, backwards)]
    assert not torch.equal(*plain)


def test_the_grid_by_hand():
    assert grid_unit([3.0, 1.0]) == 2.0 ** (3 - 52)  # 4 = 0.5 * 2**3
    assert grid_unit([]) == grid_unit([0.0]) == grid_unit([float("inf")]) == 0.0
    reports = {0: Report(0, 1, aggregated={"n": torch.tensor([3, -1])}), 1: Report(1, 1, aggregated={})}
    assert sum_of(reports, {0: 0.5, 1: 2.0}, [[1], [0]])["n"].tolist() == [1.5, -0.5]


def test_what_is_not_finite_stays_so():
    reports = {0: Report(0, 1, aggregated={"update": torch.tensor([1.0, float("nan")])})}
    assert torch.isnan(sum_of(reports, {0: 1.0}, [[0]])["update"]).tolist() == [False, True]


def test_single_precision_comes_back_in_single_precision():
    reports = reports_of(5, 1, 0, torch.float32)
    total = sum_of(reports, dict.fromkeys(range(5), 0.2), [[0, 1], [2, 3, 4]])["update"]
    assert total.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.int64])
def test_tensors_survive_their_packing(dtype):
    tensor = torch.arange(6).to(dtype).reshape(2, 3)
    for copy in (True, False):
        assert torch.equal(unpack(pack({"a": tensor}), copy)["a"], tensor)


NODES = {"a": 2, "b": 2, "c": 4}


def test_a_node_that_leaves_moves_only_its_own_clients():
    clients = np.arange(2000)
    first = np.array(sorted(NODES))[rank_nodes(clients, NODES, 1)[:, 0]]
    left = {name: workers for name, workers in NODES.items() if name != "b"}
    after = np.array(sorted(left))[rank_nodes(clients, left, 1)[:, 0]]
    assert (first == after)[first != "b"].all()
    assert 0.4 < (first == "c").mean() < 0.6  # it has half of the workers


def test_a_clients_nodes_are_different_ones_and_no_more_than_there_are():
    ranks = rank_nodes(np.arange(100), NODES, 2)
    assert ranks.shape == (100, 2)
    assert (ranks[:, 0] != ranks[:, 1]).all()
    assert rank_nodes(np.arange(5), {"a": 1}, 2).shape == (5, 1)


def test_clients_stay_at_home_unless_it_has_its_share():
    everywhere = [["x", "y"]] * 4
    assert deal([1, 1, 1, 1], ["x", "x", "y", "y"], everywhere, ["x", "y"]) == ["x", "x", "y", "y"]
    assert sorted(deal([1, 1, 1, 1], ["x"] * 4, everywhere, ["x", "y"])) == ["x", "x", "y", "y"]
    assert deal([1, 1, 1, 1], ["x"] * 4, [["x"]] * 4, ["x", "y"]) == ["x"] * 4  # nobody else has the samples
    assert choose_home(7, ["x", "y"]) == choose_home(7, ["y", "x"])


def test_a_node_has_room_for_so_many():
    node, small = ClusterNode("b", "1", 8.0, 1.0), ClusterNode("a", "2", 1.0, 0.0)
    assert Share("auto", 1.0).room(node) == 8
    assert Share("auto", 0.5, 0.1).room(node) == 10  # 1 / 0.1 is 9.99 in binary
    assert Share("auto", 1.0, 0.5).room(small) == 0
    assert list(Share(3).places([node, small])) == ["a/0", "b/0", "b/1"]
    assert list(Share(3).places([node, small], avoid={"a/0"})) == ["b/0", "b/1", "b/2"]


def test_what_others_take_of_a_node_is_no_room():
    taken = ClusterNode("a", "1", 4.0, 1.0, 0.0, 1.0)
    some = ClusterNode("b", "2", 4.0, 1.0, 2.5, 0.5)
    assert (Share().room(some), Share().free(some), Share().free(taken)) == (4, 2, 0)
    assert list(Share(1).places([taken, some])) == ["b/0"]
    assert list(Share().places([taken, some])) == ["b/0", "b/1"]
    assert list(Share("auto", 0.5, 0.25).places([taken, some])) == ["b/0", "b/1"]  # by what is left of the GPU
    assert Share().wanted([taken, some]) == 8
    assert Share(3).wanted([taken, some]) == 3


def test_workers_of_our_own_keep_their_places():
    one, other = ClusterNode("a", "1", 2.0, 0.0), ClusterNode("b", "2", 2.0, 0.0, 1.0)
    assert list(Share(1).places([one, other], own={"b/0"})) == []  # though a new node comes first by name
    assert list(Share(3).places([one, other], own={"b/1"})) == ["a/0", "b/0"]
    assert list(Share().places([one, other], own={"b/0"})) == ["a/0", "a/1", "b/1"]


def test_a_shard_holds_the_samples_of_its_clients_alone(tmp_path):
    federation = tiny_federation()
    chosen = np.array([False, True, False, False, True, False])
    shard = cut_shard(federation, chosen)
    assert len(shard.arrays["y"]) == federation.train_split.sizes[chosen].sum()
    by_path = cut_shard(federation, chosen, write_samples(federation, str(tmp_path)))
    assert not by_path.arrays
    for one in (shard, by_path):
        seen = Outline.of(federation).fill(one)
        for client in range(6):
            here, there = federation.client(client), seen.client(client)
            if chosen[client]:
                assert torch.equal(federation.train.x[here.rows], seen.train.x[there.rows])
                assert here.labels.tolist() == there.labels.tolist()
            else:
                assert not there.samples


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(fedstrata.RequestError, match=r'pip install "fedstrata\[ray\]"'):
        fedstrata.train(overrides={"engine.kind": "ray", "train.rounds": 1})


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("address", "ray://head:10001", "Ray Client"),
        ("address", "none", 'allowed: "local", "auto"'),
        ("device", "cuda", "engine.gpus"),
        ("vmap", "always", "has no such option"),
        ("cpus", 0, "engine.cpus"),
    ],
)
def test_what_a_cluster_cannot_do_is_refused(key, value, said):
    with pytest.raises(fedstrata.RequestError, match=said):
        fedstrata.train(overrides={"engine.kind": "ray", f"engine.{key}": value, "train.rounds": 1})
