"""Progress of a comparison: the metric that is compared, and which run leads so far."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace

from flipping import ONE_STEP, clients, network
from rich.console import Console

import fedstrata
from fedstrata.runs.compare import ComparisonRequest, live, prepare
from fedstrata.runs.compare.cells import Cell
from fedstrata.runs.compare.live import LiveLines, LiveTable, Watcher

TUNE = {"train.lr": [0.1, 2.0]}


def prepared(**asked):
    request = ComparisonRequest.of(**asked)
    return prepare(None, request, ONE_STEP | {"train.rounds": 2}, clients(), network(), "c")


def drawn(table):
    text = StringIO()
    Console(width=120, file=text).print(table)
    return text.getvalue()


def pretend(monkeypatch, accuracy):
    """Let finished cells have other accuracies than they have."""
    real = Cell.outcome
    monkeypatch.setattr(Cell, "outcome", lambda cell, metrics: {**real(cell, metrics), "accuracy": accuracy(cell)})


def told(comparison, jobs=1):
    """Run a comparison, and return its events by whether they are of a trial, with what a watcher knew then."""
    seen, said = Watcher(comparison), []

    def watch(cell, event):
        seen(cell, event)
        said.append((cell, event["event"], seen.leader(), seen.left()))

    comparison.run(jobs=jobs, watch=watch)
    return seen, said


def test_the_best_so_far_follows_the_metric_and_trials_are_not_among_it():
    comparison = prepared(methods="fedavg", variants={"still": {"train.lr": 1e-9}}, tune=TUNE)
    seen, said = told(comparison)
    assert {leader for cell, _, leader, _ in said if cell.trial} == {""}
    assert said[-1][2] == "best accuracy so far: fedavg 100.0 %"
    assert seen.trials == 2
    assert seen.progress() == "2 trials of tuning, 2/2 runs"


def test_rows_are_compared_under_each_condition_over_seeds_that_all_have_finished(monkeypatch):
    reached = {  # the highest of all is that of a row which does not lead there; the next condition is easier
        ("rounds=1", "fedavg"): (0.5, 0.2),
        ("rounds=1", "still"): (0.4, 0.4),
        ("rounds=2", "fedavg"): (0.7, 0.7),
        ("rounds=2", "still"): (0.8, 0.8),
    }
    comparison = prepared(
        methods="fedavg", variants={"still": {"train.lr": 1e-9}}, seeds=2, over={"train.rounds": [1, 2]}
    )
    pretend(monkeypatch, lambda cell: reached[cell.key[:2]][cell.seed])
    _, said = told(comparison)
    leaders = [leader for _, event, leader, _ in said if event == "finished"]
    assert leaders[0] == "", "one row alone leads nobody"
    assert leaders[1] == "best accuracy so far under rounds=1: fedavg 50.0 %"
    both = "best accuracy so far under rounds=1: fedavg 50.0 %, rounds=2: still 80.0 %"
    assert leaders[3:5] == [both, both], "the second seed of one row is not compared with the first of another"
    assert leaders[5] == "best accuracy so far under rounds=1: still 40.0 %, rounds=2: still 80.0 %"


def test_a_line_praises_a_cell_among_those_of_its_condition_and_seed(monkeypatch, capsys):
    reached = {"fedavg": (0.9, 0.2), "still": (0.4, 0.3)}
    comparison = prepared(methods="fedavg", variants={"still": {"train.lr": 1e-9}}, seeds=2)
    pretend(monkeypatch, lambda cell: reached[cell.method][cell.seed])
    comparison.run(jobs=1, watch=LiveLines(comparison))
    praised = [line for line in capsys.readouterr().err.splitlines() if "the best" in line]
    assert len(praised) == 1
    assert praised[0].startswith("4/4 still, seed 1: accuracy 30.0 % after 2 rounds, the best so far of this seed")


def test_what_is_left_is_guessed_from_cells_and_not_from_trials(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    comparison = prepared(methods="fedavg", seeds=4, tune=TUNE)
    seen = Watcher(comparison)
    left = []

    def watch(cell, event):
        clock[0] += 1000 if cell.trial else 1 if event["event"] == "round" else 0
        seen(cell, event)
        left.append(seen.left()) if event["event"] == "finished" and not cell.trial else None

    comparison.run(jobs=1, watch=watch)
    assert left == [", 6 s left", ", 4 s left", ", 2 s left", ", 0 s left"]  # two rounds a cell


def test_choices_are_told_once_a_row_and_condition(capsys):
    cells = [SimpleNamespace(condition=c, method="strata", name=f"{c}, seed {s}") for c in ("a", "b") for s in (0, 1)]
    comparison = prepared(methods="fedavg")
    seen = Watcher(comparison)
    choice = {"event": "choice", "stage": "selector", "why": "labels are skewed"}
    one, other = {"kind": "flips", "clusters": 3}, {"kind": "balanced-labels"}
    first = [seen.remark(cell, {**choice, "used": one}) for cell in cells]
    assert [bool(said) for said in first] == [True, False, True, False]
    assert not seen.remark(
        cells[1], {**choice, "used": one | {"clusters": 4}, "why": "labels are a little less skewed"}
    )
    assert seen.remark(cells[1], {**choice, "used": other}), "another part is told"
    assert seen.remark(cells[1], {**choice, "stage": "sampler", "used": [one]})


def test_the_live_table_shows_means_and_the_leader():
    comparison = prepared(methods="fedavg(train.lr=2)", variants={"still": {"train.lr": 1e-9}}, seeds=2)
    comparison.run(jobs=1)
    table = LiveTable(comparison, Console(file=StringIO()))
    table.close()
    lines = [line.split() for line in drawn(table.table()).splitlines()]
    assert ["fedavg(lr=2)", "2", "100.0", "%"] in lines
    assert ["still", "2", "0.0", "%"] in lines
    assert "best accuracy so far: fedavg(lr=2) 100.0 % (mean of 2 seeds)" in " ".join(drawn(table.table()).split())
    assert {row.style for row in table.table().rows} == {"bold", None}


def test_the_live_table_compares_what_all_rows_have_finished():
    asked = {"methods": "fedavg(train.lr=2)", "variants": {"still": {"train.lr": 1e-9}}}
    prepared(**asked, over={"train.epochs": [1, 2]}).run(jobs=1)
    comparison = prepared(**asked, over={"train.epochs": [1, 2, 3]})
    (late,) = [cell for cell in comparison.cells if cell.key == ("epochs=2", "still", 0)]
    late.state = "waiting"
    table = LiveTable(comparison, Console(file=StringIO()))
    table.close()
    table.value[next(cell.path for cell in comparison.cells if cell.key[:2] == ("epochs=2", "fedavg(lr=2)"))] = 0.1
    lines = [line.split() for line in drawn(table.table()).splitlines()]
    assert lines[0] == ["method", "done", "running", "left", "failed", "accuracy", "leads", "now"]
    assert ["fedavg(lr=2)", "2", "1", "100.0", "%", "1"] in lines
    assert ["still", "1", "2", "0.0", "%"] in lines
    table.final.clear()
    table.value = {late.path: 0.3}
    assert ["still", "1", "2", "(30.0", "%)"] in [line.split() for line in drawn(table.table()).splitlines()]
    (ended, goes_on) = [cell for cell in comparison.cells if cell.condition == "epochs=1"]
    goes_on.state = "running"  # where another row has finished: its value so far is no result
    table.value = {ended.path: 0.9, goes_on.path: 0.1}
    lines = [line.split() for line in drawn(table.table()).splitlines()]
    assert any(line[0] == "still" and line[-2:] == ["(10.0", "%)"] for line in lines if line)


def test_where_less_is_better_the_lowest_leads():
    comparison = prepared(methods="fedavg(train.lr=2)", variants={"slow": {"train.lr": 0.7}}, metric="rounds_to:0.8")
    comparison.run(jobs=1)
    assert Watcher(comparison).leader() == "best rounds to 0.8 so far: fedavg(lr=2) 1.0"


def test_lines_tell_the_metric(capsys):
    comparison = prepared(methods="fedavg(train.lr=2)", tune={"train.epochs": [1, 2]})
    comparison.run(jobs=1, watch=LiveLines(comparison))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tuning 1 fedavg(lr=2), epochs=1, seed 1000000: accuracy 100.0 % after 2 rounds"
    assert lines[2] == "1/1 fedavg(lr=2), epochs=1, seed 0: accuracy 100.0 % after 2 rounds, 0 s left"
    assert fedstrata.Comparison.open("c", federation=clients(), model=network()).failed == []
