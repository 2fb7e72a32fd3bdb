"""`fedstrata inspect`: advice on known partitions, what it costs and reveals, the command line, the page."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sweeping import sweep

import fedstrata
from fedstrata import Experiment, Federation, RequestError, inspect
from fedstrata.config.build import build_federation, build_plan
from fedstrata.core.registry import make_part
from fedstrata.inspection import inspection, measured, rules
from fedstrata.inspection.measured import leaves
from fedstrata.inspection.rehearsal import rehearse


def by_rules(found) -> list[str]:
    """Return the advice of the rules that are written by hand; what is fitted to runs comes first, or after FedAvg."""
    told = [advice.recipe for advice in found.advice]
    (fitted,) = {leaf.recipe for leaf in leaves(measured.read_tree())} & set(told)
    assert told.index(fitted) == (told == ["fedavg", fitted])
    return [recipe for recipe in told if recipe != fitted]


def advised(**overrides) -> list[str]:
    return by_rules(inspect(overrides=overrides))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"data.partition.kind": "iid"}, ["fedavg"]),
        ({"data.partition.kind": "quantity"}, ["fedavg"]),
        ({"data.partition.kind": "iid", "data.noise": {"labels": 0.3}}, ["fedbss", "fedavg"]),
        ({"data.partition": {"kind": "labels-per-client", "labels": 1}}, ["stratify-batch", "flips"]),
        ({"data.partition": {"kind": "shards", "shards": 2}}, ["stratify-batch", "flips"]),
        ({"data.clients": 10, "data.partition.alpha": 0.5, "train.clients_per_round": "all"}, ["fedpbs"]),
        ({"data.clients": 10, "data.partition.alpha": 3.0, "train.clients_per_round": "all"}, ["fedpbs"]),
        (
            {"data.clients": 40, "data.partition": {"kind": "dirichlet-client", "alpha": 0.2}},
            ["stratify-batch", "flips"],
        ),
    ],
)
def test_known_partitions_get_known_advice(overrides, expected):
    assert advised(**overrides) == expected


BEATS = (0.828, 0.025, 0.066, 0.007, 0.073)  # shares of the labels of MIT-BIH
MOLES = (0.670, 0.111, 0.110, 0.051, 0.033, 0.014, 0.011)  # and of HAM10000


@sweep(
    lambda shares, alpha, rate: (alpha, rate) == (0.3, 0.15),
    shares=[BEATS, MOLES, [0.1] * 10],
    alpha=[0.3, 0.6],
    rate=[0.15, 0.2],
)
def test_flips_is_advised_in_its_own_paper_s_settings(shares, alpha, rate):
    found = inspect(counts=dealt(shares, alpha), overrides={"train.clients_per_round": rate})
    because = {advice.recipe: advice.because for advice in found.advice}
    if alpha == 0.6 and len(shares) == 10:  # rounds of these clients are as balanced without
        assert "flips" not in because
        return
    rare = "nearer to even shares: rare labels are seen more often"
    assert (rare in because["flips"]) == (len(shares) < 10)
    assert found.measures.round_balance.clusters == len(shares)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.extended)])
def test_flips_is_advised_whatever_the_seed_of_such_a_partition(seed):
    found = inspect(counts=dealt([0.1] * 10, 0.3, seed), overrides={"train.clients_per_round": 0.2})
    assert "flips" in by_rules(found)


def test_the_experiment_s_own_flips_is_measured_and_what_to_type_for_the_other_is_told(cli):
    few = {"train.clients_per_round": 5}
    usual, own = inspect(overrides=few), inspect(overrides=few | {"method.name": "flips"})
    assert usual.measures.own_balance is None
    assert own.measures.round_balance == usual.measures.round_balance
    clusters = own.measures.own_balance.clusters
    assert clusters > 5, "as many as the elbow finds, as in a run"
    run = fedstrata.train(overrides=few | {"method.name": "flips", "train.rounds": 1})
    assert next(event for event in run.events() if event["event"] == "clusters")["clusters"] == clusters
    told = next(one for one in usual.readings if one.name == "labels of a round")
    assert "every label equally often" in told.meaning
    assert "a round of a single label is 2.3 nats from those" in told.meaning
    assert "FLIPS is measured with method.selector.clusters=5; without it," in told.meaning
    told = next(one for one in own.readings if one.name == "labels of a round")
    assert f"{own.measures.own_balance.flips:.3f} with your FLIPS" in told.value
    better = f"with method.selector.clusters=5 it would be {usual.measures.round_balance.flips:.3f}"
    assert f"FLIPS takes clients from {clusters} clusters here; {better}" in told.meaning
    sets = ("method.name=flips", "method.selector.clusters=5", "train.clients_per_round=5")
    code, out, _ = cli("inspect", *(word for one in sets for word in ("--set", one)), "--json")
    assert code == 0, "what is told can be typed"
    found = json.loads(out)
    assert found["measures"]["own_balance"] == found["measures"]["round_balance"]
    assert "FLIPS takes clients from 5 clusters here." in found["meanings"]["labels of a round"]
    assert "clusters" not in found["advice"][0]["command"], "it is no option of another method"


def dealt(shares, alpha, seed=0):
    """Return the counts of 200 clients, dealt out as FLIPS' authors do."""
    y = np.repeat(np.arange(len(shares)), (np.array(shares) * 20_000).astype(int))
    x, partition = np.zeros((len(y), 1), np.float32), make_part("partitions", "dirichlet-class", alpha=alpha)
    return Federation.from_arrays(x, y, 200, partition=partition, test=(x[:2], y[:2]), seed=seed).counts


