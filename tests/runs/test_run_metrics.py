"""Metrics of a whole run, by hand; and the best model, which is the same however often a run was interrupted."""

from __future__ import annotations

import json
import math

import pytest
import torch

from fedstrata import RequestError, Run, resume, train
from fedstrata.runs.amounts import write_epsilon
from fedstrata.runs.compare.grid import write_value
from fedstrata.runs.metrics import Criterion, evaluations, final_figures, metrics_of, spent_until, to_targets
from fedstrata.testing import tiny_federation

SMALL = {"train.rounds": 6, "data.clients": 8, "train.epochs": 1, "train.batch_size": 64, "engine.vmap": "never"}


def scored(accuracies, every=1):
    """Evaluations of a run that sends 10 bytes up, 5 down and 1 across in every round, by 2 client updates."""
    rounds = []
    for at, accuracy in enumerate(accuracies):
        r = (at + 1) * every
        spent = {"bytes_up": 10 * r, "bytes_down": 5 * r, "bytes_p2p": r, "client_updates": 2 * r, "time": 0.5 * r}
        rounds.append({"event": "round", "round": r, "accuracy": accuracy, "balanced_accuracy": accuracy / 2, **spent})
    return rounds


# ---- by hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [(4.2372, "4.24"), (4.24, "4.24"), (15.0301, "15.1"), (0.00123401, "0.00124"), (1234.1, "1.24e+03"), (0.0, "0")],
)
def test_epsilon_is_rounded_up_because_it_is_a_bound(epsilon, said):
    assert write_epsilon(epsilon) == said
    assert float(said) >= epsilon


def test_without_noise_epsilon_is_infinite():
    assert write_epsilon(None) == write_epsilon(math.inf) == "infinite: there is no noise"


def test_the_best_and_the_last_ten():
    figures = final_figures(scored([0.9, *[0.5] * 5, 0.8, 0.9, *[0.4] * 3, 0.6], every=5))
    assert figures["best_accuracy"] == 0.9
    assert figures["best_accuracy_round"] == 5  # the first of two, in rounds
    # of .5 .5 .5 .5 .8 .9 .4 .4 .4 .6: sum 5.5, squares 4 * .25 + .64 + .81 + 3 * .16 + .36 = 3.29
    assert figures["accuracy_last10"] == pytest.approx(0.55)
    assert figures["accuracy_last10_std"] == pytest.approx(math.sqrt(0.329 - 0.55**2))
    assert figures["best_balanced_accuracy"] == 0.45
    assert figures["balanced_accuracy_last10"] == pytest.approx(0.275)
    assert figures["balanced_accuracy_last10_std"] == pytest.approx(math.sqrt(0.329 - 0.55**2) / 2)


def test_one_evaluation_is_its_own_mean():
    figures = final_figures(scored([0.25]))
    assert (figures["accuracy_last10"], figures["accuracy_last10_std"]) == (0.25, 0.0)


def test_a_target_falls_in_a_round_and_not_in_an_evaluation():
    """Evaluated every 5 rounds, the third evaluation is round 15: 150 bytes up, 75 down, 15 across."""
    rounds = scored([0.2, 0.5, 0.8, 0.7, 0.9], every=5)
    spent = {"rounds_to": 15, "bytes_to": 240, "client_updates_to": 30, "time_to": 7.5}
    assert spent_until(rounds, 0.8) == spent
    assert spent_until(rounds, 0.95) == dict.fromkeys(spent)
    assert to_targets(rounds, [0.95, 0.5, 0.8, 0.5])["rounds_to"] == {"0.5": 10, "0.8": 15, "0.95": None}
    assert to_targets(rounds, [])["bytes_to"] == {}


def test_a_target_may_be_one_of_the_balanced_accuracy():
    rounds = scored([0.5, 0.8, 0.9])  # balanced: half as much
    metric = Criterion.of("balanced_rounds_to:0.4")
    assert (metric.name, metric.lower) == ("balanced_rounds_to:0.4", True)
    assert [metric.read({}, rounds), Criterion.of("rounds_to:0.4").read({}, rounds)] == [2, 1]
    assert Criterion.of("balanced_rounds_to:0.5").read({}, rounds) == math.inf
    assert Criterion.of("balanced_bytes_to:0.4").read({}, rounds) == 2 * (10 + 5 + 1)
    assert write_value(metric.name, 2.0) == write_value("rounds_to:0.4", 2.0) == "2.0"
    assert write_value("balanced_accuracy", 0.5) == "50.0"


def test_rounds_without_an_evaluation_do_not_count():
    assert evaluations([{"event": "start"}, {"event": "round", "round": 1}, *scored([0.3])]) == scored([0.3])


