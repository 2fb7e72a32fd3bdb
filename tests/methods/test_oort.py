"""Oort and power-of-choice: numbers worked out by hand, edge cases, and that they pick clients of higher loss."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from sweeping import sweep

from fedstrata import Record, replay, testing
from fedstrata.client.trainer import Trainer
from fedstrata.core.client_context import Batch
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.messages import Report, Task
from fedstrata.core.rng import Streams
from fedstrata.core.steps import Ask, Outcome, Scores, Step, View
from fedstrata.data.federation import Federation
from fedstrata.methods.selectors.oort import Oort, Utility
from fedstrata.methods.selectors.power_of_choice import PowerOfChoice
from fedstrata.testing.tiny import run_rounds, session_of


def view_of(sizes, k, round=0, key=None, note=print):
    """Return what a selector sees of clients of these sizes."""
    tiebreak = np.arange(len(sizes)) if key is None else np.array(key)
    client_info = ClientInfo(len(sizes), 2, np.flatnonzero(sizes), tiebreak, {"sizes": np.array(sizes)})
    rng = partial(Streams(0), round=round)
    return View(
        round, 100, min(k, len(client_info.holders)), client_info.holders, client_info, None, rng, note, batch_size=4
    )


def told(utilities, seconds=None, missing=()):
    """Make the outcome of a training step."""
    seconds = seconds or {}
    reports = tuple(Report(i, 1, metrics={"utility": u}, seconds=seconds.get(i, 1.0)) for i, u in utilities.items())
    asks = tuple(Ask(i) for i in sorted([*utilities, *missing]))
    return Outcome(Step(asks), 0, reports, tuple(missing))


def experienced(selector, view, utility, last=None, duration=None, now=1):
    """Make the state of a selector that has heard of everybody."""
    state = selector.init(view)
    n = len(utility)
    state.utility[:], state.explored[:], state.count[:], state.now = utility, True, 1, now
    state.last[:] = np.ones(n) if last is None else last
    state.duration[:] = np.ones(n) if duration is None else duration
    return state


def finished(steps):
    """Let a selector that need not probe finish."""
    with pytest.raises(StopIteration) as end:
        next(steps)
    return end.value.value


# ---- Oort: by hand ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preferred", "expected"),
    [(np.inf, (0.372663, 1.214965, 0.763443)), (10.0, (0.372663, 0.303741, 0.763443)), (0.0, (0.0, 0.0, 0.0))],
)
def test_score(preferred, expected):
    selector, view = Oort(clip=0.9), view_of((1, 1, 1), k=1)
    state = experienced(selector, view, (10, 40, 25), last=(1, 3, 2), duration=(5, 20, 8), now=4)
    assert selector.scores(state, view.eligible, preferred) == pytest.approx(expected, abs=1e-6)


def test_clipped_utilities_are_equal_and_divided_by_the_range_of_all():
    """The ceiling is 3, the floor .999, the range 1000 - .999 and not 3 - .999; and ln 1 = 0."""
    selector, view = Oort(clip=0.5), view_of((1,) * 4, k=1)
    state = experienced(selector, view, (1, 2, 3, 1000))
    scores = selector.scores(state, view.eligible, np.inf)
    assert scores == pytest.approx([0.001 / 999.001, 1.001 / 999.001, 2.001 / 999.001, 2.001 / 999.001], rel=1e-9)


def test_equal_utilities_have_a_range():
    selector, view = Oort(), view_of((1,) * 3, k=1)
    assert selector.scores(experienced(selector, view, (0, 0, 0)), view.eligible, np.inf).tolist() == [0, 0, 0]
    small = selector.scores(experienced(selector, view, (0.01,) * 3), view.eligible, np.inf)
    assert small == pytest.approx([0.1] * 3)  # 0.001 * 0.01 over the floor of 1e-4


def test_never_reported_counts_as_the_first_round():
    selector, view = Oort(), view_of((1, 1), k=1)
    state = experienced(selector, view, (1, 1), last=(0, 1), now=3)
    first, second = selector.scores(state, view.eligible, np.inf)
    assert first == second
    assert np.isfinite(first)


def test_utility_of_a_client_update():
    """Losses .5, 1 and 2: 3 sqrt((.25 + 1 + 4) / 3), whatever stands in the padding."""
    meter = Utility()
    own = {"squares": torch.tensor(7.0).double(), "seen": torch.tensor(7.0).double()}
    work = session_of()
    train = work.federation.train
    trainer = Trainer(replace(work.plan.local, parts={"Utility": meter}), train.x, train.y, 17)
    context = trainer.make_context(work.federation.client(0), Task(0, 0, 0), {})
    assert context.client.samples == 3
    meter.fill(own, trainer.buf, context)
    for each, weight in (((0.5, 1.0, 9.0), (0.5, 0.5, 0.0)), ((2.0, 9.0, 9.0), (1.0, 0.0, 0.0))):
        batch = (None, None, torch.tensor(weight), None, None, torch.tensor(each).double())
        meter.observe(own, trainer.buf, Batch(*batch))
    utility = meter.finish(own, trainer.buf, context).metrics["utility"]
    assert utility.ndim == 0
    assert utility.item() == pytest.approx(3.968626966596886, abs=1e-12)


def test_meter_in_the_loop_counts_every_epoch():
    """With a step size of 0 both epochs see the first model: U = n sqrt(mean of its squared losses)."""
    work = session_of({"method.selector": Oort(), "train.lr": 1e-300})
    model, data = work.initial_state().model, work.federation.train
    module = work.plan.local.build().double()
    work.plan.space.bind(module, model.params, model.buffers)
    _, (outcomes, *_) = run_rounds(work, rounds=1)
    assert len(outcomes[0].reports) == 3
    for report in outcomes[0].reports:
        rows = torch.from_numpy(work.federation.train_split[report.client])
        with torch.no_grad():
            each = torch.nn.functional.cross_entropy(module(data.x[rows].double()), data.y[rows], reduction="none")
        assert report.metrics["utility"] == pytest.approx(len(rows) * each.square().mean().sqrt().item(), rel=1e-9)


@pytest.mark.parametrize(("threshold", "expected"), [(30.0, 4.0), (1.0, 1.0), (99.0, 10.0), (100.0, np.inf)])
def test_preferred_duration(threshold, expected):
    selector, view = Oort(threshold=threshold), view_of((1,) * 12, k=1)
    state = selector.init(view)
    assert selector.preferred(state) == np.inf  # nothing is known yet
    state.duration[:10] = np.arange(10, 0, -1)
    assert selector.preferred(state) == expected


def test_pacer():
    """Flat over two windows: longer rounds. More than five times as much: shorter ones. In between: as before."""
    selector, view = Oort(pacer_rounds=2, pacer_step=5.0, threshold=30.0), view_of((1,) * 3, k=1)
    state = selector.init(view)
    state.exploited = np.array([0])
    seen = []
    for utility in (10, 10, 10, 11, 20, 20, 200, 200, 200, 200):
        selector.feedback(state, view, [told({0: utility, 1: 999})], Scores())
        seen.append(state.threshold)
    # windows 20, 21 (flat), 40 (in between), 400 (a jump), 400 (flat)
    assert seen == [30, 30, 30, 35, 35, 35, 35, 30, 30, 35]


def test_pacer_stays_in_its_range():
    view = view_of((1,) * 3, k=1)
    for threshold, utilities, expected in ((98.0, (1, 1), 100.0), (7.0, (1, 50), 5.0)):
        selector = Oort(pacer_rounds=1, threshold=threshold)
        state = selector.init(view)
        state.exploited = np.array([0])
        for utility in utilities:
            selector.feedback(state, view, [told({0: utility})], Scores())
        assert state.threshold == expected


def test_shares_of_exploring_and_exploiting():
    """Epsilon .9 * .98 = .882 in the first round; of ten, int(8.82) explore and two are exploited."""
    selector, view = Oort(cut_off=1.0), view_of((1,) * 40, k=10)
    state = experienced(selector, view, np.arange(40.0))
    state.explored[20:] = False
    picked = selector.select(state, view)
    assert state.epsilon == pytest.approx(0.882)
    assert len(set(picked)) == 10
    assert sorted(np.array(picked) < 20) == [False] * 8 + [True] * 2
    for _ in range(200):
        selector.select(state, view)
    assert state.epsilon == 0.2


def test_nobody_is_drawn_at_random_once_everybody_was_seen():
    """With the usual epsilons, only those are taken whose score is near that of rank k, in every round."""
    selector, utilities = Oort(cut_off=1.0, clip=1.0), np.arange(40.0)
    taken = set()
    for round in range(60):
        view = view_of((1,) * 40, 10, round)
        state = experienced(selector, view, utilities)
        taken |= set(selector.select(state, view))
        assert state.epsilon == 0
    assert taken == set(range(29, 40))


@pytest.mark.parametrize("silent", [0, 39])
def test_exploring_goes_on_while_one_client_was_never_heard_of_and_begins_again_with_a_new_one(silent):
    """It counts those with samples, whether or not they are there today."""
    selector, view = Oort(), view_of((1,) * 40, 10)
    state = experienced(selector, view, np.arange(40.0))
    state.explored[silent] = False
    state.epsilon = 0.25
    away = replace(view, eligible=view.eligible[view.eligible != silent])
    selector.select(state, away)
    assert state.epsilon == pytest.approx(0.245)
    without = view_of([int(i != silent) for i in range(40)], 10)
    selector.select(state, without)
    assert state.epsilon == 0
    assert silent in selector.select(state, view)
    assert state.epsilon == 0.2


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_few_clients_are_taken_in_the_end(seed):
    """Losses stay as they are. The authors' code takes about 60 of 200 clients in the last 100 rounds; it was 180."""
    rng = np.random.default_rng(seed)
    losses = rng.lognormal(0, 0.5, 200) * rng.lognormal(0, 0.1, (300, 200))
    record = Record(np.full((200, 1), 100), losses, rng.lognormal(0, 0.5, 200))
    selected = replay(Oort(), record, rounds=300, k=20, seed=seed).selected
    assert len({client for ids in selected[:20] for client in ids}) == 200
    assert len({client for ids in selected[-100:] for client in ids}) < 100


