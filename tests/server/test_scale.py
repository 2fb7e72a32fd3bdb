"""Millions of clients: what a round and a checkpoint cost depends on those who took part, not on those there are."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.errors import RequestError
from fedstrata.core.index import Split
from fedstrata.data.federation import Federation
from fedstrata.runs.checkpoints import Checkpoints
from fedstrata.server.accounting import ParticipationLog
from fedstrata.server.metrics import jain
from fedstrata.testing.tiny import alike, run_rounds, session_of

SOME = st.lists(st.tuples(st.sets(st.integers(0, 19), max_size=6), st.integers(1, 5)), max_size=8)


@given(SOME, st.integers(0, 8))
def test_a_ledger_says_what_plain_dictionaries_would(steps, saved_after):
    participation_log, accepted, durable, client_updates = ParticipationLog.of(20), {}, {}, np.zeros(20, dtype=np.int64)
    for round, (clients, times) in enumerate(steps):
        if round == saved_after:
            participation_log.secure()
            durable = dict(accepted)
        asked = sorted(clients, key=lambda c: (c * 7) % 20)  # a step may ask in any order
        participation_log.accept(asked, (round, 3))
        accepted |= dict.fromkeys(asked, (round, 3))
        participation_log.count(asked, [times] * len(asked))
        client_updates[asked] += times
    assert participation_log.tags(range(20)) == [(accepted.get(c), durable.get(c)) for c in range(20)]
    assert participation_log.participation.tolist() == client_updates.tolist()
    assert participation_log.jain == jain(client_updates)


def test_probes_are_accepted_without_being_counted():
    participation_log = ParticipationLog.of(3)
    participation_log.accept([2], (0, 0))
    assert participation_log.tags([2, 0]) == [((0, 0), None), (None, None)]
    assert participation_log.participation.tolist() == [0, 0, 0]
    assert participation_log.jain == 1.0


def test_a_checkpoint_holds_those_who_took_part_and_not_all_there_are(tmp_path):
    sizes = []
    for clients in (10, 20_000):
        x, y = np.random.default_rng(0).normal(size=(clients, 4)).astype(np.float32), np.arange(clients) % 3
        federation = Federation.from_arrays(x, y, np.arange(clients), test=(x[:3], y[:3]))
        state, _ = run_rounds(session_of({"train.clients_per_round": 5}, federation), rounds=2)
        checkpoints = Checkpoints(tmp_path / str(clients))
        checkpoints.write(2, state, {}, {})
        sizes.append(sum(path.stat().st_size for path in (tmp_path / str(clients)).iterdir()))
        read, _ = checkpoints.read(checkpoints.manifest(), like=session_of({}, federation).initial_state())
        assert alike(read.participation_log, state.participation_log)
    assert abs(sizes[1] - sizes[0]) < 1_000  # 20,000 counts would be 160,000 bytes


# ---- who holds what ----------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 50), max_size=5), max_size=6))
def test_a_split_sorts_each_clients_rows(parts):
    split = Split.of([np.array(p, dtype=np.int64) for p in parts])
    assert [split[i].tolist() for i in range(len(split))] == [sorted(p) for p in parts]
    assert split.owners.tolist() == [i for i, p in enumerate(parts) for _ in p]


def test_rows_a_client_and_owners_say_the_same():
    x, y, owner = np.zeros((6, 2), np.float32), np.arange(6) % 2, np.array([1, 0, 1, 2, 0, 0])
    rows = [[5, 1, 4], [2, 0], [3]]
    for test in ((x, y), 0.5):
        by_rows, by_owner = (Federation.from_arrays(x, y, clients, test=test) for clients in (rows, owner))
        by_list = Federation.from_arrays(x, y, owner.tolist(), test=test)
        for other in (by_owner, by_list):
            assert by_rows.fingerprint == other.fingerprint
    assert [by_rows.train_split[i].tolist() for i in range(3)] != [sorted(r) for r in rows]  # some are held out
    assert by_rows.test_split.rows.max() < len(by_rows.test)  # and numbered anew


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([[0, 1], [1]], "listed twice"),
        ([[0, 6]], "names row 6"),
        ([[-1]], "names row -1"),
        ([0, 1], "2 owners for 6 samples"),
        (np.array([0, 1]), "2 owners for 6 samples"),
    ],
)
def test_impossible_holdings_are_refused(clients, message):
    x, y = np.zeros((6, 2), np.float32), np.arange(6) % 2
    with pytest.raises(RequestError, match=message):
        Federation.from_arrays(x, y, clients, test=(x, y))


def test_many_clients_register_quickly():
    """Sorting or checking a hundred thousand one by one took seconds: nothing is called once a client."""
    clients, calls = 100_000, Counter()
    x, y = np.zeros((clients, 1), np.uint8), np.arange(clients) % 2
    sys.setprofile(lambda frame, event, arg: calls.update([event]))
    try:
        federation = Federation.from_arrays(x, y, np.arange(clients), test=(x[:2], y[:2]))
    finally:
        sys.setprofile(None)
    assert calls.total() < clients / 10
    assert len(federation) == clients
