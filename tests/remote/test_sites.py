"""Real sites without a network: the same run as on one machine, and what becomes of sites that fail."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from in_process_sites import SITES, SMALL, Here, at_sites, hosts, introduce, model

from fedstrata import RequestError, train
from fedstrata.cli.run import conclude
from fedstrata.config.experiment import Experiment
from fedstrata.core.index import Split
from fedstrata.core.messages import Report
from fedstrata.core.wire import pack, pack_report, unpack, unpack_report
from fedstrata.deploy.keys import make
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.introduction import Introduction
from fedstrata.remote.protocol import build_refusal, build_reply, build_request, read_reply, split
from fedstrata.remote.server.federation import common_classes, labels_of_one
from fedstrata.remote.server.session import run_at_sites
from fedstrata.remote.transport import Failure

METHODS = {
    "fedavg": {},
    "flips and fedyogi": {"method.name": "flips", "method.server_step": "yogi", "train.clients_per_round": 2},
    "terraform": {"method.name": "terraform"},
    "fedbss": {"method.name": "fedbss", "method.sampler.warmup": 0},
    "scaffold": {"method.name": "scaffold"},
    "power-of-choice": {"method.selector": "power-of-choice", "train.clients_per_round": 2},
    "moon": {"method.name": "moon"},
    "gradclus": {"method.selector": "gradclus", "train.clients_per_round": 2},
    "median": {"method.combiner": "median"},
    "stratify-batch with batch norm": {
        "method.name": "stratify-batch",
        "model.name": "mlp",
        "model.norm": "batch",
        "train.rounds": 1,
        "method.schedule.length": 100,
        "train.batch_size": 20,
    },
    "stratify-batch, compressed": {
        "method.name": "stratify-batch",
        "method.driver": {"kind": "sync", "up": "top-k", "top": 0.2, "down": "bf16"},
        "train.rounds": 1,
        "method.schedule.length": 100,
        "train.batch_size": 20,
    },
    "stratify-batch in 8 bits": {
        "method.name": "stratify-batch",
        "method.driver": {"kind": "sync", "up": "int8"},
        "train.rounds": 1,
        "method.schedule.length": 100,
        "train.batch_size": 20,
    },
    "stratify-single": {"method.name": "stratify-single", "train.rounds": 1, "method.schedule.length": 40},
    "fedtan": {"method.name": "fedtan", "model.name": "mlp", "model.norm": "batch", "train.rounds": 1},
}


@pytest.mark.parametrize("name", METHODS)
def test_a_run_at_sites_equals_the_run_on_one_machine(tmp_path, name):
    here = train(overrides=SMALL | METHODS[name], out=tmp_path / "here")
    there = at_sites(tmp_path, METHODS[name])
    assert float((model(here) - model(there)).abs().max()) < 1e-9
    assert there.summary["accuracy"] == pytest.approx(here.summary["accuracy"], abs=1e-12)
    assert [there.summary[k] for k in ("bytes_up", "bytes_down")] == [
        here.summary[k] for k in ("bytes_up", "bytes_down")
    ]


def test_evaluation_at_sites_has_an_account_of_its_own_and_a_missing_stream_is_an_event(tmp_path):
    run = at_sites(tmp_path, {"train.rounds": 4, "train.evaluate.every": 2}, no_stream="bonn: no route to host")
    start, *_ = run.events()
    answer = 2 * len(start["classes"]) + 1  # right and tested of every label, and the loss
    assert run.summary["bytes_evaluate"] == 2 * len(SITES) * 8 * (start["parameters"] + answer)
    assert train(overrides=SMALL | {"train.rounds": 1}, out=tmp_path / "here").summary["bytes_evaluate"] == 0
    (event,) = [event for event in run.events() if event["event"] == "fallback"]
    assert (event["what"], event["why"]) == ("stream", "bonn: no route to host")


def untested(federation):
    return replace(federation, test=federation.test.keep(np.arange(0)), test_split=Split.of([np.arange(0)]))


def test_sites_without_test_samples_are_refused_before_they_train(tmp_path):
    transport = Here(hosts(SMALL, having=untested))
    with pytest.raises(RequestError, match="no test samples"):
        run_at_sites(transport, Experiment.of(None, **SMALL), tmp_path / "run", len(SITES))
    assert not (tmp_path / "run" / "events.jsonl").exists()


class Unscored(Here):
    """Loses what sites say of the model in some rounds."""

    def __init__(self, lost, overrides=SMALL):
        super().__init__(hosts(overrides))
        self.lost, self.round = lost, 0

    def exchange(self, requests, deadline=None, enough=None):
        said = super().exchange(requests, deadline, enough)
        if any(b"evaluate" in request[:200] for request in requests.values()):
            self.round += 1
            return {} if self.round in self.lost else said
        return said


@pytest.mark.parametrize("method", [{}, METHODS["stratify-single"]])
def test_a_run_whose_evaluations_nobody_answers_has_its_model_and_says_so(tmp_path, cli, capsys, method):
    overrides = SMALL | method
    transport = Unscored(range(1, 100), overrides)
    run = run_at_sites(transport, Experiment.of(None, **overrides), tmp_path / "run", len(SITES))
    assert (tmp_path / "run" / "model.safetensors").exists()
    figures = ("accuracy", "best_accuracy", "best_accuracy_round", "accuracy_last10", "loss_test")
    assert [run.summary[name] for name in figures] == [None] * len(figures)
    assert any("no evaluation was answered" in remark for remark in run.summary["remarks"])
    assert "accuracy not known" in repr(run)
    conclude(run, as_json=False)
    assert re.search("best_accuracy +not known\n", capsys.readouterr().out)
    assert cli("report", str(run.path))[0] == 0


def test_figures_of_an_earlier_round_than_the_last_are_told_as_such(tmp_path):
    run = run_at_sites(Unscored([3]), Experiment.of(None, **SMALL), tmp_path / "run", len(SITES))
    assert run.summary["accuracy"] is not None
    assert "round 3 was not evaluated: the figures are those of round 2" in run.summary["remarks"]


def test_a_run_at_sites_goes_on_where_it_stopped(tmp_path):
    overrides = SMALL | {"method.name": "scaffold"}
    whole = at_sites(tmp_path / "whole", {"method.name": "scaffold"})
    transport = Here(hosts(overrides))

    def watch(event):
        if event["event"] == "round" and event["round"] == 1:
            raise KeyboardInterrupt

    experiment = Experiment.of(None, **overrides)
    with pytest.raises(KeyboardInterrupt):
        run_at_sites(transport, experiment, tmp_path / "cut" / "sites", len(SITES), watch=watch)
    cut = run_at_sites(transport, experiment, tmp_path / "cut" / "sites", len(SITES), resumed=True)
    assert torch.equal(model(whole), model(cut))


def reported(change):
    """Change what one site reports in the second round."""

    def tamper(name, kind, reply):
        if name != "bonn" or kind != "task":
            return reply
        _, said, data = split(reply)
        report = unpack_report(data)
        tamper.seen += 1
        return build_reply(said, change(report)) if tamper.seen == 2 else reply

    tamper.seen = 0
    return tamper


def changed(**values):
    def change(report: Report) -> bytes:
        fields = {**vars(report), **values}
        if "aggregated" in values:
            fields["aggregated"] = values["aggregated"](report.aggregated)
        return pack_report(Report(**fields))

    return change


def headed(**values):
    """Write fields into a report that no report of ours can have."""

    def change(report: Report) -> bytes:
        header, tensors = unpack(pack_report(report))
        return pack(header | values, tensors)

    return change


VAST = 10**400  # a whole number that no float can hold

STRANGE = {
    "NaN": (changed(aggregated=lambda s: {k: t * torch.nan for k, t in s.items()}), "not finite"),
    "wrong shape": (changed(aggregated=lambda s: {k: t[:-1] for k, t in s.items()}), "another shape"),
    "missing": (changed(aggregated=lambda s: {}), "another shape"),
    "huge": (changed(aggregated=lambda s: {k: t * 1e12 for k, t in s.items()}), "no training gives"),
    "other type": (changed(aggregated=lambda s: {k: t.float() for k, t in s.items()}), "comes as"),
    "other client": (changed(client=0), "reports for client"),
    "negative samples": (changed(samples=-5), "samples = -5"),
    "garbage": (lambda report: b"\x00" * 50, "cannot be read"),
    "whole numbers": (changed(aggregated=lambda s: {k: t.long() for k, t in s.items()}), "comes as torch.int64"),
    "more tensors": (
        changed(open_tensors={"x": torch.zeros(3, dtype=torch.float64)}),
        "other tensors than those of the others",
    ),
    "client of another type": (headed(client=1.0), "reports for client 1.0"),
    "vast samples": (headed(samples=VAST), "samples = 1000"),
    "half a sample": (headed(samples=0.5), "samples = 0.5"),
    "vast loss": (headed(loss=VAST), "no numbers for its loss"),
    "bytes in words": (headed(nbytes="many"), "nbytes = 'many'"),
    "bytes that are none": (headed(received=float("nan")), "received = nan"),
    "a table for a number": (headed(metrics={"utility": {}}), "utility = {}"),
    "a number that is none": (headed(metrics={"utility": float("nan")}), "utility = nan"),
    "a header that is none": (lambda report: pack([], {}), "cannot be read"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_report_that_cannot_be_one_is_refused_and_the_run_goes_on(tmp_path, name):
    change, why = STRANGE[name]
    run = at_sites(tmp_path, {}, reported(change))
    said = [e for e in run.events() if e["event"] in ("site_refused", "dropped") and e["round"] == 2]
    assert any(why in e["why"] for e in said)
    assert run.summary["rounds"] == 3
    assert torch.isfinite(model(run)).all()


@pytest.mark.parametrize("head", [{}, {"HeadUpdate/head": torch.zeros(3, dtype=torch.float64)}], ids=["none", "short"])
def test_sites_that_all_hide_how_their_head_moved_do_not_end_the_run(tmp_path, head):
    def tamper(name, kind, reply):
        if kind != "task":
            return reply
        return build_reply(split(reply)[1], changed(open_tensors=head)(unpack_report(split(reply)[2])))

    run = at_sites(tmp_path, {"method.selector": "hics"}, tamper)
    assert run.summary["rounds"] == 3
    assert any("do not show how the head moved" in e["why"] for e in run.events() if e["event"] == "fallback")


@pytest.mark.parametrize("refused", [None, [99], [[0]], [0.5], "all", {}], ids=str)
def test_a_site_cannot_refuse_labels_that_it_was_not_asked_for(tmp_path, refused):
    def tamper(name, kind, reply):
        if name != "bonn" or kind != "task" or split(reply)[1] != b"report":
            return reply
        header, tensors = unpack(split(reply)[2])
        return build_reply(
            b"report", pack(header | {"metrics": {} if refused is None else {"refused": refused}}, tensors)
        )

    run = at_sites(tmp_path, METHODS["stratify-batch with batch norm"], tamper)
    (said,) = {e["why"] for e in run.events() if e["event"] == "site_refused"}
    assert "refuses other labels" in said or "its report says refused" in said
    assert run.summary["rounds"] == 1


@pytest.mark.parametrize(
    "index", [lambda i: i + 10**6, lambda i: -i, lambda i: i.flip(0), lambda i: i * 0], ids=["beyond", "-", "down", "0"]
)
def test_a_site_cannot_send_numbers_that_the_model_does_not_have(tmp_path, index):
    def tamper(name, kind, reply):
        if name != "bonn" or kind != "task" or b"update|index" not in reply:
            return reply
        report = unpack_report(split(reply)[2])
        moved = {**report.aggregated, "update|index": index(report.aggregated["update|index"])}
        return build_reply(split(reply)[1], pack_report(Report(**{**vars(report), "aggregated": moved})))

    run = at_sites(tmp_path, METHODS["stratify-batch, compressed"], tamper)
    (said,) = {e["why"] for e in run.events() if e["event"] == "site_refused"}
    assert "names numbers that the model does not have" in said
    assert run.summary["rounds"] == 1


FIGURES = {
    "not a table": (b"[" * 100_000, "cannot be read"),
    "vast": (json.dumps({"right": [0] * 10, "tested": [0] * 10, "loss": VAST}).encode(), "cannot be read"),
    "more than it has": (json.dumps({"right": [0] * 10, "tested": [1e9] * 10, "loss": 0}).encode(), "impossible"),
    "more right than tested": (json.dumps({"right": [1] * 10, "tested": [0] * 10, "loss": 0}).encode(), "impossible"),
    "of other labels": (json.dumps({"right": [0, 0], "tested": [0, 0], "loss": 0}).encode(), "not those of this run"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_that_cannot_be_are_left_out_of_the_score(tmp_path, name):
    told, why = FIGURES[name]
    run = at_sites(
        tmp_path,
        {"train.rounds": 1},
        lambda name, kind, reply: build_reply(told, b"") if (name, kind) == ("bonn", "evaluate") else reply,
    )
    (event,) = [e for e in run.events() if e["event"] == "site_not_scored"]
    assert event["site"] == "bonn"
    assert why in event["why"]
    assert 0 < run.summary["accuracy"] <= 1


@pytest.mark.parametrize("what", ["silent", "failing", "raising"])
def test_a_site_that_gives_nothing_is_left_out(tmp_path, what):
    answer = {"silent": None, "failing": Failure("its process ended"), "raising": build_refusal("ValueError: broken")}[
        what
    ]
    run = at_sites(tmp_path, {}, lambda name, kind, reply: answer if (name, kind) == ("bonn", "task") else reply)
    dropped = [e for e in run.events() if e["event"] == "dropped"]
    assert [e["clients"] for e in dropped] == [[1]] * (3 if what == "silent" else 1)
    refusals = [e["why"] for e in run.events() if e["event"] == "site_refused"]
    assert len(refusals) == (0 if what == "silent" else 1)
    remark = f"site bonn was left out in 3 rounds: {refusals[0] if refusals else ''}"
    assert (remark in run.summary["remarks"]) == (what != "silent")


def test_too_few_sites_and_sites_that_do_not_fit_are_refused_by_name(tmp_path):
    with pytest.raises(RequestError, match="3 sites are there, and 4 are wanted"):
        run_at_sites(Here(hosts(SMALL)), Experiment.of(None, **SMALL), tmp_path / "few", 4)
    fits = Introduction((8, 8), "float32", (0, 1), 5, 1, 1.0, None, None, "x")
    other = {
        "shape": ({"shape": (4,)}, "site b has samples with shape"),
        "dtype": ({"dtype": "uint8"}, "dtype uint8"),
        "label type": ({"classes": ("0", "1")}, "site b has a label '0'"),
    }
    for change, why in other.values():
        with pytest.raises(RequestError, match=why):
            common_classes({"a": fits, "b": Introduction(**{**vars(fits), **change})})
    with pytest.raises(RequestError, match="'Cat'"):
        common_classes(
            {n: Introduction(**{**vars(fits), "classes": c}) for n, c in {"a": ("cat",), "b": ("Cat",)}.items()}
        )
    assert common_classes(
        {n: Introduction(**{**vars(fits), "classes": c}) for n, c in {"a": (3, 1), "b": (2,)}.items()}
    ) == (
        1,
        2,
        3,
    )


@pytest.mark.parametrize(
    ("classes", "alone"),
    [
        ({"bonn": ("a", "b"), "kiel": ("b",), "rome": ("c", "d")}, {"rome": ("c", "d")}),
        ({"bonn": ("a",), "kiel": ("a", "b"), "rome": ("b", "c")}, {}),
        ({"bonn": ("a",), "rome": ("b",)}, {"bonn": ("a",), "rome": ("b",)}),
        ({"bonn": ("a",), "rome": None}, {}),
        ({"bonn": ("a",)}, {}),
        ({"bonn": (0,), "rome": (1,)}, {}),
        ({"bonn": ("a", "b"), "kiel": ("a", "b"), "rome": ("a", "b", "bb")}, {"rome": ("bb",)}),
        ({"bonn": ("a", "b"), "kiel": ("a", "b"), "rome": ("a", "bb")}, {"rome": ("bb",)}),
        ({"bonn": ("a", "b"), "kiel": ("a", "b"), "rome": ("a", "bb", "c")}, {}),
        ({"bonn": ("a", "b"), "rome": ("a", "bb")}, {}),
    ],
)
def test_labels_of_one_site_that_look_like_another_name(classes, alone):
    facts = Introduction((8, 8), "float32", None, 5, 1, 1.0, None, None, "x")
    assert labels_of_one({name: replace(facts, classes=own) for name, own in classes.items()}) == alone


@pytest.mark.parametrize(
    "change",
    [
        {"samples": 10**30},
        {"tests": -1},
        {"speed": float("nan")},
        {"scale": float("inf")},
        {"classes": ()},
        {"counts": (1,)},
        {"counts": (1, -1)},
        {"dtype": "nn"},
        {"shape": (10**6, 10**6)},
        {"shape": (0,)},
        {"samples": "many"},
        {"more": 1},
    ],
    ids=str,
)
def test_a_description_that_cannot_be_is_refused_with_the_sites_name(change):
    fits = Introduction((8, 8), "float32", (0, 1), 5, 1, 1.0, None, None, "x").dump()
    assert Introduction.read(fits, "bonn").samples == 5
    assert Introduction.read(fits | {"classes": None, "counts": ()}, "bonn").counts == (), (
        "it counts nothing, and may say so"
    )
    with pytest.raises(RequestError, match="site bonn"):
        Introduction.read(fits | change, "bonn")


def test_samples_and_counts_stay_at_a_site_unless_a_method_needs_them(tmp_path):
    host = hosts(SMALL)["bonn"]
    (told,) = read_reply(host.answer(introduce(needs=[])), 1)
    assert json.loads(told)["counts"] is None
    (told,) = read_reply(host.answer(introduce(SMALL | {"method.name": "flips"}, needs=["counts"])), 1)
    assert sum(json.loads(told)["counts"]) == json.loads(told)["samples"]


def test_a_host_refuses_what_it_does_not_know():
    host = hosts(SMALL)["bonn"]
    for request, why in {
        build_request("dance"): "no request",
        build_request("task", b"", b""): "was restarted",
        build_request("met", b""): "was restarted",
        b"\xff\xff": "cut off",
    }.items():
        with pytest.raises(Exception, match=why):
            read_reply(host.answer(request), 1)


MASKED = {"privacy.aggregate": "masked", "privacy.encoding.bits": 64, "privacy.encoding.fraction": 40}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "all"
    make(folder, SITES)
    return folder


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_sites_sum_under_masks_without_showing_an_update(tmp_path, keys, method):
    asked_for = SMALL | {"method.name": method}
    here = train(overrides=asked_for, out=tmp_path / "here")
    open_tensors = []

    def watched(name, kind, reply):
        if kind == "task":
            open_tensors.extend(unpack_report(split(reply)[2]).aggregated)
        return reply

    transport = Here(hosts(asked_for, lambda name: Credentials.load(keys / "sites" / name)), watched)
    experiment = Experiment.of(None, **(asked_for | MASKED))
    there = run_at_sites(transport, experiment, tmp_path / "there", 3, credentials=Credentials.load(keys / "server"))
    assert not open_tensors
    assert float((model(here) - model(there)).abs().max()) < 1e-9
    assert there.summary["bytes_up"] > here.summary["bytes_up"]


def test_masked_sums_need_keys_and_the_right_ones(tmp_path, keys):
    experiment, server = Experiment.of(None, **(SMALL | MASKED)), Credentials.load(keys / "server")
    with pytest.raises(RequestError, match="needs keys"):
        run_at_sites(Here(hosts(SMALL)), experiment, tmp_path / "a", 3)
    with pytest.raises(RequestError, match="has no keys"):
        run_at_sites(Here(hosts(SMALL)), experiment, tmp_path / "b", 3, credentials=server)
    make(tmp_path / "others", SITES)
    strangers = Here(hosts(SMALL, lambda name: Credentials.load(tmp_path / "others" / "sites" / name)))
    run = run_at_sites(strangers, experiment, tmp_path / "c", 3, credentials=server)
    assert all(e["event"] != "round" or e["loss_train"] is None for e in run.events())  # nobody trusts anybody


@pytest.mark.parametrize(
    "wish",
    [
        {"method.name": "terraform"},
        {"method.selector": "oort"},
        {"method.selector": "sur"},
        {"method.selector": "power-of-choice"},
        {"method.combiner": "soft"},
        {"method.name": "fednova"},
        {"method.name": "fedpbs"},
        {"method.name": "fedcda"},
    ],
    ids=lambda wish: next(iter(wish.values())),
)
@pytest.mark.parametrize("metrics", [{}, {"text": "instead"}], ids=["missing", "other"])
def test_a_report_without_a_number_that_somebody_reads_is_refused(tmp_path, wish, metrics):
    def tamper(name, kind, reply):
        if name != "bonn" or kind != "task":
            return reply
        _, said, data = split(reply)
        return build_reply(said, changed(metrics=metrics)(unpack_report(data)))

    run = at_sites(tmp_path, wish, tamper)
    assert run.summary["rounds"] == 3
    refusals = [e for e in run.events() if e["event"] == "site_refused"]
    assert refusals
    assert all(e["site"] == "bonn" and "does not say what" in e["why"] for e in refusals)
