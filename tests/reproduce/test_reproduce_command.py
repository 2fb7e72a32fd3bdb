"""`fedstrata reproduce`, as typed, with a table small enough to be run."""

import json
import re

import pytest
from paper_tables import TEXT
from typer.testing import CliRunner

from fedstrata import cli
from fedstrata.reproduce import overview, pages, results, table


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """Type a command in an empty folder; the one table is X1."""
    known = {"X1": table.read_table(TEXT)}
    for module in (table, overview, results):
        monkeypatch.setattr(module, "all_tables", lambda: known)
    monkeypatch.setattr(pages, "PAPERS", {"fedbss": "FedBSS"})
    monkeypatch.chdir(tmp_path)

    def type_in(*words):
        return CliRunner().invoke(cli.app, ["reproduce", *words])

    return type_in


def test_a_table_is_run_kept_and_shown(typed, tmp_path):
    first = typed("run", "X1", "--shard", "1/2", "-q")
    assert first.exit_code == 0, first.output
    kept = json.loads((tmp_path / "reproduce/results/X1.json").read_text())["runs"]
    assert len(kept) == 14
    assert {run["device"] for run in kept} <= {"cpu", "gpu"}
    assert all({"accuracy", "best_accuracy"} <= run["figures"].keys() and run["code"] for run in kept)
    typed("run", "X1", "--shard", "2/2", "-q")
    again = typed("run", "X1", "-q")
    assert "0 runs done" in again.output
    shown = typed("show", "X1")
    assert "setting  method   paper" in shown.output
    assert "few      fedavg   50.00" in shown.output
    assert "runs: 28 of 28" in shown.output
    assert "verdict: " in shown.output
    told = json.loads(typed("show", "X1", "--json").output)
    assert len(told["rows"]) == 6
    assert {"setting", "method", "paper", "mean", "low", "high", "difference", "verdict"} <= told["rows"][0].keys()
    assert told["rows"][0]["paper"] == 0.5
    listed, _ = json.loads(typed("list", "--json").output)  # and the reading that takes the same runs
    assert (listed["runs"], listed["wanted"], listed["done"], listed["fetch"]) == (28, 28, True, [])
    assert listed["measured"] == [kept[0]["device"]]
    assert listed["minutes"][kept[0]["device"]] > 0
    assert listed["minutes_left"] == {"cpu": 0.0, "gpu": 0.0}
    (tmp_path / "README.md").write_text(f"before\n{pages.BEGIN}\n{pages.END}\nafter\n")
    assert typed("page").exit_code == 0
    assert "| [X1](fedbss.md#x1-table-1-digits) |" in (tmp_path / "docs/papers/README.md").read_text()
    assert "| few | fedavg | 50.00 |" in (tmp_path / "docs/papers/fedbss.md").read_text()
    html = (tmp_path / "papers.html").read_text()
    assert '<td class="word">few</td><td class="word">fedavg</td><td>50.00</td>' in html
    assert '<td class="word">few</td><td class="word">fedprox</td><td>52.00</td>' in html  # rows can be sorted
    assert "| `fedstrata reproduce run X1` |" in (tmp_path / "README.md").read_text()


def test_the_primary_contrast_can_be_run_alone(typed, tmp_path):
    x1 = table.find_table("X1")
    share = x1.wanted()[13::14]
    primary = {(one.condition, one.method, one.seed) for one in share if x1.primary(one)}
    assert 0 < len(primary) < len(share)
    said = typed("run", "X1", "--primary", "--shard", "14/14", "-q")
    assert f"{len(primary)} runs done" in said.output
    assert "are left" not in said.output
    runs = json.loads((tmp_path / "reproduce/results/X1.json").read_text())["runs"]
    assert {(run["condition"], run["method"], run["seed"]) for run in runs} == primary


def test_several_tables_share_a_queue_in_which_what_decides_comes_first(typed, tmp_path, monkeypatch):
    text = TEXT.replace("seeds = 6", "seeds = 2").replace("seeds = 2", "seeds = 1")
    known = {name: table.read_table(text.replace('"X1"', f'"{name}"')) for name in ("X1", "X2")}
    for module in (table, overview, results):
        monkeypatch.setattr(module, "all_tables", lambda: known)
    done = typed("run", "X2", "x1", "X2", "--jobs", "1")
    assert done.exit_code == 0, done.output
    told = [line.split(": accuracy")[0] for line in done.output.splitlines() if ": accuracy" in line]
    assert len(told) == len(set(told)) == sum(len(one.wanted()) for one in known.values())
    primary = [
        f"{name}, {one.name}" for name in ("X2", "X1") for one in known[name].wanted() if known[name].primary(one)
    ]
    assert told[: len(primary)] == primary
    assert f"{len(told)} runs" in done.output
    for name, own in known.items():
        kept = json.loads((tmp_path / f"reproduce/results/{name}.json").read_text())["runs"]
        assert len(kept) == len(own.wanted())
    assert "0 runs" in typed("run", "all", "-q").output


