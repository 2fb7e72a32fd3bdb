"""What methods are compared by: ranks, tests, tables and headlines follow the metric, and know which way is better."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

import fedstrata
from fedstrata import Comparison, RequestError, Run
from fedstrata.report.gather import gather
from fedstrata.report.outcome import outcome
from fedstrata.report.page import page
from fedstrata.runs.compare.costs import costs_apart
from fedstrata.runs.compare.grid import grid_of_conditions, grid_of_figures, write_figure
from fedstrata.runs.compare.rows import remarks_of, rows_of
from fedstrata.runs.compare.settings import Entry
from fedstrata.runs.compare.tables import csv_text, latex, markdown, terminal_table
from fedstrata.runs.metrics import Criterion, evaluations

pytestmark = pytest.mark.usefixtures("quick_processes")

QUICK = {"train.rounds": 3, "data.clients": 6, "train.epochs": 1, "train.batch_size": 64, "engine.vmap": "never"}
SETS = [f"--set={key}={value}" for key, value in QUICK.items()]
ENTRIES = [Entry("slow"), Entry("quick"), Entry("stuck")]
ROUNDS = Criterion.of("rounds_to:0.8")
OTHERS = ("accuracy", "balanced_accuracy", "worst10", "client_updates", "rounds", "time", "seconds")


def done(**rounds):
    """Summaries of runs that needed so many rounds, or never got there; accuracies all alike."""
    return {
        (method, seed): {
            **dict.fromkeys((*OTHERS, "bytes_up", "bytes_down", "bytes_p2p"), 0.5),
            **{"rounds_to:0.8": value, "remarks": [], "stopped": "all rounds done", "run_dir": "x"},
        }
        for method, values in rounds.items()
        for seed, value in enumerate(values)
    }


CURVES = done(slow=[40.0, 60.0, 50.0], quick=[20.0, 30.0, 40.0], stuck=[10.0, math.inf, math.inf])


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_how_many_times_the_first_row_s_costs_others_took_is_told_where_that_is_more_than_a_half():
    runs, more = done(slow=[1.0, 1.0], quick=[1.0, 1.0], stuck=[1.0, 1.0]), done(slow=[1.0], quick=[1.0], stuck=[1.0])
    assert costs_apart(ENTRIES, [runs]) == []
    for seed in range(2):
        runs["slow", seed]["client_updates"] = 0.6  # less than twice, the other way round
        runs["stuck", seed] |= {"bytes_up": 22, "bytes_p2p": 42.0, "client_updates": 25.8}
    assert costs_apart(ENTRIES, [runs]) == [
        "beside slow, quick took 0.83 times the client updates, stuck took 43 times the bytes and client updates"
        "; --budget bytes=... makes the bytes equal"
    ]
    more["stuck", 0]["client_updates"] = 1.0
    assert costs_apart(ENTRIES, [more]) == ["beside slow, stuck took 2 times the client updates"]
    said = costs_apart(ENTRIES, [runs, more])[0]
    assert "stuck took 1 to 43 times the bytes and 2 to 43 times the client updates" in said
    del runs["stuck", 0], runs["stuck", 1]  # not there yet
    assert costs_apart(ENTRIES, [runs]) == []


def test_what_was_spent_of_privacy_is_told():
    runs = done(slow=[1.0, 1.0], quick=[1.0, 1.0], stuck=[1.0, 1.0])
    for seed in range(2):
        runs["quick", seed]["epsilon"] = 4.2372 + seed
        runs["stuck", seed]["epsilon"] = None  # clipped, without noise
    rows = rows_of(ENTRIES, range(2), runs)
    assert [row.get("epsilon", {}).get("mean") for row in rows] == [None, pytest.approx(4.7372), None]
    assert "epsilon" in csv_text(rows).splitlines()[0]
    told = remarks_of(ENTRIES, range(2), runs)
    assert [line for line in told if "epsilon" in line] == [
        "quick: epsilon is 4.24 (seed 0)",
        "quick: epsilon is 5.24 (seed 1)",
        "stuck: epsilon is infinite: there is no noise (seed 0, 1)",
    ]


def test_rows_with_the_same_models_are_named():
    """A difference of 0 looks measured; where models are the same to the last bit, nothing was."""
    runs = done(slow=[1.0, 1.0], quick=[1.0, 1.0], stuck=[1.0, 1.0])
    losses = {"slow": (0.5, 0.25), "quick": (0.5, 0.25), "stuck": (0.5, math.nextafter(0.25, 1))}
    for method, own in losses.items():
        for seed, loss in enumerate(own):
            runs[method, seed]["loss_test"] = loss
    said = "slow, quick came to the same models, bit for bit, with every seed: "
    same = [line for line in remarks_of(ENTRIES, range(2), runs) if "same models" in line]
    assert [line.startswith(said) for line in same] == [True], "stuck is one bit away with a seed"
    del runs["quick", 1]  # not there yet
    assert any(line.startswith(said) for line in remarks_of(ENTRIES, range(2), runs))
    for method in ("slow", "quick"):  # both went wrong, each in its way
        runs[method, 0]["loss_test"] = math.nan
    assert not any("same models" in line for line in remarks_of(ENTRIES, range(2), runs))


def test_less_is_better_and_never_is_worst():
    slow, quick, stuck = rows_of(ENTRIES, range(3), CURVES, [ROUNDS])
    assert [row["metrics"] for row in (slow, quick, stuck)] == [["rounds_to:0.8"]] * 3
    assert slow["rounds_to:0.8"] == {"mean": 50.0, "interval": [40.0, 60.0], "reached": 3, "runs": 3}
    assert stuck["rounds_to:0.8"] == {"mean": 10.0, "interval": None, "reached": 1, "runs": 3}
    # places by seed: stuck quick slow; quick slow stuck; the same again
    assert [row["rank"]["mean"] for row in (slow, quick, stuck)] == pytest.approx([7 / 3, 4 / 3, 7 / 3])
    over = quick["rounds_to:0.8_over_first"]
    assert (over["mean"], over["interval"], over["p"]) == (-20.0, [-30.0, -10.0], 0.25)
    assert over["p_holm"] == 0.5  # the smaller of two counts twice
    # differences of stuck are -30, never and never: places 1, 2.5 and 2.5, and 4 of 8 flips are as far from 0
    assert stuck["rounds_to:0.8_over_first"]["mean"] == -30.0
    assert stuck["rounds_to:0.8_over_first"]["p"] == 0.5
    assert remarks_of(ENTRIES, range(3), CURVES, [ROUNDS])[0] == (
        "stuck never reached 0.8; it ranks last there, and is in no mean of rounds_to:0.8 (seed 1, 2)"
    )


def test_tables_say_how_often_a_target_was_reached():
    rows = rows_of(ENTRIES, range(3), CURVES, [ROUNDS, Criterion("accuracy")])
    grid = grid_of_figures(rows)
    assert grid.titles[:6] == ["method", "rounds to 0.8", "over first", "p", "Holm's p", "rank"]
    assert grid.lines[0][1:3] == ["50.0 [40.0, 60.0]", "-"]
    assert grid.lines[1][1:5] == [
        "20.0 [20.0, 40.0]".replace("20.0 [", "30.0 ["),
        "-20.0 [-30.0, -10.0]",
        "0.25",
        "0.5",
    ]
    assert grid.lines[2][1] == "10.0 (1 of 3)"
    assert grid.titles[6] == "accuracy"
    assert "rounds to 0.8, less is better: mean" in terminal_table(rows)
    assert write_figure("bytes_to:0.8", {"mean": None, "interval": None, "reached": 0, "runs": 2}) == "never"
    lines = csv_text(rows).splitlines()
    told = dict(zip(lines[0].split(","), lines[3].split(","), strict=True))
    assert (told["rounds_to:0.8_reached"], told["rounds_to:0.8_runs"]) == ("1", "3")
    assert told["rounds_to:0.8_over_first_p_holm"] == "0.5"


def test_the_best_of_a_condition_is_the_least_that_was_always_reached():
    rows = [{"condition": "a", **row} for row in rows_of(ENTRIES, range(3), CURVES, [ROUNDS, Criterion("accuracy")])]
    assert grid_of_conditions(rows).best == {(1, 1)}  # not 10 rounds in one seed of three
    never = done(slow=[math.inf] * 2, quick=[math.inf] * 2, stuck=[math.inf] * 2)
    rows_without = [{"condition": "a", **row} for row in rows_of(ENTRIES, range(2), never, [ROUNDS])]
    assert grid_of_conditions(rows_without).best == set()
    assert markdown(rows).count("| method |") == latex(rows).count(r"\begin{tabular}") == 2
    assert "**30.0 [20.0, 40.0]**" in markdown(rows)


def test_latex_has_what_is_compared_and_what_it_cost_apart():
    rows = rows_of(ENTRIES, range(3), CURVES, [ROUNDS, Criterion("accuracy")])
    heads = [line for line in latex(rows).splitlines() if line.startswith("method &")]
    assert heads == [
        r"method & rounds to 0.8 & over first & p & Holm's p & rank & accuracy \\",
        r"method & balanced & worst 10 \% & seconds \\",
    ]
    assert "quick & 30.0 {\\scriptsize [20.0, 40.0]} & $-$20.0 {\\scriptsize [$-$30.0, $-$10.0]} & 0.25" in latex(rows)
    assert "time is virtual" not in latex(rows)  # it is the same for all


def test_what_a_stage_brings_is_what_it_saves():
    entries = [Entry("whole"), Entry("whole-without-sampler", without="sampler")]
    runs = done(**{"whole": [10.0, 20.0], "whole-without-sampler": [15.0, 26.0]})
    _, without = rows_of(entries, range(2), runs, [ROUNDS])
    assert without["brings"]["mean"] == 5.5
    _, without = rows_of(entries, range(2), {k: {**v, "accuracy": v["rounds_to:0.8"]} for k, v in runs.items()})
    assert (without["brings"]["mean"], without["brings"]["interval"]) == (-5.5, [-6.0, -5.0])
    text = terminal_table(rows_of(entries, range(2), runs, [ROUNDS]))
    assert "brings: rounds to 0.8 without the stage less that of whole" in text


# ---- cells that run -------------------------------------------------------------------------------------------------


def test_a_comparison_by_several_metrics_and_the_same_again_by_another(cli):
    how = ["--methods", "fedavg,fedyogi,scaffold", "--seeds", "2", *SETS, "--out", "c", "--json"]
    code, out, _ = cli("compare", *how, "--metric", "balanced_accuracy,rounds_to:0.2", "--metric", "best")
    told = json.loads(out)
    assert code == 0
    assert told["metrics"] == ["balanced_accuracy", "rounds_to:0.2", "best_accuracy"]
    for row in told["rows"]:
        runs = [Run(path) for path in row["run_dirs"]]
        assert row["balanced_accuracy"]["mean"] == pytest.approx(sum(r.summary["balanced_accuracy"] for r in runs) / 2)
        rounds = [[e["round"] for e in evaluations(run.events()) if e["accuracy"] >= 0.2][:1] for run in runs]
        assert row["rounds_to:0.2"]["reached"] == sum(map(len, rounds))
        assert "p_holm" in row["best_accuracy_over_first"]
    written = {str(p): p.stat().st_mtime_ns for p in Path("c").rglob("events.jsonl")}
    code, out, err = cli("compare", "--resume", "c", "--metric", "bytes_to:0.2", "--json")
    assert (code, json.loads(out)["metrics"]) == (0, ["bytes_to:0.2"])
    assert "6 of 6 runs were finished already" in err
    assert {str(p): p.stat().st_mtime_ns for p in Path("c").rglob("events.jsonl")} == written
    assert [m.name for m in Comparison.open("c").metrics] == ["bytes_to:0.2"]  # as it was last asked for
    assert [m.name for m in Comparison.open("c", metric="worst10").metrics] == ["worst10"]
    assert "lowest mean bytes to 0.2" in outcome(gather(["c"]))


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("acuracy", 'metric = "acuracy" is unknown (did you mean "accuracy"?)'),
        ("rounds_to:8", "needs an accuracy from 0 to 1"),
        ("personal", 'metric = "personal_mean" needs train.evaluate.personal = true'),
    ],
)
def test_a_metric_that_is_not_there_is_refused_before_anything_is_written(cli, metric, said):
    code, _, err = cli("compare", "--methods", "fedavg,sfl", *SETS, "--metric", metric, "--out", "c")
    assert (code, said in err) == (2, True)
    assert not Path("c").exists()


def test_personal_figures_and_a_file_that_says_what_is_compared(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text('[compare]\nmethods = ["fedavg", "sfl"]\nmetric = ["personal", "accuracy"]\n')
    done = fedstrata.compare(file, overrides=QUICK | {"train.evaluate.personal": True}, out="c")
    assert [metric.name for metric in done.metrics] == ["personal_mean", "accuracy"]
    assert done.rows[0]["personal_mean"]["mean"] == done.runs["fedavg"][0].summary["personal_mean"]
    assert re.search(r"fedavg \d+\.\d %", repr(done))
    file.write_text('[compare]\nmethods = ["fedavg"]\nmetric = "nothing"\n')
    with pytest.raises(RequestError, match='metric = "nothing" is unknown'):
        fedstrata.compare(file, out="d")


def test_friedman_over_conditions_in_table_json_page_and_plots(cli):
    how = {"over": {"train.lr": [0.02, 0.1, 0.3]}, "overrides": QUICK | {"train.rounds": 2}, "out": "c"}
    done = fedstrata.compare(methods=["fedavg", "fedyogi", "scaffold"], metric="accuracy_last10", **how)
    means = {(row["condition"], row["method"]): row["accuracy_last10"]["mean"] for row in done.rows}
    conditions, methods = dict.fromkeys(c for c, _ in means), ("fedavg", "fedyogi", "scaffold")
    places = {m: sum(sum(means[c, o] > means[c, m] for o in methods) + 1 for c in conditions) / 3 for m in methods}
    assert done.friedman.ranks == pytest.approx(places)  # nothing is tied here
    assert json.loads(Path("c/comparison.json").read_text())["friedman"] == done.friedman.to_json()
    assert "Friedman: chi-square" in done.table()
    assert any("Friedman's p over 3 conditions is rough" in remark for remark in done.remarks)
    assert json.loads(cli("compare", "--resume", "c", "--json", "-q")[1])["friedman"]["conditions"] == 3
    assert "figure-critical-difference" in page(gather(["c"]))
    drawn = fedstrata.plots.critical_difference(done)
    assert {trace.name for trace in drawn.data} >= set(methods)
    assert fedstrata.plots.critical_difference("c") == drawn
    alone = fedstrata.compare(methods=["fedavg", "sfl"], overrides=QUICK | {"train.rounds": 1}, out="alone")
    assert alone.friedman is None
    with pytest.raises(RequestError, match="no two methods whose runs are finished under two conditions"):
        fedstrata.plots.critical_difference(alone)
