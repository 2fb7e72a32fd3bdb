"""k-means by secure sums: the clusters of scikit-learn, contributions by hand, what is refused, and FLIPS on top."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from random import Random as Stdlib

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from fedstrata import RequestError
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.messages import Report
from fedstrata.core.rng import Streams
from fedstrata.core.steps import Ask, Outcome, Scores, Step, View
from fedstrata.methods.selectors.clusters import find_clusters, nearest
from fedstrata.methods.selectors.flips import Flips
from fedstrata.privacy.clustering import LARGEST, ClusterMember, Organiser, masked_k_means
from fedstrata.privacy.frames import SERVER, Frame, RefusedError
from fedstrata.privacy.histograms import NoisyHistograms
from fedstrata.privacy.identity import Identity, KeyDirectory

JOB = b"a job of 16 byte"
FIXED = 2**20


@cache
def parties(clients):
    """Return the server's identity, those of clients, and the roll."""
    draw = Stdlib(0).randbytes
    server, own = Identity.new(draw), [Identity.new(draw) for _ in range(clients)]
    return server, own, KeyDirectory.of(server, own)


def members_of(shares):
    _, own, key_directory = parties(len(shares))
    return {i: ClusterMember(i, vector, own[i], key_directory, JOB) for i, vector in enumerate(shares)}


def plain_sum(vectors):
    """Sum as a masked sum would: in fixed point."""
    return sum(np.rint(v * FIXED).astype(np.int64) for v in vectors.values()) / FIXED


def clustered(shares, k=None, sum_of=plain_sum, rule="curvature"):
    server, _, key_directory = parties(len(shares))
    return masked_k_means(members_of(shares), server, key_directory, JOB, sum_of, k, rule)


def kinds(clients, labels, many, seed, samples=300, purity=None):
    """Return label shares of clients of some kinds, and the kinds; without purity those of a kind draw alike."""
    rng = np.random.default_rng(seed)
    mixes, kind = rng.dirichlet(np.full(labels, 0.3), many), np.arange(clients) % many
    own = mixes[kind] if purity is None else [rng.dirichlet(purity * mixes[k] + 1e-3) for k in kind]
    return np.array([rng.multinomial(samples, mix) for mix in own]) / samples, kind


def asked(task, centres, step=0, job=JOB, identity=None, clients=5):
    fields = (task.encode(), np.asarray(centres, dtype="<f4").tobytes())
    return Frame(f"centres {step}", job, SERVER, fields).sign(identity or parties(clients)[0])


# ---- clusters


@pytest.mark.parametrize(("labels", "many", "seed"), [(10, 5, 0), (10, 8, 1), (4, 3, 2), (60, 6, 3)])
def test_the_clusters_are_those_of_scikit_learn(labels, many, seed):
    shares, kind = kinds(60, labels, many, seed)
    found = clustered(shares, many)
    cluster = found.of_all(60)
    theirs = KMeans(many, n_init=10, random_state=0).fit(shares)
    assert adjusted_rand_score(theirs.labels_, cluster) == 1.0
    assert adjusted_rand_score(kind, cluster) == 1.0
    assert found.inertia == pytest.approx(theirs.inertia_, rel=1e-3)
    assert np.allclose(found.centres, [shares[cluster == c].mean(0) for c in range(many)], atol=1e-6)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.extended) for seed in (1, 2))])
def test_where_there_are_no_clear_kinds_it_is_about_as_good(seed):
    shares, _ = kinds(80, 10, 8, seed, purity=3)
    theirs = KMeans(8, n_init=10, random_state=0).fit(shares)
    assert clustered(shares, 8).inertia < 1.05 * theirs.inertia_


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.extended)])
def test_the_number_of_clusters_is_found_as_in_the_open(seed):
    shares, _ = kinds(60, 6, 5, seed)
    found = clustered(shares)
    open_ones = find_clusters(shares, None, "curvature", 10, np.random.default_rng(0), lambda *_, **__: None)
    assert len(found.centres) == len(open_ones.centres) == 5
    assert adjusted_rand_score(nearest(shares, open_ones.centres), found.of_all(60)) == 1.0
    assert found.curve[5] == pytest.approx(open_ones.curve[5], rel=0.2)


def test_nothing_is_random():
    shares, _ = kinds(30, 5, 4, 0, purity=3)
    a, b = clustered(shares, 4), clustered(shares, 4)
    assert a.cluster == b.cluster
    assert np.array_equal(a.centres, b.centres)


@pytest.mark.parametrize(
    ("shares", "k", "clusters"),
    [
        (np.full((6, 4), 0.25), None, 1),  # all the same
        (np.full((6, 4), 0.25), 3, 1),
        (np.repeat(np.eye(3), 3, axis=0), 5, 3),  # fewer different ones than wanted
        (np.eye(4), 4, 4),  # everybody alone, as asked
        (np.eye(4), 1, 1),
        (np.eye(3), None, 1),  # too few to search
    ],
)
def test_there_are_no_more_clusters_than_different_vectors(shares, k, clusters):
    assert len(set(clustered(shares, k).cluster.values())) == clusters


