"""Selectors that want different clients: clustered sampling, HiCS-FL and DivFL, with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.core.client_info import ClientInfo
from fedstrata.core.errors import RequestError
from fedstrata.core.messages import Report
from fedstrata.core.rng import Streams
from fedstrata.core.server_parts import Ask, Outcome, Scores, Step, View, finish_choice
from fedstrata.methods.selectors import hics
from fedstrata.methods.selectors.clustered_size import ClusteredSize
from fedstrata.methods.selectors.divfl import DivFl
from fedstrata.methods.selectors.gradclus import GradClus
from fedstrata.methods.selectors.hics import HeadUpdate, Hics
from fedstrata.methods.selectors.remembered import Remembered, angles, blocks, lengths, sketch
from fedstrata.methods.selectors.urns import by_group, by_size
from fedstrata.methods.selectors.ward import ward
from fedstrata.testing import check_correction, check_selector
from fedstrata.testing.tiny import alike, play, session_of

UPDATES = np.array([(1, 0), (0.9, 0.1), (0, 1), (0.1, 0.9)])
RNG = np.random.default_rng


def space_of(numbers=2, classes=2):
    """Return a model that is all head: one row of weights a class, then the biases."""
    cut = numbers - classes
    return SimpleNamespace(P=numbers, head=slice(0, numbers), head_weight=slice(0, cut), head_bias=slice(cut, numbers))


def view_of(sizes, k, round=0, key=None, space=None, seed=0, notes=None, classes=2, rounds=1):
    sizes = np.array(sizes)
    tiebreak = np.arange(len(sizes)) if key is None else np.array(key)
    client_info = ClientInfo(len(sizes), classes, np.flatnonzero(sizes), tiebreak, {"sizes": sizes})
    rng = partial(Streams(seed), round=round)

    def note(kind, **fields):
        if notes is not None:
            notes.append((kind, fields))

    known = (
        round,
        rounds,
        min(k, len(client_info.holders)),
        client_info.holders,
        client_info,
        space or space_of(),
        rng,
        note,
    )
    return View(*known)


def asks(selector, state, view):
    """Let a selector that does not probe finish."""
    with pytest.raises(StopIteration) as done:
        next(finish_choice(selector.select(state, view)))
    return done.value.value


def ids(selector, state, view):
    return [ask.client for ask in asks(selector, state, view)]


def remembered(updates):
    state = Remembered.nothing(len(updates[0]))
    state.keep({i: np.array(u, dtype=float) for i, u in enumerate(updates)})
    return state


def told(updates, missing=(), **kinds):
    """Return the outcome of a round in which clients sent these updates."""
    step = Step(tuple(Ask(i) for i in sorted({*updates, *missing})), **kinds)
    tensors = {i: torch.tensor(u, dtype=torch.float64) for i, u in updates.items()}
    reports = [Report(i, 1, aggregated={"update": u}, open_tensors={"HeadUpdate/head": u}) for i, u in tensors.items()]
    return [Outcome(step, 0, tuple(reports), tuple(missing))]


def tree_of(updates, measure=angles, on="rows", limit=5000):
    rows = np.array(updates, dtype=float)
    return ward(len(rows), lambda a, b: measure(rows[a], rows[b]), on, limit, RNG(0))


def groups(found):
    return sorted(sorted(group.tolist()) for group in found)


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


# ---- HiCS-FL ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moved", "softmax", "entropy"),
    [
        ((0.004, -0.002, -0.002), (0.995067, 0.002467, 0.002467), 0.03454354884778921),
        ((0.0005, -0.0003, -0.0002), (0.513897, 0.230909, 0.255194), 1.0290947411234288),
        ((0.0, 0.0, 0.0), (1 / 3,) * 3, np.log(3)),
        ((9.0, 0.0, 0.0), (1.0, 0.0, 0.0), 0.0),
    ],
)
@pytest.mark.parametrize("signal", ["bias", "wrow"])
def test_entropy_of_a_head_update(moved, softmax, entropy, signal):
    """For rows, every class has two weights with that mean."""
    np.testing.assert_allclose(hics.likely(np.array(moved) / 0.001), softmax, atol=1e-6)
    rows = [part for m in moved for part in (m - 0.5, m + 0.5)]
    head = rows + ([7.0, 8.0, 9.0] if signal == "wrow" else list(moved))
    selector, view = Hics(signal=signal), view_of((1, 1), 1, space=space_of(9, 3), classes=3)
    state = selector.init(view)
    selector.feedback(state, view, told({0: head}), Scores())
    np.testing.assert_allclose(state.entropy, [entropy, np.log(3)], atol=1e-12)


@pytest.mark.parametrize(("t", "expected"), [(0, (0.119203, 0.880797)), (50, (0.268941, 0.731059)), (100, (0.5, 0.5))])
def test_probabilities_of_clusters(t, expected):
    preference = Hics().gamma * (1 - t / 100) * np.array([0.5, 1.0])
    np.testing.assert_allclose(hics.likely(preference), expected, atol=1e-6)


@pytest.mark.parametrize(("t", "expected"), [(0, 0.880797), (50, 0.731059), (99, 0.504999)])
def test_hics_prefers_even_labels_less_and_less(t, expected):
    """Two clusters, of mean entropies .5 and 1: how often one client comes from the second."""
    state, picks = heads_of([(1, 0), (1, 0.01), (0, 1), (0.01, 1)], (0.5, 0.5, 1.0, 1.0)), 0
    for seed in range(1500):
        view = view_of((1,) * 4, 1, round=t, seed=seed, rounds=100)
        picks += ids(Hics(clusters=2), state, view)[0] >= 2
    assert picks / 1500 == pytest.approx(expected, abs=0.04)


def heads_of(updates, entropies):
    """Return the state of HiCS after everybody was asked."""
    return hics.Heads(remembered(updates), np.array(entropies), np.ones(len(updates), dtype=bool))


def test_hics_asks_everybody_once_in_the_order_of_ids():
    """Seven clients, three a round: floor(7 / 3) = 2 rounds; the last one is never seen, and its entropy is ln C."""
    selector, key = Hics(clusters=2), (6, 5, 4, 3, 2, 1, 0)
    state = selector.init(view_of((1,) * 7, 3, key=key))
    for round, expected in enumerate([[0, 1, 2], [3, 4, 5]]):
        view = view_of((1,) * 7, 3, round=round, key=key, rounds=9)
        assert ids(selector, state, view) == expected
        outcome = told({i: (0.001 * i, 0.0) for i in expected[:2]}, missing=expected[2:])
        selector.feedback(state, view, outcome, Scores())
    assert state.entropy[6] == np.log(2)
    assert state.last.ids.tolist() == [0, 1, 3, 4]
    view = view_of((1,) * 7, 3, round=2, key=key, rounds=9)
    assert len(set(ids(selector, state, view))) == 3


def test_hics_takes_more_clients_than_clusters_have():
    """The preferred cluster has one member; the other clusters' probabilities underflow, and nothing hangs."""
    state = heads_of([(1, 0), (0, 1), (0.01, 1), (0.02, 1)], (1e4, 0.0, 0.0, 0.0))
    drawn = ids(Hics(clusters=2), state, view_of((1,) * 4, 3, rounds=9))
    assert len(set(drawn)) == 3
    assert 0 in drawn