def test_clients_of_mixed_skew_get_terraform_if_enough_of_them_train():
    mixed = {"data.clients": 50, "data.partition": {"kind": "mixed-alpha", "alphas": [0.001, 0.01, 0.1, 1.0, 10.0]}}
    assert "terraform" in advised(**mixed)
    assert "terraform" not in advised(**mixed, **{"train.clients_per_round": 5})


def test_domains_that_look_different_get_terraform():
    rng = np.random.default_rng(0)
    groups, y = np.repeat(np.arange(4), 60), np.tile(np.arange(3), 80)
    x = (rng.normal(size=(240, 5)) + 3 * groups[:, None]).astype(np.float32)
    federation = Federation.from_arrays(x, y, np.repeat(np.arange(24), 10), test=(x, y, groups), groups=groups)
    found = inspect(federation=federation)
    assert found.measures.domains.told_apart > 0.5
    assert "terraform" in [advice.recipe for advice in found.advice]


def test_domains_that_look_different_are_skew_though_labels_are_even():
    """Four clients, each with a domain: too few a round for Terraform, and FedAvg had "no skew to repair"."""
    rng = np.random.default_rng(0)
    groups, y = np.repeat(np.arange(4), 60), np.tile(np.arange(3), 80)
    x = (rng.normal(size=(240, 5)) + 3 * groups[:, None]).astype(np.float32)
    for clients, because in ((groups, "no label skew to repair"), (np.tile(np.arange(4), 60), "no skew to repair")):
        advice = inspect(federation=Federation.from_arrays(x, y, clients, groups=groups, test=(x, y, groups))).advice
        fedavg = next(one for one in advice if one.recipe == "fedavg")
        assert because in fedavg.because
        assert ("not there" in fedavg.mind) == ("label skew" not in because)
        assert (advice[0] is fedavg) == ("label skew" not in because), "what did well in general comes first"


def test_unequal_sizes_get_fednova_only_where_labels_are_skewed():
    rng = np.random.default_rng(0)
    sizes = rng.pareto(1.0, 30) * 20 + 2
    counts = np.array([rng.multinomial(int(n), rng.dirichlet(np.full(5, 0.5))) for n in sizes])
    assert "fednova" in [advice.recipe for advice in inspect(counts=counts).advice]
    even = np.array([rng.multinomial(int(n), np.full(5, 0.2)) for n in sizes])
    assert by_rules(inspect(counts=even)) == ["fedavg"]