def test_a_search_leaves_three_clients_a_cluster_on_average():
    assert max(clustered(kinds(15, 10, 5, 0)[0], rule="min").curve) <= 5


def test_bytes_are_those_of_sums_and_messages():
    sizes = []

    def counted(vectors):
        (size,) = {v.size for v in vectors.values()}
        sizes.append(8 * size)
        return plain_sum(vectors)

    found = clustered(kinds(60, 10, 6, 0)[0], 6, counted)
    told = len(Frame("cluster", JOB, 0, (bytes(4),)).sign(parties(60)[0]))
    assert found.bytes_up == sum(sizes) + told
    assert found.steps == len(sizes) + 1
    assert found.bytes_up < 40_000
    assert found.bytes_down < 40_000
    assert f"{found.steps} steps" in found.describe()


def test_a_client_that_drops_out_of_the_sums_changes_only_the_means():
    shares, kind = kinds(40, 8, 4, 0)
    found = clustered(shares, 4, lambda vectors: plain_sum({i: v for i, v in vectors.items() if i != 7}))
    assert adjusted_rand_score(kind, found.of_all(40)) == 1.0


def test_clusters_of_noisy_histograms_are_those_of_true_ones():
    shares, kind = kinds(60, 10, 6, 0)
    noisy = NoisyHistograms(1.0).told(np.rint(shares * 300), np.random.default_rng(0))
    found = clustered(noisy / noisy.sum(1, keepdims=True), 6)
    assert adjusted_rand_score(kind, found.of_all(60)) > 0.9


# ---- one client


def member_of(vector):
    _, own, key_directory = parties(5)
    return ClusterMember(2, np.array(vector), own[2], key_directory, JOB)


def test_contributions_by_hand():
    centres = [[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]]
    member = member_of([0.75, 0.25])  # as near to the first as to the second: the first
    move = member.contribution(asked("move", centres)).reshape(3, -1)
    assert move.tolist() == [[0.75, 0.25, 1], [0, 0, 0], [0, 0, 0]]
    member = member_of([0.875, 0.125])
    look = member.contribution(asked("look", centres)).reshape(3, -1)
    near, far = 2 / 64, 2 * (3 / 8) ** 2
    assert look[[0, 2]].tolist() == [[0] * 5] * 2
    assert look[1] == pytest.approx([1 / 64, 1 / 64, 1, np.sqrt(near), far - near])


def test_no_contribution_is_larger_than_the_sum_expects():
    look = member_of([1.0] + [0.0] * 9).contribution(asked("look", [[0.0] + [1.0] * 9]))
    assert look.max() == LARGEST


CENTRES = [[0.5, 0.5], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (asked("move", CENTRES, step=1), "kind"),  # too early
        (asked("move", CENTRES, job=bytes(16)), "job"),
        (asked("move", CENTRES, identity=parties(5)[1][0]), "signed"),
        (asked("move", [[0.5, 0.5], [1.0, 1.5]]), "from 0 to 1"),
        (asked("move", [[0.5, np.nan]]), "from 0 to 1"),
        (asked("move", [0.5, 0.5, 0.5]), "2 shares each"),
        (asked("move", []), "2 shares each"),
        (asked("tell", CENTRES), "where a contribution is due"),
        (asked("steal", CENTRES), "task"),
        (b"", "cut off"),
    ],
)
def test_a_client_refuses_what_does_not_belong(data, said):
    with pytest.raises(RefusedError, match=said):
        member_of([0.5, 0.5]).contribution(data)


def test_a_client_refuses_every_bit_that_changed_and_every_part_that_is_missing():
    data = asked("move", CENTRES)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RefusedError):
            member_of([0.5, 0.5]).contribution(bytes(changed))
    for end in range(len(data)):
        with pytest.raises(RefusedError):
            member_of([0.5, 0.5]).contribution(data[:end])


def test_a_client_serves_each_step_once_and_nothing_after_it_told(monkeypatch):
    member = member_of([0.5, 0.5])
    member.contribution(asked("move", CENTRES))
    with pytest.raises(RefusedError, match="kind"):
        member.contribution(asked("move", CENTRES))
    with pytest.raises(RefusedError, match="where a cluster is due"):
        member.cluster(asked("look", CENTRES, step=1))
    member = member_of([0.5, 0.5])
    member.cluster(asked("tell", CENTRES))
    with pytest.raises(RefusedError, match="over"):
        member.contribution(asked("move", CENTRES, step=1))
    monkeypatch.setattr("fedstrata.privacy.clustering.STEPS", 1)
    member = member_of([0.5, 0.5])
    member.contribution(asked("move", CENTRES))
    with pytest.raises(RefusedError, match="over"):
        member.contribution(asked("move", CENTRES, step=1))


