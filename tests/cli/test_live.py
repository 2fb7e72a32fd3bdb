"""Progress of a comparison: the metric that is compared, and which run leads so far."""

from __future__ import annotations

from io import StringIO

from flipping import ONE_STEP, clients, network
from rich.console import Console

import fedstrata
from fedstrata.runs.compare import ComparisonRequest, prepare
from fedstrata.runs.compare.live import LiveLines, LiveTable, Watcher

TUNE = {"train.lr": [0.1, 2.0]}


def prepared(**asked):
    request = ComparisonRequest.of(**asked)
    return prepare(None, request, ONE_STEP | {"train.rounds": 2}, clients(), network(), "c")


def drawn(table):
    text = StringIO()
    Console(width=120, file=text).print(table)
    return text.getvalue()


def test_the_best_so_far_follows_the_metric_and_trials_are_not_among_it():
    comparison = prepared(methods="fedavg", variants={"still": {"train.lr": 1e-9}}, tune=TUNE)
    seen = Watcher(comparison)
    leaders = []

    def watch(cell, event):
        seen(cell, event)
        leaders.append((cell.trial, seen.leader()))

    comparison.run(jobs=1, watch=watch)
    assert {leader for trial, leader in leaders if trial} == {""}
    assert leaders[-1][1] == "best accuracy so far 100.0 %: fedavg, lr=2, seed 0"
    assert seen.trials == 2
    assert seen.progress() == "2 trials of tuning, 2/2 runs"


def test_the_live_table_shows_mean_best_and_leader():
    comparison = prepared(methods="fedavg(train.lr=2)", variants={"still": {"train.lr": 1e-9}}, seeds=2)
    comparison.run(jobs=1)
    live = LiveTable(comparison, Console(file=StringIO()))
    live.close()
    text = drawn(live.table())
    assert "best so far" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["fedavg(lr=2)", "2", "100.0", "%", "100.0", "%"] in lines
    assert ["still", "2", "0.0", "%", "0.0", "%"] in lines
    assert "best accuracy so far 100.0 %: fedavg(lr=2), seed 0" in text


def test_where_less_is_better_the_lowest_leads():
    comparison = prepared(methods="fedavg(train.lr=2)", variants={"slow": {"train.lr": 0.7}}, metric="rounds_to:0.8")
    comparison.run(jobs=1)
    assert Watcher(comparison).leader() == "best rounds to 0.8 so far 1.0: fedavg(lr=2), seed 0"


def test_lines_tell_the_metric_and_the_leader(capsys):
    comparison = prepared(methods="fedavg(train.lr=2)", tune={"train.epochs": [1, 2]})
    comparison.run(jobs=1, watch=LiveLines(comparison))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tuning 1 fedavg(lr=2), epochs=1, seed 1000000: accuracy 100.0 % after 2 rounds"
    assert lines[2].startswith("1/1 fedavg(lr=2), epochs=1, seed 0: accuracy 100.0 % after 2 rounds, the best so far")
    assert fedstrata.Comparison.open("c", federation=clients(), model=network()).failed == []
