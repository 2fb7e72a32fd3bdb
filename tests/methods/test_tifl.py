"""TiFL: numbers worked out by hand, edge cases, and that its rounds are shorter on the virtual clock."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from light import LIGHT
from sweeping import sweep

import fedstrata
from fedstrata import testing
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.messages import Report
from fedstrata.core.rng import Streams
from fedstrata.core.steps import Ask, Outcome, Scores, Step, View
from fedstrata.methods.selectors.tifl import Tifl, change_probabilities
from fedstrata.testing.tiny import run_rounds, session_of, tiny_federation


def view_of(clients, k, round=0, rounds=10, eligible=None, key=None, note=lambda kind, **_: None):
    """Return what a selector sees of clients it knows nothing of."""
    tiebreak = np.arange(clients) if key is None else np.array(key)
    client_info = ClientInfo(clients, 2, np.arange(clients), tiebreak)
    eligible = client_info.holders if eligible is None else np.array(eligible)
    rng = partial(Streams(0), round=round)
    return View(round, rounds, min(k, len(eligible)), eligible, client_info, None, rng, note)


def selected(selector, state, view, seconds=None, silent=()):
    """Answer a selector's probe, if it makes one; give whom it profiled and whom it chose."""
    steps, profiled = selector.select(state, view), []
    try:
        step = next(steps)
        assert (step.kind, step.model, step.combine) == ("profile", True, False)
        profiled = [a.client for a in step.asks]
        reports = tuple(Report(i, 1, seconds=seconds[i]) for i in profiled if i not in silent)
        steps.send(Outcome(step, 0, reports, tuple(silent)))
    except StopIteration as end:
        return profiled, end.value
    raise AssertionError("profiled twice in a round")


def begun(selector, view, seconds, silent=()):
    """Return the state after the first selection."""
    state = selector.init(view)
    selected(selector, state, view, seconds, silent)
    return state


def arrived(*clients):
    """Make the outcome of a training step."""
    return [Outcome(Step(tuple(Ask(i) for i in clients)), 0, tuple(Report(i, 1) for i in clients), ())]


def collected(events):
    """Return a `note` that collects what was used instead."""
    return lambda kind, **what: events.append((kind, what["used"]))


# ---- by hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accuracy", "credits", "expected"),
    [
        ((0.6, 0.4, 0.5), (3, 2, 0), (1 / 3, 2 / 3, 0)),
        ((0.6, 0.4, 0.5), (3, 2, 1), (1 / 6, 3 / 6, 2 / 6)),
        ((0.5, 0.5, 0.5), (1, 1, 1), (3 / 6, 2 / 6, 1 / 6)),
        ((np.nan, 0.9, 0.5), (1, 1, 1), (1 / 6, 2 / 6, 3 / 6)),
        ((0.6, 0.4), (1, 0), (1, 0)),
        ((0.6, 0.4), (0, 0), (0, 0)),
    ],
)
def test_changed_probabilities(accuracy, credits, expected):
    assert change_probabilities(np.array(accuracy), np.array(credits)) == pytest.approx(expected)


def test_tiers_of_equal_count_by_latency():
    seconds = (5.0, 1.0, 4.0, 2.0, 6.0, 3.0, 7.0)
    state = begun(Tifl(tiers=3), view_of(7, k=1), seconds)
    assert state.tier.tolist() == [1, 0, 1, 0, 2, 0, 2]
    assert state.latency.tolist() == list(seconds)


@pytest.mark.parametrize("latency", [0.0, 2.5])
def test_equal_latencies_are_split_by_key(latency):
    view = view_of(6, k=2, key=(5, 4, 3, 2, 1, 0))
    state = begun(Tifl(tiers=3), view, [latency] * 6)
    assert state.tier.tolist() == [2, 2, 1, 1, 0, 0]


def test_fewer_clients_than_tiers():
    state = begun(Tifl(tiers=5), view_of(3, k=1), (3.0, 1.0, 2.0))
    assert state.tier.tolist() == [2, 0, 1]
    assert len(state.credits) == len(state.probability) == 3


