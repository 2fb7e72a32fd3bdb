"""Rows are tuned on samples that clients hold out: the best is known on paper, and the test set has no say in it."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from flipping import ONE_STEP, clients, network

import fedstrata
from fedstrata import RequestError
from fedstrata.report.gather import gather
from fedstrata.runs.compare import ComparisonRequest, queue
from fedstrata.runs.compare.tune import FIRST_SEED, Range, Tune

DOCS = Path(__file__).parents[2] / "docs" / "compare.md"
GRID = {"train.lr": [1e-9, 0.1, 2.0]}
SMALL = {"train.rounds": 2, "data.clients": 5, "train.epochs": 1, "train.batch_size": 64, "engine.vmap": "never"}
SETS = [f"--set={key}={value}" for key, value in SMALL.items()]


def flip(out="c", swapped=False, tune=GRID, methods="fedavg", **more):
    how = {"overrides": ONE_STEP, "federation": clients(swapped), "model": network(), "out": out, "jobs": 1}
    return fedstrata.compare(methods=methods, tune=tune, **how | more)


def reopen(out, **how):
    return fedstrata.Comparison.open(out, federation=clients(), model=network(), **how)


def stamps(out="c"):
    return {str(p.relative_to(out)): p.stat().st_mtime_ns for p in Path(out).rglob("summary.json")}


def settings(comparison):
    return {place: choice.setting for place, choice in comparison.choices.items()}


# ---- a grid --------------------------------------------------------------------------------------------------------


def test_the_best_on_paper_is_chosen_and_compared():
    done = flip(tune=GRID | {"seeds": 2})
    choice = done.choices["", "fedavg"]
    assert (choice.setting, choice.value, choice.trials) == ({"train.lr": 2.0}, 1.0, 3)
    (row,) = done.rows
    assert row["accuracy"]["mean"] == 1.0
    assert row["tuned"]["set"] == {"train.lr": 2.0}
    assert done.cells[0].experiment.train.lr == 2.0
    assert done.cells[0].experiment.train.evaluate.validation == 0.0


def test_what_the_search_cost_is_said():
    """Three rates, two seeds, one round each: two clients get two weights of four bytes and send them back."""
    done = flip(tune=GRID | {"seeds": 2})
    tuned = done.rows[0]["tuned"]
    assert (tuned["rounds"], tuned["client_updates"], tuned["bytes"]) == (6, 12, 6 * 32)
    assert tuned["seconds"] > 0
    said = next(remark for remark in done.remarks if "tuned" in remark)
    assert f"20 % of every client's training samples, held out, with seeds {FIRST_SEED} to {FIRST_SEED + 1}" in said
    assert "3 settings tried took 6 rounds, 12 client updates, 192 B" in said
    assert done.rows[0]["rounds"]["mean"] == 1, "the rows leave the search out"
    assert "lr=2" in done.table()
    done.write_table("t.csv")
    assert "tuned_client_updates" in Path("t.csv").read_text()


def test_the_table_of_the_search_says_what_it_shows_and_names_what_it_leaves_out():
    done = flip(over={"train.rounds": [1, 2]}, tune=GRID)
    about = "validation: accuracy in % on those; then what the search cost; seconds are real"
    narrow, wide = done.table(width=70), done.table(wide=True)
    lines = [line for line in narrow.splitlines() if "lr=2" in line]
    assert [line.split()[:3] for line in lines] == [["fedavg", f"rounds={n}", "lr=2"] for n in (1, 2)]
    assert "more with --wide: seconds" in narrow
    assert "more with --wide" not in wide
    assert all(about in " ".join(text.split()) for text in (narrow, wide, done._repr_html_()))
    done.write_table("t.md")
    assert (
        "| method | condition | setting | validation | tried | rounds | updates | bytes | seconds |"
        in Path("t.md").read_text()
    ), "nothing but clocks of devices is called time"
    assert "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |" in Path("t.md").read_text()
    assert '<td style="text-align:left">lr=2</td>' in done._repr_html_()


def test_the_test_set_has_no_say():
    """Where test labels are swapped, a rate of almost nothing is perfect there, and still the other is chosen."""
    honest, poisoned = flip("a"), flip("b", swapped=True)
    assert settings(honest) == settings(poisoned) == {("", "fedavg"): {"train.lr": 2.0}}
    assert [row["accuracy"]["mean"] for row in (*honest.rows, *poisoned.rows)] == [1.0, 0.0]
    trials = [Path(out, "tuning/fedavg/lr=2/seed-1000000") for out in "ab"]
    scored = [[e["accuracy"] for e in fedstrata.Run(path).events() if e["event"] == "round"] for path in trials]
    assert scored == [[1.0], [1.0]]


def test_the_edge_of_the_grid_is_remarked_and_the_middle_is_not():
    said = [remark for remark in flip().remarks if "edge" in remark]
    text = "fedavg: train.lr = 2, the best, is at the edge of what was tried, 1e-09 to 2; more beyond it may be better"
    assert said == [text]


def test_settings_that_came_out_equal_are_told_of():
    remarks = flip(tune={"train.lr": [0.1, 2.0, 3.0]}).remarks
    assert "fedavg: 2 of 3 settings came out equal in tuning; the first was taken" in remarks
    assert not [remark for remark in remarks if "edge" in remark]
    assert not [remark for remark in flip("d", tune={"train.lr": [0.1, 2.0]}).remarks if "equal" in remark]


def test_each_row_and_condition_gets_its_own_and_seeds_are_others():
    """With three rounds at a server rate of a third, a client rate of 2 is as good as one step of 2 in one round."""
    tune = {"train.lr": [0.1, 2.0], "rows": {"half": {"server_step.lr": [1e-9, 1.0]}}}
    done = flip(
        tune=tune,
        variants={"half": {"method.name": "fedavg", "server_step.lr": 1e-9}, "own": {"train.lr": 3.0}},
        conditions={"one": {}, "more": {"train.rounds": 3}},
        seeds=2,
    )
    chosen = settings(done)
    assert chosen["one", "fedavg"] == {"train.lr": 2.0}
    assert set(chosen) == {(c, m) for c in ("one", "more") for m in ("fedavg", "half")}
    assert "half sets method.server_step.lr itself, which is not tuned there" in done.remarks
    assert "own sets train.lr itself, which is not tuned there" in done.remarks
    assert chosen["one", "half"] == {"train.lr": 0.1}, "the server does not move: all rates are alike, the first stays"
    assert {cell.seed for cell in done.cells}.isdisjoint({cell.seed for cell in done.search.cells})


def test_a_row_is_tuned_in_keys_of_its_own():
    asked = Tune.of(["train.lr=0.1,1", "fedprox: corrections.0.mu=0.1,1"])
    average, prox = ComparisonRequest.of("fedavg,fedprox").entries()
    assert asked.grid(average) == [{"train.lr": 0.1}, {"train.lr": 1}]
    assert asked.grid(prox) == [{"train.lr": lr, "method.corrections.0.mu": mu} for lr in (0.1, 1) for mu in (0.1, 1)]
    table = {"train": {"lr": [0.1, 1]}, "rows": {"fedprox": {"corrections.0.mu": [0.1, 1]}}}
    assert Tune.of(table) == asked
    assert Tune.of(asked.to_json()) == asked


def test_a_stop_in_the_search_goes_on_to_the_same(monkeypatch):
    whole = flip("whole")

    def interrupt(cell, event):
        if event["event"] == "begin" and cell.setting == {"train.lr": 0.1}:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flip("cut", watch=interrupt)
    known = json.loads(Path("cut/comparison.json").read_text())
    assert [line["state"] for line in known["trials"]] == ["finished", "stopped", "waiting"]
    assert known["cells"] == [], "which runs follow is not known yet"
    first = stamps("cut")
    done = reopen("cut").run()
    assert settings(done) == settings(whole)
    assert {path: stamp for path, stamp in stamps("cut").items() if path in first} == first
    again = stamps("cut")
    reopen("cut").run()
    assert stamps("cut") == again


def test_minutes_end_the_search_too(monkeypatch):
    class Clock:
        now = 0.0

        def __call__(self):
            self.now += 1.0
            return self.now

    with monkeypatch.context() as patched:
        patched.setattr(queue, "monotonic", Clock())
        cut = flip(minutes=3 / 60)
    assert [cell.state for cell in cut.cells] == ["waiting"]
    assert cut.choices == {("", "fedavg"): None}
    assert settings(flip()) == {("", "fedavg"): {"train.lr": 2.0}}


def test_a_wider_grid_runs_only_what_is_new():
    flip(tune={"train.lr": [1e-9, 0.1]})
    first = stamps()
    done = flip(tune={"train.lr": [1e-9, 0.1, 2.0]})
    assert done.rows[0]["accuracy"]["mean"] == 1.0
    assert {path: stamp for path, stamp in stamps().items() if path in first} == first
    assert sorted(set(stamps()) - set(first)) == [
        "fedavg/lr=2/seed-0/summary.json",
        "tuning/fedavg/lr=2/seed-1000000/summary.json",
    ]
    shown = [str(run.path) for run in gather(["c"]).runs_data]
    assert shown == ["c/fedavg/lr=2/seed-0"], "neither trials nor runs with a setting that is not chosen any more"
    flip(tune={"train.lr": [1e-9, 2.0]})
    assert len(json.loads(Path("c/comparison.json").read_text())["trials"]) == 3, "what was tried before stays listed"
    assert reopen("c", metric="balanced_accuracy").choices["", "fedavg"].metric == "accuracy"


def test_another_budget_of_the_trials_in_the_same_folder_is_refused():
    flip(tune=GRID | {"budget": "rounds=2"})
    with pytest.raises(RequestError, match=r"tuning/fedavg/lr=1e-09/.* another experiment \(train.rounds: 2 -> 3\)"):
        flip(tune=GRID | {"budget": "rounds=3"})


def test_a_target_that_none_reaches_leaves_the_choice_to_the_accuracy():
    done = flip(tune={"train.lr": [1e-9, 0.1]}, metric="rounds_to:0.8")
    assert settings(done) == {("", "fedavg"): {"train.lr": 1e-9}}
    assert "fedavg: no setting reached 0.8 in tuning; the most accurate was chosen" in done.remarks
    assert flip("d", metric="rounds_to:0.8").rows[0]["rounds_to:0.8"]["mean"] == 1


BROKEN = """
from dataclasses import dataclass
from fedstrata.methods.selectors.random import Random