def test_exploits_the_highest_and_who_comes_near():
    selector, view = Oort(epsilon=0.0, epsilon_min=0.0, cut_off=1.0, clip=1.0), view_of((1,) * 10, k=3)
    utilities = np.arange(10.0)
    # Cut at the score of rank k: the three highest and the fourth may be drawn; with a cut-off of 0 everybody.
    drawn = [
        set(selector.select(experienced(selector, view_of((1,) * 10, 3, r), utilities), view_of((1,) * 10, 3, r)))
        for r in range(60)
    ]
    assert set.union(*drawn) == {6, 7, 8, 9}
    open_to_all = replace(selector, cut_off=0.0)
    drawn = [
        set(open_to_all.select(experienced(selector, view, utilities), view_of((1,) * 10, 3, r))) for r in range(200)
    ]
    assert len(set.union(*drawn)) > 7


def test_draws_in_proportion_to_scores():
    """Scores 1, 2, 1 and two draws, one after another: 7/12, 5/6, 7/12."""
    selector, draws = Oort(cut_off=0.0), 4000
    scores, known = np.array([1.0, 2.0, 1.0]), np.arange(3)
    drawn = [selector.exploit(Streams(0)("select", round=r), known, scores, 2) for r in range(draws)]
    share = np.bincount(np.concatenate(drawn), minlength=3) / draws
    assert np.abs(share - (7 / 12, 5 / 6, 7 / 12)).max() < 4 * np.sqrt(0.25 / draws)


