"""What a run along a schedule says of single clients: true figures or none, the same however it is run."""

import numpy as np
import pytest

import fedstrata
from fedstrata import Stratified
from fedstrata.methods.schedules.transfers import expected_entries, expected_transfers, served_evenly
from fedstrata.report.run_data import RunData

METHODS = pytest.mark.parametrize("method", ["stratify-batch", "stratify-single"])
COUNTS = np.array([[40, 0, 5], [10, 30, 5], [10, 10, 5], [0, 0, 45]])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Train, or give the run that was trained so before: nobody changes one."""
    known = {}

    def train(method, **overrides):
        key = method, *sorted(overrides.items())
        if key not in known:
            asked = {"data.clients": 8, "data.partition": {"kind": "dirichlet-class", "alpha": 0.5}, "train.rounds": 2}
            out = tmp_path_factory.mktemp("made") / "run"
            known[key] = fedstrata.train(method=method, overrides=asked | overrides, out=out)
        return known[key]

    return train


def rounds(run):
    return [event for event in run.events() if event["event"] == "round"]


# ---- what is told of single clients ---------------------------------------------------------------------------------


@METHODS
def test_figures_by_client_are_the_same_fused_and_by_messages(method, made):
    fused, told = (made(method, **{"engine.execution": way}) for way in ("fused", "messages"))
    assert RunData.read(fused.path).participation().tolist() == RunData.read(told.path).participation().tolist()
    assert RunData.read(fused.path).participation().sum() == fused.summary["client_updates"] > 2 * 8
    assert fused.summary["transfers"] == told.summary["transfers"]
    assert fused.summary["best_epoch"] == told.summary["best_epoch"]
    for one, other in zip(rounds(fused), rounds(told), strict=True):
        assert one["loss_train"] == pytest.approx(other["loss_train"], rel=1e-4)
        assert one["update_norm"] is other["update_norm"] is None


def test_a_round_run_as_one_tells_no_length_of_single_updates(made):
    run = made("stratify-batch", **{"engine.execution": "fused", "train.batch_size": 5_000})
    assert [sorted(step) for step in rounds(run)[0]["steps"]] == [["client_updates", "clients", "kind", "times"]]
    assert rounds(run)[0]["update_norm"] is None  # one batch a round: it would be the whole round's for everybody
    assert fedstrata.client_updates(run) == []


# ---- transfers: f_freq ----------------------------------------------------------------------------------------------


def test_what_everybody_gives_until_it_has_no_more_by_hand():
    assert served_evenly(np.array([40.0, 10.0, 10.0, 0.0]), 60).tolist() == [40, 10, 10, 0]
    assert served_evenly(np.array([40.0, 10.0, 10.0, 0.0]), 35).tolist() == [15, 10, 10, 0]
    assert served_evenly(np.array([40.0, 10.0, 10.0, 0.0]), 15).tolist() == [5, 5, 5, 0]
    assert served_evenly(np.array([3.0, 1.0]), 0).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("options", "entries"),
    [
        ({"frequency": "capped"}, [45, 45, 25, 45]),  # every sample once
        ({"each": 30}, [10 + 5, 10 + 20 + 5, 10 + 10 + 5, 15]),  # up to a level: 10 of label 0, 20, 15 of label 2
        ({"each": 30, "clients": "weighted"}, [20 + 2.5, 5 + 22.5 + 2.5, 5 + 7.5 + 2.5, 22.5]),
        ({"each": 30, "replacement": True}, [10 + 7.5, 10 + 15 + 7.5, 10 + 15 + 7.5, 7.5]),
        (
            {"each": 80},
            [40 + 20 / 3 + 10, 10 + 20 / 3 + 60 + 10, 10 + 20 / 3 + 20 + 10, 50],
        ),  # passes, then up to a level
        ({"each": 80, "on_empty": "drop"}, [45, 45, 25, 45]),
    ],
)
def test_expected_entries_by_hand(options, entries):
    assert expected_entries(Stratified(**options), COUNTS) == pytest.approx(entries)


def test_expected_transfers_of_batches_by_hand():
    """One client in two: of 10 batches of 4 entries it misses each with chance 1/16."""
    counts = np.array([[20], [20]])
    assert expected_transfers(Stratified(), counts, 4) == pytest.approx([10 * 15 / 16] * 2)
    assert expected_transfers(Stratified(), counts, None).tolist() == [20, 20]


def test_counted_transfers_are_those_expected(made):
    """With chunks of one only neighbours that are the same client are spared, about one entry in eight."""
    single = made("stratify-single", **{"method.schedule.chunk": 1}).summary["transfers"]
    batch = made("stratify-batch", **{"train.batch_size": 16}).summary["transfers"]
    expected, counted = (np.array(single[key]["clients"]) for key in ("expected", "counted"))
    share = expected / expected.sum()
    assert counted == pytest.approx(expected * (1 - share), rel=0.12)
    assert batch["counted"]["mean"] == pytest.approx(batch["expected"]["mean"], rel=0.1)
    larger = made("stratify-single", **{"method.schedule.chunk": 50}).summary["transfers"]
    assert larger["counted"]["mean"] < 0.9 * single["counted"]["mean"] < single["expected"]["mean"]


def test_the_best_epoch_counts_epochs_not_rounds_and_other_methods_have_none(made):
    run = made("stratify-batch", **{"method.schedule.rounds_per_epoch": 4, "train.rounds": 6})
    curve = run.curve("accuracy")
    assert run.summary["best_epoch"] == int(np.argmax(curve)) // 4 + 1
    assert run.summary["transfers"]["epochs"] == 1.5
    assert {"best_epoch", "transfers"}.isdisjoint(made("fedavg").summary)


def test_where_data_are_hidden_no_client_is_told_apart(made):
    run = made("stratify-batch", **{"privacy.labels": "prf", "train.rounds": 1})
    assert [sorted(run.summary["transfers"][key]) for key in ("counted", "expected")] == [["mean"]] * 2


# ---- the model at the end of an epoch -------------------------------------------------------------------------------


@pytest.mark.parametrize("execution", ["fused", "messages"])
@pytest.mark.parametrize(("parts", "times"), [(1, 2), (2, 1)])
def test_when_an_epoch_is_over_everybody_gets_the_model(execution, parts, times, made):
    asked = {"engine.execution": execution} | ({"method.schedule.rounds_per_epoch": parts} if parts > 1 else {})
    run = made("stratify-single", **asked)
    steps = [step for event in rounds(run) for step in event["steps"]]
    delivered = [step for step in steps if step["kind"] == "deliver"]
    assert [len(step["clients"]) for step in delivered] == [8] * times
    model = 4 * next(e["parameters"] for e in run.events() if e["event"] == "start")
    first = [e for e in run.events() if e["event"] == "schedule"]
    numbers = run.summary["bytes_down"] - times * 8 * model - len(first) * model  # labels and addresses
    assert 0 < numbers < model * len(first) + 8 * 40 * run.summary["client_updates"]
    assert "deliver" not in {s["kind"] for e in rounds(made("stratify-batch")) for s in e["steps"]}


def test_who_draws_for_itself_is_asked_in_every_batch_and_no_formula_is_told(made):
    run = made("stratify-batch", **{"method.schedule.clients": "binomial", "train.rounds": 1})
    assert run.summary["transfers"].keys() == {"epochs", "counted"}