def test_the_server_refuses_a_cluster_that_there_is_not_and_one_that_another_told():
    server, own, key_directory = parties(5)
    organiser = Organiser(server, key_directory, JOB, 2, 5, lambda _: np.zeros(1))
    told = member_of([0.9, 0.1]).cluster(asked("tell", CENTRES))
    assert organiser.heard(2, told, 2) == 1
    with pytest.raises(RefusedError, match="no cluster"):
        organiser.heard(2, told, 1)
    with pytest.raises(RefusedError, match="sender"):
        organiser.heard(3, told, 2)
    for bit in range(8 * len(told)):
        changed = bytearray(told)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RefusedError):
            organiser.heard(2, bytes(changed), 2)
    forged = Frame("cluster", JOB, 2, (bytes(4),)).sign(own[3])
    with pytest.raises(RefusedError, match="signed"):
        organiser.heard(2, forged, 2)


@pytest.mark.parametrize("vector", [[0.5, np.nan], [-0.1, 1.1], [[0.5, 0.5]], [3.0, 4.0]])
def test_only_shares_are_clustered(vector):
    with pytest.raises(RequestError, match="shares"):
        member_of(vector)


@pytest.mark.parametrize(
    ("clients", "k", "said"), [(2, 1, "at least 3"), (5, 6, "clusters = 6"), (5, 0, "clusters = 0")]
)
def test_wrong_requests_are_refused(clients, k, said):
    with pytest.raises(RequestError, match=said):
        clustered(np.eye(5)[:clients], k)


# ---- FLIPS takes clusters that were found elsewhere


def view_of(client_info, k, round, note=lambda *_, **__: None):
    eligible = client_info.holders
    return View(round, 9, min(k, len(eligible)), eligible, client_info, None, partial(Streams(0), round=round), note)


def client_infos(clients=24, seed=0):
    """Return a client info with label counts, and how to give the same with clusters only."""
    shares, _ = kinds(clients, 5, 4, seed)
    key = np.random.default_rng(seed).permutation(clients)
    known = ClientInfo(clients, 5, np.arange(clients), key, {"counts": np.rint(shares * 300).astype(np.int64)})
    found = clustered(shares, 4).of_all(clients)
    return known, ClientInfo(clients, 5, np.arange(clients), key, clusters=found)


def rounds_of(client_info, missing=(), rounds=6):
    flips, events = Flips(clusters=4), []
    state = flips.init(view_of(client_info, 7, 0))
    chosen = []
    for round in range(rounds):
        view = view_of(client_info, 7, round, lambda kind, **what: events.append((kind, what)))
        now = flips.select(state, view)
        chosen.append(now)
        late = tuple(c for c in now if c in missing)
        reports = tuple(Report(c, 1, 1, 1.0, 1.0) for c in now if c not in missing)
        flips.feedback(state, view, [Outcome(Step(tuple(map(Ask, now))), 0, reports, late)], Scores())
    return chosen, events, state


@pytest.mark.parametrize("missing", [(), (0, 3, 8, 9)])
def test_flips_selects_the_same_clients_without_reading_counts(missing):
    known, private = client_infos()
    open_ones, _, _ = rounds_of(known, missing)
    hidden, events, _ = rounds_of(private, missing)
    assert hidden == open_ones
    assert any(len(c) > 7 for c in hidden) == bool(missing)
    assert events == [("clusters", {"clusters": 4, "told": "memberships"})]


def test_a_resumed_flips_takes_its_clusters_over_again():
    _, private = client_infos()
    _, _, state = rounds_of(private)
    picks, cluster_picks = state.picks.copy(), state.cluster_picks.copy()
    state.members = None
    chosen = Flips(clusters=4).select(state, view_of(private, 7, 6))
    picks[chosen] += 1
    assert state.picks.tolist() == picks.tolist()
    assert state.cluster_picks.sum() == cluster_picks.sum() + 7


def test_a_client_that_left_is_not_missed_and_one_without_a_cluster_is_not_overlooked():
    _, private = client_infos()
    flips = Flips(clusters=4)
    state = flips.init(view_of(private, 7, 0))
    flips.select(state, view_of(private, 7, 0))
    state.straggler[[3, 23]], state.rate = True, 0.5
    without = replace(private, holders=np.setdiff1d(np.arange(24), [3, 23]), clusters=private.clusters.copy())
    assert len(flips.select(state, view_of(without, 7, 1))) == 7  # nobody more is asked in their place
    unknown = private.clusters.copy()
    unknown[5] = -1
    with pytest.raises(RequestError, match=r"\[5\]"):
        flips.select(state, view_of(replace(private, clusters=unknown), 7, 2))


def test_a_client_that_joins_a_cluster_need_not_catch_up():
    _, private = client_infos()
    early = replace(private, holders=np.arange(1, 24))
    flips = Flips(clusters=4)
    state = flips.init(view_of(early, 7, 0))
    for round in range(8):
        flips.select(state, view_of(early, 7, round))
    assert state.picks[0] == 0
    beside = np.flatnonzero(private.clusters == private.clusters[0])[1:]
    least = state.picks[beside].min()
    joined = replace(private, clusters=private.clusters.copy())
    chosen = flips.select(state, view_of(joined, 7, 8))
    assert least > 0
    assert state.picks[0] == least + (0 in chosen)


def test_a_client_info_keeps_its_clusters_where_data_move():
    known, private = client_infos()
    moving = replace(private, later=lambda round: known)
    assert moving.at(3).clusters is private.clusters
