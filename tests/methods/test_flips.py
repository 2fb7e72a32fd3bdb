"""FLIPS: clusters of label vectors, and fair turns."""

from __future__ import annotations

import numpy as np
import pytest
from flips_views import CURVE, POINTS, PURE, found, groups, partition_of, view_of

from fedstrata.methods.selectors.clusters import davies_bouldin, elbow, most_clusters, nearest
from fedstrata.methods.selectors.flips import Flips

# ---- clusters


@pytest.mark.parametrize(("cluster", "expected"), [([0, 0, 1, 1, 2], 0.111111), ([0, 0, 1, 1, 0], 0.333333)])
def test_davies_bouldin(cluster, expected):
    assert davies_bouldin(POINTS, np.array(cluster)) == pytest.approx(expected, abs=1e-6)


def test_davies_bouldin_is_that_of_scikit_learn():
    from sklearn.metrics import davies_bouldin_score  # noqa: PLC0415

    rng = np.random.default_rng(0)
    vectors, cluster = rng.random((60, 5)), rng.integers(0, 7, 60)
    assert davies_bouldin(vectors, cluster) == pytest.approx(davies_bouldin_score(vectors, cluster), rel=1e-9)


@pytest.mark.parametrize(("rule", "expected"), [("curvature", 4), ("eq3", 5), ("min", 5)])
def test_elbow(rule, expected):
    assert elbow(CURVE, rule) == expected


def test_curvature_gives_two_where_the_curve_is_lowest_there():
    assert elbow({2: 0.1, 3: 0.9, 4: 0.5, 5: 0.6}, "curvature") == 2


def test_the_lowest_point_is_searched_from_the_number_of_labels_on():
    curve = {2: 0.1, 3: 0.9, 4: 0.5, 5: 0.6}
    assert elbow(curve) == 2
    assert elbow(curve, least=3) == 4
    assert elbow(curve, least=9) == 2  # there are not so many


@pytest.mark.parametrize("seed", range(3))
def test_as_many_clusters_as_in_the_papers_figure(seed):
    """Figure 2 of FLIPS: ten to twelve clusters of 200 parties with ten labels, Dirichlet 0.3; a bend says three."""
    shares = np.random.default_rng(seed).dirichlet(np.full(10, 0.3), 200)
    clusters = found(shares, seed=seed, repeats=10)
    assert 10 <= len(clusters.centres) <= 13
    assert min(clusters.curve) == 10
    assert max(clusters.curve) == 20


@pytest.mark.parametrize("rule", ["curvature", "min", "eq3"])
@pytest.mark.parametrize(("curve", "allowed"), [({2: 0.4}, {2}), ({2: 0.4, 3: 0.3}, {3}), ({2: 0.4, 3: 0.0}, {3})])
def test_elbow_of_a_short_curve(rule, curve, allowed):
    assert elbow(curve, rule) in allowed


@pytest.mark.parametrize(("shape", "most"), [((200, 10), 20), ((200, 3), 12), ((5, 10), 4), ((2, 10), 1)])
def test_most_clusters_to_try(shape, most):
    assert most_clusters(*shape) == most


@pytest.mark.parametrize(("many", "rule"), [(2, "curvature"), (3, "curvature"), (4, "curvature"), (4, "min")])
@pytest.mark.parametrize("seed", range(3))
def test_clear_groups_are_found(many, rule, seed):
    vectors = groups([9, 7, 8, 6][:many], seed=seed)
    clusters = found(vectors, rule=rule, seed=seed)
    assert len(clusters.centres) == many
    assert partition_of(nearest(vectors, clusters.centres)) == partition_of(vectors.argmax(1))


def test_identical_members_make_as_many_clusters_as_there_are_different_ones():
    events = []
    clusters = found(np.repeat(np.eye(3), 4, axis=0), note=lambda kind, **what: events.append((kind, what)))
    assert len(clusters.centres) == 3
    assert not events


