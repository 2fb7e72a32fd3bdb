"""`balanced-labels`: by hand, nearer to its target than random choice and FLIPS, and as fair as its knob says."""

from __future__ import annotations

import numpy as np
import pytest

from fedstrata import Record, check_selector, replay, train
from fedstrata.methods.selectors.balanced_labels import BalancedLabels, towards
from fedstrata.methods.selectors.flips import Flips
from fedstrata.methods.selectors.random import Random


def record_of(alpha=0.3, clients=200, labels=10, seed=0):
    shares = np.random.default_rng(seed).dirichlet(np.full(labels, alpha), clients)
    return Record(counts=np.rint(shares * 200).astype(int), losses=np.ones((1, clients)))


def beats(alpha=0.3, clients=200, seed=0):
    """Return clients that hold labels which are as rare as those of an ECG."""
    rng = np.random.default_rng(seed)
    each = [rng.dirichlet(np.full(clients, alpha)) * 40_000 * share for share in (0.83, 0.02, 0.07, 0.01, 0.07)]
    counts = np.rint(np.stack(each, 1)).astype(int)
    counts = counts[counts.sum(1) > 0]
    return Record(counts=counts, losses=np.ones((1, len(counts))))


def test_rows_are_taken_by_hand():
    counts = np.array([[4, 0], [3, 3], [0, 2], [0, 4]])
    assert towards(counts, np.array([0.5, 0.5]), 3) == [1, 2, 0]  # 3:3, then 3:5 rather than 7:3 or 3:7, then 7:5
    assert towards(counts, np.array([0.5, 0.5]), 3, first=1) == [0, 3, 1]  # 4:0 has its turn, then 4:4, then 7:7
    assert towards(counts, np.array([0.0, 1.0]), 2) == [2, 3]
    assert towards(counts, np.array([0.5, 0.5]), 9) == [1, 2, 0, 3]  # all there are


def test_labels_of_a_round_are_nearer_to_those_of_all_than_with_random_clients_or_flips():
    record = record_of()
    ours, flips, random = (
        float(np.mean(replay(selector, record, rounds=40, k=40).divergence))
        for selector in (BalancedLabels(), Flips(clusters=10, repeats=3), Random())
    )
    assert ours < 0.1 * flips < 0.1 * random


def test_with_even_shares_as_target_rare_labels_are_seen_more_often():
    ours, flips, random = (
        replay(selector, beats(), rounds=40, k=40)
        for selector in (BalancedLabels(target="even", pool=4), Flips(clusters=5, repeats=3), Random())
    )
    assert np.mean(ours.imbalance) < np.mean(flips.imbalance) < np.mean(random.imbalance)
    assert np.mean(ours.divergence) > np.mean(random.divergence)  # away from the mix, on purpose
    assert ours.coverage == 1.0


@pytest.mark.parametrize(("pool", "fairness"), [(1.0, 0.999), (3.0, 0.95)])
def test_the_knob_is_fairness(pool, fairness):
    done = replay(BalancedLabels(pool=pool), record_of(clients=60), rounds=30, k=6)
    assert done.fairness > fairness
    assert done.coverage == 1.0
    less = replay(BalancedLabels(pool=1.0), record_of(clients=60), rounds=30, k=6)
    assert np.mean(done.divergence) <= np.mean(less.divergence)


def test_everybody_is_taken_where_all_are_wanted():
    assert replay(BalancedLabels(), record_of(clients=5), rounds=1, k=5).selected == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("selector", [BalancedLabels(), BalancedLabels(target="even", pool=1.5)])
def test_conformance(selector):
    check_selector(selector)


def test_it_trains(tmp_path):
    asked = {"train.rounds": 2, "data.clients": 12, "train.clients_per_round": 4}
    run = train(method="balanced-labels", overrides=asked, out=tmp_path / "run")
    round = run.events()[-1]
    assert round["label_divergence"] < 0.5
    assert round["label_imbalance"] < 0.5


@pytest.mark.parametrize("target", ["global", "even"])
def test_placeholders_of_labels_tell_it_as_much(target):
    record, order = record_of(clients=30), np.random.default_rng(1).permutation(10)
    named, masked = (
        replay(BalancedLabels(target=target), Record(counts=counts, losses=record.losses), rounds=10, k=6).selected
        for counts in (record.counts, record.counts[:, order])
    )
    assert named == masked
