"""Metrics (part F of the specification), evaluation, reasons to stop, learning-rate schedules."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from fedstrata.core.client_parts import LearningRate, Optimizer
from fedstrata.core.errors import RequestError
from fedstrata.core.messages import Report, Slot
from fedstrata.core.steps import Ask, Outcome, Step
from fedstrata.data.federation import Federation
from fedstrata.methods.lr_schedules import Constant, Cosine, OneCycle, StepDecay
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.accounting import Traffic
from fedstrata.server.evaluator import Evaluator
from fedstrata.server.metrics import accuracy, jain, mean_recall, recalls, round_figures, worst
from fedstrata.server.stopping import Progress, Stopping
from fedstrata.testing.tiny import run_rounds, session_of

RIGHT, WRONG = math.log(1 + math.exp(-1)), math.log(1 + math.e)  # cross-entropies of logits (1, 0)


def outcome(*reports, kind="train", combine=True, missing=()):
    return Outcome(Step(tuple(Ask(r.client) for r in reports), kind, combine=combine), 0, reports, missing)


# ---- accuracy and fairness ---------------------------------------------------------------------------------------


def confusion(matrix):
    """Return labels and hits of a confusion matrix, rows by true label."""
    labels = np.repeat(np.arange(len(matrix)), np.sum(matrix, 1))
    answers = np.concatenate([np.repeat(np.arange(len(row)), row) for row in matrix])
    return labels, answers, labels == answers


def test_the_confusion_matrix_of_the_specification():
    labels, _, hits = confusion([[90, 10], [5, 5]])
    assert accuracy(hits) == pytest.approx(0.863636, abs=1e-6)
    assert recalls(hits, labels, 2) == [0.9, 0.5]
    assert mean_recall(recalls(hits, labels, 2)) == pytest.approx(0.70)


def test_labels_that_are_not_tested_have_no_recall_and_no_weight():
    hits = np.array([True, False, True])
    assert recalls(hits, np.array([0, 0, 2]), 4) == [0.5, None, 1.0, None]
    assert mean_recall([0.5, None, 1.0, None]) == 0.75


@pytest.mark.parametrize(
    ("counts", "index"),
    [([4, 4, 4, 0], 0.75), ([3, 3, 3], 1.0), ([0, 0, 0], 1.0), ([5, 0, 0, 0, 0], 0.2), ([1, 2, 3], 36 / 42)],
)
def test_jain(counts, index):
    assert jain(np.array(counts)) == pytest.approx(index)


@pytest.mark.parametrize(
    ("accuracies", "mean"),
    [
        ([0.9, 0.2, *[0.8] * 8, 0.1], 0.15),  # 11 clients: ceil(1.1) = 2
        ([0.3, *[0.8] * 9], 0.3),  # 10 clients: exactly one
        ([0.4, 0.6], 0.4),
        ([0.1, 0.2, 0.3, *[0.9] * 27], 0.2),  # 30 clients: .1 * 30 is a hair above 3
    ],
)
def test_the_worst_tenth(accuracies, mean):
    assert worst(np.array(accuracies)) == pytest.approx(mean)


# ---- figures of a round ------------------------------------------------------------------------------------------


def test_figures_of_a_round_count_training_and_not_probes():
    figures = round_figures(
        [
            outcome(Report(3, 50, loss=9.0, metrics={"probed_loss": 2.5}), kind="probe-loss", combine=False),
            outcome(
                Report(0, 10, loss=1.0, update_norm=1.0),
                Report(1, 30, loss=2.0, update_norm=math.sqrt(5)),
                missing=(4,),
            ),
        ],
        jain(np.array([4, 4, 4, 0])),
    )
    assert figures["loss_train"] == pytest.approx(1.75)  # (10 * 1 + 30 * 2) / 40
    assert figures["update_norm"] == pytest.approx(1.618034, abs=1e-6)
    assert figures["jain"] == 0.75
    assert figures["steps"] == [
        {"kind": "probe-loss", "clients": [3], "metrics": {"3": {"probed_loss": 2.5}}},
        {"kind": "train", "clients": [0, 1], "missing": [4], "update_norm": {"0": 1.0, "1": math.sqrt(5)}},
    ]


def test_the_mean_over_participants_is_that_of_those_who_trained():
    probe = outcome(Report(3, 50, loss=9.0), kind="probe-loss", combine=False)
    steps = [probe, outcome(Report(0, 10), Report(1, 30), Report(2, 5)), outcome(Report(1, 30))]
    figures = round_figures(steps, 1.0, accuracies={0: 0.2, 1: 0.6, 3: 1.0})  # the third has no test data
    assert figures["participant_mean"] == pytest.approx(0.4)
    assert figures["last_step_mean"] == pytest.approx(0.6)
    assert not {"participant_mean", "last_step_mean"} & round_figures(steps, 1.0).keys()


def test_a_round_in_which_nobody_trained_has_no_loss_and_no_drift():
    figures = round_figures([outcome()], jain(np.zeros(3)))
    assert (figures["loss_train"], figures["update_norm"], figures["jain"]) == (None, None, 1.0)


@dataclass(frozen=True)
class Displace(Optimizer):
    """Ignores the gradient and moves client k by (2k, 1)."""

    def declare_memory(self, space):
        return {"move": Slot((space.P,))}

    def fill(self, own, buf, context):
        own["move"].copy_(torch.tensor([2.0 * context.client.id, 1.0]))

    def step(self, own, w, g, rate):
        w.add_(own["move"])


def test_drift_is_the_mean_distance_from_the_model_that_was_sent():
    """From w = (1, 0) the clients arrive at (1, 1) and (3, 1): distances 1 and sqrt 5, mean 1.618034."""
    module = nn.Linear(1, 2, bias=False)
    module.weight.data = torch.tensor([[1.0], [0.0]])
    x, y = np.ones((4, 1), np.float32), [0, 1, 0, 1]
    federation = Federation.from_arrays(x, y, [[0, 1], [2, 3]], test=(x, y))
    asked = {"train.optimizer": Displace(), "train.epochs": 1, "train.clients_per_round": "all"}
    work = build_session(describe_experiment(None, None, asked, federation, module), federation, module)
    state, ((step,),) = run_rounds(work, rounds=1)
    assert [float(r.update_norm) for r in step.reports] == pytest.approx([1.0, math.sqrt(5)])
    assert round_figures([step], state.participation_log.jain)["update_norm"] == pytest.approx(1.618034, abs=1e-6)
    assert state.model.params.tolist() == pytest.approx([2.0, 1.0])


# ---- the evaluator ---------------------------------------------------------------------------------------------------

ANSWERS = np.array([0, 1, 1, 1, 0, 0])
LABELS = np.array([0, 0, 1, 1, 1, 1])  # right: rows 0, 2, 3
GROUPS = np.array(["lab", "home", "lab", "home", "lab", "home"])
OWNERS = [[0, 1], [2], [], [3, 4, 5]]  # accuracies 1/2, 1, none, 1/3


def judged(answers=ANSWERS, labels=LABELS, groups=None, owners=None, seed=0, **options):
    """Return an evaluator, an identity model whose answer is the larger of two features.

    And the plan's view by round.
    """
    module = nn.Linear(2, 2, bias=False)
    module.weight.data = torch.eye(2)
    x, y = np.eye(2, dtype=np.float32)[answers], labels
    train = (np.eye(2, dtype=np.float32)[[0, 1] * 4], [0, 1] * 4, [[0, 1], [2, 3], [4, 5], [6, 7]])
    federation = Federation.from_arrays(*train, test=(x, y, groups), test_clients=owners)
    work = build_session(
        describe_experiment(None, None, {"train.seed": seed, "train.rounds": 5}, federation, module), federation, module
    )
    return Evaluator(work.plan.local, federation, **options), work


def scores(**how):
    evaluator, work = judged(**how)
    return evaluator.score(work.initial_state().model).figures


def test_the_judge_on_the_confusion_matrix_of_the_specification():
    labels, answers, _ = confusion([[90, 10], [5, 5]])
    said = scores(answers=answers, labels=labels)
    assert said["accuracy"] == pytest.approx(0.863636, abs=1e-6)
    assert said["balanced_accuracy"] == pytest.approx(0.70)
    assert said["recall"] == pytest.approx([0.9, 0.5])
    assert said["loss_test"] == pytest.approx((95 * RIGHT + 15 * WRONG) / 110, rel=1e-6)
    assert said.keys() == {"accuracy", "balanced_accuracy", "recall", "loss_test"}  # no groups, no clients' own data


def test_a_test_set_longer_than_one_pass_is_judged_whole():
    labels, answers, _ = confusion([[2000, 1000], [0, 1000]])
    assert scores(answers=answers, labels=labels)["accuracy"] == 0.75


def test_scores_by_group():
    assert scores(groups=GROUPS)["groups"] == pytest.approx({"lab": 2 / 3, "home": 1 / 3})


def test_scores_by_client_leave_out_clients_without_test_data():
    said = scores(owners=OWNERS)
    assert said["client_mean"] == pytest.approx((1 / 2 + 1 + 1 / 3) / 3)
    assert said["worst10"] == pytest.approx(1 / 3)
    assert "satisfied" not in said


@pytest.mark.parametrize(("at", "share"), [(0.5, 2 / 3), (0.51, 1 / 3), (0.1, 1.0)])
def test_clients_are_satisfied_at_a_given_accuracy(at, share):
    assert scores(owners=OWNERS, satisfied_at=at)["satisfied"] == pytest.approx(share)


def test_a_sample_of_the_clients_is_judged_and_stays_the_same():
    def of_seed(seed):
        return [scores(owners=OWNERS, seed=seed, clients=1)["client_mean"] for _ in range(2)]

    drawn = [of_seed(seed) for seed in range(12)]
    assert all(first == second for first, second in drawn)
    assert {round(first, 6) for first, _ in drawn} == {0.5, 1.0, 0.333333}


@pytest.mark.parametrize(("every", "rounds"), [(1, [0, 1, 2, 3, 4]), (2, [1, 3, 4]), (5, [4]), (9, [4])])
def test_every_nth_round_and_the_last_are_judged(every, rounds):
    evaluator, work = judged(every=every)
    model = work.initial_state().model
    views = [work.plan.view(work.client_info, r, lambda *_, **__: None) for r in range(5)]
    assert [v.round for v in views if evaluator(model, v).figures] == rounds


def test_a_judge_without_test_samples_is_refused():
    with pytest.raises(RequestError, match="no test samples"):
        judged(answers=ANSWERS[:0], labels=LABELS[:0])


def test_judging_leaves_the_model_alone():
    evaluator, work = judged()
    model = work.initial_state().model
    before = model.params.clone()
    assert evaluator.score(model) == evaluator.score(model)
    assert torch.equal(model.params, before)


# ---- reasons to stop ---------------------------------------------------------------------------------------------


def stops(rule, curve, **scores):
    """Return the evaluation, counted from 1, that ends a run with these accuracies, and the reason."""
    progress = Progress()
    for at, value in enumerate(curve, 1):
        if reason := rule.reason(progress, {} if value is None else {"accuracy": value, **scores}):
            return at, reason.split(":")[0]
    return None


@pytest.mark.parametrize(
    ("rule", "curve", "end"),
    [
        (Stopping(), [1.0] * 9, None),
        (Stopping(target=0.8), [0.5, 0.8, 0.9], (2, "target")),
        (Stopping(target=0.8), [0.5, 0.79999], None),
        (Stopping(patience=2), [0.5, 0.4, 0.5], (3, "patience")),  # as good as before is no progress
        (Stopping(patience=2), [0.5, 0.4, 0.6, 0.6, 0.7], None),
        (Stopping(patience=2), [0.5, None, None, None, 0.4], None),  # rounds without evaluation do not count
        (Stopping(patience=1), [0.0, 0.0], (2, "patience")),
        (Stopping(target=0.9, patience=1), [0.5, 0.95], (2, "target")),
        (Stopping(target=0.9, patience=1), [0.5, 0.5, 0.95], (2, "patience")),
    ],
)
def test_target_and_patience(rule, curve, end):
    assert stops(rule, curve) == end


@pytest.mark.parametrize(
    ("vote", "satisfied", "end"),
    [(0.5, 0.51, (1, "vote")), (0.5, 0.5, None), (0.5, 0.2, None), (0.0, 0.1, (1, "vote")), (1.0, 1.0, (1, "vote"))],
)
def test_a_majority_of_satisfied_clients_stops_the_run(vote, satisfied, end):
    assert stops(Stopping(target=0.8, vote=vote), [0.7], satisfied=satisfied) == end


def test_with_a_vote_the_global_accuracy_does_not_stop_the_run():
    assert stops(Stopping(target=0.8, vote=0.5), [0.99], satisfied=0.4) is None
    assert stops(Stopping(target=0.8, vote=0.5), [0.99]) is None
    assert stops(Stopping(target=0.8, vote=0.5, patience=1), [0.7, 0.7], satisfied=0.4) == (2, "patience")


# ---- learning rates ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "rounds", "factors"),
    [
        (Constant(), 10, {0: 1, 9: 1}),
        (StepDecay(), 30, {0: 1, 9: 1, 10: 0.5, 19: 0.5, 20: 0.25}),
        (StepDecay(every=2, by=0.1), 5, {1: 1, 2: 0.1, 4: 0.01}),
        (Cosine(), 10, {0: 1, 5: 0.5, 9: (1 + math.cos(0.9 * math.pi)) / 2}),
        (Cosine(floor=0.1), 10, {0: 1, 5: 0.55}),
        (Cosine(warmup=2), 12, {0: 0.5, 1: 1, 2: 1, 7: 0.5}),
        (Cosine(warmup=5), 5, {0: 0.2, 4: 1}),
        (OneCycle(), 11, {0: 0.04, 1: 0.36, 3: 1, 10: 0.01}),  # .04 + .96 / 3
        (OneCycle(peak=0.5, start=0.2, end=0.1), 5, {0: 0.2, 1: 0.6, 2: 1, 3: 0.55, 4: 0.1}),
        (OneCycle(peak=0.0, end=0.5), 3, {0: 1, 1: 0.75, 2: 0.5}),
        (OneCycle(peak=1.0, start=0.0), 3, {0: 0, 1: 0.5, 2: 1}),
    ],
)
def test_schedules(schedule, rounds, factors):
    for at, factor in factors.items():
        assert schedule.factor(at, rounds) == pytest.approx(factor, abs=1e-12)
        assert LearningRate(0.3, schedule, rounds).at(at) == pytest.approx(0.3 * factor, abs=1e-12)


def test_an_experiment_trains_at_the_scheduled_rate():
    rate = session_of({"train.lr": 0.4, "train.lr_schedule": {"kind": "step", "every": 1, "by": 0.5}}).plan.local.rate
    assert [rate.at(r) for r in range(3)] == [0.4, 0.2, 0.1]


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (Stopping(bytes=60), "budget: bytes 60 of 60"),  # up, down and across together
        (Stopping(bytes=61), None),
        (Stopping(client_updates=4), "budget: client_updates 4 of 4"),
        (Stopping(client_updates=5), None),
        (Stopping(time=2.0), "budget: time 2.5 of 2"),
        (Stopping(time=2.6), None),
        (Stopping(bytes=10, last=(3, "epsilon")), "epsilon"),
    ],
)
def test_a_budget_is_spent_by_the_first_round_that_reaches_it(rule, reason):
    assert rule.spent(3, Traffic(10, 20, 30, 4), 2.5) == reason


def test_a_run_that_is_not_one_of_equal_budget_says_so():
    rule, traffic = Stopping(bytes=50), Traffic(10, 20, 30, 4)
    assert rule.remarks(None, 3, Traffic(10), 0.0) == [
        "only 10 of train.stop.bytes = 50 was spent: train.rounds = 3 came first; raise it"
    ]
    assert rule.remarks("budget", 3, traffic, 0.0) == [
        "train.stop.bytes = 50 was overspent by 20%: its rounds are too long for this budget"
    ]
    assert Stopping(bytes=55).remarks("budget", 3, traffic, 0.0) == []
