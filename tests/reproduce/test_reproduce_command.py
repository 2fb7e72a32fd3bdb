"""`fedstrata reproduce`, as typed, with a table small enough to be played."""

import json

import pytest
from paper_tables import TEXT
from typer.testing import CliRunner

from fedstrata import cli
from fedstrata.reproduce import pages, table


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """Type a command in an empty folder; the one table is X1."""
    known = {"X1": table.read_table(TEXT)}
    monkeypatch.setattr(table, "all_tables", lambda: known)
    monkeypatch.setattr(pages, "all_tables", lambda: known)
    monkeypatch.chdir(tmp_path)

    def type_in(*words):
        return CliRunner().invoke(cli.app, ["reproduce", *words])

    return type_in


def test_a_table_is_played_kept_and_shown(typed, tmp_path):
    first = typed("run", "X1", "--shard", "1/2", "-q")
    assert first.exit_code == 0, first.output
    kept = json.loads((tmp_path / "reproduce/results/X1.json").read_text())["runs"]
    assert len(kept) == 14
    assert {run["device"] for run in kept} <= {"cpu", "gpu"}
    assert all({"accuracy", "best_accuracy"} <= run["figures"].keys() and run["code"] for run in kept)
    typed("run", "X1", "--shard", "2/2", "-q")
    again = typed("run", "X1", "-q")
    assert "0 runs played" in again.output
    shown = typed("show", "X1")
    assert "50.00 /" in shown.output
    assert "runs: 28 of 28" in shown.output
    assert "verdict: " in shown.output
    listed = json.loads(typed("list", "--json").output)
    assert listed[0]["runs"] == "28/28 done"
    assert listed[0]["missing"] == []
    assert typed("page").exit_code == 0
    assert "| [X1](fedbss.md) |" in (tmp_path / "docs/papers/README.md").read_text()
    assert "X1: Table 1, digits" in (tmp_path / "docs/papers/fedbss.md").read_text()
    assert "<strong>" in (tmp_path / "papers.html").read_text() or "50.00 /" in (tmp_path / "papers.html").read_text()


def test_another_reading_has_results_of_its_own(typed, tmp_path):
    assert typed("run", "X1", "--reading", "more local work", "--shard", "1/8", "-q").exit_code == 0
    assert [path.name for path in (tmp_path / "reproduce/results").glob("*.json")] == ["X1-as-more-local-work.json"]
    assert "X1 as more local work: FedBSS" in typed("show", "X1").output


def test_a_method_of_ours_is_played_beside_a_table_and_voids_nothing(typed, tmp_path):
    typed("run", "X1", "-q")
    before = (tmp_path / "reproduce/results/X1.json").read_bytes()
    assert typed("run", "X1", "--with", "strata", "-q").exit_code == 0
    assert (tmp_path / "reproduce/results/X1.json").read_bytes() == before
    kept = json.loads((tmp_path / "reproduce/results/X1-with-strata.json").read_text())["runs"]
    assert [(run["method"], run["condition"]) for run in kept] == [("strata", "few")] * 6 + [("strata", "many")] * 6
    assert "0 runs played" in typed("run", "X1", "--with", "strata", "-q").output
    shown = " ".join(typed("show", "X1").output.split())
    assert "X1 with strata: FedBSS, Table 1, digits" in shown
    assert "strata less fedprox: " in shown
    assert "strata took 1.00 times the client updates and 1.00 times the bytes of fedprox" in shown
    assert "strata was searched on digits: this does not count" in shown
    assert typed("run", "X1", "--with", "strata", "--quick", "-q").exit_code == 0
    assert typed("page").exit_code == 0
    assert "| [X1 with strata](fedbss.md) |" in (tmp_path / "docs/papers/README.md").read_text()


def test_quick_plays_every_row_and_keeps_nothing(typed, tmp_path):
    done = typed("run", "X1", "--quick", "-q")
    assert "4 runs played" in done.output  # three rows under one condition, one under the other
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "X2"), 'ID = "X2" is unknown'),
        (("run", "X1", "--shard", "3/2"), 'shard = "3/2"'),
        (("run", "X1", "--shard", "2"), "must look like 2/5"),
        (("run", "X1", "--minutes", "0"), "minutes = 0.0"),
        (("run", "X1", "--reading", "less"), 'reading = "less" is unknown'),
        (("run", "X1", "--with", "stratta"), 'method.name = "stratta" is unknown'),
        (("run", "X1", "--with", "fedavg"), 'with = "fedavg" is a row of X1 already'),
        (("run", "X1", "--with", "strata", "--reading", "more local work"), "leave --reading out"),
    ],
)
def test_wrong_requests_are_refused_and_nothing_is_written(typed, tmp_path, words, said):
    done = typed(*words)
    assert said in str(done.exception)
    assert done.exception.exit_code == 2
    assert not list(tmp_path.iterdir())
