"""Samples that clients hold out of their own training data, scored instead of the test set."""

import numpy as np
import pytest

import fedstrata
from fedstrata import Federation, RequestError
from fedstrata.data.validation import hold_out_validation


def federation(counts, test_x=0.0):
    """Return clients with so many samples of each label; a sample's feature is its row."""
    labels = np.concatenate([np.repeat(np.arange(len(own)), own) for own in counts])
    stops = np.cumsum([sum(own) for own in counts])
    rows = [np.arange(stop - sum(own), stop) for stop, own in zip(stops, counts, strict=True)]
    x = np.arange(len(labels), dtype=np.float64)[:, None]
    test = np.full((2, 1), test_x), np.arange(2)
    return Federation.from_arrays(x, labels, rows, test=test, test_clients=[[0], [1], *[[]] * (len(counts) - 2)])


def test_every_client_holds_out_its_share_of_every_label():
    whole = federation([(50, 20), (10, 0)])
    held = hold_out_validation(whole, 0.2, seed=3)
    assert held.test_split.counts(held.test.y.numpy(), 2).tolist() == [[10, 4], [2, 0]]
    assert held.counts.tolist() == [[40, 16], [8, 0]]


def test_nothing_is_lost_and_nothing_is_in_both_and_it_stays_with_its_client():
    whole = federation([(5, 3), (7, 1)])
    held = hold_out_validation(whole, 0.25, seed=0)
    for client in range(2):
        kept = held.train.x[held.train_split[client], 0].tolist()
        scored = held.test.x[held.test_split[client], 0].tolist()
        assert sorted(kept + scored) == whole.train.x[whole.train_split[client], 0].tolist()
        assert len(scored) == 2


@pytest.mark.filterwarnings("ignore:features are not on one scale")
def test_few_samples_of_a_label_are_held_out_as_often_as_others():
    """Of 400 clients with one sample a label, four each, a quarter of the samples of every label is expected."""
    held = hold_out_validation(federation([(1, 1, 1, 1)] * 400), 0.25, seed=1)
    assert held.test_split.sizes.tolist() == [1] * 400
    assert np.bincount(held.test.y.numpy()) == pytest.approx(np.full(4, 100), abs=30)


def test_nobody_gives_the_last_sample_away_and_nothing_to_hold_out_is_refused():
    held = hold_out_validation(federation([(1, 0), (50, 50)]), 0.9, seed=0)
    assert held.train_split.sizes.tolist() == [1, 10]
    with pytest.raises(RequestError, match=r"train.evaluate.validation = 0.5: no client has samples enough"):
        hold_out_validation(federation([(1, 0), (0, 1)]), 0.5, seed=0)


def test_the_test_set_is_not_even_there():
    clean, poisoned = (hold_out_validation(federation([(9, 9), (9, 9)], x), 0.3, seed=0) for x in (0.0, 1e9))
    assert clean.fingerprint == poisoned.fingerprint
    assert clean.fingerprint != hold_out_validation(federation([(9, 9), (9, 9)]), 0.3, seed=1).fingerprint


def test_a_run_is_scored_on_what_was_held_out(cli):
    small = {"train.rounds": 1, "data.clients": 5, "train.epochs": 1, "engine.vmap": "never"}
    whole = fedstrata.train(overrides=small, out="whole").events()[0]
    held = fedstrata.train(overrides=small | {"train.evaluate.validation": 0.2}, out="held").events()[0]
    assert held["samples"] + held["test_samples"] == whole["samples"]
    assert held["test_samples"] == pytest.approx(0.2 * whole["samples"], abs=5)
    code, _, err = cli("run", "--set", "train.evaluate.validation=1", "--out", "none")
    assert code == 2
    assert "train.evaluate.validation = 1 is not valid" in err
