"""FLIPS over rounds: stragglers made up for, clusters that follow the clients, and rounds that look like the whole."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import numpy as np
import pytest
from flips_views import PURE, outcome_of, told, view_of
from light import LIGHT
from sweeping import sweep

from fedstrata import Federation, train
from fedstrata.core.steps import Ask, Scores, Step
from fedstrata.data.drift import Drift
from fedstrata.methods.selectors.clusters import most_clusters
from fedstrata.methods.selectors.flips import Flips
from fedstrata.methods.selectors.random import Random
from fedstrata.testing import check_selector, tiny_federation
from fedstrata.testing.tiny import run_rounds, session_of

# ---- stragglers

HISTORY = [(10, 2), (12, 1), (11, 0)]


@pytest.mark.parametrize(
    ("rate", "expected", "extras"),
    [
        ("mean", [0.2, 3 / 22, 3 / 33], [2, 1, 0]),
        ("literal", [0.2, 0.5, 0.8], [2, 5, 8]),
        ("reset", [0.2, 0.3, 0.3], [2, 3, 3]),
    ],
)
def test_straggler_rate(rate, expected, extras):
    counts = np.full((40, 3), 2)
    flips = Flips(clusters=1, rate=rate)
    view = view_of(counts, 10)
    state = flips.init(view)
    rates, more = [], []
    for round, (selected, missing) in enumerate(HISTORY):
        told(flips, state, view, range(selected), range(39, 39 - missing, -1))
        rates.append(state.rate)
        state.straggler[39] = True  # somebody is still away, or nobody more would be asked
        more.append(len(flips.select(state, view_of(counts, 10, round))) - 10)
    assert rates == pytest.approx(expected)
    assert more == extras


def test_the_literal_rate_is_clipped():
    flips = Flips(rate="literal")
    state = flips.init(view_of(PURE, 4))
    for _ in range(5):
        told(flips, state, view_of(PURE, 4), range(4), range(4))
    assert state.rate == 1


def test_missing_clients_straggle_until_they_report():
    flips = Flips()
    state = flips.init(view_of(PURE, 4))
    told(flips, state, view_of(PURE, 4), [0, 1, 3], [1, 3])
    assert np.flatnonzero(state.straggler).tolist() == [1, 3]
    told(flips, state, view_of(PURE, 4), [1, 2], [2])
    assert np.flatnonzero(state.straggler).tolist() == [2, 3]


def test_a_probe_says_nothing_of_stragglers():
    flips = Flips()
    state = flips.init(view_of(PURE, 4))
    probe = replace(outcome_of([0, 1], [1]), step=Step((Ask(0), Ask(1)), combine=False))
    flips.feedback(state, view_of(PURE, 4), [probe], Scores())
    assert (state.selected, state.missing, state.straggler.any()) == (0, 0, False)


def lossy(of=(8, 8, 8), k=9, missing=(0, 1, 2, 8), **options):
    """Run a round of clients with one label each in which some are missing; give what is needed for the next."""
    counts = np.eye(len(of), dtype=np.int64)[np.repeat(np.arange(len(of)), of)] * 10
    flips = Flips(clusters=len(of), **options)
    state = flips.init(view_of(counts, k))
    asked = flips.select(state, view_of(counts, k))
    told(flips, state, view_of(counts, k), asked, [m for m in missing if m in asked])
    return flips, state, counts


def test_extras_come_from_the_clusters_that_lost_clients_most_losses_first():
    flips, state, counts = lossy()  # 4 of 9 missing: 3 of the first cluster, 1 of the second
    before = state.cluster_picks.copy()
    chosen = flips.select(state, view_of(counts, 9, 1))
    base, extras = chosen[:9], chosen[9:]
    assert [e // 8 for e in extras] == [0, 1, 0, 1]
    assert not set(extras) & (set(base) | set(np.flatnonzero(state.straggler).tolist()))
    assert state.cluster_picks.sum() - before.sum() == 9
    assert state.picks.sum() == 9 + 13


def test_without_over_provision_nobody_more_is_asked():
    flips, state, counts = lossy(over_provision=False)
    assert len(flips.select(state, view_of(counts, 9, 1))) == 9


def test_a_cluster_in_which_all_straggle_gives_no_extra():
    flips, state, counts = lossy(of=(2, 9, 9), k=6, missing=(0, 1, 2))
    extras = flips.select(state, view_of(counts, 6, 1))[6:]
    assert len(extras) == 3
    assert {2 <= e < 11 for e in extras} == {True}


def test_extras_end_where_no_candidate_is_left():
    flips, state, counts = lossy(of=(4, 4, 4), k=9, missing=range(9))
    chosen = flips.select(state, view_of(counts, 9, 1))
    assert len(set(chosen)) == len(chosen) <= 12


def test_nobody_more_is_asked_once_all_stragglers_are_back():
    flips, state, counts = lossy()
    late = np.flatnonzero(state.straggler).tolist()
    told(flips, state, view_of(counts, 9), late, [])
    assert state.rate * 9 >= 1
    assert len(flips.select(state, view_of(counts, 9, 1))) == 9


# ---- clusters that follow the clients


def test_only_changed_clients_change_their_cluster_and_picks_are_kept():
    flips = Flips(clusters=3)
    state = flips.init(view_of(PURE, 4))
    flips.select(state, view_of(PURE, 4))
    before, picks, centres = state.cluster.copy(), state.picks.copy(), state.centres.copy()
    drifted = PURE.copy()
    drifted[0] = [0, 1, 9]
    drifted[5] = [0, 0, 20]  # more of the same
    events = []
    view = view_of(drifted, 1, 1, note=lambda kind, **what: events.append((kind, what)))
    chosen = flips.select(state, view)
    assert np.flatnonzero(state.cluster != before).tolist() == [0]
    assert state.cluster[0] == before[4]
    picks[chosen] += 1
    assert state.picks.tolist() == picks.tolist()
    assert np.array_equal(state.centres, centres)
    assert events == [("clusters", {"round": 2, "changed": 2, "moved": 1})]


def test_a_client_that_joins_is_in_the_nearest_cluster_and_need_not_catch_up():
    counts = np.repeat(np.eye(3, dtype=np.int64), 4, axis=0) * 5
    early = counts.copy()
    early[3] = 0
    flips = Flips(clusters=3)
    state = flips.init(view_of(early, 9))
    for round in range(4):
        flips.select(state, view_of(early, 9, round))
    assert state.cluster[3] == -1
    least = state.picks[:3].min()
    chosen = flips.select(state, view_of(counts, 1, 4, eligible=[3]))
    assert chosen == [3]
    assert state.cluster[3] == state.cluster[0]
    assert state.picks[3] == least + 1


def test_a_federation_may_grow():
    flips = Flips(clusters=3)
    state = flips.init(view_of(PURE, 4))
    flips.select(state, view_of(PURE, 4))
    more = np.vstack([PURE, [[0, 10, 0]]])
    assert 6 in flips.select(state, view_of(more, 7, 1))
    assert state.cluster[6] == state.cluster[3]


def test_a_client_that_leaves_is_not_taken_and_comes_back_as_it_was():
    flips = Flips(clusters=3)
    state = flips.init(view_of(PURE, 4))
    flips.select(state, view_of(PURE, 4))
    without = PURE.copy()
    without[3] = 0
    assert 3 not in flips.select(state, view_of(without, 6, 1))
    picks = state.picks[3]
    assert 3 in flips.select(state, view_of(PURE, 6, 2))
    assert state.picks[3] == picks + 1


def test_drift_in_a_run_moves_clients_and_a_resumed_run_is_the_same():
    fed = tiny_federation().moving(drift=Drift((3,), 1.0))
    overrides = {"method.selector": Flips(clusters=2)}
    whole, outcomes = run_rounds(session_of(overrides, fed))
    cut, _ = run_rounds(session_of(overrides, fed), cut=3)
    still, _ = run_rounds(session_of(overrides))
    assert whole.selector.cluster.tolist() == cut.selector.cluster.tolist() != still.selector.cluster.tolist()
    assert whole.selector.picks.tolist() == cut.selector.picks.tolist()
    assert whole.selector.picks.sum() == 3 * len(outcomes)


# ---- the part in a plan


@sweep(
    lambda flips: flips.elbow != "min",
    flips=[
        Flips(),
        Flips(clusters=50),
        Flips("counts", None, "eq3", 3, False),
        Flips(elbow="curvature", rate="literal"),
    ],
)
def test_conformance(flips):
    check_selector(flips)


@pytest.mark.parametrize("method", ["fedprox", "fedyogi", "scaffold"])
def test_it_works_under_other_methods(method):
    work = session_of({"method.name": method, "method.selector": Flips(), "system.stragglers.rate": 0.4})
    assert run_rounds(work)[0].participation.sum() > 0


# ---- mechanism: rounds look more like the whole than random ones do


LABELS = 8


def skewed(seed, clients=40):
    """Return clients that hold few labels each, Dirichlet 0.2, while all labels together are about equally common."""
    rng = np.random.default_rng(seed)
    mixes = rng.dirichlet(np.full(LABELS, 0.2), clients)
    y = np.concatenate([rng.choice(LABELS, 20, p=mix) for mix in mixes])
    x = rng.normal(size=(len(y), 2)).astype(np.float32)
    return Federation.from_arrays(x, y, list(np.arange(len(y)).reshape(clients, 20)), test=0.1)


def run_of(select, late, seed):
    overrides = {
        "method.selector": select,
        "train.seed": seed,
        "train.rounds": 10,
        "train.clients_per_round": 10,
        "model.hidden": (2,),
        "system.stragglers.rate": late,
        **LIGHT,
    }
    return train(overrides=overrides, federation=skewed(seed), out=f"runs/{uuid4().hex}")


def rounds_of(run):
    return [event for event in run.events() if event["event"] == "round"]


@sweep(lambda late: late != 0.1, late=[0.0, 0.1, 0.2])
def test_rounds_diverge_less_from_the_label_mix_than_random_ones(late):
    gains = []
    for seed in range(4):
        flips, random = (
            np.mean([r["label_divergence"] for r in rounds_of(run_of(select, late, seed))])
            for select in (Flips(repeats=5), Random())
        )
        gains.append(random - flips)
    assert np.mean(gains) > 0, gains


@pytest.mark.parametrize("late", [0.1, 0.2])
def test_in_a_run_extras_come_from_clusters_that_lost_clients(late, monkeypatch):
    asked, select = [], Flips.select

    def watched(self, state, view):
        chosen = select(self, state, view)
        lost = set(state.cluster[state.straggler].tolist())
        asked.append((len(chosen) - view.k, set(state.cluster[chosen[view.k :]].tolist()) <= lost))
        return chosen

    monkeypatch.setattr(Flips, "select", watched)
    run_of(Flips(clusters=LABELS), late, 0)
    assert asked[0][0] == 0
    assert sum(extras for extras, _ in asked) >= (5 if late == 0.2 else 1)  # whole numbers, rounded down
    assert all(fits for _, fits in asked)


def test_lost_labels_are_made_up_for():
    """With extras, the reports that arrive are nearer to the mix than without: paired over seeds."""
    means = {}
    for extras in (True, False):
        runs = [run_of(Flips(clusters=LABELS, over_provision=extras), 0.2, seed) for seed in range(4)]
        means[extras] = [np.mean([r["label_divergence"] for r in rounds_of(run)]) for run in runs]
    assert np.mean(means[True]) < np.mean(means[False]), means


def test_the_number_of_clusters_is_an_event():
    (event,) = [e for e in run_of(Flips(repeats=3), 0.0, 1).events() if e["event"] == "clusters"]
    assert event["clusters"] >= 2
    assert event["searched"] == 40
    assert len(event["davies_bouldin"]) == most_clusters(40, LABELS) - LABELS + 1