def test_clients_of_a_round_come_from_one_tier():
    selector, rounds = Tifl(tiers=4), 40
    state, used = None, []
    for round in range(rounds):
        view = view_of(20, k=3, round=round, rounds=rounds)
        state = state or selector.init(view)
        profiled, chosen = selected(selector, state, view, np.arange(20.0))
        assert profiled == (list(range(20)) if round == 0 else [])  # once is enough
        assert len(set(chosen)) == 3
        assert {i // 5 for i in chosen} == {state.current}
        used.append(state.current)
    assert np.bincount(used).tolist() == [10] * 4  # credits of 40 / 4 each
    assert state.credits.tolist() == [0] * 4


def test_credits_are_dealt_anew():
    events = []
    selector = Tifl(tiers=2, credits=1)
    state = selector.init(view_of(4, k=1))
    for round in range(3):
        view = view_of(4, k=1, round=round, note=collected(events))
        selected(selector, state, view, np.arange(4.0))
        state.probability = np.where(state.credits > 0, 1.0, 0.0)
    assert events == [("fallback", "new credits")]
    assert sorted(state.credits.tolist()) == [0, 1]


def test_new_credits_come_with_equal_probabilities():
    selector, view = Tifl(tiers=2, credits=3), view_of(4, k=1)
    state = begun(selector, view, np.arange(4.0))
    state.credits[:], state.probability[:] = 0, (1.0, 0.0)
    selected(selector, state, view)
    assert state.probability.tolist() == [0.5, 0.5]
    assert state.credits.sum() == 5


@pytest.mark.parametrize(("tier", "expected"), [(0, {0, 1, 2, 3}), (1, {2, 3, 4, 5}), (2, {4, 5, 2, 3})])
def test_small_tier_is_filled_from_the_next_slower_one(tier, expected):
    """Three tiers of two clients, and three or four are wanted; the slowest has only faster ones beside it."""
    for k in (3, 4):
        events = []
        selector, view = Tifl(tiers=3), view_of(6, k, note=collected(events))
        state = begun(selector, view, np.arange(6.0))
        events.clear()
        state.credits[:] = np.arange(3) == tier
        _, chosen = selected(selector, state, view)
        assert len(set(chosen)) == k
        assert {2 * tier, 2 * tier + 1} <= set(chosen) <= expected
        assert len(events) == 1


def test_more_wanted_than_there_are():
    selector, view = Tifl(), view_of(6, k=50)
    _, chosen = selected(selector, selector.init(view), view, np.arange(6.0))
    assert sorted(chosen) == list(range(6))


# ---- accuracy by tier ------------------------------------------------------------------------------------------------


def test_looks_every_few_rounds_whether_the_last_tier_improved():
    """Tiers {0, 1} and {2, 3}; every two rounds. Tier 1 has the lower accuracy: 2/3 to it, if the last did not grow."""
    selector, view = Tifl(tiers=2, interval=2), view_of(4, k=1)
    for now, expected in ((0.7, [0.5, 0.5]), (0.6, [1 / 3, 2 / 3]), (0.5, [1 / 3, 2 / 3])):
        state = begun(selector, view, np.arange(4.0))
        state.current = 0
        for round, accuracy in enumerate((0.6, 0.0, now)):
            assert state.probability.tolist() == [0.5, 0.5]
            own = {0: accuracy - 0.1, 1: accuracy + 0.1, 2: 0.3, 3: 0.3}
            selector.feedback(state, view_of(4, k=1, round=round), arrived(0), Scores({}, own))
        assert state.accuracy == pytest.approx([now, 0.3])
        assert state.probability == pytest.approx(expected)
        assert state.looked == 2  # the next look compares with this round
        assert state.before == pytest.approx([now, 0.3])


CURVES = {
    "grows": lambda round: 0.3 + 0.01 * round,
    "falls": lambda round: 0.9 - 0.01 * round,
    "falls from round 20 on": lambda round: 0.3 + 0.01 * min(round, 40 - round),
    "grows from round 20 on": lambda round: 0.3 + 0.01 * max(round, 40 - round),
    "is flat": lambda round: 0.5,
}


def after(curve, every, interval, rounds=40, missed=()):
    """Return the state after rounds of which every n-th is scored, and the rounds after which it had changed."""
    selector = Tifl(tiers=2, interval=interval)
    state, likelier = begun(selector, view_of(4, k=1), np.arange(4.0)), []
    for round in range(rounds):
        state.current, old = round % 2, state.probability
        scored = (round + 1) % every == 0
        own = {0: curve(round), 1: curve(round), 2: curve(round) - 0.1, 3: curve(round) - 0.1}
        came = arrived() if round in missed else arrived(0)
        selector.feedback(state, view_of(4, k=1, round=round), came, Scores({}, own if scored else {}))
        likelier += [round] * (state.probability is not old)
    return state, likelier


@pytest.mark.parametrize("interval", [0, 1, 2, 5, 7])
@pytest.mark.parametrize("curve", CURVES, ids=str)
def test_how_often_is_evaluated_decides_only_how_often_is_looked(curve, interval):
    """Where tiers grow between any two evaluations nothing changes; where they do not, tier 1 becomes likelier."""
    grown = {"grows": True, "falls": False, "is flat": False}
    for every in (1, 2, 5, 8):
        state, changes = after(CURVES[curve], every, interval)
        apart = every * -(-(interval or 2) // every)  # the next evaluation after the interval
        looks = list(range(every - 1 + apart, 40, apart))
        failed = [r for r in looks if CURVES[curve](r) <= CURVES[curve](r - apart)]
        assert changes == failed
        if curve in grown:
            assert failed == ([] if grown[curve] else looks)
        assert state.probability == pytest.approx([1 / 3, 2 / 3] if failed else [0.5, 0.5])


def test_rare_evaluations_end_with_the_same_probabilities():
    for curve in CURVES.values():
        ends = [after(curve, every, interval=5)[0] for every in (1, 5)]
        assert ends[0].probability.tolist() == ends[1].probability.tolist()


def test_a_round_without_reports_is_not_one_without_progress():
    """In round 4 nothing came, and the model stands still; the look waits for the next round that is scored."""
    flat = dict.fromkeys(range(3, 5), 0.33)

    def curve(round):
        return flat.get(round, 0.3 + 0.01 * round)

    assert after(curve, 1, interval=1, rounds=9)[1] == [4]
    assert after(curve, 1, interval=1, rounds=9, missed=(4,))[1] == []


def test_a_tier_of_which_nobody_was_tested_is_not_one_without_progress():
    """Only some clients are tested in an evaluation: what is known of the others is old."""
    selector = Tifl(tiers=2, interval=1)
    state = begun(selector, view_of(4, k=1), np.arange(4.0))
    for round, own in enumerate(({0: 0.5, 2: 0.5}, {2: 0.6}, {1: 0.6, 3: 0.4}, {3: 0.3})):
        state.current = 0
        selector.feedback(state, view_of(4, k=1, round=round), arrived(0), Scores({}, own))
        assert state.probability.tolist() == [0.5, 0.5]
    assert state.accuracy.tolist() == [0.6, 0.3]
    state.current = 1
    selector.feedback(state, view_of(4, k=1, round=4), arrived(0), Scores({}, {3: 0.3}))
    assert state.probability == pytest.approx([1 / 3, 2 / 3])


def test_accuracy_stays_where_nothing_is_known_or_nothing_came():
    selector, view = Tifl(tiers=2), view_of(4, k=1)
    state = begun(selector, view, np.arange(4.0))
    selector.feedback(state, view, arrived(0), Scores({}, {0: 0.4}))
    assert state.accuracy == pytest.approx([0.4, np.nan], nan_ok=True)
    selector.feedback(state, view, arrived(0), Scores())  # a round that was not evaluated
    selector.feedback(state, view, arrived(), Scores({}, {0: 0.9, 2: 0.9}))  # a round of stragglers
    selector.feedback(state, view, arrived(2), Scores({}, {2: float("nan")}))
    assert state.accuracy == pytest.approx([0.4, np.nan], nan_ok=True)


def test_without_local_test_data_tiers_stay_equally_likely():
    selector, view = Tifl(tiers=2, interval=1), view_of(4, k=1)
    state = begun(selector, view, np.arange(4.0))
    for _ in range(5):
        selector.feedback(state, view, arrived(0), Scores())
    assert state.probability.tolist() == [0.5, 0.5]


# ---- who is there ----------------------------------------------------------------------------------------------------


def test_clients_above_the_limit_never_train():
    selector = Tifl(tiers=2, max_latency=3.0)
    state = selector.init(view_of(6, k=6))
    for round in range(5):
        _, chosen = selected(selector, state, view_of(6, k=6, round=round), np.arange(6.0))
        assert sorted(chosen) == [0, 1, 2, 3]
    assert state.tier.tolist() == [0, 0, 1, 1, -1, -1]


@pytest.mark.parametrize(("limit", "silent"), [(0.5, ()), (0.0, (0, 1, 2, 3))])
def test_nobody_has_a_tier(limit, silent):
    events = []
    selector, view = Tifl(max_latency=limit), view_of(4, k=2, note=collected(events))
    state = selector.init(view)
    profiled, chosen = selected(selector, state, view, np.ones(4), silent)
    assert profiled == [0, 1, 2, 3]
    assert len(set(chosen)) == 2
    assert events == [("fallback", "random clients")]
    selector.feedback(state, view, arrived(*chosen), Scores({}, {0: 0.5}))


def test_silent_clients_are_asked_again():
    selector, view = Tifl(tiers=2), view_of(4, k=4)
    state = selector.init(view)
    _, chosen = selected(selector, state, view, np.arange(4.0), silent=(1,))
    assert sorted(chosen) == [0, 2, 3]
    profiled, chosen = selected(selector, state, view, np.arange(4.0))
    assert profiled == [1]
    assert sorted(chosen) == [0, 1, 2, 3]
    assert state.tier.tolist() == [0, 0, 1, 1]


def test_newcomers_are_profiled_when_they_come():
    selector = Tifl(tiers=2)
    state = selector.init(view_of(6, k=1))
    selected(selector, state, view_of(6, k=1, eligible=(0, 5)), np.arange(6.0))
    assert state.tier.tolist() == [0, -1, -1, -1, -1, 1]
    state.credits[:] = (3, 4)
    profiled, _ = selected(selector, state, view_of(6, k=1, eligible=(1, 2, 3, 4)), np.arange(6.0))
    assert profiled == [1, 2, 3, 4]
    assert state.tier.tolist() == [0, 0, 0, 1, 1, 1]
    assert state.credits.sum() == 6  # what was spent stays spent


def test_a_tier_that_is_away_is_not_drawn():
    selector = Tifl(tiers=2)
    state = begun(selector, view_of(6, k=2), np.arange(6.0))
    for round in range(8):
        selected(selector, state, view_of(6, k=2, round=round, eligible=(0, 1)))
        assert state.current == 0


# ---- in the loop -----------------------------------------------------------------------------------------------------


@sweep(
    lambda selector: selector.tiers == 2,
    selector=[Tifl(), Tifl(tiers=2, interval=1, credits=1), Tifl(tiers=1, max_latency=0.02)],
)
def test_conforms(selector):
    testing.check_selector(selector)


def test_profile_is_a_round_of_work_and_costs_a_download_each():
    overrides = {"method.selector": Tifl(), "system.speed.kind": "lognormal", "system.speed.sigma": 1.0}
    work = session_of(overrides)
    _, rounds = run_rounds(work)
    assert [[o.step.kind for o in outcomes] for outcomes in rounds] == [["profile", "train"], *[["train"]] * 3]
    profiled = {r.client: r.seconds for r in rounds[0][0].reports}
    assert sorted(profiled) == list(range(6))
    assert len(set(profiled.values())) == 6
    for outcomes in rounds:
        for report in outcomes[-1].reports:
            assert report.seconds == pytest.approx(profiled[report.client])
    own, plain = (run_rounds(w)[0].traffic for w in (work, session_of({**overrides, "method.selector": "random"})))
    assert own.bytes_down - plain.bytes_down == 6 * 8 * work.plan.space.P
    assert own.bytes_up == plain.bytes_up


def round_lengths(selector, seed):
    """Return the virtual seconds of every round after the first, in which clients are profiled."""
    overrides = {
        "method.selector": selector,
        "train.seed": seed,
        "train.rounds": 31,
        "train.clients_per_round": 4,
        "system.speed.kind": "lognormal",
        "system.speed.sigma": 1.0,
        **LIGHT,
    }
    run = fedstrata.train(overrides=overrides, federation=tiny_federation(clients=30, seed=seed))
    return np.diff(run.curve("time"))


@pytest.mark.extended
def test_rounds_are_shorter_than_random_ones():
    pairs = [(round_lengths(Tifl(), seed), round_lengths("random", seed)) for seed in (1, 2, 3)]
    for tiered, random in pairs:
        assert len(tiered) == len(random) == 30
        assert tiered.mean() < 0.9 * random.mean()