def test_full_clusters_are_left_out():
    taken = hics.drawn(np.array([5.0, 0.0, -1e9]), np.array([1, 2, 4]), 7, RNG(0))
    assert taken.tolist() == [1, 2, 4]


def test_more_clusters_than_clients():
    state = heads_of(UPDATES.tolist(), (0.1, 0.2, 0.3, 0.4))
    assert len(set(ids(Hics(clusters=99), state, view_of((1,) * 4, 3)))) == 3


def test_hics_with_nothing_to_tell_clients_apart():
    notes, counts = [], np.zeros(5)
    state = heads_of([(0, 0)] * 5, (np.log(2),) * 5)
    for seed in range(300):
        counts[ids(Hics(), state, view_of((1,) * 5, 2, seed=seed, notes=notes))] += 1
    assert notes[0][1]["used"] == "random clients"
    np.testing.assert_allclose(counts, 120, atol=35)


def test_hics_switches_to_urns_where_entropies_differ():
    """Variance of (0, 0, 1, 1) is .25: one client of each kind, where gamma alone would take both of the second."""
    state = heads_of(UPDATES.tolist(), (0.0, 0.0, 1.0, 1.0))
    for seed in range(20):
        one, other = ids(Hics(switch_var=0.25, gamma=99), state, view_of((1,) * 4, 2, seed=seed))
        assert (one in (0, 1), other in (2, 3)) == (True, True)
    assert ids(Hics(switch_var=0.26, gamma=99, clusters=2), state, view_of((1,) * 4, 2)) == [2, 3]
    assert Hics().needs == frozenset()
    assert Hics(switch_var=0.1).needs == {"sizes"}