# ---- Oort: edges -----------------------------------------------------------------------------------------------------


def test_first_round_only_explores_and_prefers_large_clients():
    sizes = (1, 2, 3, 4, 50, 60, 0, 70, 80, 90)
    selector = Oort(window=2)
    picked = selector.select(selector.init(view_of(sizes, 2)), view_of(sizes, 2))
    assert len(picked) == 2
    assert set(picked) <= {9, 8, 7, 5}  # twice as many as wanted, the largest


def test_equal_sizes_are_explored_by_key():
    view = view_of((5,) * 6, k=1, key=(5, 4, 3, 2, 1, 0))
    selector = Oort(window=1)
    assert selector.select(selector.init(view), view) == [5]


def test_first_utility_may_be_bounded_by_what_is_trained():
    view = view_of((4, 1000, 3), k=1, key=(0, 1, 2))  # one epoch of batches of 4
    assert Oort(window=1).select(Oort().init(view), view) == [1]
    assert Oort(window=1, first="batch").select(Oort().init(view), view) == [0]


@pytest.mark.parametrize("k", [1, 5, 6, 50])
def test_everybody_explored(k):
    """The places of exploration are filled up; the rank after the last does not exist."""
    selector, view = Oort(), view_of((1,) * 6, k)
    picked = selector.select(experienced(selector, view, (3, 1, 0, 2, 5, 4)), view)
    assert len(set(picked)) == len(picked) == min(k, 6)