def test_samples_with_two_labels_get_fedbss():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 4)).astype(np.float32)
    x[:10] = x[10:20]
    y = np.arange(100) % 3
    rows = np.array_split(rng.permutation(100), 5)
    assert by_rules(inspect(federation=Federation.from_arrays(x, y, rows, test=(x, y))))[0] == "fedbss"


# ---- what it costs and reveals


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedpbs", "flips", "power-of-choice", "sfl"])
def test_what_is_rehearsed_is_what_a_run_costs(method):
    table = {"method": {"name": method}, "model": {"hidden": [8]}, "engine": {"vmap": "never"}}
    table["train"] = {"rounds": 2, "epochs": 1, "batch_size": 64}
    experiment = Experiment.of(table)
    federation = build_federation(experiment)
    cost = rehearse(build_plan(experiment, federation), federation)
    run = fedstrata.train(experiment).summary
    assert cost.client_updates == run["client_updates"] / 2
    assert cost.bytes == sum(run[f"bytes_{way}"] for way in ("up", "down", "p2p")) / 2
    assert cost.setup_bytes == run["bytes_setup"]


@pytest.mark.parametrize(("method", "norm"), [("stratify-batch", "batch"), ("stratify-single", "none")])
def test_a_schedule_is_rehearsed_in_part_and_counted_up(method, norm, monkeypatch):
    table = {"method": {"name": method}, "model": {"hidden": [8], "norm": norm}, "train": {"rounds": 1}}
    experiment = Experiment.of(table)
    federation = build_federation(experiment)
    run = fedstrata.train(experiment).summary
    for most, within in ((5_000, 0.05), (500, 0.25)):  # all of it, and a third
        monkeypatch.setattr("fedstrata.inspection.rehearsal.ENTRIES", most)
        cost = rehearse(build_plan(experiment, federation), federation)
        assert cost.client_updates == pytest.approx(run["client_updates"], rel=within)
        assert cost.bytes == pytest.approx(sum(run[f"bytes_{way}"] for way in ("up", "down", "p2p")), rel=within)


def test_terraform_is_charged_for_clients_that_train_again():
    experiment = Experiment.of({"method": {"name": "terraform"}, "train": {"clients_per_round": "all", "rounds": 8}})
    federation = build_federation(experiment)
    cost = rehearse(build_plan(experiment, federation), federation)
    assert 22 < cost.client_updates < 60


def test_costs_and_reveals_are_told_beside_fedavg():
    found = inspect(overrides={"data.partition": {"kind": "labels-per-client", "labels": 1}})
    strata, batch, flips = found.advice
    assert strata.cost["bytes"] == strata.cost["client_updates"] == 1
    assert "at equal bytes" in strata.because
    assert batch.cost["bytes"] > 10
    assert flips.cost["bytes"] == flips.cost["client_updates"] == 1
    assert flips.cost["setup_bytes"] == 20 * 10 * 4
    assert flips.reveals == ("It is told how many samples of each label every client holds.",)
    assert found.baseline.cost.client_updates == 10


def test_what_does_not_go_with_the_experiment_is_replaced_or_said():
    few = {"data.partition": {"kind": "labels-per-client", "labels": 1}, "train.clients_per_round": "all"}
    clipped = {"method.corrections": [{"kind": "clip"}]}  # works on local steps, and a global batch has none
    (_, first, *_) = inspect(overrides=few | clipped).advice
    assert first.recipe == "stratify-single"
    assert "works on local steps" in first.not_here["stratify-batch"]
    masked = inspect(overrides=few | {"privacy.aggregate": "masked", "privacy.labels": "prf"})
    assert "it sees the weighted sum over at least 3 of them" in " ".join(masked.baseline.reveals)
    noised = inspect(overrides=few | {"privacy.dp.noise": 1.0})
    assert "stratify-batch" not in [advice.recipe for advice in noised.advice]
    assert "privacy.dp does not fit" in noised.refused["stratify-batch"]


