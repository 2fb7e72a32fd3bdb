"""Entries of a chunk that change places: fewer transfers, and labels stay balanced."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.methods.schedules.hops import select_runs
from fedstrata.methods.schedules.reorder import reordered_runs
from fedstrata.testing.tiny import run_rounds, session_of


def selected(chunk, pools, select, *slack):
    """Select runs from pools that draw nobody anew."""
    pools = {stratum: list(own) for stratum, own in pools.items()}
    return list(select(chunk, pools, lambda stratum, client: pools[stratum].remove(client), *slack))


def test_oracle():
    pools = {"a": [0, 1, 0], "b": [1, 2, 1], "c": [2, 0]}
    assert selected("abacb", pools, reordered_runs, 0) == selected("abacb", pools, select_runs)
    assert selected("abacb", pools, select_runs) == [(1, ["a", "b"]), (0, ["a", "c"]), (2, ["b"])]
    # 0 takes the second a before b, and c before b: then b is one behind, and cannot wait any longer.
    assert selected("abacb", pools, reordered_runs, 1) == [(0, ["a", "a", "c"]), (1, ["b", "b"])]


chunks = st.lists(st.integers(0, 3), min_size=1, max_size=12)
pools = st.fixed_dictionaries({p: st.lists(st.integers(0, 4), min_size=12, max_size=14) for p in range(4)})


@given(chunks, pools, st.integers(0, 4))
def test_labels_stay_balanced_and_every_turn_is_used_once(chunk, pools, slack):
    runs = selected(chunk, pools, reordered_runs, slack)
    served = [stratum for _, run in runs for stratum in run]
    assert sorted(served) == sorted(chunk)
    for end in range(len(chunk)):
        drawn, so_far = Counter(chunk[:end]), Counter(served[:end])
        assert all(abs(so_far[p] - drawn[p]) <= slack for p in range(4))
    used = Counter((stratum, client) for client, run in runs for stratum in run)
    assert all(times <= pools[stratum].count(client) for (stratum, client), times in used.items())


@given(chunks, pools)
def test_without_slack_it_is_the_drawn_order(chunk, pools):
    assert selected(chunk, pools, reordered_runs, 0) == selected(chunk, pools, select_runs)


@pytest.mark.parametrize("clients", ["uniform", "spread"])
def test_transfers_fall_with_slack_and_samples_stay(clients):
    def transfers(**options):
        schedule = {"kind": "stratified", "frequency": "capped", "clients": clients, **options}
        work = session_of({"method.driver": "chain", "method.schedule": schedule, "engine.execution": "fused"})
        state, rounds = run_rounds(work, 12)
        asked = np.concatenate([[ask.client for ask in o.step.asks] for outcomes in rounds for o in outcomes])
        assert set(asked) == set(range(6))
        return state.traffic.client_updates

    one, drawn, little, much = (
        transfers(chunk=1),
        transfers(chunk=20),
        *(transfers(chunk=20, slack=s) for s in (1, 9)),
    )
    assert one > 1.1 * drawn > 1.1 * 1.2 * little > 1.2 * much
