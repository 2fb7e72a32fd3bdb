"""Who trains how often, and when: shares of clients in whole epochs and by quarters, in both ways to learn."""

from __future__ import annotations

from collections import Counter
from math import gcd, sqrt

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedstrata import Federation
from fedstrata.core.machine.threads import one_thread
from fedstrata.methods.schedules.draws import Draws
from fedstrata.methods.schedules.take import Take
from fedstrata.methods.schedules.turns import SpreadTurns, Turns, golden_step
from fedstrata.server.loop import run_round
from fedstrata.testing.tiny import in_process, session_of

KINDS = {
    "weighted": lambda counts, draws: Turns(counts, draws, put_back=True),
    "remaining": Turns,
    "spread": SpreadTurns,
}


def turns(kind, counts, seed=0):
    return KINDS[kind](dict(enumerate(counts)), Draws(np.random.default_rng(seed)))


def by_chance(seen, weights):
    return chisquare(seen, np.array(weights) * np.sum(seen) / np.sum(weights))[1] > 1e-3


# ---- turns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nth", [1, 9])
def test_every_turn_has_the_chances_of_the_counts(kind, nth):
    counts, seen = [1, 2, 5, 8], Counter()
    for seed in range(2_000):
        own = turns(kind, counts, seed)
        seen[[own.next() for _ in range(nth)][-1]] += 1
    assert by_chance([seen[client] for client in range(4)], counts)


@pytest.mark.parametrize("kind", ["remaining", "spread"])
@settings(deadline=None)
@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(any), seed=st.integers(0, 99))
def test_turns_end_when_everybody_had_as_many_as_samples(kind, counts, seed):
    own = turns(kind, counts, seed)
    seen = Counter(own.next() for _ in range(sum(counts)))
    assert [seen[client] for client in range(len(counts))] == counts
    assert own.next() is None


def test_what_is_taken_does_not_come_back_but_what_is_given_back_does():
    own = turns("remaining", [3, 5])
    while own.next() is not None:
        pass
    own.give_back(1)
    assert (own.next(), own.next()) == (1, None)
    own = turns("weighted", [3, 5])
    assert Counter(own.next() for _ in range(800)).keys() == {0, 1}


@pytest.mark.parametrize("kind", KINDS)
def test_who_left_has_no_turn_and_others_keep_their_chances(kind):
    seen = Counter()
    for seed in range(1_500):
        own = turns(kind, [60, 1, 2, 3], seed)
        own.leave(0)
        seen[own.next()] += 1
    assert by_chance([seen[1], seen[2], seen[3]], [1, 2, 3])
    assert not seen[0]


@given(st.integers(1, 5_000))
@example(510_510)  # many factors: few steps visit every place
def test_golden_steps_visit_every_place(places):
    assert gcd(golden_step(places), places) == 1


@pytest.mark.parametrize(
    "counts", [[900, 100], [910] + [10] * 9, [900] + [1] * 100, [51, 7, 33, 1, 20, 44, 9, 12], [5] * 60]
)
def test_spread_turns_give_everybody_its_share_of_every_stretch(counts):
    def worst(kind):
        """Return by how many turns some client is ahead of its share, or behind, in some stretch."""
        own = turns(kind, counts)
        seen = np.array([own.next() for _ in range(sum(counts))])
        ahead = np.cumsum(np.eye(len(counts))[seen] - np.array(counts) / sum(counts), axis=0)
        return np.ptp(np.vstack([np.zeros(len(counts)), ahead]), axis=0).max()

    assert worst("spread") < 6
    assert worst("weighted") > 1.5 * worst("spread")


# ---- whole runs: who trains -----------------------------------------------------------------------------------------

CASES = {  # samples by client and label; the first client holds so much of every label
    0.90: [[450, 450], [50, 50]],
    0.91: [[364, 364]] + [[4, 4]] * 9,
    0.69: [[138] * 5, [22] * 5, [20] * 5, [20] * 5],
}


@pytest.fixture
def trained(monkeypatch):
    """Record who trains on how many samples, by round."""
    by_round, plan, gradient = {}, Take.plan, Take.gradient

    def count(context, samples):
        by_round.setdefault(context.task.round, Counter())[context.client.id] += samples

    def planned(take, context):
        order = plan(take, context)
        count(context, order.samples)
        return order

    def held(take, context):
        count(context, len(context.client_state["held"]))
        return gradient(take, context)

    monkeypatch.setattr(Take, "plan", planned)
    monkeypatch.setattr(Take, "gradient", held)
    return by_round


def quarters(share, driver, clients, trained, execution="fused", **options):
    """Run an epoch over all samples in four rounds: the first client's part of each."""
    counts, rng = np.array(CASES[share]), np.random.default_rng(0)
    labels = np.concatenate([np.repeat(np.arange(len(own)), own) for own in counts])
    x = rng.normal(size=(len(labels), 4)).astype(np.float32)
    rows = np.split(np.arange(len(labels)), np.cumsum(counts.sum(1))[:-1])
    federation = Federation.from_arrays(x, labels, rows, test=(x[:9], labels[:9]))
    schedule = {"kind": "stratified", "frequency": "capped", "clients": clients, "rounds_per_epoch": 4, **options}
    asked = {
        "method.driver": driver,
        "method.schedule": schedule,
        "engine.execution": execution,
        "train.batch_size": 20,
    }
    work = session_of(asked, federation)
    state, engine = work.initial_state(), in_process(work)
    for r in range(4):
        with one_thread():
            run_round(work.plan, state, work.plan.view(work.client_info, r, lambda *_, **__: None), engine)
    assert sum(trained[0].values()) == pytest.approx(len(labels) / 4, abs=10)
    return np.array([own[0] / own.total() for own in (trained[r] for r in range(4))]), len(labels) / 4


WAYS = [("chain", {"chunk": 1}), ("chain", {}), ("chain", {"chunk": 50, "slack": 2}), ("sync", {})]
SHARES = [0.90, pytest.param(0.91, marks=pytest.mark.extended), pytest.param(0.69, marks=pytest.mark.extended)]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("clients", ["weighted", "remaining", "spread"])
@pytest.mark.parametrize(("driver", "options"), WAYS, ids=["chunk 1", "chunk 5", "reordered", "batches"])
def test_a_client_trains_as_much_as_it_holds_in_every_quarter_of_an_epoch(share, clients, driver, options, trained):
    seen, entries = quarters(share, driver, clients, trained, **options)
    sd = sqrt(share * (1 - share) / entries)
    in_order = driver == "sync" or options == {"chunk": 1}  # otherwise pools shift turns by a few entries a label
    assert np.abs(seen - share).max() < (2 if clients == "spread" and in_order else 3.5) * sd
    assert seen.mean() == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize("share", [0.91, 0.69])
@pytest.mark.parametrize("driver", ["chain", "sync"])
def test_with_uniform_choice_a_large_holder_trains_alone_in_the_end(share, driver, trained):
    seen, _ = quarters(share, driver, "uniform", trained)
    assert seen[0] < share - 0.15
    assert seen[3] > 0.98


@pytest.mark.parametrize("clients", ["weighted", "remaining", "spread"])
@pytest.mark.parametrize("driver", ["chain", "sync"])
def test_message_by_message_the_same_clients_train(clients, driver, trained):
    by_messages, _ = quarters(0.69, driver, clients, trained, "messages")
    seen = {r: dict(own) for r, own in trained.items()}
    trained.clear()
    fused, _ = quarters(0.69, driver, clients, trained)
    assert by_messages.tolist() == fused.tolist()
    assert {r: dict(own) for r, own in trained.items()} == seen