def test_all_are_the_tables_whose_data_are_here(typed, tmp_path, monkeypatch):
    known = {"X1": table.read_table(TEXT), "X2": table.read_table(TEXT.replace('"X1"', '"X2"'))}
    elsewhere = table.read_table(TEXT.replace('"X1"', '"X3"').replace("[data]", '[data]\nname = "cifar100"'))
    for module in (table, overview, results):
        monkeypatch.setattr(module, "all_tables", lambda: {**known, "X3": elsewhere})
    assert typed("run", "all", "--shard", "1/14", "-q").exit_code == 0
    assert sorted(path.stem for path in (tmp_path / "reproduce/results").glob("*.json")) == ["X1", "X2"]
    for module in (table, overview, results):
        monkeypatch.setattr(module, "all_tables", lambda: {"X3": elsewhere})
    assert "the data of no table are here" in str(typed("run", "all").exception)
    assert "4 runs done" in typed("run", "all", "--quick", "-q").output  # on data that come along


def test_some_rows_can_be_run_alone(typed, tmp_path):
    assert typed("run", "X1", "--row", "fedlc", "--shard", "1/2", "-q").exit_code == 0
    runs = json.loads((tmp_path / "reproduce/results/X1.json").read_text())["runs"]
    assert {run["method"] for run in runs} == {"fedlc"}


def test_a_table_that_was_never_run_shows_the_paper_and_what_to_type(typed):
    shown = typed("show", "X1").output
    assert "not run yet; the paper's figures" in shown
    assert "fedprox  52.00  64.00" in shown
    assert "train.clients_per_round = 2" in shown
    assert "train.rounds = 2 (a choice of ours)" in shown
    assert "fedstrata reproduce run X1  # 28 runs, about" in shown
    listed = typed("list").output
    assert re.search(r"X1 +here .* not run yet +", listed)
    assert "~" in listed


def test_results_of_two_machines_are_merged_and_what_is_here_stays(typed, tmp_path):
    for share in ("1/2", "2/2"):
        assert typed("run", "X1", "--shard", share, "--results", f"from-{share[0]}", "-q").exit_code == 0
    assert "14 runs taken over: 14 of X1" in typed("merge", "from-1").output
    before = (tmp_path / "reproduce/results/X1.json").read_text()
    assert "0 runs taken over" in typed("merge", "from-1").output
    assert (tmp_path / "reproduce/results/X1.json").read_text() == before
    assert "14 runs taken over" in typed("merge", "from-2").output
    assert "runs: 28 of 28" in typed("show", "X1").output


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[:-20], "X1.json is damaged"),
        (lambda text: text.replace('"samples": 1438', '"samples": 900'), "was run on 900 samples"),
    ],
)
def test_what_does_not_go_together_is_not_merged(typed, tmp_path, change, said):
    typed("run", "X1", "--shard", "1/14", "-q")
    typed("run", "X1", "--shard", "2/14", "--results", "from", "-q")
    before = (tmp_path / "reproduce/results/X1.json").read_text()
    (tmp_path / "from/X1.json").write_text(change((tmp_path / "from/X1.json").read_text()))
    done = typed("merge", "from")
    assert said in str(done.exception)
    assert (tmp_path / "reproduce/results/X1.json").read_text() == before


def test_only_results_are_merged(typed, tmp_path):
    assert "nowhere is not a folder of results" in str(typed("merge", "nowhere").exception)
    (tmp_path / "from").mkdir()
    (tmp_path / "from/X9.json").write_text("{}")
    assert "X9.json belongs to no table" in str(typed("merge", "from").exception)


def test_a_run_that_was_begun_under_other_settings_is_not_gone_on_with(typed, tmp_path, monkeypatch):
    typed("run", "X1", "--shard", "1/28", "-q")
    changed = {"X1": table.read_table(TEXT.replace("rounds = 2", "rounds = 3"))}
    for module in (table, overview, results):
        monkeypatch.setattr(module, "all_tables", lambda: changed)
    assert "1 runs done" in typed("run", "X1", "--shard", "1/28", "-q").output
    (kept,) = json.loads((tmp_path / "reproduce/results/X1.json").read_text())["runs"]
    assert kept["costs"]["rounds"] == 3


def test_a_reading_of_another_figure_takes_the_runs_that_are_there(typed, tmp_path):
    assert typed("run", "X1", "--shard", "1/8", "-q").exit_code == 0
    before = sorted(path.name for path in (tmp_path / "reproduce/results").iterdir())
    shown = json.loads(typed("show", "X1", "--json").stdout)
    (other,) = shown["readings"]
    assert (other["id"], other["rows"][0]["metric"]) == ("X1 as the best evaluation", "best_accuracy")
    ours = {(row["setting"], row["method"]): row for row in shown["rows"]}
    for row in other["rows"]:
        known = ours[row["setting"], row["method"]]
        assert row["paper"] == known["paper"]
        assert row["mean"] is None or row["mean"] >= known["mean"]  # the best is never below the last
    assert typed("run", "X1", "--reading", "the best evaluation", "--shard", "1/8", "-q").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "reproduce/results").iterdir()) == before


