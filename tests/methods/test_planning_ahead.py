"""A schedule whose next round is planned while the present one is computed: nothing else changes."""

from dataclasses import replace

import pytest
import torch

import fedstrata
from fedstrata.engines.local.engine import InProcessPool
from fedstrata.methods.drivers.scheduled import ScheduledDriver

METHODS = pytest.mark.parametrize("method", ["stratify-batch", "stratify-single"])
SHORT = {"method.schedule.length": 90}
ASKED = {"train.rounds": 5, "train.batch_size": 8, "method.schedule.rounds_per_epoch": 2, "data.clients": 6}


def told(run):
    """Return what was said of the rounds; an engine that starts again says so again."""
    about = [event for event in run.events() if event["event"] not in ("engine", "resumed")]
    return [{k: v for k, v in event.items() if k != "wall"} for event in about]


def same(one, other):
    return all(torch.equal(a, other.model()[name]) for name, a in one.model().items())


@pytest.fixture
def plans(monkeypatch):
    """Record for which rounds something was planned."""
    rounds, plan = [], ScheduledDriver._plan

    def planned(driver, state, view):
        rounds.append(view.round)
        return plan(driver, state, view)

    monkeypatch.setattr(ScheduledDriver, "_plan", planned)
    return rounds


DROPPING = {"method.schedule.on_empty": "drop"}  # which has something to tell of while it plans


@pytest.mark.parametrize(
    ("method", "more"), [("stratify-batch", SHORT), ("stratify-single", SHORT), ("stratify-batch", DROPPING)]
)
def test_a_run_that_plans_ahead_is_the_same_run(method, more, plans, tmp_path, monkeypatch):
    asked = ASKED | {"method.name": method} | more
    ahead = fedstrata.train(overrides=asked, out=tmp_path / "ahead")
    assert plans == [0, 1, 2, 3, 4]  # each once, and none behind the last
    run_fused = InProcessPool.run_fused
    monkeypatch.setattr(
        InProcessPool, "run_fused", lambda pool, step, *rest: run_fused(pool, replace(step, meanwhile=None), *rest)
    )
    in_turn = fedstrata.train(overrides=asked, out=tmp_path / "in turn")
    assert same(ahead, in_turn)
    assert told(ahead) == told(in_turn)
    assert any(event["event"] == "label_dropped" for event in told(ahead)) == (more is DROPPING)


@METHODS
@pytest.mark.parametrize("cut", [1, 2])  # inside an epoch, and between two
def test_a_run_that_is_cut_after_planning_goes_on_bit_for_bit(method, cut, tmp_path):
    asked = ASKED | SHORT | {"method.name": method}
    whole = fedstrata.train(overrides=asked, out=tmp_path / "whole")

    def interrupt(event):
        if event["event"] == "round" and event["round"] == cut + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedstrata.train(overrides=asked, out=tmp_path / "cut", watch=interrupt)
    again = fedstrata.resume(tmp_path / "cut")
    assert same(whole, again)
    assert told(again) == told(whole)


def test_what_was_planned_for_other_clients_is_planned_again(plans, tmp_path, monkeypatch):
    asked = ASKED | SHORT | {"method.name": "stratify-batch", "train.rounds": 3}
    whole = fedstrata.train(overrides=asked, out=tmp_path / "whole")
    plans.clear()
    plan_ahead = ScheduledDriver._plan_ahead

    def for_fewer(driver, state, planned):
        plan_ahead(driver, state, planned)
        if state.ahead is not None:
            view = state.ahead.view
            state.ahead = replace(state.ahead, view=replace(view, eligible=view.eligible[1:]))

    monkeypatch.setattr(ScheduledDriver, "_plan_ahead", for_fewer)
    other = fedstrata.train(overrides=asked, out=tmp_path / "other")
    assert plans == [0, 1, 1, 2, 2]
    assert same(whole, other)
