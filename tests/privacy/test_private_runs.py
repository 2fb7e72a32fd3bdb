"""Whole runs with [privacy]: the same models up to the encoding, also when resumed; refusals, statements, budgets."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from enclave_parties import Direct
from torch.nn.functional import cross_entropy

from fedstrata import RequestError, Run, resume, train
from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.config.sections import Differential
from fedstrata.privacy.enclave import launch
from fedstrata.privacy.labels.encoding import encode
from fedstrata.privacy.labels.masking import Transcript, mask_labels
from fedstrata.privacy.setup import describe_weak_delta, protect_engine
from fedstrata.privacy.simulated import secrets
from fedstrata.runs.session import build_session
from fedstrata.server.loop import run_round
from fedstrata.testing.tiny import in_process

SMALL = {
    "data.clients": 8,
    "model.hidden": (8,),
    "train.rounds": 3,
    "train.epochs": 1,
    "train.batch_size": 64,
    "train.clients_per_round": 5,
    "engine.precision": "fp64",
}
FLIPS_YOGI = {"method.name": "flips", "method.server_step": "yogi"}
BATCH = {"method.name": "stratify-batch", "train.rounds": 1, "method.schedule.length": 200, "train.batch_size": 40}
NORMED = {"model.name": "mlp", "model.norm": "batch"}
ALIKE = {
    "fedavg": {},
    "scaffold": {"method.name": "scaffold"},
    "soft weights": {"method.name": "fedbs"},
    "flips and yogi": FLIPS_YOGI,
    "stratify-batch": BATCH,
    "fednova with stragglers": {"method.name": "fednova", "train.clients_per_round": 8, "system.stragglers.rate": 0.2},
    "terraform": {"method.name": "terraform", "train.clients_per_round": 8},
}
INSECURE = {
    "privacy.clustering": "enclave",
    "privacy.enclave.attestation": "dev-insecure",
    "privacy.enclave.allow_insecure": True,
}
PRF = {"privacy.labels": "prf"}
FINE = {"privacy.encoding.bits": 64, "privacy.encoding.fraction": 40}


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def model(run: Run) -> torch.Tensor:
    return torch.cat([t.double().reshape(-1) for _, t in sorted(run.model().items())])


def events(run: Run, kind: str) -> list[dict]:
    return [event for event in run.events() if event["event"] == kind]


def besides_data_and_model(asked: dict) -> dict:
    return {key: value for key, value in asked.items() if key.partition(".")[0] not in ("data", "model")}


def distance(a: Run, b: Run) -> float:
    return float((model(a) - model(b)).abs().max())


# ---- masked sums -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALIKE)
def test_masked_sums_change_a_run_by_no_more_than_the_encoding(tmp_path, name):
    asked = SMALL | ALIKE[name]
    if "stratify" in name:
        asked = asked | {"engine.execution": "messages"}
    plain = train(overrides=asked, out=tmp_path / "open")
    fine = train(overrides=asked | {"privacy.aggregate": "masked"} | FINE, out=tmp_path / "fine")
    assert distance(plain, fine) < 1e-9
    assert plain.summary["accuracy"] == fine.summary["accuracy"]
    assert fine.summary["bytes_up"] > plain.summary["bytes_up"]


def test_the_default_encoding_is_close(tmp_path):
    plain = train(overrides=SMALL, out=tmp_path / "open")
    masked = train(overrides=SMALL | {"privacy.aggregate": "masked"}, out=tmp_path / "masked")
    assert 0 < distance(plain, masked) < 3 * 5 * 2.0**-20
    assert masked.summary["accuracy"] == pytest.approx(plain.summary["accuracy"], abs=0.005)


@pytest.mark.parametrize("name", ["fedavg", "stratify-batch"])
def test_losses_and_lengths_are_told_in_the_sum_alone(tmp_path, name):
    asked = SMALL | ALIKE[name] | ({"engine.execution": "messages"} if "stratify" in name else {})
    runs = {
        how: train(overrides=asked | FINE | {"privacy.aggregate": how}, out=tmp_path / how)
        for how in ("open", "masked")
    }
    plain, masked = (events(run, "round")[-1] for run in runs.values())
    assert masked["loss_train"] == pytest.approx(plain["loss_train"], abs=1e-9)
    assert (masked["update_norm"] is None) == (plain["update_norm"] is None)
    assert all("update_norm" not in step for step in masked["steps"])
    assert "only in the sum" in " ".join(runs["masked"].summary["privacy"]["server"])
    assert "how long its update is" in " ".join(runs["open"].summary["privacy"]["server"])


def test_who_reads_losses_is_still_told_them(tmp_path):
    asked = SMALL | {"method.selector": {"kind": "power-of-choice", "loss": "last"}, "privacy.aggregate": "masked"}
    run = train(overrides=asked, out=tmp_path / "run")
    assert all(length > 0 for length in events(run, "round")[-1]["steps"][0]["update_norm"].values())
    assert "how long its update is" in " ".join(run.summary["privacy"]["server"])


def test_sums_of_batch_norm_are_masked_too(tmp_path):
    asked = SMALL | BATCH | NORMED | {"engine.execution": "messages"}
    plain = train(overrides=asked, out=tmp_path / "open")
    masked = train(overrides=asked | {"privacy.aggregate": "masked"} | FINE, out=tmp_path / "masked")
    assert distance(plain, masked) < 1e-6  # norms meet in steps of 2^-32
    assert any("batch norm" in sentence for sentence in masked.summary["privacy"]["server"])


def test_whoever_is_missing_is_left_out_of_the_sum_and_too_few_are_not_summed(tmp_path):
    asked = SMALL | {"train.clients_per_round": 8, "train.rounds": 6, "system.stragglers.rate": 0.5}
    run = train(overrides=asked | {"privacy.aggregate": "masked"}, out=tmp_path / "run")
    why = {event["why"] for event in run.events() if event["event"] == "dropped"}
    assert any("too few to take the masks off" in reason for reason in why)
    assert events(run, "no_update")
    assert any("no update arrived" in remark for remark in run.summary["remarks"])


def test_a_number_that_does_not_fit_is_an_event_and_never_wraps(tmp_path):
    asked = {"privacy.aggregate": "masked", "privacy.encoding.fraction": 30, "train.lr": 5.0}
    run = train(overrides=SMALL | asked, out=tmp_path / "run")
    assert any("does not fit privacy.encoding" in e["why"] for e in run.events() if e["event"] == "dropped")


def test_a_masked_step_is_summed_once_and_never_shown(tmp_path):
    work = build_session(
        Experiment.of(None, **SMALL, **{"privacy.aggregate": "masked"}),
        build_federation(Experiment.of(None, **SMALL)),
        None,
    )
    engine = protect_engine(work.experiment, work.plan, in_process(work), len(work.federation), lambda *_, **__: None)
    state = work.initial_state()
    run_round(work.plan, state, work.plan.view(work.client_info, 0, lambda *_, **__: None), engine)
    with pytest.raises(RuntimeError, match="single updates"):
        engine.each()
    with pytest.raises(RuntimeError, match="once a step"):
        engine.collect({})


# ---- masked labels ---------------------------------------------------------------------------------------------------


def test_masked_labels_only_put_the_classes_into_another_order(tmp_path):
    for name, asked in {"flips": FLIPS_YOGI, "batch": BATCH}.items():
        experiment = Experiment.of(None, **(SMALL | asked | {"privacy.labels": "prf"}))
        federation = build_federation(experiment)
        work = build_session(experiment, federation, None)
        codes = work.private.federation.codes
        assert sorted(codes) == list(range(10))
        assert not np.array_equal(codes, np.arange(10))
        private = train(overrides=SMALL | asked | {"privacy.labels": "prf"}, out=tmp_path / name)
        plain = train(
            overrides=besides_data_and_model(SMALL | asked)
            | ({"method.schedule.replacement": True} if name == "batch" else {}),
            federation=federation.relabel(codes),
            model=work.plan.local.build(),
            out=tmp_path / f"{name}-plain",
        )
        assert distance(private, plain) == 0.0
        last = [events(run, "round")[-1]["recall"] for run in (private, plain)]
        assert last[0] == last[1]  # by label, whatever the order of the classes
        assert events(private, "labels_masked")[0]["placeholders"] == 10


def test_all_modes_train_the_same_up_to_the_order(tmp_path):
    pytest.importorskip("tenseal")
    few = SMALL | {"data.clients": 4, "train.clients_per_round": 4, "train.rounds": 1, **FLIPS_YOGI}
    few |= {"data.partition": {"kind": "labels-per-client", "labels": 2, "unowned": "drop"}}
    works = [
        build_session(
            experiment := Experiment.of(None, **few, **{"privacy.labels": mode}), build_federation(experiment), None
        )
        for mode in ("none", "prf", "ckks-paper")
    ]
    tables = [sorted(map(tuple, work.client_info.counts.T.tolist())) for work in works]
    assert tables[0] == tables[1] == tables[2]


def test_gradients_and_the_server_s_messages_name_no_label_without_an_example():
    """An adversary has all the server has, messages and plain gradients, and guesses every sample's label.

    The bias of the head names the placeholder, always. From there on it can only guess: the server drew the order of
    placeholders itself, and tokens come sorted, so that the order is right as often as chance, one time in ten.
    """
    guessed = []
    for seed in range(20):
        asked = SMALL | BATCH | {"train.seed": seed, "data.clients": 3, "data.partition": "iid"} | PRF
        experiment = Experiment.of(None, **asked)
        work = build_session(experiment, build_federation(experiment), None)
        federation, codes = work.private.federation, work.private.federation.codes
        transcript, streams = Transcript(), work.plan.streams
        masked = mask_labels(
            "prf",
            [dict(enumerate(row.tolist())) for row in work.federation.counts],
            rng=streams("placeholders"),
            entropy=lambda party, streams=streams: secrets(streams, "labels", party),
            transcript=transcript,
        )
        assert [masked.own[0][label] for label in range(10)] == codes.tolist()  # these are that run's messages
        module = work.plan.local.build().double()
        rows = torch.from_numpy(federation.train_split[0][:1])
        x = work.plan.local.inputs(federation.train.x[rows], torch.float64)
        cross_entropy(module(x), federation.train.y[rows]).backward()
        placeholder, true = int(list(module.parameters())[-1].grad.argmin()), int(work.federation.train.y[rows])
        assert codes[true] == placeholder
        guessed.append(placeholder == true)
        sent = transcript.bytes
        assert not any(encode(label) in sent for label in work.federation.classes)
    assert np.mean(guessed) < 0.4


def test_the_trained_model_names_placeholders_to_who_has_one_example_a_class(tmp_path):
    """The statement says so, and it is so: nothing hides what a model answers."""
    asked = {"train.rounds": 10, "train.clients_per_round": "all", "data.partition": "iid", "privacy.labels": "prf"}
    run = train(overrides=asked, out=tmp_path / "run")
    experiment = Experiment.of(None, **asked)
    work = build_session(experiment, build_federation(experiment), None)
    module = work.plan.local.build()
    module.load_state_dict(run.model())
    plain, codes = work.federation, work.private.federation.codes
    named = []
    for label in range(10):
        row = np.flatnonzero(plain.test.y.numpy() == label)[:1]
        x = work.plan.local.inputs(plain.test.x[torch.from_numpy(row)], torch.float32)
        named.append(int(module.eval()(x).argmax()) == codes[label])
    assert np.mean(named) > 0.7
    assert any("one public example" in sentence for sentence in run.summary["privacy"]["server"])


@pytest.mark.parametrize("name", ["flips and yogi", "stratify-batch"])
def test_masked_labels_and_masked_sums_together_change_nothing_but_the_order(tmp_path, name):
    asked = SMALL | ALIKE[name] | {"engine.execution": "messages"}
    private = asked | FINE | {"privacy.labels": "prf", "privacy.aggregate": "masked"}
    experiment = Experiment.of(None, **private)
    federation = build_federation(experiment)
    work = build_session(experiment, federation, None)
    run = train(overrides=private, out=tmp_path / "private")
    again = {"method.schedule.replacement": True} if "stratify" in name else {}  # so that nobody runs out
    plain = train(
        overrides=besides_data_and_model(asked) | again,
        federation=federation.relabel(work.private.federation.codes),
        model=work.plan.local.build(),
        out=tmp_path / "plain",
    )
    assert distance(run, plain) < 1e-9
    assert run.summary["accuracy"] == plain.summary["accuracy"]
    assert run.classes == work.private.federation.classes == plain.classes
    assert not events(run, "clients")  # the run folder is the server's: it does not hold what the server is not told
    assert "label_divergence" not in events(run, "round")[0]


# ---- clusters --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick_processes")
def test_an_enclave_selects_and_scores_as_the_open_run_does(tmp_path):
    plain = train(overrides=SMALL | FLIPS_YOGI, out=tmp_path / "open")
    run = train(overrides=SMALL | FLIPS_YOGI | INSECURE, out=tmp_path / "enclave")
    assert distance(plain, run) == 0.0
    assert run.summary["accuracy"] == plain.summary["accuracy"]
    assert not any("is told" in sentence for sentence in run.summary["privacy"]["server"])
    assert any("dev-insecure" in sentence for sentence in run.summary["privacy"]["server"])


def test_clusters_by_masked_sums_and_blurred_histograms_serve_flips(tmp_path):
    for name, asked in {
        "masked": {"privacy.clustering": "masked"},
        "noise": {"privacy.histogram_epsilon": 1.0},
    }.items():
        run = train(overrides=SMALL | FLIPS_YOGI | asked, out=tmp_path / name)
        told = " ".join(run.summary["privacy"]["server"])
        assert ("secure sums" if name == "masked" else "1-differential privacy") in told
        assert ("label every client holds" in told) == (name == "noise")


# ---- differential privacy --------------------------------------------------------------------------------------------

DP = {"method.combiner": "uniform", "privacy.dp.clip": 0.5, "privacy.dp.noise": 1.0}


@pytest.mark.parametrize("where", ["server", "local"])
@pytest.mark.parametrize("aggregate", ["open", "masked"])
def test_noise_is_added_counted_and_the_same_in_equal_runs(tmp_path, where, aggregate):
    pytest.importorskip("dp_accounting")
    asked = SMALL | DP | {"privacy.dp.where": where, "privacy.aggregate": aggregate}
    runs = [train(overrides=asked, out=tmp_path / str(i)) for i in range(2)]
    quiet = train(overrides=asked | {"privacy.dp.noise": 0.0}, out=tmp_path / "quiet")
    assert distance(*runs) == 0.0
    assert distance(runs[0], quiet) > 0.01
    assert runs[0].summary["epsilon"] > 0
    assert runs[0].summary["privacy"]["epsilon"] == runs[0].summary["epsilon"]
    assert quiet.summary["epsilon"] is None  # without noise it is infinite
    told = events(runs[0], "round")[-1]["loss_train"]
    assert (told is None) == (where == "local" or aggregate == "masked")


def test_local_noise_lets_no_other_number_out(tmp_path):
    pytest.importorskip("dp_accounting")
    asked = SMALL | DP | {"privacy.dp.where": "local", "method.sampler": "bias-aware", "train.rounds": 1}
    experiment = Experiment.of(None, **asked)
    work = build_session(experiment, build_federation(experiment), None)
    engine = protect_engine(work.experiment, work.plan, in_process(work), len(work.federation), lambda *_, **__: None)
    view = work.plan.view(work.client_info, 0, lambda *_, **__: None)
    reports = [r for o in run_round(work.plan, work.initial_state(), view, engine) for r in o.reports]
    assert all(not r.metrics and np.isnan(r.loss) and np.isnan(r.update_norm) for r in reports)


def test_a_sum_in_which_one_client_weighs_almost_all_is_not_formed(tmp_path):
    asked = SMALL | {"method.name": "fedbs", "method.combiner.tau": 100.0, "privacy.aggregate": "masked"}
    run = train(overrides=asked | {"train.rounds": 1}, out=tmp_path / "run")
    assert any("have any weight" in event["why"] for event in events(run, "dropped"))


def test_a_clipped_step_has_the_length_of_the_clip(tmp_path):
    asked = SMALL | {"train.rounds": 1, "train.lr": 1.0, "method.combiner": "uniform", "privacy.dp.clip": 1e-3}
    before = train(overrides=asked | {"train.lr": 1e-12}, out=tmp_path / "before")
    after = train(overrides=asked, out=tmp_path / "after")
    assert float((model(after) - model(before)).norm()) <= 1e-3 + 1e-9


@pytest.mark.parametrize(
    ("delta", "clients", "weak", "better"),
    [
        (None, 3, "0.0333 (by default", "1e-05"),
        (None, 99, "0.00101 (by default", "1e-05"),
        (None, 100, None, None),
        (1e-5, 3, None, None),
        (1e-3, 3, None, None),
        (0.01, 3, "0.01 (as asked for)", "1e-05"),
        (5e-4, 1000, "0.0005 (as asked for)", "1e-05"),
        (1e-5, 60_000, "1e-05 (as asked for)", "1e-06"),
    ],
)
def test_a_delta_that_promises_little_is_called_weak_and_the_one_to_set_is_not(delta, clients, weak, better):
    said = describe_weak_delta(Differential(noise=1.0, delta=delta), clients)
    assert describe_weak_delta(Differential(delta=delta), clients) is None, "nothing is promised without noise"
    if weak is None:
        assert said is None
    else:
        assert said.startswith(f"delta = {weak}")
        assert f"set privacy.dp.delta far below 1 / clients and to at most 0.001, such as {better}:" in said
        assert describe_weak_delta(Differential(noise=1.0, delta=float(better)), clients) is None


def test_a_run_and_its_statement_say_once_that_delta_is_weak(tmp_path):
    pytest.importorskip("dp_accounting")
    asked = SMALL | DP | {"train.rounds": 1}
    weak = train(overrides=asked, out=tmp_path / "weak")
    (warned,) = [event["why"] for event in events(weak, "warning")]
    assert warned.startswith("delta = 0.0125 (by default a tenth of 1 / clients) is weak")
    assert weak.summary["remarks"].count(f"privacy: {warned}") == 1
    assert weak.summary["privacy"]["differential privacy"][1] == f"{warned}."
    good = train(overrides=asked | {"privacy.dp.delta": 1e-5}, out=tmp_path / "good")
    assert not events(good, "warning")
    assert "weak" not in str(good.summary)
    assert good.summary["epsilon"] > weak.summary["epsilon"]


def test_a_run_stops_at_its_budget(tmp_path):
    pytest.importorskip("dp_accounting")
    free = train(overrides=SMALL | DP | {"train.rounds": 4}, out=tmp_path / "free")
    budget = free.summary["epsilon"] * 0.9
    run = train(overrides=SMALL | DP | {"train.rounds": 50, "privacy.dp.budget": budget}, out=tmp_path / "run")
    assert run.summary["stopped"].startswith("budget")
    assert run.summary["rounds"] < 4
    assert run.summary["epsilon"] <= budget
    seldom = DP | {"train.rounds": 50, "privacy.dp.budget": budget, "train.evaluate.every": 20}
    assert train(overrides=SMALL | seldom, out=tmp_path / "seldom").summary["accuracy"] == run.summary["accuracy"]
    with pytest.raises(RequestError, match="spent by the first round"):
        train(overrides=SMALL | DP | {"privacy.dp.budget": 1e-3}, out=tmp_path / "no")


# ---- resume, refusals, statements ------------------------------------------------------------------------------------

RESUMED = {
    "masked": {"privacy.aggregate": "masked", "system.stragglers.rate": 0.2, "train.clients_per_round": 8},
    "labels": FLIPS_YOGI | {"privacy.labels": "prf", "privacy.aggregate": "masked"},
    "enclave": FLIPS_YOGI | INSECURE | {"system.stragglers.rate": 0.3},
    "clusters": FLIPS_YOGI | {"privacy.clustering": "masked"},
    "noise": DP,
}


IN_A_PROCESS = pytest.param("enclave in a process", marks=pytest.mark.extended)


@pytest.mark.parametrize("name", [*RESUMED, IN_A_PROCESS])
def test_a_private_run_goes_on_as_if_nothing_happened(tmp_path, name, monkeypatch):
    if name == "noise":
        pytest.importorskip("dp_accounting")
    if name == "enclave":
        monkeypatch.setattr(launch, "Enclave", Direct)
    asked = SMALL | RESUMED[name.removesuffix(" in a process")]
    whole = train(overrides=asked, out=tmp_path / "whole")

    def watch(event):
        if event["event"] == "round" and event["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(overrides=asked, out=tmp_path / "cut", watch=watch)
    assert distance(whole, resume(tmp_path / "cut")) == 0.0


REFUSED = [
    ({"method.combiner": "median", "privacy.aggregate": "masked"}, "looks at single updates"),
    ({"method.name": "fedcda", "privacy.aggregate": "masked"}, "looks at single updates"),
    ({"method.selector": "gradclus", "privacy.aggregate": "masked"}, "looks at single updates"),
    ({"method.selector": "hics", "privacy.aggregate": "masked"}, "looks at single updates"),
    ({"method.name": "stratify-single", "privacy.aggregate": "masked"}, "does not fit a chain"),
    ({"train.clients_per_round": 2, "privacy.aggregate": "masked"}, "at least 3 clients"),
    ({"privacy.clustering": "masked"}, 'use method.selector = "flips"'),
    ({"method.name": "flips", "privacy.clustering": "enclave"}, "measurement"),
    (
        {"method.name": "flips", "privacy.clustering": "enclave", "privacy.enclave.attestation": "dev-insecure"},
        "allow",
    ),
    ({"privacy.histogram_epsilon": 1.0}, "asks no client for its label counts"),
    ({"method.name": "flips", "privacy.labels": "prf", "data.drift": {}}, "data.drift"),
    ({"method.name": "stratify-batch", "method.schedule.clients": "weighted", **PRF}, 'use "binomial"'),
    ({"method.name": "stratify-single", "method.schedule.clients": "remaining", **PRF}, 'use "binomial"'),
    ({"method.name": "stratify-batch", "method.schedule.replacement": False, **PRF}, "knows everybody's counts"),
    ({"method.name": "stratify-single", "method.schedule.clients": "binomial"}, "global batches"),
    (
        {"method.name": "stratify-batch", "method.schedule.clients": "binomial", "method.schedule.replacement": False},
        "leave replacement out",
    ),
    ({"method.name": "stratify-batch", "model.init": "nowhere.safetensors", **PRF}, "in that run's folder"),
    ({"method.name": "fedga-greedy", "data.proxy": 20, "privacy.labels": "prf"}, "data.proxy"),
    ({"data.clients": 2, "privacy.labels": "prf"}, "at least 3"),
    ({"method.selector": "oort", "privacy.dp.noise": 1.0}, "it reads"),
    ({"method.name": "scaffold", "privacy.dp.noise": 1.0}, "more than the update"),
    ({"method.name": "fedbs", "privacy.dp.noise": 1.0}, "weights must not depend"),
    ({"method.name": "stratify-batch", "privacy.dp.noise": 1.0}, "one sum a round"),
    ({"privacy.dp.budget": 1.0}, "without noise epsilon is infinite"),
    ({"method.name": "flips", "privacy.labels": "prf", "privacy.histogram_epsilon": 1.0}, "exact totals"),
    ({"method.name": "flips", "privacy.histogram_epsilon": 1.0, **INSECURE}, "exact counts go there"),
    (
        {"method.name": "flips", "method.selector.features": "counts", "privacy.clustering": "masked"},
        "clusters of shares",
    ),
    ({"privacy.encoding.fraction": 40, "privacy.aggregate": "masked"}, "privacy.encoding.fraction = 40"),
    ({"privacy.labels": "rot13"}, "privacy.labels"),
    ({"privacy.encoding.bits": 16, "privacy.aggregate": "masked"}, "privacy.encoding.bits"),
]


@pytest.mark.parametrize(("asked", "why"), REFUSED)
def test_what_does_not_fit_is_refused_with_the_reason(tmp_path, asked, why):
    with pytest.raises(RequestError, match=why):
        train(overrides={"train.rounds": 1} | asked, out=tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_every_summary_says_who_could_learn_what(tmp_path):
    said = {
        name: train(overrides=SMALL | {"train.rounds": 1} | asked, out=tmp_path / name).summary["privacy"]
        for name, asked in {
            "open": {},
            "oort": {"method.selector": "oort"},
            "chain": {"method.name": "stratify-single", "method.schedule.length": 20},
            "masked": {"privacy.aggregate": "masked"},
        }.items()
    }
    for statement in said.values():
        assert {"server", "other clients", "server with a client", "note"} <= statement.keys()
    assert any("every client's update" in s for s in said["open"]["server"])
    assert any("Oort reads" in s for s in said["oort"]["server"])
    assert "next client of a chain" in said["chain"]
    assert any("no single one" in s for s in said["masked"]["server"])
    assert any("two thirds" in s for s in said["masked"]["server with a client"])
