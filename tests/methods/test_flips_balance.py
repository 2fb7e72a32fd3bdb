"""FLIPS says when its rounds would be less balanced than random ones, and clusters anew when labels have moved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedstrata import Record, replay
from fedstrata.methods.selectors.flips import Flips
from fedstrata.methods.selectors.random import Random


def record_of(alpha, clients=100, seed=0, labels=10):
    counts = np.rint(np.random.default_rng(seed).dirichlet(np.full(labels, alpha), clients) * 200).astype(int)
    return Record(counts=counts, losses=np.ones((1, clients)))


def warnings_of(replayed):
    return [event["why"] for event in replayed.events if event["event"] == "warning"]


def test_more_clusters_than_a_round_has_clients_are_allowed_with_an_event():
    done = replay(Flips(clusters=12, repeats=2), record_of(0.3), rounds=12, k=5)
    assert warnings_of(done)[0] == (
        "12 clusters take turns in rounds of 5 clients, so no round has them all; method.selector.clusters=5 makes as "
        "many as a round has clients"
    )
    assert all(len(clients) == 5 for clients in done.selected)
    assert not any("take turns" in why for why in warnings_of(replay(Flips(clusters=5), record_of(0.3), rounds=2, k=5)))


@pytest.mark.parametrize(("clusters", "worse"), [(4, True), (2, False)])
def test_it_warns_exactly_where_random_rounds_are_better_balanced(clusters, worse):
    kinds = np.array([[100, 0], [80, 20], [20, 80], [0, 100]])  # of four clusters a round of two takes two alike
    record = Record(counts=np.repeat(kinds, 6, axis=0), losses=np.ones((1, 24)))
    flips = Flips(clusters=clusters, repeats=3)
    alike = next(s for s in range(99) if max(replay(Flips(clusters=4), record, 1, 2, seed=s).selected[0]) < 12)
    done, random = (replay(selector, record, rounds=60, k=2, seed=alike) for selector in (flips, Random()))
    assert (np.mean(done.divergence) > np.mean(random.divergence)) == worse
    assert any("less balanced than random" in why for why in warnings_of(done)) == worse


def test_a_rehearsal_changes_nothing(monkeypatch):
    record = record_of(0.5)
    rehearsed = replay(Flips(repeats=2), record, rounds=8, k=10)
    monkeypatch.setattr("fedstrata.methods.selectors.flips.REHEARSED", 0)
    assert replay(Flips(repeats=2), record, rounds=8, k=10).selected == rehearsed.selected


@pytest.mark.parametrize(("share", "again"), [(0.9, True), (0.2, False)])
def test_clusters_are_found_anew_once_most_labels_have_moved(share, again):
    record = record_of(0.1, clients=40, labels=5)
    moved = record.counts.copy()
    some = np.arange(int(share * 40))
    moved[some] = moved[some][:, ::-1] + np.array([3, 0, 0, 0, 1])
    notes, states = [], []

    class Drifting(Flips):
        def select(self, state, view):
            counts = record.counts if view.round < 3 else moved
            info = replace(view.client_info, known={**view.client_info.known, "counts": counts})
            states.append(state)
            return super().select(
                state, replace(view, client_info=info, note=lambda kind, **what: notes.append((view.round, kind, what)))
            )

    replay(Drifting(clusters=5, repeats=2), record, rounds=6, k=5)
    found = [(round, what) for round, kind, what in notes if kind == "clusters"]
    assert found[0][0] == 0
    assert [round for round, _ in found] == [0, 3]
    assert ("davies_bouldin" in found[1][1]) == again
    assert states[-1].picks.sum() == 30  # what everybody had is kept
