"""Training that goes wrong is told once, with a setting to try; healthy training is left alone."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import fedstrata
from fedstrata.config.experiment import Experiment
from fedstrata.config.sections import Differential
from fedstrata.core import registry
from fedstrata.report.gather import gather
from fedstrata.report.page import page
from fedstrata.runs.health import Health, describe_noise

MARKS = {"fedavg": (), "fedsgd": (), "stratify-batch": ()}  # fedsgd learns slowest of all
MARKS |= dict.fromkeys(("fedyogi", "sfl", "terraform"), pytest.mark.extended)
GUESS = math.log(10)


def diagnose(losses, accuracies=None, trained=GUESS, **overrides):
    """Return what is told, by round."""
    health = Health(Experiment.of(**overrides), classes=10, tests=360)
    told = {}
    for at, loss in enumerate(losses, 1):
        balanced = 0.5 if accuracies is None else accuracies[at - 1]
        event = {"event": "round", "round": at, "loss_test": loss, "balanced_accuracy": balanced, "loss_train": trained}
        if found := health.see(event):
            told[at] = found.why
    return told


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def test_a_model_that_is_not_finite_is_told_at_once():
    (said,) = diagnose([2.0, None, None]).values()
    assert said == "the model is not finite any more: the steps of clients are probably too long; try train.lr=0.01"
    assert list(diagnose([2.0, math.nan])) == [2]


def test_a_loss_that_explodes_is_told_at_once_and_again_only_where_it_gets_worse():
    assert list(diagnose([2.0, 24.0, 30.0, None, None])) == [2, 4]
    assert "10 times that of a guess" in diagnose([24.0])[1]


def test_a_loss_above_a_guess_is_told_after_several_evaluations():
    assert list(diagnose([2.5] * 8)) == [5]
    assert list(diagnose([2.5] * 4 + [2.2] + [2.5] * 4)) == []
    assert list(diagnose([2.31] * 8)) == []  # a model that has not begun to learn lies around it


def test_a_model_at_chance_is_told_unless_its_loss_falls():
    stuck, slow = [GUESS] * 6, [2.3, 2.29, 2.28, 2.27, 2.26, 2.25]
    assert list(diagnose(stuck, [0.1] * 6)) == [5]
    assert list(diagnose(slow, [0.1] * 6)) == []
    assert list(diagnose(stuck, [0.1, 0.1, 0.2, 0.1, 0.1, 0.1])) == []
    assert list(diagnose(stuck, [0.14] * 6)) == []  # more than 360 samples give by chance


def test_long_runs_wait_longer():
    assert list(diagnose([2.5] * 30, **{"train.rounds": 100})) == [10]
    assert list(diagnose([2.5] * 30, **{"train.rounds": 1000})) == [20]
    assert list(diagnose([2.5] * 30, **{"train.rounds": 1000, "train.evaluate.every": 100})) == [5]


@pytest.mark.parametrize(
    ("overrides", "losses", "trained", "advice"),
    [
        ({"train.lr": 5.0}, [2.5] * 5, GUESS, "steps of clients are probably too long; try train.lr=0.1"),
        (
            {"train.lr": 0.1},
            [2.5] * 5,
            0.4,
            "their labels are probably skewed; try a method that fedstrata inspect advises",
        ),
        ({"train.lr": 0.2}, [GUESS] * 5, 4.0, "steps of clients are probably too long; try train.lr=0.02"),
        ({"train.lr": 1e-5}, [GUESS] * 5, GUESS, "steps of clients are probably too short; try train.lr=0.001"),
        ({"train.lr": 0.01}, [GUESS] * 5, GUESS, "steps of clients are probably too short; try train.lr=0.1"),
        (
            {"method.name": "fedyogi", "method.server_step.lr": 0.5},
            [GUESS] * 5,
            GUESS,
            "steps of the server are probably too long; try method.server_step.lr=0.05",
        ),
        ({"method.server_step.lr": 5.0}, [2.5] * 5, GUESS, "too long; try method.server_step.lr=1"),
    ],
)
def test_the_advice_follows_what_was_seen(overrides, losses, trained, advice):
    (said,) = diagnose(losses, [0.1] * 5, trained, **overrides).values()
    assert said.endswith(advice)


@pytest.mark.parametrize(
    ("where", "noise", "clients", "times"),
    [("local", 1.0, 4, "5.0"), ("server", 1.0, 4, "2.5"), ("local", 0.1, 4, None), ("server", 1.0, 10, None)],
)
def test_noise_is_named_where_it_is_longer_than_what_clients_can_say(where, noise, clients, times):
    """Of 100 numbers noise of 1 has length 10, twice that from each of 4 clients; their sum has at most 4."""
    said = describe_noise(Differential(noise=noise, where=where), 100, clients)
    assert said == "" if times is None else f"privacy.dp.noise={noise:g}" in said and f"is {times} times" in said


@pytest.mark.parametrize("dp", [{"where": "local"}, {"where": "server"}])
def test_a_run_that_drowns_in_noise_names_it_before_its_rate(dp, tmp_path):
    pytest.importorskip("dp_accounting")
    asked = {f"privacy.dp.{key}": value for key, value in dp.items()} | {"privacy.dp.noise": 1.0}
    few = {"data.clients": 4, "train.clients_per_round": "all", "train.rounds": 6, "engine.workers": 1}
    run = fedstrata.train(overrides=few | asked, out=tmp_path / "run")
    (said,) = [remark for remark in run.summary["remarks"] if "train.lr" in remark or "skewed" in remark]
    assert said.index("the likely cause is the noise: with privacy.dp.noise=1,") < said.index("if that does not help")


def test_where_training_of_clients_is_not_finite_their_steps_are_too_long():
    health = Health(Experiment.of(), 10, 360)
    health.see({"event": "dropped", "why": "not finite"})
    event = {"event": "round", "round": 1, "loss_test": GUESS, "balanced_accuracy": 0.1, "loss_train": None}
    assert "too long" in [health.see(event) for _ in range(5)][-1].why


def test_scores_that_sites_do_not_tell_say_nothing():
    health = Health(Experiment.of(), 10, 360)
    event = {
        "event": "round",
        "round": 1,
        "loss_test": 2.3,
        "balanced_accuracy": None,
        "recall": None,
        "loss_train": 2.3,
    }
    assert [health.see(event) for _ in range(6)] == [None] * 6
    assert health.see({**event, "loss_test": 50.0}).severity == 3


# ---- where it is told ------------------------------------------------------------------------------------------------

EXPLODING = {"method.name": "fedyogi", "method.server_step.lr": 0.5, "train.rounds": 2, "engine.workers": 1}
SAID = "try method.server_step.lr=0.05"


def test_it_stands_in_the_events_the_terminal_the_summary_and_the_report(tmp_path, cli):
    sets = [part for key, value in EXPLODING.items() for part in ("--set", f"{key}={value}")]
    code, out, err = cli("run", *sets, "--out", str(tmp_path / "run"), "--json")
    assert code == 0
    lines = [line for line in err.splitlines() if SAID in line]
    assert [line.split(":")[0] for line in lines] == ["fedyogi", "warning"]  # when it was seen, and at the end
    assert [SAID in remark for remark in json.loads(out)["remarks"]] == [True]
    assert page(gather([tmp_path / "run"])).count(SAID) >= 2  # above the outcome, and among the faults


def test_a_resumed_run_tells_it_once(tmp_path):
    def interrupt(event):
        if event["event"] == "round" and event["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedstrata.train(overrides=EXPLODING, out=tmp_path / "cut", watch=interrupt)
    resumed = fedstrata.resume(tmp_path / "cut")
    whole = fedstrata.train(overrides=EXPLODING, out=tmp_path / "whole")
    assert resumed.events(wall=False) == whole.events(wall=False)
    assert [e["round"] for e in whole.events() if e["event"] == "training"] == [1]


class Ending(nn.Module):
    """A linear model with something at its end."""

    def __init__(self, last):
        super().__init__()
        self.head, self.last = nn.Linear(64, 10), last

    def forward(self, x):
        return self.last(self.head(x.flatten(1)))


@pytest.mark.parametrize(("last", "expected"), [(nn.Softmax(1), 1), (nn.LogSoftmax(1), 0), (nn.Identity(), 0)])
def test_a_model_that_ends_in_softmax_is_told(last, expected, tmp_path):
    torch.manual_seed(0)
    run = fedstrata.train(model=Ending(last), overrides={"train.rounds": 1}, out=tmp_path / "run")
    assert sum("it ends in softmax" in remark for remark in run.summary["remarks"]) == expected
    warned = [event["what"] for event in run.events() if event["event"] == "warning"]
    assert warned == ["model"] * expected


# ---- and where nothing is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=MARKS.get(name, pytest.mark.slow)) for name in sorted(registry.names("methods"))],
)
def test_healthy_runs_of_all_recipes_are_left_alone(method, tmp_path):
    norm = {"model.norm": "batch"} if method == "fedtan" else {}  # whose norms are what it is about
    run = fedstrata.train(method=method, overrides={"engine.workers": 1, **norm}, out=tmp_path / "run")
    assert run.summary["remarks"] == []


class TwoHeads(nn.Module):
    """Answers with two heads, of which the first is trained."""

    def __init__(self, both):
        super().__init__()
        self.both = both
        self.head, self.other = nn.Linear(64, 10), nn.Linear(64, 3)

    def forward(self, x):
        x = x.flatten(1)
        return self.head(x + self.other(x).sum()) if self.both else (self.head(x), self.other(x))


@pytest.mark.parametrize("both", [False, True])
def test_weights_that_no_answer_needs_are_told(both, tmp_path):
    asked = {"train.rounds": 1, "engine.workers": 1, "model.head": "head"}
    run = fedstrata.train(model=TwoHeads(both), overrides=asked, out=tmp_path / "run")
    said = [remark for remark in run.summary["remarks"] if "weights other.bias, other.weight had no part" in remark]
    assert len(said) == (not both)