def test_hics_refuses_a_head_without_bias():
    plan = SimpleNamespace(space=SimpleNamespace(head_bias=slice(0, 0)))
    assert 'signal = "wrow"' in Hics().conflicts(plan)
    assert Hics(signal="wrow").conflicts(plan) is None


def test_hics_in_the_loop_sees_how_heads_moved():
    work = session_of({"method.selector": Hics(), "train.clients_per_round": 2})
    before = work.initial_state().model
    state, (first, *_) = play(work, rounds=1)
    space = work.plan.space
    assert state.selector.last.ids.tolist() == [0, 1]
    moved = state.selector.last.of(np.array([0, 1])).sum(0)
    sizes = np.array([r.samples for r in first[0].reports])
    mean = sizes / sizes.sum() @ state.selector.last.of(np.array([0, 1]))
    assert moved.any()
    np.testing.assert_allclose(mean, (state.model.params - before.params)[space.head].numpy(), atol=1e-6)


# ---- DivFL -----------------------------------------------------------------------------------------------------------

POINTS = [(0, 0), (0, 1), (5, 5), (5, 6), (10, 0)]


def test_divfl_picks_and_what_they_cost():
    state, costs = remembered(POINTS), []
    for k in (1, 2, 3):
        view = view_of((1,) * 5, k)
        picks = ids(DivFl(), state, view)
        costs.append(lengths(np.array(POINTS, dtype=float), np.array(POINTS, dtype=float)[picks]).min(1).sum())
        assert picks == [[2], [0, 2], [0, 2, 4]][k - 1]
    np.testing.assert_allclose(costs, [21.5452598611638, 9.071067811865476, 2.0], rtol=1e-12)


def test_divfl_with_equal_updates_goes_by_key():
    for updates in ([(3, 4)] * 5, [(0, 0)] * 5):
        assert ids(DivFl(), remembered(updates), view_of((1,) * 5, 2, key=(4, 0, 3, 2, 1))) == [1, 4]


def test_divfl_picks_duplicates_last():
    """Two of three kinds cover all but themselves; of the duplicates, the lowest key is added."""
    state = remembered([(0, 0), (9, 0), (0, 9), (0, 0), (9, 0)])
    assert ids(DivFl(), state, view_of((1,) * 5, 3)) == [0, 1, 2]
    assert ids(DivFl(), state, view_of((1,) * 5, 4, key=(0, 1, 2, 4, 3))) == [0, 1, 2, 4]


def test_stochastic_divfl_looks_at_some_and_covers_well():
    rows = RNG(0).normal(size=(200, 3))
    state = remembered(rows)
    views = [view_of((1,) * 200, 10, seed=seed) for seed in range(3)]
    cost = {
        s: np.mean([lengths(rows, rows[ids(DivFl(stochastic=s), state, v)]).min(1).sum() for v in views])
        for s in (0.0, 0.1, 1.0)
    }
    assert cost[0.0] == cost[1.0]
    assert cost[0.0] < cost[0.1] < 1.15 * cost[0.0]
    drawn = np.mean([lengths(rows, rows[RNG(seed).choice(200, 10, replace=False)]).min(1).sum() for seed in range(3)])
    assert cost[0.1] < drawn


def test_divfl_over_many_clients_by_columns(monkeypatch):
    state = remembered(RNG(0).normal(size=(50, 3)))
    whole = ids(DivFl(stochastic=0.2), state, view_of((1,) * 50, 5))
    monkeypatch.setattr(DivFl, "LIMIT", 30)
    assert ids(DivFl(stochastic=0.2), state, view_of((1,) * 50, 5)) == whole