def test_fedavg_comes_first_where_nothing_is_to_be_repaired():
    even = {"data.partition.kind": "iid"}
    assert [advice.recipe for advice in inspect(overrides=even).advice] == ["fedavg", "strata"]
    noisy = inspect(overrides=even | {"data.noise": {"labels": 0.3}})
    assert [advice.recipe for advice in noisy.advice] == ["strata", "fedbss", "fedavg"]
    assert inspect().advice[0].recipe == "strata"


def test_every_rule_stands_in_the_documentation():
    page = Path(__file__).parents[2].joinpath("docs", "inspect.md").read_text()
    for rule in rules.RULES:
        assert f"| {rule.when} | {', else '.join(f'`{name}`' for name in rule.recipes)} |" in page


# ---- counts only


def test_counts_alone_give_the_same_measures_and_say_what_they_lack():
    whole = inspect()
    experiment = Experiment.of()
    counts = build_federation(experiment).counts
    alone = inspect(counts=counts[:, np.random.default_rng(0).permutation(10)])  # placeholders: in no order
    known = {"duplicate_clients": None, "copied_samples": None, "conflicting_labels": None}
    same = replace(whole.measures, **known, round_balance=alone.measures.round_balance)
    assert vars(alone.measures) == pytest.approx(vars(same))
    assert alone.readings[-1].name == "not measured"
    assert [a.recipe for a in alone.advice] == [a.recipe for a in whole.advice]
    assert [a.cost["client_updates"] for a in alone.advice] == pytest.approx(
        [a.cost["client_updates"] for a in whole.advice], rel=0.05
    )


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"counts": [[1, 2], [3]]}, "a table"),
        ({"counts": [[1, 2], [3, 4]], "overrides": {"data.clients": 3}}, "data.clients cannot be set"),
        ({"federation": 3}, r"must be a fedstrata\.Federation"),
        ({"overrides": {"model.norm": "batch", "train.batch_size": 1}}, "one sample has no variance"),
    ],
)
def test_requests_that_make_no_sense_are_refused(how, said):
    with pytest.raises(RequestError, match=said):
        inspect(**how)


# ---- Python, the command line, the page


def test_the_object_is_short_to_look_at_and_draws():
    found = inspect(overrides={"data.partition.kind": "iid"})
    assert repr(found).startswith("Inspection(digits: 20 clients, 1438 samples, 10 labels, EMD 0.")
    assert repr(found).endswith("fits: fedavg, strata)")
    heat = found.plot_labels().data[0]
    assert np.shape(heat.z) == (20, 10)
    assert np.sum(heat.z) == pytest.approx(20, abs=0.01)
    assert len(found.plot_skew().data) == 3


def test_data_from_python_get_a_call_instead_of_a_command():
    federation = build_federation(Experiment.of({"data": {"partition": {"kind": "labels-per-client", "labels": 1}}}))
    (_, _, flips, *_) = inspect(overrides={"train.rounds": 9}, federation=federation).advice
    assert flips.command == (
        "fedstrata.train(method='flips', overrides={'train.rounds': 9, 'method.selector.clusters': 10}, "
        "federation=federation)"
    )