@pytest.mark.parametrize("seconds", [0.0, 1e-9])
def test_zero_latencies(seconds):
    selector, view = Oort(), view_of((1,) * 6, 3)
    state = selector.init(view)
    for _ in range(5):
        ids = selector.select(state, view)
        slow = {i: seconds if i else 2.0 for i in ids}
        selector.feedback(state, view, [told(dict.fromkeys(ids, 1.0), slow)], Scores())
        assert len(set(ids)) == 3


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_utilities_that_are_no_numbers(broken):
    selector, view = Oort(epsilon=0.0, epsilon_min=0.0, cut_off=1.0), view_of((1,) * 4, 1)
    state = selector.init(view)
    selector.feedback(state, view, [told({0: broken, 1: 5.0, 2: 4.0, 3: broken})], Scores())
    assert state.utility.tolist() == [0, 5, 4, 0]
    assert set(selector.select(state, view)) <= {1, 2}


def test_straggler_is_only_known_to_be_slow():
    selector, view = Oort(), view_of((1,) * 4, 2)
    state = experienced(selector, view, (1, 2, 3, 4), last=(1, 1, 1, 1))
    state.now = 7
    selector.feedback(state, view, [told({0: 9.0}, {0: 6.0}, missing=(1,))], Scores())
    assert state.utility.tolist() == [9, 2, 3, 4]
    assert state.duration.tolist() == [6, 6, 1, 1]
    assert state.last.tolist() == [7, 1, 1, 1]
    assert state.count.tolist() == [2, 1, 1, 1]
    timed = replace(selector, timeout=60.0)
    timed.feedback(state, view, [told({}, missing=(2,))], Scores())
    assert state.duration.tolist() == [6, 6, 60, 1]
    assert len(state.gains) == 1  # a round without a report says nothing about progress


def test_unexplored_straggler_stays_unexplored_and_sinks():
    selector, view = Oort(window=1), view_of((9, 5, 5, 5), 1)
    state = selector.init(view)
    assert selector.select(state, view) == [0]
    selector.feedback(state, view, [told({}, missing=(0,))], Scores())
    assert not state.explored.any()
    state.duration[:] = (10, 1, 1, 1)
    assert selector.select(state, view) != [0]  # 9 * (1 / 10)^2 is less than 5


def test_blacklist():
    selector, view = Oort(blacklist_rounds=2), view_of((1,) * 10, 3, key=range(9, -1, -1))
    state = experienced(selector, view, np.ones(10))
    assert not selector.blacklist(state, view).any()
    state.count[:] = (3, 9, 2, 3, 5, 3, 3, 1, 1, 1)
    assert np.flatnonzero(selector.blacklist(state, view)).tolist() == [
        1,
        4,
        6,
    ]  # 30 % of ten, the most used, then by key
    assert not set(selector.select(state, view)) & {1, 4, 6}
    assert not replace(selector, blacklist_rounds=-1).blacklist(state, view).any()


def test_blacklist_gives_way_where_too_few_are_left():
    events = []
    view = view_of((1,) * 4, 3, note=lambda kind, **what: events.append((kind, what["what"])))
    selector = Oort(blacklist_rounds=0, blacklist_share=1.0)
    state = experienced(selector, view, np.ones(4))
    state.count[:] = (5, 1, 0, 2)
    assert sorted(selector.select(state, view)) == [1, 2, 3]
    assert events == [("fallback", "oort")]


def test_a_thousand_out_of_a_million():
    n = 1_000_000
    sizes = np.random.default_rng(0).integers(1, 500, n)
    selector, view = Oort(blacklist_rounds=5), view_of(sizes, 1000, key=np.random.default_rng(1).permutation(n))
    state = experienced(selector, view, sizes, duration=sizes)
    state.explored[::2] = False
    picked = selector.select(state, view)
    assert len(set(picked)) == 1000
    known = np.array(picked) % 2 == 1
    assert known.sum() == 118  # 1000 - int(882)
    assert sizes[np.array(picked)[~known]].min() > 100


@sweep(
    lambda selector: selector != Oort(),  # which is checked as a registered part
    selector=[Oort(), Oort(blacklist_rounds=0, epsilon=0.3, first="batch", timeout=2.0)],
)
def test_oort_conforms(selector):
    testing.check_selector(selector)


def test_meter_conforms():
    testing.check_correction(Utility())


# ---- power-of-choice -------------------------------------------------------------------------------------------------


@sweep(lambda loss: loss != "all", loss=["all", "batch", "last"])
def test_power_of_choice_conforms(loss):
    testing.check_selector(PowerOfChoice(loss=loss))


def answered(selector, view, silent=()):
    """Answer probes with the id as loss, unless a client is silent; give who was asked, by step, and the choice."""
    steps, asked = selector.select(None, view), []
    step = next(steps)
    while True:
        ids = [a.client for a in step.asks]
        asked.append(ids)
        reports = tuple(Report(i, 1, metrics={"probed_loss": float(i)}) for i in ids if i not in silent)
        try:
            step = steps.send(Outcome(step, len(asked) - 1, reports, tuple(i for i in ids if i in silent)))
        except StopIteration as end:
            return asked, end.value


