"""HiCS-FL and DivFL by hand; and every selector that wants different clients, as parts and resumed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from selecting import RNG, UPDATES, asks, ids, remembered, space_of, told, view_of
from sweeping import sweep

from fedstrata.core.errors import RequestError
from fedstrata.core.steps import Scores
from fedstrata.methods.selectors import hics
from fedstrata.methods.selectors.clustered_size import ClusteredSize
from fedstrata.methods.selectors.divfl import Collected, DivFl
from fedstrata.methods.selectors.gradclus import GradClus
from fedstrata.methods.selectors.hics import HeadUpdate, Hics
from fedstrata.methods.selectors.remembered import lengths
from fedstrata.testing import check_correction, check_selector
from fedstrata.testing.tiny import alike, run_rounds, session_of

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
    taken = hics.draw_clusters(np.array([5.0, 0.0, -1e9]), np.array([1, 2, 4]), 7, RNG(0))
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


@pytest.mark.parametrize(("refresh", "kept"), [("warm-up", (0, 1)), ("always", (1, 0))])
def test_hics_keeps_the_first_update_of_a_client_or_the_last(refresh, kept):
    """Client 1 was missed in warm-up: its first report counts, though it comes late."""
    moved = [(0.004, -0.002), (0.0, 0.001)]
    entropies = [-sum(p * np.log(p) for p in hics.likely(np.array(m) / 0.001)) for m in moved]
    selector, view = Hics(refresh=refresh), view_of((1,) * 3, 1)
    state = selector.init(view)
    for round, told_of in enumerate(({0: moved[0]}, {0: moved[1], 1: moved[1]}, {1: moved[0], 0: moved[1]})):
        selector.feedback(state, view_of((1,) * 3, 1, round=round), told(told_of, missing=[2]), Scores())
    np.testing.assert_allclose(state.last.of(np.arange(3)), [*(moved[i] for i in kept), (0, 0)], rtol=1e-6)
    np.testing.assert_allclose(state.entropy, [*(entropies[i] for i in kept), np.log(2)], rtol=1e-6)


@pytest.mark.parametrize("refresh", ["warm-up", "always"])
def test_hics_after_warm_up(refresh):
    """Six clients, two a round: three rounds of warm-up. Then nothing is learnt of them, or something is."""
    asked = {"method.selector": Hics(clusters=2, refresh=refresh), "train.clients_per_round": 2, "train.rounds": 6}
    (first, _), (last, _) = (run_rounds(session_of(asked), rounds=rounds) for rounds in (3, 6))
    assert len(first.selector.last.ids) == 6
    assert alike(first.selector, last.selector) == (refresh == "warm-up")


def test_hics_in_the_loop_sees_how_heads_moved():
    work = session_of({"method.selector": Hics(), "train.clients_per_round": 2})
    before = work.initial_state().model
    state, (first, *_) = run_rounds(work, rounds=1)
    space = work.plan.space
    assert state.selector.last.ids.tolist() == [0, 1]
    moved = state.selector.last.of(np.array([0, 1])).sum(0)
    sizes = np.array([r.samples for r in first[0].reports])
    mean = sizes / sizes.sum() @ state.selector.last.of(np.array([0, 1]))
    assert moved.any()
    np.testing.assert_allclose(mean, (state.model.params - before.params)[space.head].numpy(), atol=1e-6)


# ---- DivFL -----------------------------------------------------------------------------------------------------------

POINTS = [(0, 0), (0, 1), (5, 5), (5, 6), (10, 0)]
FREE = DivFl(start="nothing")


def collected(updates):
    """Return the state of DivFL once everybody was asked."""
    return Collected(remembered(updates), np.ones(len(updates), dtype=bool))


def test_divfl_picks_and_what_they_cost():
    state, costs = collected(POINTS), []
    for k in (1, 2, 3):
        view = view_of((1,) * 5, k)
        picks = ids(FREE, state, view)
        costs.append(lengths(np.array(POINTS, dtype=float), np.array(POINTS, dtype=float)[picks]).min(1).sum())
        assert picks == [[2], [0, 2], [0, 2, 4]][k - 1]
    np.testing.assert_allclose(costs, [21.5452598611638, 9.071067811865476, 2.0], rtol=1e-12)


def test_divfl_with_equal_updates_goes_by_key():
    for updates in ([(3, 4)] * 5, [(0, 0)] * 5):
        assert ids(FREE, collected(updates), view_of((1,) * 5, 2, key=(4, 0, 3, 2, 1))) == [1, 4]


def test_divfl_picks_duplicates_last():
    """Two of three kinds cover all but themselves; of the duplicates, the lowest key is added."""
    state = collected([(0, 0), (9, 0), (0, 9), (0, 0), (9, 0)])
    assert ids(FREE, state, view_of((1,) * 5, 3)) == [0, 1, 2]
    assert ids(FREE, state, view_of((1,) * 5, 4, key=(0, 1, 2, 4, 3))) == [0, 1, 2, 4]


def test_stochastic_divfl_looks_at_some_and_covers_well():
    rows = RNG(0).normal(size=(200, 3))
    state = collected(rows)
    views = [view_of((1,) * 200, 10, seed=seed) for seed in range(3)]
    cost = {
        s: np.mean([lengths(rows, rows[ids(replace(FREE, stochastic=s), state, v)]).min(1).sum() for v in views])
        for s in (0.0, 0.1, 1.0)
    }
    assert cost[0.0] == cost[1.0]
    assert cost[0.0] < cost[0.1] < 1.15 * cost[0.0]
    drawn = np.mean([lengths(rows, rows[RNG(seed).choice(200, 10, replace=False)]).min(1).sum() for seed in range(3)])
    assert cost[0.1] < drawn


def test_divfl_over_many_clients_by_columns(monkeypatch):
    state, some = collected(RNG(0).normal(size=(50, 3))), replace(FREE, stochastic=0.2)
    whole = ids(some, state, view_of((1,) * 50, 5))
    monkeypatch.setattr(DivFl, "LIMIT", 30)
    assert ids(some, state, view_of((1,) * 50, 5)) == whole


def chosen(selector, state, view, gradients, silent=()):
    """Answer a selector's probes; give whom it asked, by probe, and whom it chose."""
    steps, asked, answer = selector.select(state, view), [], None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            return asked, end.value
        assert (step.kind, step.combine, step.model) == ("probe-gradient", False, True)
        asked.append([ask.client for ask in step.asks])
        (answer,) = told({i: gradients[i] for i in asked[-1] if i not in silent}, missing=silent, kind=step.kind)