def test_divfl_can_ask_everybody_for_a_gradient():
    work = session_of({"method.selector": DivFl(refresh="all"), "train.clients_per_round": 2})
    state, ((probe, train), *_) = play(work, rounds=1)
    assert [a.client for a in probe.step.asks] == list(range(6))
    assert len(train.step.asks) == 2
    model = work.initial_state().model
    module = work.plan.local.build().double()
    work.plan.space.bind(module, model.params, model.buffers)
    data, rows = work.federation.train, torch.from_numpy(work.federation.train_split[1])
    loss = torch.nn.functional.cross_entropy(module(data.x[rows].double()), data.y[rows])
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])
    np.testing.assert_allclose(state.selector.of(np.array([1]))[0], gradient.numpy(), atol=1e-6)
    charged = play(session_of({"method.selector": DivFl(), "train.clients_per_round": 2}), rounds=1)[0].traffic
    assert state.traffic.bytes_up == charged.bytes_up + 6 * 8 * work.plan.space.P


# ---- all of them -----------------------------------------------------------------------------------------------------

ALL = [
    ClusteredSize(),
    GradClus(),
    GradClus(distance="l2", ward_on="condensed", start="normal"),
    GradClus(distance="l1", mass_rule=False, warm_up=1, sketch=4),
    Hics(clusters=2),
    Hics(signal="wrow", switch_var=0.0, sketch=4, ward_on="condensed"),
    DivFl(),
    DivFl(stochastic=0.1, sketch=4),
    DivFl(refresh="all"),
]


@pytest.mark.parametrize("selector", ALL, ids=str)
def test_conformance(selector):
    check_selector(selector)


def test_conformance_of_the_meter():
    check_correction(HeadUpdate())


@pytest.mark.parametrize("selector", ALL, ids=str)
def test_a_resumed_run_remembers_the_same(selector):
    asked = {"method.selector": selector, "method.combiner": {"kind": "uniform"}, "train.clients_per_round": 2}
    whole, outcomes = play(session_of(asked))
    resumed, others = play(session_of(asked), cut=3)
    assert alike(whole.select, resumed.select)
    assert alike(outcomes, others)


@pytest.mark.parametrize("selector", [GradClus(), Hics(), DivFl()], ids=lambda s: type(s).__name__)
def test_too_many_clients_are_refused_politely(selector):
    view = view_of(np.ones(5001, dtype=int), 10)
    with pytest.raises(RequestError, match=r"limited to 5,000 of them; here are 5,001. Set method.selector.s"):
        selector.init(view)
    selector.init(view_of(np.ones(5000, dtype=int), 10))


def test_stochastic_divfl_has_a_limit_too():
    many = view_of(np.ones(100_000, dtype=int), 10)
    DivFl(stochastic=0.001).init(many)
    with pytest.raises(RequestError, match="25,000,000 pairs"):
        DivFl(stochastic=0.1).init(many)


@pytest.mark.parametrize("selector", [GradClus(sketch=8), GradClus(sketch=8, mass_rule=False), Hics(sketch=8)], ids=str)
def test_with_a_sketch_there_is_no_limit(selector, monkeypatch):
    monkeypatch.setattr(type(selector), "LIMIT", 50)
    view = view_of(np.arange(1, 301), 10, space=space_of(30))
    state = selector.init(view)
    updates = {i: RNG(i).normal(size=30) for i in range(200)}
    selector.feedback(state, view, told(updates, missing=range(200, 300)), Scores())
    drawn = asks(selector, state, view_of(np.arange(1, 301), 10, round=1, space=space_of(30), rounds=9))
    assert sum(ask.weight for ask in drawn) == 10


@pytest.mark.parametrize("selector", [GradClus(), Hics(clusters=3), DivFl()], ids=lambda s: type(s).__name__)
def test_memory_is_of_clients_seen_only(selector):
    view = view_of(np.ones(1000, dtype=int), 3)
    state = selector.init(view)
    selector.feedback(state, view, told({5: (1.0, 0.0), 900: (0.0, 1.0)}), Scores())
    last = state.last if isinstance(selector, Hics) else state
    assert last.rows.shape == (2, 2)