@dataclass(frozen=True)
class Broken(Random):
    "Fails, where it is told to."
    bad: bool = False

    def select(self, state, view):
        if self.bad:
            raise ValueError("as it was told")
        return super().select(state, view)
"""


def test_settings_that_fail_are_not_chosen_and_a_row_without_any_fails(tmp_path, monkeypatch, cli):
    (tmp_path / "broken_selector.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    broken = {**ONE_STEP, "method.selector": "broken_selector:Broken"}
    done = flip(tune={"selector.bad": [True, False]}, overrides=broken)
    assert settings(done) == {("", "fedavg"): {"method.selector.bad": False}}
    assert "fedavg: 1 of 2 settings failed in tuning" in done.remarks
    args = ["--tune", "train.lr=1,2", "--set", "method.selector=broken_selector:Broken"]
    code, _, err = cli("compare", "--methods", "fedavg", *SETS, *args, "--set", "method.selector.bad=true", "-q")
    assert code == 1
    assert "error: fedavg, seed 0 failed: tuning found no setting: all that were tried failed" in err


# ---- Optuna --------------------------------------------------------------------------------------------------------

STUDY = {"train.lr": "0.01..4", "tuner": "optuna", "trials": 6}


def suggested(out, place="fedavg"):
    optuna = pytest.importorskip("optuna")
    backend = optuna.storages.journal.JournalFileBackend(str(Path(out, "tuning", place, "optuna.journal")))
    study = optuna.load_study(study_name=place, storage=optuna.storages.JournalStorage(backend))
    return [(t.params, t.state.name, t.value) for t in study.trials if t.state.name != "FAIL"]


def test_optuna_searches_a_range_and_the_journal_is_its_own():
    done = flip(tune=STUDY)
    choice = done.choices["", "fedavg"]
    assert choice.value == 1.0
    assert choice.setting["train.lr"] > 1.135
    assert choice.trials == 6
    known = suggested("c")
    assert len(known) == 6
    for params, state, value in known:
        assert state == "COMPLETE"
        assert value == float(params["train.lr"] > 1.135)


def test_a_search_that_was_cut_off_goes_on_as_if_it_had_not_been():
    whole = flip("whole", tune=STUDY)
    trials = []

    def interrupt(cell, event):
        if event["event"] == "round":
            trials.append(cell.path)
            if len(trials) == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flip("cut", tune=STUDY, watch=interrupt)
    first = stamps("cut")
    assert len(first) == 3
    done = reopen("cut").run()
    assert suggested("cut") == suggested("whole")
    assert settings(done) == settings(whole)
    assert {path: stamp for path, stamp in stamps("cut").items() if path in first} == first
    more = flip("cut", tune=STUDY | {"trials": 8})
    assert more.choices["", "fedavg"].trials == 8
    assert suggested("cut")[:6] == suggested("whole")


@pytest.mark.extended
@pytest.mark.usefixtures("quick_processes")
def test_trials_that_stay_behind_are_pruned_in_this_process_and_in_others():
    tune = {"train.lr": "0.01..4", "tuner": "optuna", "trials": 12, "budget": "rounds=5", "seeds": 2}
    how = {"tune": tune, "methods": "fedavg", "variants": {"b": {"train.batch_size": 32}}, "overrides": ONE_STEP}
    one, two = flip("one", **how), flip("two", **how | {"jobs": 2})
    assert settings(one) == settings(two)
    for done in (one, two):
        choice = done.choices["", "fedavg"]
        assert choice.pruned >= 1
        assert choice.value == 1.0
    assert one.choices["", "fedavg"].cost["rounds"] == two.choices["", "fedavg"].cost["rounds"]
    pruned = [cell for cell in one.search.cells if cell.state == "pruned"]
    assert pruned
    for cell in pruned:
        assert not cell.run.summary
        assert cell.setting["train.lr"] < 1.135, "all wrong after the first round, when most others are right"
    assert [cell.state for cell in reopen("one").search.cells].count("pruned") == len(pruned)


def test_values_of_a_study_cannot_change_in_its_folder():
    study = {"train.lr": [1.0, 2.0], "tuner": "optuna", "trials": 2}
    flip(tune=study)
    with pytest.raises(RequestError, match="only ranges and the number of trials may change"):
        flip(tune=study | {"train.lr": [1.0, 3.0]})


def test_without_optuna_a_line_says_what_to_install(cli, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    code, out, err = cli("compare", "--methods", "fedavg", "--tune", "train.lr=1..2", "--tuner", "optuna")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == 'error: tuner = "optuna" needs a package: pip install "fedstrata[tune]"'
    assert not Path("runs").exists()


# ---- what the documentation shows ------------------------------------------------------------------------------------


def test_the_file_in_the_documentation_can_be_read():
    texts = re.findall(r"^```toml\n(.*?)^```$", DOCS.read_text(), re.M | re.S)
    (text,) = [text for text in texts if "compare.tune" in text]
    asked = ComparisonRequest.from_table(tomllib.loads(text)["compare"])
    average, prox = asked.entries()
    assert len(asked.tune.grid(average)) == 4
    assert len(asked.tune.grid(prox)) == 12
    assert asked.tune.overrides == {"train.rounds": 20, "train.evaluate.validation": 0.2}


@pytest.mark.extended
def test_the_table_in_the_documentation_is_what_the_command_prints(cli):
    shown = re.search(
        r"^fedstrata (compare [^\n]*\\\n[^\n]*--tune-seeds[^\n]*)\n```.*?^```\n(method.*?)\n```$",
        DOCS.read_text(),
        re.M | re.S,
    )
    code, out, _ = cli(*shlex.split(shown[1].replace("\\\n", " ")), "-q")
    assert code == 0
    for line in shown[2].splitlines()[1:]:
        assert line.rsplit("  ", 1)[0] in out, "all but the time"


# ---- asked for -----------------------------------------------------------------------------------------------------


def test_the_command_line_a_file_and_python_ask_for_the_same(cli):
    Path("e.toml").write_text(
        '[compare]\nmethods = ["fedavg"]\n[compare.tune]\ntrain.lr = [0.05, 0.1]\nseeds = 2\nbudget = "rounds=1"\n'
    )
    code, out, err = cli("compare", "e.toml", *SETS, "--tune-seeds", "1", "--out", "c", "--json", "-q")
    assert code == 0, err
    tuned = json.loads(out)["rows"][0]["tuned"]
    assert (tuned["trials"], tuned["rounds"]) == (2, 2)
    options = ["--methods", "fedavg", "--tune", "train.lr=0.05,0.1", "--tune-budget", "rounds=1"]
    code, out, _ = cli("compare", *options, *SETS, "--out", "d", "--json", "-q")
    assert json.loads(out)["rows"][0]["tuned"]["validation"] == tuned["validation"]
    same = fedstrata.compare(
        methods="fedavg", tune={"train.lr": [0.05, 0.1], "budget": "rounds=1"}, overrides=SMALL, out="e"
    )
    assert same.choices["", "fedavg"].value == tuned["validation"]
    code, out, _ = cli("compare", "--resume", "c", "-q")
    assert "settings chosen on samples that clients held out" in out
    assert "settings" not in cli("report", "c", "--out", "r.html")[2].lower()
    assert "Settings chosen on samples that clients held out" in Path("r.html").read_text()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--tune", "train.lr"], 'tune "train.lr" must look like'),
        (["--tune", "train.lr=0.1"], "tune: train.lr = [0.1] must be a list of at least two values"),
        (["--tune", "train.lr=0.1,0.1"], "tune: train.lr has 0.1 twice"),
        (["--tune", "train.lr=0.1,-1"], "fedavg, lr=-1: train.lr = -1 is not valid"),
        (["--tune", "train.lrr=1,2"], "train.lrr is not an option"),
        (["--tune", "trian.lr=1,2"], 'tune = "trian.lr" is unknown'),
        (["--tune", "lr=1,2"], 'tune = "lr" is unknown (did you mean train.lr?)'),
        (["--tune", "train.lr=1,2", "--tune", "train.lr=3,4"], "tune: train.lr is named twice"),
        (["--tune", "data.clients=4,5"], "tune: data.clients is no setting of a row"),
        (["--tune", "train.seed=4,5"], "tune: train.seed is no setting of a row"),
        (["--tune", "train.lr=1,2", "--over", "train.lr=1,2"], "tune: train.lr is what the condition lr=1 sets"),
        (["--tune", "train.lr=1,2", "--same", "train.lr"], "tune: train.lr, and same = train.lr gives all rows"),
        (["--tune", "sfl: train.lr=1,2"], 'tune = "sfl" is unknown'),
        (["--tune", "train.lr=1,2", "--tune-seeds", "0"], "tune: seeds = 0 must be at least 1"),
        (["--tune", "train.lr=1,2", "--tune-validation", "1"], "tune: validation = 1.0 must be a number between"),
        (["--tune", "train.lr=1,2", "--tune-budget", "money=1"], 'budget = "money=1" cannot be read'),
        (["--tune", "train.rounds=1,2", "--tune-budget", "rounds=1"], "tune: train.rounds is what budget"),
        (["--tune", "train.lr=1,2", "--tuner", "bayes"], 'tuner = "bayes" is unknown'),
        (["--tune", "train.lr=1,2", "--trials", "3"], "trials = 3 is for --tuner optuna"),
        (["--tune", "train.lr=1..2"], "tune: train.lr = 1..2 is a range: name values, or use --tuner optuna"),
        (["--tune", "train.lr=2..1", "--tuner", "optuna"], "tune: train.lr = 2..1 must go from a smaller number up"),
        (["--tune", "train.lr=0..1:log", "--tuner", "optuna"], "must go from a smaller positive number up"),
        (["--tune", "train.lr=-1..1", "--tuner", "optuna"], "train.lr = -1 is not valid"),
        (["--tune-seeds", "2"], "tune names no key"),
        (["--tuner", "optuna"], "tune names no key"),
        (["--variant", "tuning: train.epochs=1", "--tune", "train.lr=1,2"], 'method "tuning": a file or folder'),
        (["--tune", "train.lr=1,2", "--resume", "c"], "--resume takes everything from the folder"),
        (["--shard", "0/2"], 'shard = "0/2" must look like 2/5'),
        (["--shard", "half"], 'shard = "half" must look like 2/5'),
        (["--merge", "c"], "--merge takes everything from the folders"),
        (["a.toml", "b.toml"], "one experiment file is compared, not 2"),
    ],
)
def test_what_cannot_be_tuned_is_refused_by_name(cli, args, said):
    code, out, err = cli("compare", "--methods", "fedavg", *args)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert not Path("runs").exists()
    assert not list(Path().rglob("events.jsonl"))


def test_ranges_read_as_numbers():
    assert Range.of("1e-4..0.3:log", "k") == Range(1e-4, 0.3, True)
    assert Range.of("1..10", "k").whole
    assert not Range.of("1..10.5", "k").whole
    assert str(Range.of("0.001..0.3:log", "k")) == "0.001..0.3:log"
