"""What `watch` may do: see every event, and end the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedstrata

FEW = {"train.rounds": 6, "engine.workers": 1}


def stop_at(round, kind="round"):
    """Return a watcher that ends a run, and what it saw."""
    seen = []

    def watch(event):
        seen.append(event)
        return fedstrata.STOP if event["event"] == kind and event.get("round", 0) >= round else None

    return watch, seen


def test_stop_ends_the_run_after_that_round_and_it_is_finished():
    watch, seen = stop_at(2)
    run = fedstrata.train(overrides=FEW, out="stopped", watch=watch)
    assert (run.summary["rounds"], run.summary["stopped"]) == (2, "asked for by watch")
    assert [event["round"] for event in seen if event["event"] == "round"] == [1, 2]
    assert fedstrata.resume("stopped").summary == run.summary  # it does not go on
    whole = fedstrata.train(overrides=FEW, out="whole")
    assert run.curve("accuracy") == whole.curve("accuracy")[:2]


def test_where_the_round_is_not_evaluated_the_next_one_is_the_last_and_is():
    watch, _ = stop_at(1)
    run = fedstrata.train(overrides={**FEW, "train.evaluate.every": 5}, watch=watch)
    assert run.summary["rounds"] == 2
    assert len(run.curve("accuracy")) == 1


def test_stop_before_the_first_round_leaves_one_round():
    watch, _ = stop_at(0, "begin")
    assert fedstrata.train(overrides=FEW, watch=watch).summary["rounds"] == 1


@pytest.mark.parametrize("given", [None, True, "stop", 0])
def test_other_answers_change_nothing(given):
    run = fedstrata.train(overrides={**FEW, "train.rounds": 2}, watch=lambda _: given)
    assert run.summary["rounds"] == 2


def test_a_run_that_was_stopped_says_so_where_it_is_read_again():
    watch, _ = stop_at(1)
    run = fedstrata.train(overrides=FEW, out="stopped", watch=watch)
    assert json.loads(Path("stopped/summary.json").read_text())["stopped"] == "asked for by watch"
    with pytest.raises(fedstrata.RequestError, match="asked for by watch"):
        fedstrata.resume(run.path, overrides={"train.rounds": 8})
    assert repr(fedstrata.STOP) == "fedstrata.STOP"