def cheapest(apart, k):
    """Pick one after another whatever makes the sum of distances to the nearest pick least."""
    picks = []
    for _ in range(k):
        costs = {j: apart[:, [*picks, j]].min(1).sum() for j in range(len(apart)) if j not in picks}
        picks.append(min(costs, key=costs.get))
    return picks


@pytest.mark.parametrize("start", ["all", "nothing"])
def test_divfl_as_its_authors_run_it(start):
    """Gradients that drift and shrink: all are collected in the first round, then those of the picked, as they are now.

    What training reports has another sign and length, as updates do. With "nothing" it is all that is known.
    """
    n, k, selector = 30, 4, DivFl(start=start)
    gradients, drift = RNG(0).normal(size=(n, 6)) + 3 * RNG(1).normal(size=(n, 1)), RNG(2).normal(size=(12, n, 6))
    known, seen = gradients.copy() if start == "all" else np.zeros((n, 6)), set()
    state = selector.init(view_of((1,) * n, k, space=space_of(6)))
    for round in range(12):
        gradients = 0.9 * gradients + 0.5 * drift[round] if round else gradients
        expected = cheapest(np.linalg.norm(known[:, None] - known, axis=2), k)
        view = view_of((1,) * n, k, round=round, space=space_of(6))
        asked, picks = chosen(selector, state, view, gradients)
        assert picks == expected
        updates = {i: -0.05 * gradients[i] for i in picks}
        selector.feedback(state, view, told(updates), Scores())
        known[picks] = gradients[picks] if start == "all" else [updates[i] for i in picks]
        assert asked == ([] if start == "nothing" else [sorted(picks) if round else list(range(n))])
        np.testing.assert_allclose(state.last.of(np.arange(n)), known, rtol=1e-6)
        seen |= set(picks)
    assert (len(seen) > 15) == (start == "all")


def test_divfl_asks_newcomers_once_and_who_is_silent_no_more():
    """Clients 0 to 3 are there at first, and 1 does not answer; then come 4 and 5, and 0 to 3 are known."""
    selector, gradients = DivFl(), {i: (float(i), 1.0) for i in range(6)}
    view = view_of((1,) * 6, 2)
    state = selector.init(view)
    asked, _ = chosen(selector, state, replace(view, eligible=np.arange(4)), gradients, silent=[1])
    assert asked == [[0, 1, 2, 3]]
    assert state.last.ids.tolist() == [0, 2, 3]
    (first, second), picks = chosen(selector, state, view, gradients, silent=[1])
    assert first == [4, 5]
    assert second == [i for i in sorted(picks) if i < 4]  # who has just told it is not asked twice
    assert [len(step) for step in chosen(selector, state, view, gradients)[0]] == [2]


def test_divfl_asks_nobody_where_all_are_wanted():
    selector, view = DivFl(), view_of((1,) * 3, 3)
    assert chosen(selector, selector.init(view), view, {}) == ([], [0, 1, 2])


