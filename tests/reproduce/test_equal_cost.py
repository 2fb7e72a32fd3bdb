"""A method of ours against the paper's own where both have spent as much, on figures made up by hand."""

import json
from dataclasses import replace

import pytest
from paper_tables import TEXT

from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.methods.strata import STRATA
from fedstrata.reproduce.equal_cost import accuracy_at, at_equal_costs
from fedstrata.reproduce.overview import Judged
from fedstrata.reproduce.pages import markdown_pages
from fedstrata.reproduce.results import Results
from fedstrata.reproduce.show import describe, why_not_counted
from fedstrata.reproduce.table import Wanted, read_table
from fedstrata.reproduce.verdict import BETTER, NOT_INFERIOR, OPEN, judge

TABLE = read_table(TEXT)
BYTES = {"bytes_up": 60, "bytes_down": 40, "bytes_p2p": 0}


def entry(updates=20, curve=((1, 0.1, 10, 50), (2, 0.3, 20, 100)), last=0.2, rounds=2):
    costs = {"rounds": rounds, "client_updates": updates, **BYTES}
    return {"figures": {"accuracy_last10": last, "accuracy": last}, "costs": costs, "curve": [*map(list, curve)]}


def test_a_run_that_spent_no_more_counts_as_a_whole():
    assert accuracy_at(entry(), "client_updates", 20, 1) == 0.2
    assert accuracy_at(entry(), "bytes", 1_000, 1) == 0.2


def test_a_run_that_spent_more_is_cut():
    assert accuracy_at(entry(), "client_updates", 19, 1) == 0.1
    assert accuracy_at(entry(), "bytes", 50, 1) == 0.1
    assert accuracy_at(entry(), "bytes", 49, 1) is None, "nothing was evaluated by then"


def test_the_mean_is_that_of_the_last_ten_evaluations_until_then():
    curve = [(round, round / 100, round, round) for round in range(2, 41, 2)]
    cut = accuracy_at(entry(40, curve, rounds=40), "client_updates", 31, 2)
    assert cut == pytest.approx(sum(range(12, 31, 2)) / 10 / 100)  # rounds 12, 14, ..., 30


def test_curves_of_earlier_versions_are_spent_evenly():
    old = entry(40, [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)], rounds=4)
    assert accuracy_at(old, "client_updates", 20, 1) == pytest.approx(0.15)
    assert accuracy_at(old, "bytes", 75, 1) == pytest.approx(0.2)


def keep(folder, table, own, name):
    runs = [
        {
            "condition": condition,
            "method": table.method,
            "seed": seed,
            "experiment": table.digest(Wanted(condition, table.method, seed)),
            "data": {"samples": 1438, "test": 359, "complete": True},
            "device": "cpu",
            **own(seed),
        }
        for condition in table.conditions
        for seed in range(6)
    ]
    (folder / name).write_text(json.dumps({"id": table.id, "runs": runs}))


@pytest.fixture
def beside(tmp_path):
    """FedDyn with 10 updates a run beside FedProx with 20, which is ahead at its end and behind at half of it."""
    table = TABLE.beside("feddyn")
    keep(tmp_path, TABLE, lambda seed: entry(last=0.4 + seed / 1000), "X1.json")
    keep(tmp_path, table, lambda seed: entry(updates=10, last=0.3 + seed / 1000), "X1-with-feddyn.json")
    return Results(table, tmp_path)


def test_both_are_compared_at_the_smaller_price(beside):
    updates, traffic = at_equal_costs(beside)
    assert (updates.price, updates.share, updates.word) == ("client_updates", 0.5, BETTER)
    assert updates.mean == pytest.approx(0.2 + 0.0025)  # 0.3 and a little against 0.1
    assert (traffic.price, traffic.share) == ("bytes", 1.0)
    assert traffic.mean == pytest.approx(-0.1)
    said = " ".join(describe(beside, judge({beside.table.id: beside})[beside.table.id]))
    assert "feddyn took 0.50 times the client updates of fedprox; at as many: +20.25 points" in said


def test_where_a_run_was_not_evaluated_early_enough_nothing_is_said_of_it(beside, tmp_path):
    keep(tmp_path, beside.table, lambda _: entry(updates=5), "X1-with-feddyn.json")
    updates, _ = at_equal_costs(Results(beside.table, tmp_path))
    assert (updates.mean, updates.word) == (None, OPEN)