def test_silent_candidates_are_replaced():
    view = view_of((1,) * 10, k=2)
    (first,), _ = answered(PowerOfChoice(candidates=4), view)
    asked, chosen = answered(PowerOfChoice(candidates=4), view, silent=first[:2])
    heard = [*first[2:], *asked[1]]
    assert [len(ids) for ids in asked] == [4, 2]
    assert len(set(heard)) == 4
    assert chosen == sorted(heard, reverse=True)[:2]


def test_nobody_answers():
    events = []
    view = view_of((1,) * 5, k=2, note=lambda kind, **what: events.append(kind))
    asked, chosen = answered(PowerOfChoice(candidates=2), view, silent=range(5))
    assert sorted(i for ids in asked for i in ids) == list(range(5))
    assert len(set(chosen)) == 2
    assert events == ["fallback"]
    _, chosen = answered(PowerOfChoice(candidates=2), view, silent=(0, 1, 2, 3))
    assert chosen[0] == 4


def test_last_loss_explores_first_and_needs_no_probe():
    selector, view = PowerOfChoice(candidates=99, loss="last"), view_of((1,) * 5, k=2, key=(4, 3, 2, 1, 0))
    state = selector.init(view)
    assert finished(selector.select(state, view)) == [4, 3]  # nobody is known: by key
    for losses in ({4: 0.5, 3: 1.4}, {2: float("nan"), 1: 0.9}):
        reports = tuple(Report(i, 1, loss=loss) for i, loss in losses.items())
        outcome = Outcome(Step(tuple(Ask(i) for i in losses)), 0, reports, ())
        selector.feedback(state, view, [outcome], Scores())
    assert finished(selector.select(state, view)) == [0, 3]  # 0 was never heard of
    state.last[0] = 0.1
    assert finished(selector.select(state, replace(view, k=5))) == [3, 1, 4, 0, 2]


def test_batch_loss_is_that_of_some_samples():
    """Of a client with fewer samples than a batch all are taken; of a larger one, not."""
    losses = {}
    for loss in ("all", "batch"):
        work = session_of({"method.selector": PowerOfChoice(candidates=6, loss=loss), "train.batch_size": 5})
        _, (outcomes, *_) = run_rounds(work, rounds=1)
        losses[loss] = {r.client: r.metrics["probed_loss"] for r in outcomes[0].reports}
        sizes = work.federation.train_split.sizes
    same = {i for i in range(6) if losses["all"][i] == pytest.approx(losses["batch"][i], abs=1e-12)}
    assert same == set(np.flatnonzero(sizes <= 5).tolist())
    assert len(same) < 6


# ---- the mechanism ---------------------------------------------------------------------------------------------------


def half_is_hard():
    """Twelve clients of equal size; the labels of every second one are drawn at random, and cannot be learnt."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 12 * 20)
    x = (3 * np.eye(3)[y] + 0.5 * rng.normal(size=(len(y), 3))).astype(np.float32)
    rows = np.arange(len(y)).reshape(12, 20)
    y[rows[1::2]] = rng.integers(0, 3, (6, 20))
    return Federation.from_arrays(x, y, list(rows), test=(x[:60], y[:60]))


@cache
def trained_on(selector, seed):
    """Return the mean training loss of the clients selected after the first rounds, and the share of hard ones."""
    overrides = {
        "method.selector": selector,
        "train.seed": seed,
        "train.epochs": 1,
        "train.batch_size": 10,
        "train.lr": 0.3,
        "train.clients_per_round": 5,
    }
    _, rounds = run_rounds(session_of(overrides, half_is_hard()), rounds=20)
    reports = [r for outcomes in rounds[8:] for o in outcomes if o.step.combine for r in o.reports]
    return np.mean([r.loss for r in reports]), np.mean([r.client % 2 for r in reports])


@pytest.mark.parametrize(
    "selector",
    [
        Oort(epsilon=0.4),
        PowerOfChoice(),
        PowerOfChoice(loss="batch"),
        PowerOfChoice(loss="last"),
    ],
    ids=("oort", "all", "batch", "last"),
)
def test_picks_clients_of_higher_loss_than_random(selector):
    pairs = [(trained_on(selector, seed), trained_on("random", seed)) for seed in (1, 2, 3)]
    for (loss, hard), (random_loss, random_hard) in pairs:
        assert loss > random_loss + 0.05
        assert hard > random_hard
