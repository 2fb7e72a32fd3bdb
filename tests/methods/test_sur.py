"""FedBS' ranking of clients: by hand, with what it does to clients of many labels, and what helps."""

from __future__ import annotations

import numpy as np
import pytest
from sweeping import sweep

from fedstrata import testing
from fedstrata.core.messages import Report
from fedstrata.core.steps import Outcome
from fedstrata.methods.selectors.sur import Known, Sur, smallest
from fedstrata.testing.tiny import run_rounds, session_of


def test_sur_oracle():
    sur = np.array([1, 3, 0.5]) * np.array([0.5, 1, 4])
    assert sur.tolist() == [0.5, 3, 2]
    assert smallest(sur, np.arange(3), 2).tolist() == [0, 2]


def test_sur_ties_fall_to_the_key_and_nan_comes_last():
    assert smallest(np.array([1.0, np.nan, 1.0, 0.0]), np.array([2, 0, 1, 3]), 4).tolist() == [3, 2, 0, 1]


def select(sur, answers, k=3, round=0, state=None):
    """Let SUR choose in a tiny federation, where `answers` are what clients tell."""
    work = session_of({"method.selector": sur, "train.clients_per_round": k})
    events = []
    view = work.plan.view(work.client_info, round, lambda kind, **fields: events.append({"kind": kind, **fields}))
    state = state or sur.init(view)
    steps = sur.select(state, view)
    step = next(steps)
    probed = [ask.client for ask in step.asks]
    reports = tuple(Report(i, 1, metrics={"gradient_variance": answers[i]}) for i in probed if i in answers)
    missing = tuple(i for i in probed if i not in answers)
    try:
        steps.send(Outcome(step, 0, reports, missing))
    except StopIteration as end:
        return end.value, probed, events, state
    raise AssertionError("one probe is enough")


def test_sur_takes_the_stable_ones():
    told = {0: 0.5, 1: 0.1, 2: 0.9, 3: 0.2, 4: 0.8, 5: 0.7}
    picked, probed, events, state = select(Sur(), told)
    assert (picked, probed, events) == ([1, 3, 0], list(range(6)), [])
    assert isinstance(state, Known)
    assert state.variance.tolist() == list(told.values())
    by_size, *_ = select(Sur(importance="size"), dict.fromkeys(range(6), 0.5))
    sizes = session_of().federation.train_split.sizes
    assert sorted(sizes[by_size]) == sorted(sizes)[:3]  # large importance is a large score
    _, probed, *_ = select(Sur(candidates=4), told)
    assert len(probed) == 4
    _, probed, *_ = select(Sur(candidates=1), told)
    assert len(probed) == 3  # no fewer than train


def test_sur_falls_back_on_who_told_nothing_with_an_event():
    picked, _, events, _ = select(Sur(), {0: 0.5, 1: np.nan})
    assert picked[0] == 0
    assert len(set(picked)) == 3
    assert [event["kind"] for event in events] == ["fallback"]
    picked, _, events, _ = select(Sur(), {0: 0.5, 1: np.nan, 2: 0.4, 3: 0.3})
    assert picked == [3, 2, 0]
    assert events == []
    picked, *_ = select(Sur(), {})
    assert len(set(picked)) == 3


@sweep(
    lambda sur: sur.coverage > 0,
    sur=[Sur(coverage=0.5, over="all"), Sur(importance="size", candidates=4, layers="last")],
)
def test_sur_conforms(sur):
    testing.check_selector(sur)


# ---- coverage --------------------------------------------------------------------------------------------------------

STEADY = {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4, 4: 0.5, 5: 0.6}  # what clients tell in every round


def rounds_of(sur, rounds, k=2, told=None):
    picked, state = [], None
    for round in range(rounds):
        chosen, _, _, state = select(sur, told or STEADY, k, round, state)
        picked.append(chosen)
    return picked


def test_equation_10_asks_the_same_clients_for_ever():
    assert rounds_of(Sur(), 6) == [[0, 1]] * 6


def test_coverage_by_hand():
    """Places are 0, 1/6 .. 5/6; two of six are asked, so that a round of waiting is 1/3 of a turn."""
    picked = rounds_of(Sur(coverage=1.0), 4)
    assert picked[0] == [0, 1]  # nobody was ever asked: the ranking decides
    # 0 and 1 stay at 0 and 1/6, the others come to 2/6 - 1/3, 3/6 - 1/3 ..: of equals the more stable one
    assert picked[1] == [0, 2]
    # since when: 0 and 2 in round 1, 1 in round 0, others never: 0, 1/6 - 1/3, 2/6, 3/6 - 2/3, 4/6 - 2/3, 5/6 - 2/3
    assert picked[2] == [1, 3]


@pytest.mark.parametrize("coverage", [0.3, 1.0, 2.0, 100.0])
def test_with_coverage_everybody_takes_part(coverage):
    picked = rounds_of(Sur(coverage=coverage), 24)
    counts = np.bincount(np.concatenate(picked), minlength=6)
    assert counts.min() > 0
    assert all(counts[:-1] >= counts[1:])  # the more stable are never asked less often
    if coverage == 100:
        assert counts.tolist() == [8] * 6  # clients take turns


def test_coverage_does_not_starve_others_where_variances_are_zero():
    """A quotient of variance and waiting would: nothing is less than zero."""
    counts = np.bincount(np.concatenate(rounds_of(Sur(coverage=1.0), 24, told={**STEADY, 0: 0.0, 1: 0.0})), minlength=6)
    assert counts.min() > 0


def test_without_coverage_nothing_is_remembered_of_who_was_asked():
    *_, state = select(Sur(), STEADY)
    assert state.asked.tolist() == [-1] * 6


# ---- Equation 8 over all samples -------------------------------------------------------------------------------------


def test_variances_may_be_taken_over_all_samples():
    """The probe and the meter of soft weights tell the same; with batches of everything, so does one batch."""
    asked = {"method.selector": {"kind": "sur", "over": "all"}, "method.combiner": {"kind": "soft", "over": "all"}}
    told = {}
    for size in (2, 64):
        _, ((probe, train), *_) = run_rounds(session_of({**asked, "train.batch_size": size}), rounds=1)
        probed = {r.client: r.metrics["gradient_variance"] for r in probe.reports}
        assert {r.client: r.metrics["gradient_variance_of_all"] for r in train.reports}.items() <= probed.items()
        told[size] = probed
    assert told[2] == told[64]
    whole = {"method.selector": "sur", "train.batch_size": 64}
    _, ((probe, _), *_) = run_rounds(session_of(whole), rounds=1)
    assert {r.client: r.metrics["gradient_variance"] for r in probe.reports} == pytest.approx(told[2], rel=1e-9)