def test_a_metric_knows_where_it_stands_and_what_is_better():
    rounds, summary = scored([0.2, 0.5, 0.8], every=5), {"accuracy": 0.8, "best_accuracy": 0.85, "worst10": None}
    assert [Criterion.of(name).read(summary, rounds) for name in ("accuracy", "best", "worst10", "personal")] == [
        0.8,
        0.85,
        None,
        None,
    ]
    reached, never = Criterion.of("rounds_to:0.50"), Criterion.of("bytes_to:0.9")
    assert (reached.name, reached.read(summary, rounds), reached.lower) == ("rounds_to:0.5", 10.0, True)
    assert never.read(summary, rounds) == math.inf
    assert not Criterion.of("mean_last10").lower
    assert [metric.name for metric in metrics_of("worst10,mean_last10")] == ["worst10", "accuracy_last10"]
    assert metrics_of(["best", "best_accuracy"]) == (Criterion("best_accuracy"),)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("acuracy", 'metric = "acuracy" is unknown (did you mean "accuracy"?)'),
        ("rounds_to", 'metric = "rounds_to" needs an accuracy from 0 to 1'),
        ("rounds_to:80", 'metric = "rounds_to:80" needs an accuracy from 0 to 1'),
        ("rounds_to:soon", "needs an accuracy"),
        ("accuracy:0.8", 'metric = "accuracy:0.8" is unknown'),
        ("", "is unknown"),
        ([], "metric is empty"),
    ],
)
def test_a_metric_that_is_none_is_refused(asked, said):
    with pytest.raises(RequestError) as refused:
        metrics_of(asked)
    assert said in str(refused.value)


# ---- in a run --------------------------------------------------------------------------------------------------------


def test_a_summary_counts_rounds_to_several_targets_without_stopping(tmp_path, cli):
    how = {"train.rounds": 40, "train.evaluate.every": 5, "train.targets": [0.99, 0.2], "train.stop.target": 0.5}
    run = train(overrides={**SMALL, "train.batch_size": 16, **how}, out=tmp_path / "run")
    rounds = evaluations(run.events())
    first = {t: next(e for e in rounds if e["accuracy"] >= t) for t in (0.2, 0.5)}
    assert len(rounds) > 2
    assert run.summary["rounds_to"] == {"0.2": first[0.2]["round"], "0.5": first[0.5]["round"], "0.99": None}
    assert run.summary["rounds_to_target"] == 5 * len(rounds) == run.summary["rounds"]
    assert run.summary["bytes_to_target"] == sum(first[0.5][f"bytes_{way}"] for way in ("up", "down", "p2p"))
    assert run.summary["time_to"]["0.2"] == first[0.2]["time"] < first[0.5]["time"]
    code, out, _ = cli("run", "--resume", str(run.path), "--json")
    assert code == 0
    assert json.loads(out)["rounds_to"] == run.summary["rounds_to"]
    _, out, _ = cli("run", "--resume", str(run.path))
    assert f"0.2: {first[0.2]['round']}" in out
    assert "0.99: never" in out
    assert f"(round {run.summary['best_accuracy_round']})" in out


def alike(one, other):
    return all(torch.equal(one[name], tensor) for name, tensor in other.items())


def test_the_best_model_is_that_of_the_best_round(tmp_path):
    """A rate at which the model gets worse again; runs that end with a round have its model as their last."""
    runs = [
        train(overrides={"train.lr": 3.0, "train.rounds": n}, federation=tiny_federation(), out=tmp_path / str(n))
        for n in (1, 2, 3)
    ]
    run = runs[-1]
    curve = run.curve("accuracy")
    assert run.best.round == curve.index(max(curve)) + 1 == run.summary["best_accuracy_round"]
    assert run.best.round < 3
    assert (run.best.metric, run.best.value) == ("accuracy", max(curve))
    assert [alike(run.best.model(), one.model()) for one in runs] == [n == run.best.round for n in (1, 2, 3)]


def test_the_best_by_another_metric(tmp_path):
    how = {"train.rounds": 5, "train.evaluate.best": "worst10", "train.lr": 1.0}
    run = train(overrides=how, federation=tiny_federation(), out=tmp_path / "run")
    curve = run.curve("worst10")
    assert (run.best.metric, run.best.round) == ("worst10", curve.index(max(curve)) + 1)


def test_a_best_that_is_never_measured_is_refused_or_said(tmp_path):
    with pytest.raises(RequestError, match=r'train\.evaluate\.best = "personal_mean" needs train\.evaluate\.personal'):
        train(overrides={"train.evaluate.best": "personal_mean"}, out=tmp_path / "never")
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("client_state", ["memory", "disk"])
@pytest.mark.parametrize("method", ["fedexp", "scaffold"])  # fedexp evaluates another model than it goes on with
def test_the_best_model_survives_an_interruption(tmp_path, method, client_state):
    overrides = SMALL | {"method.name": method, "train.lr": 1.5, "engine.client_state": client_state}
    whole = train(overrides=overrides, out=tmp_path / "whole")

    def stop(event):
        if event["event"] == "round" and event["round"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(overrides=overrides, out=tmp_path / "cut", watch=stop)
    assert Run(tmp_path / "cut").best is None
    cut = resume(tmp_path / "cut")
    assert (cut.path / "best.safetensors").read_bytes() == (whole.path / "best.safetensors").read_bytes()
    assert cut.summary["best"] == whole.summary["best"]


def test_a_checkpoint_writes_the_best_model_only_when_it_is_new(tmp_path):
    """At a rate of nothing no model is better than the first, whose file every later checkpoint names."""
    run = train(overrides=SMALL | {"train.lr": 1e-30}, out=tmp_path / "run")
    stored = run.checkpoints.manifest()["stored"]
    assert [entry["file"].split("-")[0] for entry in stored.values()] == ["000001"]
    assert run.best.round == 1