def test_clusters_are_a_function_of_the_generator():
    vectors = np.random.default_rng(3).dirichlet(np.ones(5), 80)
    a, b, c = (found(vectors, 6, seed=seed).centres for seed in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def test_centres_are_the_means_of_their_members():
    vectors = np.random.default_rng(3).dirichlet(np.ones(5), 80)
    centres = found(vectors, 6).centres
    cluster = nearest(vectors, centres)
    assert np.allclose(centres, [vectors[cluster == c].mean(0) for c in range(6)], atol=0.05)


@pytest.mark.parametrize(
    ("vectors", "k", "used"),
    [
        (np.ones((5, 3)), None, 1),  # all the same
        (np.ones((5, 3)), 4, 1),
        (np.repeat(np.eye(3), 2, axis=0), 5, 3),  # fewer different ones than clusters
        (np.eye(4), 50, 4),  # more clusters than clients
        (np.eye(2), None, 1),  # nothing to search
        (np.ones((1, 3)), None, 1),
    ],
)
def test_what_cannot_be_clustered_as_asked_falls_back_and_says_so(vectors, k, used):
    events = []
    clusters = found(vectors, k, note=lambda kind, **what: events.append((kind, what["used"], bool(what["why"]))))
    assert len(clusters.centres) == used
    assert events == [("fallback", used, True)]


def test_many_vectors_are_searched_by_a_sample_and_assigned_in_full(monkeypatch):
    monkeypatch.setattr("fedstrata.methods.selectors.clusters.SEARCHED", 60)
    monkeypatch.setattr("fedstrata.methods.selectors.clusters.FITTED", 100)
    monkeypatch.setattr("fedstrata.methods.selectors.clusters.CHUNK", 64)
    vectors = groups([200, 150, 250], labels=3).astype(np.float32)
    clusters = found(vectors)
    assert clusters.searched == 60
    assert partition_of(nearest(vectors, clusters.centres)) == partition_of(vectors.argmax(1))


# ---- turns


def test_four_rounds_by_hand():
    flips = Flips(clusters=3)
    state = flips.init(view_of(PURE, 4))
    rounds = [flips.select(state, view_of(PURE, 4, round)) for round in range(4)]
    assert rounds == [[0, 3, 4, 1], [3, 5, 2, 4], [3, 0, 5, 1], [3, 4, 2, 5]]
    assert [int(state.cluster_picks[state.cluster[i]]) for i in (0, 3, 4)] == [6, 4, 6]


def test_ties_go_by_the_seeded_key():
    flips = Flips(clusters=3)
    view = view_of(PURE, 4, key=np.array([5, 4, 3, 2, 1, 0]))
    assert flips.select(flips.init(view), view) == [5, 3, 2, 4]


def test_fewer_turns_than_clusters_rotate():
    flips, counts = Flips(clusters=4), np.repeat(np.eye(4, dtype=np.int64), 3, axis=0)
    state = flips.init(view_of(counts, 1))
    picked = [flips.select(state, view_of(counts, 1, round)) for round in range(12)]
    for turn in range(3):
        assert {p // 3 for (p,) in picked[4 * turn : 4 * turn + 4]} == {0, 1, 2, 3}
    assert sorted(p for (p,) in picked) == list(range(12))


def test_everybody_is_asked_where_as_many_are_wanted():
    flips = Flips()
    view = view_of(PURE, 99)
    assert sorted(flips.select(flips.init(view), view)) == list(range(6))


def test_only_eligible_clients_are_taken_and_the_empty_are_in_no_cluster():
    counts = np.vstack([PURE, np.zeros((1, 3), dtype=np.int64)])
    flips = Flips(clusters=3)
    view = view_of(counts, 3, eligible=[1, 2, 4])
    state = flips.init(view)
    assert sorted(flips.select(state, view)) == [1, 2, 4]
    assert state.cluster[6] == -1


def test_clients_that_were_away_come_before_those_that_were_taken():
    flips = Flips(clusters=3)
    state = flips.init(view_of(PURE, 1))
    assert flips.select(state, view_of(PURE, 2, eligible=[1, 2])) == [1, 2]
    assert flips.select(state, view_of(PURE, 6, 1))[-1] in (1, 2)
    assert state.picks.tolist() == [1, 2, 2, 1, 1, 1]


def test_with_one_cluster_it_is_a_fair_round_robin():
    flips, counts, events = Flips(), np.full((7, 3), 4), []
    note = lambda kind, **what: events.append(kind)  # noqa: E731
    state = flips.init(view_of(counts, 3))
    for round in range(7):
        flips.select(state, view_of(counts, 3, round, note=note))
    assert state.picks.tolist() == [3] * 7
    assert events == ["fallback", "clusters"]


@pytest.mark.parametrize("k", [1, 3, 7])
def test_picks_are_fair_among_clusters_and_within_them(k):
    rng = np.random.default_rng(k)
    counts = rng.multinomial(50, rng.dirichlet(np.full(4, 0.2)), 30) if k == 1 else rng.integers(1, 40, (30, 4))
    flips = Flips(clusters=3)
    state = flips.init(view_of(counts, k))
    for round in range(40):
        flips.select(state, view_of(counts, k, round))
        for c in range(len(state.centres)):
            assert np.ptp(state.picks[state.cluster == c]) <= 1
    assert state.picks.sum() == 40 * k
    roomy = np.bincount(state.cluster) >= k
    assert np.ptp(state.cluster_picks[roomy]) <= 1


def test_least_picked_members_are_those_of_a_full_sort():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, (200, 3)) + 1
    flips = Flips(clusters=4)
    key = rng.permutation(200)
    view = view_of(counts, 30, key=key)
    state = flips.init(view)
    flips.select(state, view)
    state.picks = rng.integers(0, 6, 200)
    members = state.members
    for count in (0, 1, 5, 20, 500):
        for c in range(4):
            own = np.flatnonzero(state.cluster == c)
            best = own[np.lexsort((key[own], state.picks[own]))][:count]
            assert members.least(c, count, state.picks) == best.tolist()