def gradient_of(work, model, client):
    """Return the gradient of a client's mean loss."""
    module = work.plan.local.build().double()
    work.plan.space.bind(module, model.params, model.buffers)
    data, rows = work.federation.train, torch.from_numpy(work.federation.train_split[client])
    loss = torch.nn.functional.cross_entropy(module(data.x[rows].double()), data.y[rows])
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))]).numpy()


def test_divfl_can_ask_everybody_for_a_gradient():
    work = session_of({"method.selector": DivFl(refresh="all"), "train.clients_per_round": 2})
    state, rounds = run_rounds(work, rounds=2)
    for probe, train in rounds:
        assert [a.client for a in probe.step.asks] == list(range(6))
        assert len(train.step.asks) == 2
    state, _ = run_rounds(work, rounds=1)
    expected = gradient_of(work, work.initial_state().model, 1)
    np.testing.assert_allclose(state.selector.last.of(np.array([1]))[0], expected, atol=1e-6)
    charged = run_rounds(session_of({"method.selector": FREE, "train.clients_per_round": 2}), rounds=1)[0].traffic
    assert state.traffic.bytes_up == charged.bytes_up + 6 * 8 * work.plan.space.P


def test_divfl_in_the_loop_collects_gradients_once_and_renews_those_of_the_picked():
    work = session_of({"method.selector": DivFl(), "train.clients_per_round": 2})
    models = [work.initial_state().model, run_rounds(work, rounds=1)[0].model]
    state, rounds = run_rounds(work, rounds=2)
    asked = [[[a.client for a in outcome.step.asks] for outcome in outcomes] for outcomes in rounds]
    assert asked[0][0] == list(range(6))
    assert asked[1][0] == asked[1][1]  # those who are going to train
    newest = [models[client in asked[1][0]] for client in range(6)]
    expected = [gradient_of(work, model, client) for client, model in enumerate(newest)]
    np.testing.assert_allclose(state.selector.last.of(np.arange(6)), expected, atol=1e-6)
    plain = run_rounds(session_of({"method.selector": FREE, "train.clients_per_round": 2}), rounds=2)[0].traffic
    assert state.traffic.bytes_up - plain.bytes_up == (6 + 2) * 8 * work.plan.space.P
    assert state.traffic.bytes_down - plain.bytes_down == (6 + 2) * 8 * work.plan.space.P


@pytest.mark.parametrize("cut", [1, 2])
def test_a_resumed_divfl_does_not_begin_again(cut):
    _, rounds = run_rounds(session_of({"method.selector": DivFl(), "train.clients_per_round": 2}), cut=cut)
    assert [len(probe.step.asks) for probe, _ in rounds] == [6, 2, 2, 2]


def test_divfl_sees_single_gradients_and_masks_hide_them():
    with pytest.raises(RequestError, match="looks at single updates"):
        session_of({"method.selector": DivFl(), "privacy.aggregate": "masked"})


# ---- all of them -----------------------------------------------------------------------------------------------------

ALL = [
    ClusteredSize(),
    GradClus(),
    GradClus(distance="l2", ward_on="condensed", start="normal"),
    GradClus(distance="l1", mass_rule=False, warm_up=1, sketch=4),
    Hics(clusters=2),
    Hics(signal="wrow", switch_var=0.0, sketch=4, ward_on="condensed", refresh="always"),
    DivFl(),
    DivFl(stochastic=0.1, sketch=4),
    DivFl(refresh="all"),
    FREE,
]


# With their usual options all are checked as registered parts.
@sweep(lambda selector: selector in (ALL[3], ALL[5], ALL[8], ALL[9]), ids=str, selector=ALL)
def test_conformance(selector):
    check_selector(selector)


def test_conformance_of_the_meter():
    check_correction(HeadUpdate())


@pytest.mark.parametrize("selector", ALL, ids=str)
def test_a_resumed_run_remembers_the_same(selector):
    asked = {"method.selector": selector, "method.combiner": {"kind": "uniform"}, "train.clients_per_round": 2}
    whole, outcomes = run_rounds(session_of(asked))
    resumed, others = run_rounds(session_of(asked), cut=3)
    assert alike(whole.selector, resumed.selector)
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


@pytest.mark.parametrize("selector", [GradClus(), Hics(clusters=3), FREE], ids=lambda s: type(s).__name__)
def test_memory_is_of_clients_seen_only(selector):
    view = view_of(np.ones(1000, dtype=int), 3)
    state = selector.init(view)
    selector.feedback(state, view, told({5: (1.0, 0.0), 900: (0.0, 1.0)}), Scores())
    last = state if isinstance(selector, GradClus) else state.last
    assert last.rows.shape == (2, 2)
