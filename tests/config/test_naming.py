"""What a run is called: after its parts or by its own name, wherever a user reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedstrata
from fedstrata.board.index import RunIndex
from fedstrata.config.experiment import Experiment
from fedstrata.config.naming import folder_name, name_data, name_plan, name_run
from fedstrata.core import registry
from fedstrata.core.errors import RequestError

PARTS = {"selector": "power-of-choice", "corrections": ["scaffold", "prox"], "server_step": "yogi"}
COMBINED = "fedavg+power-of-choice+scaffold+prox+yogi"


def named(**method):
    return name_plan(Experiment.of({"method": method}).dump())


@pytest.mark.parametrize("name", sorted(registry.names("methods")))
def test_a_recipe_is_called_by_its_name(name):
    assert named(name=name) == name


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (PARTS, COMBINED),
        ({"name": "fedprox", "corrections": []}, "fedprox+no-prox"),
        ({"name": "fedprox", "corrections": ["scaffold"]}, "fedprox+scaffold+no-prox"),
        ({"name": "fedprox", "corrections": [{"kind": "prox", "mu": 0.5}]}, "fedprox"),  # options are no other part
        ({"name": "flips", "selector": "random"}, "flips+random"),
    ],
)
def test_a_combined_plan_is_called_after_its_parts(method, expected):
    assert named(**method) == expected


def test_a_recipe_by_import_path_is_not_imported_to_name_a_run_folder():
    stages = {"selector": {"kind": "random"}, "corrections": [{"kind": "mine.parts:Pull"}]}
    assert name_run({"method": {"name": "not_there:OWN", **stages}}) == "OWN+Pull"
    assert name_run({"method": {"name": "gone", "selector": "random"}}) == "gone+random"  # its package is not here
    assert name_run({}) == ""


@pytest.mark.parametrize("table", [{}, {"name": "my first study: it works!"}])
def test_the_name_stands_wherever_a_run_is_named(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = []
    run = fedstrata.train({**table, "method": PARTS}, overrides={"train.rounds": 1}, watch=told.append)
    expected = table.get("name", COMBINED)
    assert told[0]["method"] == expected
    assert run.path == Path("runs", f"{'my-first-study-it-works' if table else COMBINED}-1")
    assert run.summary["method"] == COMBINED
    assert run.summary.get("name") == table.get("name")
    assert expected in repr(run)
    assert fedstrata.RunData.read(run.path).name == expected
    index = RunIndex(Path("runs"))
    index.look()
    assert [row.method for row in index.rows.values()] == [expected]
    assert Experiment.of(run.path / "experiment.toml").name == table.get("name")


def test_rows_of_a_comparison_are_called_by_what_they_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = {"methods": ["fedavg", "sfl"], "overrides": {"train.rounds": 1}}
    done = fedstrata.compare({"name": "both"}, **asked, out="c")
    assert [row["method"] for row in done.rows] == ["fedavg", "sfl"]
    again = fedstrata.compare(**asked, out="c")  # the name decides no figure: nothing is run again
    assert [cell.state for cell in again.cells] == ["finished", "finished"]
    assert "name" not in json.loads(Path("c/comparison.json").read_text())


def test_a_run_may_get_another_name_on_the_way(tmp_path):
    def interrupt(event):
        if event["event"] == "round":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedstrata.train({"name": "old"}, overrides={"train.rounds": 1}, out=tmp_path / "run", watch=interrupt)
    file = tmp_path / "run" / "experiment.toml"
    file.write_text(file.read_text().replace('"old"', '"new"'))
    assert fedstrata.resume(tmp_path / "run").summary["name"] == "new"


@pytest.mark.parametrize("name", ["", " ", "two\nlines", "x" * 101, 3])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(RequestError, match=r"name = .* is not valid; allowed: a line of text"):
        Experiment.of({"name": name})


@pytest.mark.parametrize(("name", "expected"), [("a/b: c", "a-b-c"), ("../..", "run"), ("Größe 1", "Größe-1")])
def test_every_name_can_be_a_folder(name, expected):
    assert folder_name(name) == expected


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (("digits", None), "digits"),
        (("own", "data/patients.csv"), "patients.csv"),
        (("own", "photos/"), "photos"),
        (("own", None), "own data"),
        (("given", None), "data from Python"),
        ((None, None), ""),
    ],
)
def test_own_data_are_called_after_their_file(data, said):
    """The board called every table of one's own "own"."""
    assert name_data(*data) == said
