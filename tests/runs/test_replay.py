"""Selectors without training: on recorded losses, latencies and label counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedstrata import Record, RequestError, replay
from fedstrata.core import registry
from fedstrata.methods.selectors.power_of_choice import PowerOfChoice
from fedstrata.methods.selectors.random import Random

RNG = np.random.default_rng(0)
RECORD = Record(
    counts=RNG.multinomial(20, np.ones(4) / 4, size=12),
    losses=RNG.random((5, 12)),
    latencies=np.linspace(1, 12, 12),
)

UPDATES = RNG.normal(size=(12, 9)).astype(np.float32)


def test_whom_it_takes_and_what_follows_from_it():
    losses = np.array([[0.1, 0.9, 0.5, 0.7]])
    record = Record(np.array([[4, 0], [0, 4], [2, 2], [4, 0]]), losses, np.array([1.0, 2.0, 3.0, 4.0]))
    got = replay(PowerOfChoice(candidates=4), record, rounds=2, k=2)
    assert got.selected == [[1, 3], [1, 3]]
    assert (got.coverage, got.fairness) == (0.5, 0.5)
    assert got.regret == pytest.approx([0.0, 0.0])
    assert got.seconds == [4.0, 4.0]
    share, mix = np.array([0.5, 0.5]), np.array([10 / 16, 6 / 16])
    assert got.divergence == pytest.approx([float((share * np.log(share / mix)).sum())] * 2)


@pytest.mark.parametrize("lost", [0.0, 0.5])
@pytest.mark.parametrize("name", sorted(registry.names("selectors")))
def test_every_selector_can_be_replayed_on_what_it_reads(name, lost):
    selector = registry.build("selectors", name, {}, "method.selector")
    if selector.individual or name in ("hics", "sur"):
        with pytest.raises(RequestError, match="this record does not hold"):
            replay(selector, RECORD, rounds=8, k=4, lost=lost)
    known = replace(RECORD, updates=UPDATES, numbers={"gradient_variance": RECORD.losses})
    one, again = (replay(selector, known, rounds=8, k=4, lost=lost) for _ in range(2))
    assert one == again
    assert all(len(set(ids)) == len(ids) and len(ids) >= 1 for ids in one.selected)
    assert 0 < one.coverage <= 1
    assert len(one.divergence) == len(one.regret) == len(one.seconds) == 8


def test_losses_that_are_no_numbers_do_not_stop_it():
    losses = RECORD.losses.copy()
    losses[:, 3] = np.nan
    got = replay(PowerOfChoice(candidates=12), Record(RECORD.counts, losses), rounds=3, k=4)
    assert all(3 not in ids for ids in got.selected)


def test_a_client_without_samples_is_never_taken():
    counts = RECORD.counts.copy()
    counts[5] = 0
    got = replay(Random(), Record(counts, RECORD.losses), rounds=20, k=11)
    assert all(5 not in ids and len(ids) == 11 for ids in got.selected)


@pytest.mark.parametrize(
    "wrong",
    [
        {"losses": np.zeros(12)},
        {"losses": np.zeros((3, 11))},
        {"latencies": np.ones(5)},
        {"counts": np.ones(12)},
        {"updates": np.ones((11, 3))},
    ],
)
def test_a_record_of_the_wrong_shape_is_refused(wrong):
    with pytest.raises(RequestError):
        Record(**{"counts": RECORD.counts, "losses": RECORD.losses, **wrong})
