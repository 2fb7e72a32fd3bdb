"""Batches that are filled many at a time are those that are filled entry by entry."""

from __future__ import annotations

import numpy as np
import pytest

from fedstrata.methods.schedules import fill as of_fill
from fedstrata.methods.schedules.draws import BLOCK, Draws
from fedstrata.methods.schedules.epoch import Epoch
from fedstrata.methods.schedules.supply import Pools, Supply


def filled(counts, entries, size, replacement, refill, least=1):
    """Fill an epoch; what was filled, and what is known of the supply afterwards."""
    clients, strata = counts.shape
    rng = np.random.default_rng(7)
    order, places = rng.permutation(np.arange(entries) % strata), np.sort(rng.random(entries))
    supply = Supply.of([np.flatnonzero(counts[:, s]).tolist() for s in range(strata)])
    notes = []
    pools = Pools(supply, Draws(rng), lambda *args, **fields: notes.append((args, fields)), refill=refill)
    stock = [{c: int(counts[c, s]) for c in range(clients) if counts[c, s]} for s in range(strata)]
    epoch = Epoch(0, entries, order, places, supply)
    done = of_fill.fill(epoch, pools, stock, entries, size, least, replacement)
    known = supply.taken, supply.granted, supply.passes, supply.available, supply.dropped
    return vars(done), known, pools.trained, notes, (epoch.at, epoch.over, epoch.now, epoch.batches)


@pytest.mark.parametrize("refill", [True, False])
@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize(
    ("clients", "strata", "most", "size"), [(10, 10, 60, 16), (3, 4, 9, 5), (40, 7, 30, 64), (1, 2, 50, 8)]
)
def test_many_at_a_time_is_one_by_one(clients, strata, most, size, replacement, refill, monkeypatch):
    counts = np.random.default_rng(clients).integers(0, most, (clients, strata))
    entries = int(counts.sum())
    many = filled(counts, entries, size, replacement, refill)
    monkeypatch.setattr(of_fill, "MOST", 0)
    assert filled(counts, entries, size, replacement, refill) == many
    assert many[0]["refused"] > 0 or replacement


def test_numbers_that_were_looked_at_are_used_in_the_same_order():
    one, other = Draws(np.random.default_rng(0)), Draws(np.random.default_rng(0))
    numbers = [one.uniform() for _ in range(BLOCK + 10)]
    assert other.ahead(5).tolist() == numbers[:5]
    other.skip(3)
    assert other.uniform() == numbers[3]
    assert other.ahead(BLOCK + 9).tolist() == numbers[4:BLOCK]
    other.skip(BLOCK - 4)
    assert other.ahead(2).tolist() == numbers[BLOCK : BLOCK + 2]
