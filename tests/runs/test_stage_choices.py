"""A recipe that chooses its stages: what is open is settled before a run, written down, and said with its reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from in_process_sites import SITES, Here, hosts
from light import LIGHT

import fedstrata
from fedstrata import Recipe
from fedstrata.config.experiment import Experiment
from fedstrata.config.open_stages import fill, open_stages, reopen
from fedstrata.core.errors import RequestError
from fedstrata.methods.recipes import STAGES
from fedstrata.methods.situation import Situation, StageChoice
from fedstrata.remote.server.session import run_at_sites
from fedstrata.remote.site.policy.rules import SitePolicy
from fedstrata.runs.stage_choices import choose_stages, measure
from fedstrata.testing.tiny import tiny_federation

HERE = "test_stage_choices"
SHORT = {**LIGHT, "method.name": f"{HERE}:SEEING", "train.rounds": 3, "train.clients_per_round": 4}


def see(now: Situation) -> list[StageChoice]:
    few = now.effective_labels is not None and now.effective_labels < 4
    server = {"kind": "sgd", "momentum": 0.5} if few else {"kind": "fedexp"}
    measured = {"effective_labels": now.effective_labels}
    return [
        StageChoice("selector", "size", f"{now.k} of {now.clients} train"),
        StageChoice("server_step", server, "labels are few" if few else "labels are many or unknown", measured),
    ]


SEEING = Recipe("Chooses by effective labels.", "ours", {}, choose=see, needs=frozenset({"counts"}))


def chosen(run):
    return {event["stage"]: event for event in run.events() if event["event"] == "choice"}


def test_without_data_stages_are_open_and_options_wait_for_their_part():
    asked = Experiment.of(None, **{"method.name": f"{HERE}:SEEING", "method.server_step.momentum": 0.9})
    assert open_stages(asked) == list(STAGES)
    assert open_stages(Experiment.of(asked, **{"method.selector": "random", "method.corrections": []})) == [
        stage for stage in STAGES if stage not in ("selector", "corrections")
    ]
    filled = fill(asked, {"server_step": "sgd"})
    assert filled.method.server_step == {"kind": "sgd", "lr": 1.0, "momentum": 0.9}
    assert filled.method.combiner == {"kind": "size"}
    assert filled.method.chosen == list(STAGES)
    assert Experiment.of(filled.dump()) == filled
    assert open_stages(reopen(filled)) == list(STAGES)


def test_a_run_writes_an_ordinary_experiment_that_runs_again_unchanged():
    run = fedstrata.train(overrides=SHORT, out="first")
    said = chosen(run)
    assert said["server_step"]["used"] == {"kind": "sgd", "lr": 1.0, "momentum": 0.5}
    found = fedstrata.inspect(overrides={"train.clients_per_round": 4})
    assert said["server_step"]["measured"] == {"effective_labels": found.measures.effective_labels_mean}
    assert run.summary["choices"] == ["selector size: 4 of 20 train", "server step sgd: labels are few"]
    written = Path("first/experiment.toml")
    assert Experiment.of(written).method.server_step["momentum"] == 0.5
    again = fedstrata.train(written, out="second")
    assert Path("second/experiment.toml").read_text() == written.read_text()
    assert chosen(again) == said
    assert Path("second/model.safetensors").read_bytes() == Path("first/model.safetensors").read_bytes()


@pytest.mark.parametrize("cut", [0, 2])
def test_a_run_that_was_cut_off_resumes_to_the_same_events(cut):
    whole = fedstrata.train(overrides=SHORT, out="whole")

    def interrupt(event):
        if (event["event"], event.get("round", 0)) == ("start" if cut == 0 else "round", cut):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedstrata.train(overrides=SHORT, out="cut", watch=interrupt)
    resumed = fedstrata.resume("cut")
    plain = [
        [{k: v for k, v in e.items() if k != "wall"} for e in run.events() if e["event"] not in ("resumed", "engine")]
        for run in (whole, resumed)
    ]
    assert plain[0] == plain[1]


def test_what_the_experiment_sets_is_not_chosen():
    run = fedstrata.train(overrides={**SHORT, "method.selector": "random"}, out="set")
    assert set(chosen(run)) == {"server_step"}
    assert Experiment.of("set/experiment.toml").method.selector == {"kind": "random"}


def test_another_method_forgets_what_was_chosen_and_keeps_what_was_set():
    fedstrata.train(overrides={**SHORT, "method.combiner": "uniform"}, out="old")
    other = Experiment.of("old/experiment.toml", **{"method.name": "fedavg"})
    assert (other.method.selector["kind"], other.method.server_step["momentum"]) == ("random", 0.0)
    assert other.method.combiner == {"kind": "uniform"}
    assert other.method.chosen is None


def test_a_part_that_does_not_fit_gives_way_and_says_so():
    greedy = {**SHORT, "method.combiner": "fedcda", "data.partition": "iid"}  # fedexp needs a plain mean
    run = fedstrata.train(overrides=greedy, out="gives-way")
    said = chosen(run)["server_step"]
    assert said["used"]["kind"] == "sgd"
    assert said["why"].startswith("fedexp was meant, because labels are many")
    assert "the mean of all updates" in said["why"]


def test_the_server_is_told_the_counts_it_chooses_by():
    run = fedstrata.train(overrides=SHORT)
    assert run.summary["bytes_setup"] == 20 * 10 * 4 + 20 * 8  # counts, and sizes for the selector
    assert any("how many samples of each label every client holds" in said for said in run.summary["privacy"]["server"])


@pytest.mark.parametrize(
    ("privacy", "known"),
    [
        ({}, True),
        ({"privacy.labels": "prf"}, True),  # placeholders are counted, and measures do not ask for names
        ({"privacy.clustering": "masked"}, False),
        ({"privacy.histogram_epsilon": 1.0}, False),
    ],
)
def test_hidden_counts_are_not_measured(privacy, known):
    experiment = Experiment.of(None, **SHORT, **privacy)
    assert (measure(experiment, tiny_federation()).table is not None) is known


def test_masked_labels_change_no_choice():
    plain, masked = (fedstrata.train(overrides={**SHORT, "privacy.labels": mode}) for mode in ("none", "prf"))
    assert chosen(plain) == chosen(masked)


def test_what_was_chosen_cannot_be_set():
    with pytest.raises(RequestError, match=r"method\.chosen is written by a run"):
        Experiment.of(None, **{"method.chosen": ["selector"]})


def test_a_comparison_settles_every_seed_and_knows_its_cells_again():
    asked = {"methods": ["fedavg", f"{HERE}:SEEING"], "seeds": 2, "out": "both", "jobs": 1}
    short = {key: value for key, value in SHORT.items() if key != "method.name"}
    first = fedstrata.compare(**asked, overrides=short)
    for cell in first.cells:
        assert not open_stages(cell.experiment)
        assert Experiment.of(cell.path / "experiment.toml").method == cell.experiment.method
    again = fedstrata.compare(**asked, overrides=short)
    assert [cell.hash for cell in again.cells] == [cell.hash for cell in first.cells]


def test_ablation_takes_away_what_was_chosen():
    comparison = fedstrata.compare(
        methods=f"{HERE}:SEEING",
        ablate=["selector", "server_step", "driver"],
        out="ablated",
        jobs=1,
        overrides={key: value for key, value in SHORT.items() if key != "method.name"},
    )
    without = {cell.method: cell.experiment.method for cell in comparison.cells}
    assert [name.rpartition("-")[2] for name in without][1:] == ["selector", "server_step"]
    whole, no_selector, no_step = without.values()
    assert (no_selector.selector["kind"], no_selector.server_step) == ("random", whole.server_step)
    assert (no_step.selector, no_step.server_step["momentum"]) == (whole.selector, 0.0)
    assert any("driver already" in note for note in comparison.remarks)


def test_rows_cannot_take_from_the_first_what_it_has_yet_to_choose():
    with pytest.raises(RequestError, match=r"chooses it by the data; put another first"):
        fedstrata.compare(methods=[f"{HERE}:SEEING", "fedavg"], same="server_step", overrides={"train.rounds": 1})


def test_the_terminal_the_json_and_the_report_say_what_was_chosen(cli):
    sets = [f"--set={key}={json.dumps(value)}" for key, value in SHORT.items()]
    code, out, err = cli("run", *sets, "--out", "said")
    assert code == 0
    assert "selector size: 4 of 20 train" in err
    assert "chosen: server step sgd: labels are few" in out
    code, out, _ = cli("run", *sets, "--out", "json", "--json")
    assert json.loads(out)["choices"][0] == "selector size: 4 of 20 train"
    assert cli("report", "said", "-o", "page.html")[0] == 0
    assert "<li>server step sgd: labels are few</li>" in Path("page.html").read_text()


def test_sites_tell_their_counts_and_get_the_plan_that_was_chosen(tmp_path):
    asked = {**SHORT, "data.clients": 3, "train.clients_per_round": 2, "train.rounds": 2}
    allowed = SitePolicy(parts=(asked["method.name"],))
    there = Here(hosts(asked, policy=lambda name: allowed))
    run = run_at_sites(there, Experiment.of(None, **asked), tmp_path / "sites", len(SITES))
    assert chosen(run)["server_step"]["measured"]["effective_labels"] > 1
    assert open_stages(Experiment.of(run.path / "experiment.toml")) == []
    assert not [event for event in run.events() if event["event"] in ("site_refused", "dropped", "no_update")]


def test_a_recipe_that_chooses_can_be_checked():
    fedstrata.check_recipe(SEEING)
    moods = iter(range(10))
    fickle = Recipe("Moody.", "", {}, choose=lambda _: [StageChoice("selector", "size", f"mood {next(moods)}")])
    with pytest.raises(AssertionError, match="chose differently"):
        fedstrata.check_recipe(fickle)


def test_the_figures_are_those_of_inspect():
    federation = tiny_federation()
    found = fedstrata.inspect(federation=federation)
    now = measure(Experiment.of(), federation)
    assert now.alpha == pytest.approx(found.measures.alpha_class)
    assert now.effective_labels == pytest.approx(found.measures.effective_labels_mean)
    assert choose_stages(Experiment.of(), federation) == (Experiment.of(), [])