def test_another_reading_has_results_of_its_own(typed, tmp_path):
    assert typed("run", "X1", "--reading", "more local work", "--shard", "1/8", "-q").exit_code == 0
    assert [path.name for path in (tmp_path / "reproduce/results").glob("*.json")] == ["X1-as-more-local-work.json"]
    assert "X1 as more local work: FedBSS" in typed("show", "X1").output


@pytest.mark.extended
def test_a_method_of_ours_is_run_beside_a_table_and_voids_nothing(typed, tmp_path):
    typed("run", "X1", "-q")
    before = (tmp_path / "reproduce/results/X1.json").read_bytes()
    assert typed("run", "X1", "--with", "strata", "-q").exit_code == 0
    assert (tmp_path / "reproduce/results/X1.json").read_bytes() == before
    kept = json.loads((tmp_path / "reproduce/results/X1-with-strata.json").read_text())["runs"]
    assert [(run["method"], run["condition"]) for run in kept] == [("strata", "few")] * 6 + [("strata", "many")] * 6
    assert "0 runs done" in typed("run", "X1", "--with", "strata", "-q").output
    shown = " ".join(typed("show", "X1").output.split())
    assert "X1 with strata: FedBSS, Table 1, digits" in shown
    assert "strata less fedprox: " in shown
    assert "strata took 1.00 times the client updates of fedprox; at as many: " in shown
    assert "strata took 1.00 times the bytes of fedprox; at as many: " in shown
    assert "strata was searched on digits: this does not count" in shown
    assert typed("run", "X1", "--with", "strata", "--quick", "-q").exit_code == 0
    assert typed("page").exit_code == 0
    index = (tmp_path / "docs/papers/README.md").read_text()
    assert "| [X1 with strata](fedbss.md#x1-with-strata-table-1-digits) |" in index


@pytest.mark.extended
def test_a_method_of_ours_is_run_beside_a_reading_with_its_settings(typed, tmp_path):
    own = ("--with", "strata", "--reading", "more local work")
    typed("run", "X1", "--reading", "more local work", "--primary", "-q")
    assert "12 runs done" in typed("run", "X1", *own, "-q").output
    results = tmp_path / "reproduce/results"
    kept = json.loads((results / "X1-as-more-local-work-with-strata.json").read_text())
    assert kept["id"] == "X1 as more local work with strata"
    run = next(tmp_path.glob("runs/reproduce/X1-as-more-local-work-with-strata/**/experiment.toml")).read_text()
    assert "epochs = 2" in run
    assert "0 runs done" in typed("run", "X1", *own, "-q").output
    shown = " ".join(typed("show", "X1").output.split())
    assert "X1 as more local work with strata: FedBSS, Table 1, digits" in shown
    assert 'fedstrata reproduce run X1 --reading "more local work" --with strata' in shown
    assert "with strata, read as more local work" in " ".join(typed("list").output.split())
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    file = results / "X1-as-more-local-work-with-strata.json"
    file.rename(moved / file.name)
    assert "12 of X1 as more local work with strata" in typed("merge", str(moved)).output


@pytest.mark.extended
def test_readings_of_the_same_runs_share_those_of_a_method_beside_them(typed, tmp_path):
    typed("run", "X1", "--primary", "-q")
    typed("run", "X1", "--with", "strata", "-q")
    assert "0 runs done" in typed("run", "X1", "--with", "strata", "--reading", "the best evaluation", "-q").output
    assert "X1 as the best evaluation with strata: FedBSS" in " ".join(typed("show", "X1").output.split())


def test_quick_runs_every_row_and_keeps_nothing(typed, tmp_path):
    done = typed("run", "X1", "--quick", "-q")
    assert "4 runs done" in done.output  # three rows under one condition, one under the other
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "X2"), 'ID = "X2" is unknown'),
        (("run", "X1", "--shard", "3/2"), 'shard = "3/2"'),
        (("run", "X1", "--shard", "2"), "must look like 2/5"),
        (("run", "X1", "--minutes", "0"), "minutes = 0.0"),
        (("run", "X1", "--reading", "less"), 'reading = "less" is unknown'),
        (("run", "X1", "--row", "fedpros"), '--row = "fedpros" is unknown (did you mean "fedprox"?)'),
        (("run", "X1", "--with", "stratta"), 'method.name = "stratta" is unknown'),
        (("run", "X1", "--with", "fedavg"), 'with = "fedavg" is a row of X1 already'),
        (("run", "X1", "--with", "strata", "--reading", "less"), 'reading = "less" is unknown'),
    ],
)
def test_wrong_requests_are_refused_and_nothing_is_written(typed, tmp_path, words, said):
    done = typed(*words)
    assert said in str(done.exception)
    assert done.exception.exit_code == 2
    assert not list(tmp_path.iterdir())
