"""Metrics of an evaluation: scikit-learn's figures, in events, summaries, comparisons, and as what is the best."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import f1_score, roc_auc_score, top_k_accuracy_score

import fedstrata
from fedstrata import Experiment, Metric, RequestError
from fedstrata.cli import app
from fedstrata.config.measured import _check_name
from fedstrata.methods.metrics import Auroc, MacroF1, Top
from fedstrata.runs.metrics import HIGHER, SHORT
from fedstrata.runs.session import build_session
from fedstrata.testing.tiny import tiny_federation

QUICK = {"train.rounds": 3, "engine.workers": 1}


@dataclass(frozen=True)
class WorstRecall(Metric):
    """The recall of the label that fares worst."""

    def measure(self, labels, probabilities):
        right = probabilities.argmax(1) == labels
        return min(right[labels == label].mean() for label in np.unique(labels))


@dataclass(frozen=True)
class Accuracy(Metric):
    """A name that is taken."""

    def measure(self, labels, probabilities):
        return 1.0


@dataclass(frozen=True)
class RankAuc(Accuracy):
    """A name that looks like a number of ranks."""


@dataclass(frozen=True)
class Dashed(Accuracy):
    """No name."""

    figure = "my-figure"


@dataclass(frozen=True)
class Meddling(Metric):
    """Changes what others are given, too."""

    def measure(self, labels, probabilities):
        labels[:] = 0
        return 1.0


@dataclass(frozen=True)
class Precision(Metric):
    """How many of those that are given the first label have it; a summary has a `precision` of its own."""

    def measure(self, labels, probabilities):
        given = probabilities.argmax(1) == 0
        return (labels[given] == 0).mean() if given.any() else 0.0


@dataclass(frozen=True)
class RecallOf(Metric):
    """The recall of one label."""

    label: int = 0

    def measure(self, labels, probabilities):
        return (probabilities[labels == self.label].argmax(1) == self.label).mean()


@dataclass(frozen=True)
class LogLikelihood(Metric):
    """Below 0, and the better the nearer."""

    def measure(self, labels, probabilities):
        return np.log(np.take_along_axis(probabilities, labels[:, None], 1)).mean()


@dataclass(frozen=True)
class Words(Metric):
    """No number."""

    def measure(self, labels, probabilities):
        return "good"


@dataclass(frozen=True)
class Never(Metric):
    """What cannot be told."""

    def measure(self, labels, probabilities):
        return math.nan


@pytest.fixture
def answers(request):
    rng = np.random.default_rng(request.param)
    classes = 2 if request.param == 3 else 5
    labels = rng.integers(0, classes - (request.param == 2), 80)  # with seed 2, a label is not tested
    return labels, rng.dirichlet(np.ones(classes), 80).round(1 if request.param == 1 else 9)  # with seed 1, many ties


@pytest.mark.parametrize("answers", range(4), indirect=True)
def test_figures_are_those_of_scikit_learn(answers):
    labels, probabilities = answers
    classes = np.arange(probabilities.shape[1])
    wanted = f1_score(labels, probabilities.argmax(1), average="macro", zero_division=0.0)
    assert MacroF1().measure(labels, probabilities) == pytest.approx(wanted)
    areas = [roc_auc_score(labels == label, probabilities[:, label]) for label in np.unique(labels)]
    assert Auroc().measure(labels, probabilities) == pytest.approx(np.mean(areas))
    untied = probabilities + np.random.default_rng(0).uniform(0, 1e-6, probabilities.shape)
    for k in range(1, len(classes)) if len(classes) > 2 else ():
        wanted = top_k_accuracy_score(labels, untied, k=k, labels=classes)
        assert Top(k).measure(labels, untied) == pytest.approx(wanted)
    right = probabilities.argmax(1) == labels
    assert Top(1).measure(labels, probabilities) == pytest.approx(right.mean()), "of equal ones, the first, as accuracy"
    assert math.isnan(Top(len(classes)).measure(labels, probabilities))


def test_where_one_label_is_tested_there_is_no_curve():
    assert math.isnan(Auroc().measure(np.zeros(3, int), np.full((3, 2), 0.5)))


def test_they_stand_in_events_curves_and_the_summary_and_say_which_model_is_the_best():
    asked = {"train.evaluate.metrics": ["macro-f1", {"kind": "top", "k": 1}, WorstRecall(), Never()]}
    run = fedstrata.train(overrides={**QUICK, **asked, "train.evaluate.best": "worst_recall"})
    rounds = [event for event in run.events() if event["event"] == "round"]
    for event in rounds:
        assert event["top_1"] == pytest.approx(event["accuracy"])
        assert event["worst_recall"] == min(event["recall"])
        assert 0 < event["macro_f1"] <= 1
        assert event["never"] is None
    assert run.curve("macro_f1")[-1] == run.summary["metrics"]["macro_f1"] == rounds[-1]["macro_f1"]
    worst = [event["worst_recall"] for event in rounds]
    assert run.best.round == 1 + int(np.argmax(worst))
    again = fedstrata.train(run.path / "experiment.toml", overrides={"train.rounds": 3})
    assert again.summary["metrics"] == run.summary["metrics"]


def test_a_model_that_is_not_finite_has_no_figures():
    asked = {"train.evaluate.metrics": ["top", "auroc", "macro-f1"], "train.evaluate.best": "top_5", "train.lr": 1e30}
    with np.errstate(all="ignore"):
        run = fedstrata.train(overrides={**QUICK, **asked, "method.name": "fedsgd"})
    broken = [event for event in run.events() if event["event"] == "round" and event["loss_test"] is None]
    assert all(event[name] is None for event in broken for name in ("top_5", "auroc", "macro_f1"))
    assert broken


def test_a_summary_keeps_its_own_figures_and_the_best_may_lie_below_zero():
    asked = {"train.evaluate.metrics": [Precision(), LogLikelihood()], "train.evaluate.best": "log_likelihood"}
    run = fedstrata.train(overrides={**QUICK, **asked})
    assert run.summary["precision"] == "fp32"
    told = [event["log_likelihood"] for event in run.events() if event["event"] == "round"]
    assert max(told) < -1
    assert run.best.round == 1 + int(np.argmax(told))
    assert told == pytest.approx([-event["loss_test"] for event in run.events() if event["event"] == "round"])


def test_no_figure_of_a_round_or_a_row_can_be_replaced(tmp_path):
    asked = {**QUICK, "train.evaluate.personal": True, "train.targets": [0.1], "method.name": "flips"}
    done = fedstrata.compare(methods="fedavg,flips", overrides={k: v for k, v in asked.items() if k != "method.name"},
                             seeds=2, metric=[*HIGHER, *SHORT], out=tmp_path / "c")  # fmt: skip
    fields = {key for event in fedstrata.train(overrides=asked).events() if event["event"] == "round" for key in event}
    for name in {*fields, *(key for row in done.rows for key in row), *HIGHER, *SHORT}:
        with pytest.raises(RequestError, match="as another one is"):
            _check_name("Mine", name, [])


def test_labels_are_in_their_own_order_also_where_the_server_has_placeholders():
    asked = {**QUICK, "method.name": "flips", "train.evaluate.metrics": [RecallOf(3)], "train.rounds": 8}
    asked["data.partition"] = {"kind": "iid"}
    plain, masked = (
        fedstrata.train(overrides={**asked, "privacy.labels": labels, "train.seed": 3}) for labels in ("none", "prf")
    )
    for run in (plain, masked):
        event = next(event for event in reversed(list(run.events())) if event["event"] == "round")
        assert event["recall_of"] == pytest.approx(event["recall"][3])
        assert len(set(event["recall"])) > 5, "each label has another recall, so that order tells"


def test_methods_are_compared_by_them(tmp_path):
    asked = {**QUICK, "train.evaluate.metrics": ["macro-f1", WorstRecall()]}
    found = fedstrata.compare(
        methods="fedavg,flips", seeds=2, metric="macro_f1,worst_recall", overrides=asked, out=tmp_path / "c"
    )
    for row in found.rows:
        runs = [fedstrata.Run(folder).summary["metrics"]["macro_f1"] for folder in row["run_dirs"]]
        assert row["macro_f1"]["mean"] == pytest.approx(np.mean(runs))
        assert f"{100 * np.mean(runs):.1f} [" in found.table(width=200)
    assert "macro f1 in %: mean" in found.table(width=200)
    assert "worst recall in % too" in found.table(width=200)
    with pytest.raises(RequestError, match=r'"macro_f1" needs train.evaluate.metrics = \["macro-f1"\] in all'):
        fedstrata.compare(methods="fedavg,flips", metric="macro_f1", overrides=QUICK)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"metrics": ["macrof1"]}, r'metrics.0.kind = "macrof1" is unknown \(did you mean "macro-f1"\?\)'),
        ({"metrics": ["macro-f1", "macro-f1"]}, r'two figures are called "macro_f1"; leave one out'),
        ({"metrics": [Accuracy()]}, r'Accuracy calls its figure "accuracy", as another one is'),
        ({"metrics": [RankAuc()]}, r'RankAuc calls its figure "rank_auc", as another one is'),
        ({"metrics": [Dashed()]}, r'Dashed calls its figure "my-figure"; allowed: letters'),
        ({"best": "macro_f1"}, r'train.evaluate.best = "macro_f1" is unknown; allowed: accuracy'),
        ({"metrics": [Words()]}, r"Words: `measure` gave 'good', which is no number"),
    ],
)
def test_what_is_refused(asked, said):
    with pytest.raises(RequestError, match=said):
        fedstrata.train(overrides={**QUICK, **{f"train.evaluate.{key}": value for key, value in asked.items()}})


def test_no_metric_changes_what_others_are_given():
    with pytest.raises(ValueError, match="read-only"):
        fedstrata.train(overrides={**QUICK, "train.evaluate.metrics": [Meddling()]})


@pytest.mark.filterwarnings("ignore")
def test_sites_and_an_enclave_tell_no_answers():
    asked = {**QUICK, "train.evaluate.metrics": ["auroc"]}
    with pytest.raises(RequestError, match=r"leave it out at sites and in an enclave"):
        build_session(Experiment.of(**asked), tiny_federation(), remote=SimpleNamespace(set_up=None))
    insecure = {"clustering": "enclave", "enclave": {"attestation": "dev-insecure", "allow_insecure": True}}
    with pytest.raises(RequestError, match=r"leave it out at sites and in an enclave"):
        fedstrata.train(overrides={**asked, "method.name": "flips", "privacy": insecure})


def test_the_command_line_tells_them(capsys, tmp_path):
    asked = ["--set", "train.rounds=2", "--set", "train.evaluate.metrics=macro-f1,auroc", "--out", str(tmp_path / "r")]
    app(["run", "-q", *asked], standalone_mode=False)
    said = capsys.readouterr().out
    summary = json.loads((tmp_path / "r/summary.json").read_text())
    assert f"macro_f1               {100 * summary['metrics']['macro_f1']:.1f} %" in said
    assert "auroc  " in said


def test_a_report_draws_them_without_the_class(tmp_path):
    run = fedstrata.train(overrides={**QUICK, "train.evaluate.metrics": [WorstRecall()]}, out=tmp_path / "r")
    assert list(run.summary["metrics"]) == ["worst_recall"]
    asked = tmp_path / "r/experiment.toml"
    assert __name__ in asked.read_text()
    asked.write_text(asked.read_text().replace(__name__, "somewhere.else"))
    page = tmp_path / "report.html"
    app(["report", str(tmp_path / "r"), "-o", str(page)], standalone_mode=False)
    assert 'data-figure="worst-recall"' in page.read_text()
    assert "<h3>Worst recall</h3>" in page.read_text()
