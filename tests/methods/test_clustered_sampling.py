"""Clustered sampling: urns, trees of clients, and GradClus, with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from selecting import RNG, UPDATES, asks, groups, ids, remembered, space_of, told, tree_of, view_of

from fedstrata.core.rng import Streams
from fedstrata.core.steps import Scores
from fedstrata.methods.selectors.clustered_size import ClusteredSize
from fedstrata.methods.selectors.gradclus import GradClus
from fedstrata.methods.selectors.remembered import Remembered, angles, blocks, lengths, sketch
from fedstrata.methods.selectors.urns import by_group, by_size

# ---- urns ------------------------------------------------------------------------------------------------------------


def test_urns_by_size():
    """p = (.5, .3, .15, .05), m = 2."""
    urns = by_size(np.arange(4), np.array([10, 6, 3, 1]), 2, np.arange(4))
    np.testing.assert_allclose(urns.shares(4), [[1, 0, 0, 0], [0, 0.6, 0.3, 0.1]], atol=1e-15)
    np.testing.assert_allclose(urns.shares(4).mean(0), [0.5, 0.3, 0.15, 0.05], atol=1e-15)


def test_a_client_heavier_than_an_urn_owns_one_and_is_split():
    """Sizes 8, 1, 1 and three urns: the first client has 2.4 of them."""
    urns = by_size(np.arange(3), np.array([1, 8, 1]), 3, np.arange(3))
    np.testing.assert_allclose(urns.shares(3), [[0, 1, 0], [0, 1, 0], [0.3, 0.4, 0.3]], atol=1e-15)
    assert {a.client: a.weight for a in urns.draw(RNG(0))}[1] >= 2


def test_urns_by_group_of_clients_alike():
    tree = tree_of(UPDATES)
    assert tree.merges.tolist() == [[0, 1], [2, 3], [4, 5]]
    sizes = np.ones(4, dtype=int)
    urns = by_group(tree.within(2 * sizes, 4), np.arange(4), sizes, 2, RNG(0))
    assert urns.shares(4).tolist() == [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]


def test_urns_by_group_of_unequal_clients():
    """p = (.4, .3, .2, .1): {1} and {2, 3} weigh the same, and the larger group is kept."""
    sizes = np.array([4, 3, 2, 1])
    found = tree_of(UPDATES).within(2 * sizes, 10)
    assert groups(found) == [[0], [1], [2, 3]]
    urns = by_group(found, np.arange(4), sizes, 2, RNG(0))
    np.testing.assert_allclose(urns.shares(4), [[0, 0.4, 0.4, 0.2], [0.8, 0.2, 0, 0]], atol=1e-15)
    np.testing.assert_allclose(urns.shares(4).mean(0), sizes / 10, atol=1e-15)


def test_a_group_heavier_than_an_urn_fills_some_alone():
    sizes = np.array([9, 1, 1, 1])
    urns = by_group(tree_of(UPDATES).within(3 * sizes, 12), np.arange(4), sizes, 3, RNG(0))
    np.testing.assert_allclose(urns.shares(4).sum(0), 3 * sizes / 12, atol=1e-15)
    assert urns.shares(4)[:2].tolist() == [[1, 0, 0, 0]] * 2


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=2, max_size=20), st.integers(1, 8), st.integers(0, 99))
def test_urns_are_full_and_unbiased(sizes, m, seed):
    sizes, rng = np.array(sizes), RNG(seed)
    tree = tree_of(rng.normal(size=(len(sizes), 3)))
    made = by_group(tree.within(m * sizes, int(sizes.sum())), np.arange(len(sizes)), sizes, m, rng)
    for urns in (made, by_size(np.arange(len(sizes)), sizes, m, np.arange(len(sizes)))):
        shares = urns.shares(len(sizes))
        assert urns.masses.dtype == np.int64
        np.testing.assert_allclose(shares.sum(1), 1, atol=1e-12)
        np.testing.assert_allclose(shares.mean(0), sizes / sizes.sum(), atol=1e-12)
        assert sum(ask.weight for ask in urns.draw(rng)) == m


def test_a_client_drawn_twice_is_asked_once_and_counts_twice():
    for seed in range(20):
        drawn = asks(ClusteredSize(), None, view_of((90, 5, 5), k=2, seed=seed))
        assert sum(ask.weight for ask in drawn) == 2
        assert {a.client: a.weight for a in drawn}[0] == (2 if len(drawn) == 1 else 1)


def test_clustered_size_is_unbiased_over_seeds():
    counts = np.zeros(4)
    for seed in range(3000):
        for ask in asks(ClusteredSize(), None, view_of((4, 3, 2, 1), k=2, seed=seed)):
            counts[ask.client] += ask.weight
    np.testing.assert_allclose(counts / 6000, [0.4, 0.3, 0.2, 0.1], atol=0.02)


def test_where_all_are_wanted_all_are_asked_with_their_mean_weight():
    everybody = asks(ClusteredSize(), None, view_of((6, 0, 3, 1), k=9))
    assert [(a.client, a.weight) for a in everybody] == [(0, pytest.approx(1.8)), (2, pytest.approx(0.9)), (3, 0.3)]


# ---- distances, trees and sketches -----------------------------------------------------------------------------------


def test_angles_of_updates():
    expected = [[0, 0.1107, 1.5708, 1.4601], [0.1107, 0, 1.4601, 1.3495]]
    np.testing.assert_allclose(angles(UPDATES[:2], UPDATES), expected, atol=5e-5)


def test_an_update_without_length_is_at_angle_zero():
    assert angles(np.zeros((1, 2)), UPDATES).tolist() == [[0, 0, 0, 0]]


def test_distances_of_equal_updates_are_exactly_zero():
    rows = np.repeat(RNG(0).normal(size=(1, 20_000)), 3, axis=0)
    assert not angles(rows, rows).any()
    assert not lengths(rows, rows).any()
    assert not blocks(rows, rows).any()


def test_lengths_and_blocks():
    a, b = RNG(0).normal(size=(2, 5, 9000))
    np.testing.assert_allclose(lengths(a, b)[1, 2], np.linalg.norm(a[1] - b[2]), rtol=1e-12)
    np.testing.assert_allclose(blocks(a, b)[3, 0], np.abs(a[3] - b[0]).sum(), rtol=1e-12)


@pytest.mark.parametrize("on", ["rows", "condensed"])
@pytest.mark.parametrize("measure", [angles, lengths, blocks])
def test_trees_find_the_same_two_pairs(on, measure):
    assert groups(tree_of(UPDATES, measure, on).cut(2)) == [[0, 1], [2, 3]]


def test_beyond_the_limit_a_sample_stands_for_all():
    centres = np.repeat(np.eye(4) * 5, 50, axis=0)
    tree = tree_of(centres + 0.01 * RNG(0).normal(size=centres.shape), limit=40)
    assert len(tree.leaves) == 40
    assert groups(tree.cut(4)) == np.arange(200).reshape(4, 50).tolist()


def test_a_sketch_keeps_the_order_of_distances():
    scale = np.array([0, 1, 2, 4, 8])[:, None]  # further and further from the first
    rows = RNG(0).normal(size=(1, 4000)) + scale * RNG(1).normal(size=(5, 4000))
    vectors = {i: torch.from_numpy(row) for i, row in enumerate(rows)}
    few = sketch(vectors, 512, view_of((1,) * 5, 2))
    again = sketch(vectors, 512, view_of((1,) * 5, 2, round=7))
    assert all(np.array_equal(few[i], again[i]) for i in few)
    exact = lengths(rows[:1], rows)[0]
    short = lengths(few[0][None], np.stack([few[i] for i in range(5)]))[0]
    assert np.argsort(short).tolist() == np.argsort(exact).tolist()
    np.testing.assert_allclose(short, exact, rtol=0.2)


def test_only_the_last_vector_of_seen_clients_is_kept():
    state = Remembered.nothing(2)
    state.keep({7: np.array([1.0, 2.0])})
    state.keep({7: np.array([3.0, 4.0]), 2: np.array([5.0, 6.0])})
    assert state.rows.shape == (2, 2)
    assert state.of(np.array([2, 3, 7])).tolist() == [[5, 6], [0, 0], [3, 4]]


# ---- GradClus --------------------------------------------------------------------------------------------------------


def test_gradclus_draws_one_client_of_each_kind():
    for seed in range(20):
        one, other = ids(GradClus(), remembered(UPDATES), view_of((1,) * 4, 2, seed=seed))
        assert one in (0, 1)
        assert other in (2, 3)


def test_gradclus_learns_from_the_reports_that_arrived():
    selector, view = GradClus(), view_of((1,) * 4, 2)
    state = selector.init(view)
    selector.feedback(state, view, told(dict(enumerate(UPDATES.tolist()[:3])), missing=(3,)), Scores())
    selector.feedback(state, view, told({0: (9.0, 9.0)}, kind="probe", combine=False), Scores())
    np.testing.assert_allclose(state.of(np.arange(4)), [*UPDATES[:3], (0, 0)], rtol=1e-6)


@pytest.mark.parametrize("mass_rule", [True, False])
def test_gradclus_before_any_update(mass_rule):
    """All distances are zero: urns are filled by size, or clients drawn at random."""
    selector, counts, notes = GradClus(mass_rule=mass_rule), np.zeros(4), []
    for seed in range(400):
        view = view_of((10, 6, 3, 1), 2, seed=seed, notes=notes)
        drawn = asks(selector, selector.init(view), view)
        assert sum(ask.weight for ask in drawn) == 2
        counts[[ask.client for ask in drawn]] += 1
    assert notes[0][0] == "fallback"
    expected = [400, 240, 120, 40] if mass_rule else [200] * 4
    np.testing.assert_allclose(counts, expected, atol=50)


def test_gradclus_with_random_starts_groups_clients_never_seen():
    selector, notes = GradClus(start="normal"), []
    view = view_of((1,) * 6, 3, notes=notes, space=space_of(8))
    state = selector.init(view)
    assert ids(selector, state, view) == ids(selector, state, view)
    assert not notes
    assert not len(state.ids)


def test_gradclus_without_masses_takes_one_of_each_cluster():
    """Four of five clients are alike: each cluster still gives one."""
    updates = [(1, 0), (1, 0.01), (1, 0.02), (1, 0.03), (0, 1)]
    for seed in range(10):
        drawn = asks(GradClus(mass_rule=False), remembered(updates), view_of((1, 2, 3, 4, 5), 2, seed=seed))
        assert [ask.weight for ask in drawn] == [1, 1]
        assert drawn[1].client == 4


def test_gradclus_warms_up_by_size_with_replacement():
    selector, view = GradClus(warm_up=2), view_of((1000, 1), 1)
    assert ids(selector, remembered(UPDATES[:2]), view) == [0]
    view = view_of((1000, 1, 1), 2)
    assert [(a.client, a.weight) for a in asks(selector, remembered(UPDATES[:3]), view)] == [(0, 2)]


def test_gradclus_draws_only_whom_it_may():
    view = view_of((1, 1, 0, 1, 1, 1), 2)
    view = replace(view, eligible=np.array([1, 3, 5]))
    state = remembered(RNG(0).normal(size=(6, 2)))
    assert {i for seed in range(20) for i in ids(GradClus(), state, replace(view, rng=Streams(seed)))} == {1, 3, 5}