def test_the_command_that_is_told_runs(cli, tmp_path):
    file = tmp_path / "my data.toml"
    file.write_text('[data]\npartition = { kind = "labels-per-client", labels = 1 }\n[train]\nrounds = 2\n')
    code, out, err = cli("inspect", str(file), "--set", "train.clients_per_round=0.4", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["measures"]["clients"] == 20
    assert len(answer["counts"]) == 20
    flips = next(advice for advice in answer["advice"] if advice["recipe"] == "flips")
    words = shlex.split(flips["command"])
    assert words[:3] == ["fedstrata", "run", str(file)]
    code, out, _ = cli(*words[1:], "-q", "--json")
    assert (code, json.loads(out)["method"]) == (0, "flips")


def test_the_terminal_shows_labels_measures_and_advice(cli):
    code, out, _ = cli("inspect", "--set", "data.partition.kind=labels-per-client", "--set", "data.partition.labels=1")
    assert code == 0
    assert " 3          ██" in out  # client 3 holds label 3
    for said in (
        "EMD to the global mix",
        "mean 1.80",
        "stratify-batch",
        "fits because",
        "costs",
        "reveals to the server",
    ):
        assert said in out
    assert "fedstrata run --set data.partition.kind=labels-per-client --set data.partition.labels=1 --set method" in out


@pytest.mark.parametrize(
    ("labels", "above", "named"),
    [
        ("benign,malign", "  be ma ", ""),
        ("class_0,class_1", "  0  1  ", ""),
        ("benign,benignity", "  0  1  ", "labels: 0 benign, 1 benignity"),
        ("100,101", "  0  1  ", "labels: 0 100, 1 101"),
    ],
)
def test_labels_that_begin_alike_are_told_apart(cli, tmp_path, labels, above, named):
    (tmp_path / "counts.csv").write_text(f"client,{labels}\na,1,2\nb,2,1\n")
    code, out, _ = cli("inspect", "--counts", str(tmp_path / "counts.csv"))
    assert code == 0
    assert above in out.splitlines()
    assert [line for line in out.splitlines() if line.startswith("labels: ")] == [named] * bool(named)


def test_a_terminal_without_utf_8_sees_shades_of_ascii(tmp_path):
    (tmp_path / "counts.csv").write_text("client,a,b\nköln,0,3\nb,3,1\n", encoding="utf-8")
    command = [sys.executable, "-m", "fedstrata", "inspect", "--counts", "counts.csv"]
    narrow = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=narrow, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"k\xf6ln    @@ " in done.stdout.splitlines()


def test_many_clients_are_shown_in_few_rows(cli, tmp_path):
    file = tmp_path / "counts.csv"
    np.savetxt(file, np.repeat(np.eye(4, dtype=int), 250, 0) * 3, fmt="%d", delimiter=",")
    code, out, _ = cli("inspect", "--counts", str(file))
    assert code == 0
    assert out.count("with most") == 24
    assert "These need the samples" in out
    assert "EXPERIMENT.toml" in out


def test_the_page_needs_nothing_beside_itself(cli, tmp_path):
    page = tmp_path / "page.html"
    code, out, _ = cli("inspect", "--html", str(page))
    assert code == 0
    assert out.endswith(f"page: {page}\n")
    text = page.read_text()
    assert page.stat().st_size < 6_000_000
    assert "prefers-color-scheme: dark" in text
    assert "stratify-batch" in text
    begins = text.index("<script>")
    outside = text.replace(text[begins : text.index("</script>", begins)], "")  # without plotly's own code
    assert "http:" not in outside
    assert "https:" not in outside
    assert "src=" not in outside


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nowhere.toml"], "nowhere.toml cannot be read"),
        (["--counts", "nowhere.csv"], "nowhere.csv cannot be read"),
        (["--counts", "a.csv", "a.toml"], "give one of them"),
        (["--set", "data.partition.kind=dirichlet"], "data.partition.kind"),
        (["--set", "data.partition.kind=iid", "--html", "no/such/folder.html"], "cannot be written"),
    ],
)
def test_bad_requests_end_with_2_and_say_why(cli, args, said):
    code, out, err = cli("inspect", *args)
    assert (code, out) == (2, "")
    assert said in err


def test_labels_of_very_many_clients_are_not_written_out(monkeypatch):
    monkeypatch.setattr(inspection, "LISTED", 10)
    assert inspect(overrides={"data.partition.kind": "iid"}).as_json()["counts"] is None