def test_fewer_than_six_seeds_decide_nothing(beside, tmp_path):
    kept = json.loads((tmp_path / "X1.json").read_text())
    kept["runs"] = [run for run in kept["runs"] if run["seed"] < 5]
    (tmp_path / "X1.json").write_text(json.dumps(kept))
    assert [one.word for one in at_equal_costs(Results(beside.table, tmp_path))] == [OPEN, OPEN]
    (tmp_path / "X1.json").unlink()
    alone = list(at_equal_costs(Results(beside.table, tmp_path)))
    assert [(one.share, one.mean, one.word) for one in alone] == [(None, None, OPEN)] * 2


@pytest.mark.parametrize(("data", "counted"), [("covtype", 1), ("digits", 0)])
def test_pages_count_the_papers_on_which_ours_is_not_behind(tmp_path, data, counted):
    """Data on which it was searched do not count."""
    table = replace(TABLE, experiment={**TABLE.experiment, "data": {"clients": 5, "name": data}})
    ours = table.beside("strata")
    keep(tmp_path, table, lambda seed: entry(last=0.4 + seed / 1000), "X1.json")
    keep(tmp_path, ours, lambda seed: entry(last=0.395 + seed / 1000), "X1-with-strata.json")
    judged = {}
    for own in (Results(table, tmp_path), Results(ours, tmp_path)):
        judged[own.table.id] = Judged(own, judge({own.table.id: own})[own.table.id])
    index = markdown_pages(judged)["README.md"]
    (line,) = [line for line in index.splitlines() if line.startswith("| X1 | fedprox |")]
    assert line.count(NOT_INFERIOR) == 3
    assert f"on every table so far that counts: for {counted} of 5 papers" in " ".join(index.split())


def test_runs_of_a_recipe_that_chooses_otherwise_since_do_not_count_and_are_told_of(tmp_path, monkeypatch):
    table = replace(TABLE, experiment={**TABLE.experiment, "data": {"clients": 5, "name": "covtype"}})
    ours = table.beside("strata")
    keep(tmp_path, ours, lambda seed: entry(), "X1-with-strata.json")
    assert len(Results(ours, tmp_path).runs) == 12
    monkeypatch.setattr(registry, "find", lambda *_: replace(STRATA, version=STRATA.version + 1))
    stale = Results(ours, tmp_path)
    assert (len(stale.runs), stale.outdated) == (0, 12)
    judged = {ours.id: Judged(stale, judge({ours.id: stale})[ours.id])}
    said = " ".join(markdown_pages(judged)["README.md"].split())
    assert "| X1 | not run with its present choices; 12 runs of earlier ones do not count |" in said
    assert "that counts: for 0 of 5 papers" in said


def test_a_table_for_which_ours_was_changed_does_not_count():
    seen = replace(TABLE, id="T1", experiment={**TABLE.experiment, "data": {"clients": 5, "name": "covtype"}})
    assert why_not_counted(seen.beside("strata")) == "strata was changed after its first figures here"
    assert why_not_counted(seen) is None
    assert why_not_counted(seen.beside("feddyn")) is None


def test_a_table_that_holds_no_method_against_others_has_no_place_for_ours():
    with pytest.raises(RequestError, match="holds no method against others"):
        replace(TABLE, baselines=[]).beside("feddyn")


def test_ours_is_run_where_the_paper_s_own_method_has_all_seeds_and_tiny_where_the_table_is():
    """Under "many" nothing is printed of a baseline, so the paper's own method has two seeds there."""
    part = read_table(TEXT.replace("fedavg = [50.0, 60.0]", "fedavg = [50.0, nan]")).beside("feddyn")
    assert part.conditions == ["few"]
    assert len(part.wanted()) == 6
    assert set(part.tiny.experiments) == {("few", "feddyn")}
    tiny = part.tiny.experiments["few", "feddyn"]
    assert (tiny.train.rounds, tiny.data.clients) == (1, 4)


def test_a_reading_is_tried_as_it_reads_the_paper():
    read = TABLE.read_as("more local work").tiny.experiments["few", "fedprox"]
    assert (read.train.epochs, read.train.rounds, read.data.clients) == (2, 1, 4)
