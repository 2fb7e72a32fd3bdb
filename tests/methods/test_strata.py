"""What strata chooses, by what is measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedstrata
from fedstrata.data.label_table import LabelTable
from fedstrata.methods.situation import Situation
from fedstrata.methods.strata import STRATA, choose
from fedstrata.testing.tiny import run_rounds, session_of

ONE_LABEL = np.diag([30, 30, 30, 30])
TWO_LABELS = np.array([[15, 15, 0, 0], [0, 15, 15, 0], [0, 0, 15, 15], [15, 0, 0, 15]])
EVEN = np.full((4, 4), 500)


def situation(counts, **options):
    return Situation(clients=4, k=2, classes=4, table=LabelTable.of(counts), **options)


def kinds(now):
    def kind(part):
        return part if isinstance(part, str) else part["kind"]

    parts = {choice.stage: choice.part for choice in choose(now)}
    return {s: [kind(p) for p in part] if isinstance(part, list) else kind(part) for s, part in parts.items()}


def test_clusters_of_one_label_take_turns_before_a_server_with_momentum():
    now = situation(ONE_LABEL)
    assert now.effective_labels == pytest.approx(1.0)
    assert kinds(now) == {"selector": "flips", "server_step": "sgd"}
    selector, server_step = choose(now)
    assert selector.part["clusters"] == 2  # a label a cluster, but no more than train in a round
    assert server_step.part["momentum"] == 0.7
    assert "clients hold 1.0 labels each" in server_step.why
    assert server_step.measured == {"effective_labels": pytest.approx(1.0), "stragglers": 0.0, "updates_each": 0.0}


AGREEING = {"corrections": ["feddyn", "clip"], "server_step": "fedexp"}


def test_several_labels_a_client_are_balanced_and_made_to_agree():
    now = situation(TWO_LABELS)
    assert now.effective_labels == pytest.approx(2.0)
    assert kinds(now) == {"selector": "balanced-labels", **AGREEING}
    assert f"alpha {now.alpha:.2g}" in choose(now)[0].why


def test_lost_reports_break_turns():
    assert kinds(situation(ONE_LABEL, stragglers=0.2)) == {"selector": "balanced-labels", **AGREEING}


def test_even_labels_need_no_selection():
    assert kinds(situation(EVEN)) == AGREEING


def test_where_all_train_nobody_is_selected():
    assert kinds(replace(situation(TWO_LABELS), k=4)) == AGREEING
    assert kinds(replace(situation(ONE_LABEL), k=4)) == {"server_step": "sgd"}


@pytest.mark.parametrize(("rounds", "long"), [(79, False), (80, True)])  # two of four clients train in a round
def test_where_clients_of_one_label_train_often_the_server_is_yogi(rounds, long):
    turns = situation(ONE_LABEL, rounds=rounds)
    assert kinds(turns) == {"selector": "flips", "server_step": "yogi" if long else "sgd"}
    assert not long or "hold 1.0 labels each, and train 40 times" in choose(turns)[-1].why
    assert kinds(situation(TWO_LABELS, rounds=rounds)) == {"selector": "balanced-labels", **AGREEING}


@pytest.mark.parametrize(("rounds", "long"), [(79, False), (80, True)])
def test_with_adam_at_the_clients_long_runs_have_fedexp_alone(rounds, long):
    now = situation(TWO_LABELS, rounds=rounds, optimizer="adam")
    assert kinds(now) == {"selector": "balanced-labels", **({"server_step": "fedexp"} if long else AGREEING)}
    turns = situation(ONE_LABEL, rounds=rounds, optimizer="adam")
    assert kinds(turns) == {"selector": "flips", "server_step": "fedexp" if long else "sgd"}


def test_hidden_counts_leave_clusters_that_are_found_under_masks():
    blind = Situation(clients=4, k=2, classes=4)
    assert kinds(blind) == {"selector": "flips", **AGREEING}
    assert all(choice.measured.get("effective_labels") is None for choice in choose(blind))


@pytest.mark.parametrize(("wrong", "used"), [(None, False), (0.0, False), (0.04, False), (0.05, True)])
def test_wrong_labels_put_samples_in_order(wrong, used):
    assert ("sampler" in kinds(situation(TWO_LABELS, wrong_labels=wrong))) is used


def test_the_recipe_passes_the_suite():
    fedstrata.check_recipe(STRATA)


def test_a_tiny_run_is_the_same_run_spelt_out():
    chosen = session_of({"method.name": "strata"})
    spelt = {f"method.{s}": getattr(chosen.experiment.method, s) for s in ("selector", "corrections", "server_step")}
    states = [run_rounds(session_of(asked))[0] for asked in ({"method.name": "strata"}, spelt)]
    assert (states[0].model.params == states[1].model.params).all()
