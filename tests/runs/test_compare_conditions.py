"""Comparisons under conditions: their folders, data, resumption, tables, and the report."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

import fedstrata
from fedstrata import Comparison, RequestError, Run
from fedstrata.report.gather import gather
from fedstrata.report.outcome import outcome, share
from fedstrata.report.page import make_title, page
from fedstrata.runs.amounts import write_bytes, write_seconds
from fedstrata.runs.compare import layout, pool
from fedstrata.runs.compare.grid import grid_of_conditions, write_figure, write_value
from fedstrata.runs.compare.tables import csv_text, latex, markdown, terminal_table

QUICK = {"train.rounds": 2, "train.epochs": 1, "train.batch_size": 64, "engine.vmap": "never", "data.clients": 6}
FILE = """
[data]
clients = 6
[train]
rounds = 1
epochs = 1
batch_size = 64
[compare]
methods = ["fedavg", "fedprox(corrections.0.mu=1.0)"]
seeds = 2
over = { data.partition.alpha = [0.1, 1.0] }
[[compare.variant]]
name = "slow"
method.server_step = { kind = "sgd", lr = 0.5 }
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Two methods under four conditions with two seeds."""
    out = tmp_path_factory.mktemp("swept") / "c"
    over = {"data.partition.alpha": [0.1, 1.0], "train.clients_per_round": [2, 3]}
    how = {"methods": ["fedavg", "sfl"], "over": over, "seeds": 2, "jobs": 1}
    return fedstrata.compare(**how, overrides=QUICK, out=out)


# ---- cells that run -------------------------------------------------------------------------------------------------


def test_one_file_holds_the_experiment_and_its_comparison(cli):
    Path("table.toml").write_text(FILE)
    code, out, _ = cli("compare", "table.toml", "--out", "c", "--json", "-q")
    rows = json.loads(out)["rows"]
    assert code == 0
    assert [(row["condition"], row["method"], row["seeds"]) for row in rows] == [
        (condition, method, 2)
        for condition in ("alpha=0.1", "alpha=1")
        for method in ("fedavg", "fedprox(mu=1)", "slow")
    ]
    cell = Run("c/alpha=0.1/fedprox-mu=1/seed-1")
    experiment = fedstrata.Experiment.of(cell.path / "experiment.toml")
    assert (experiment.method.corrections[0]["mu"], experiment.data.partition["alpha"]) == (1.0, 0.1)
    assert [str(Path(path)) for path in rows[1]["run_dirs"]][1] == str(cell.path)
    grown = cli("compare", "table.toml", "--out", "c", "--json", "-q", "--over", "data.partition.alpha=1.0,5.0")
    assert [row["condition"] for row in json.loads(grown[1])["rows"]][::3] == ["alpha=1", "alpha=5"]
    assert len(list(Path("c").rglob("summary.json"))) == 18, "only the new condition was run"
    assert len(json.loads(Path("c/comparison.json").read_text())["cells"]) == 18


def test_run_trains_the_plain_experiment_of_such_a_file(cli):
    Path("table.toml").write_text(FILE)
    code, out, err = cli("run", "table.toml", "--json", "-q")
    assert (code, json.loads(out)["method"]) == (0, "fedavg")
    assert "note: this trains the plain experiment of table.toml; its comparison: fedstrata compare table.toml" in err
    assert cli("run", "table.toml", "--set", "compare.seeds=3")[0] == 2


def test_cells_of_a_seed_and_condition_share_their_data_and_each_is_built_once(swept, monkeypatch):
    cells = swept.cells
    assert len(cells) == 16
    prints = {(c.seed, c.condition.split(", ")[0]): set() for c in cells}
    for cell in cells:
        prints[cell.seed, cell.condition.split(", ")[0]].add(cell.data)
    assert all(len(own) == 1 for own in prints.values())
    assert len(set().union(*prints.values())) == 4, "two partitions of two seeds"
    built = []
    for module in (layout, pool):
        real = module.build_federation
        monkeypatch.setattr(module, "build_federation", lambda e, real=real: built.append(e.train.seed) or real(e))
    over = {"train.clients_per_round": [2, 3], "data.partition.alpha": [0.1, 1.0]}  # data change fastest
    fedstrata.compare(methods=["fedavg"], over=over, seeds=2, overrides=QUICK | {"train.rounds": 1}, jobs=1)
    assert len(built) == 8, "each of four once to be checked, once to be run"


def test_rows_are_paired_within_their_condition(swept):
    for condition in ("alpha=0.1, clients_per_round=2", "alpha=1, clients_per_round=3"):
        first, second = (row for row in swept.rows if row["condition"] == condition)
        runs = [swept.runs[f"{condition}/{method}"] for method in ("fedavg", "sfl")]
        over = [b.summary["accuracy"] - a.summary["accuracy"] for a, b in zip(*runs, strict=True)]
        assert second["accuracy_over_first"]["interval"] == [min(over), max(over)]
        assert first["rank"]["mean"] + second["rank"]["mean"] == 3


def test_a_comparison_under_conditions_is_taken_up_again(swept):
    again = Comparison.open(swept.path)
    assert again.design == swept.design
    assert again.rows == swept.rows
    assert [cell.key for cell in again.cells] == [cell.key for cell in swept.cells]
    with pytest.raises(RequestError, match=r"another experiment \(train.rounds: 2 -> 3\)"):
        fedstrata.compare(methods=["fedavg"], overrides=QUICK | {"train.rounds": 3}, out=swept.path)


def test_the_experiments_own_method_goes_through_conditions():
    done = fedstrata.compare(over={"train.lr": [0.1, 0.2]}, overrides=QUICK | {"train.rounds": 1}, out="c")
    assert [(row["condition"], row["method"]) for row in done.rows] == [("lr=0.1", "fedavg"), ("lr=0.2", "fedavg")]
    assert repr(done).startswith("Comparison('c': lr=0.1/fedavg ")


def test_data_from_python_cannot_be_varied():
    federation = fedstrata.Federation.from_clients([([[0.0], [1.0]] * 9, [0, 1] * 9)] * 4)
    with pytest.raises(RequestError, match=r"data\.partition\.alpha cannot be set: the federation was given"):
        fedstrata.compare(methods=["fedavg"], over={"data.partition.alpha": [1, 2]}, federation=federation)


def test_what_does_not_fit_under_one_condition_is_named_before_the_first_cell_runs(cli):
    asked = ["--methods", "fedavg,sfl", "--over", "privacy.aggregate=open,masked"]
    code, out, err = cli("compare", *asked)
    assert (code, out) == (2, "")
    assert "aggregate=masked, sfl cannot be compared: privacy.aggregate" in err
    assert not Path("runs").exists()


# ---- told ----------------------------------------------------------------------------------------------------------


def test_a_table_has_a_column_for_each_condition_and_fits_into_80_columns(swept):
    text = swept.table()
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["alpha=0.1", "alpha=0.1", "alpha=1"]
    assert lines[1].split() == ["method", *(f"clients_per_round={n}" for n in (2, 3, 2))]
    assert lines[5].split() == ["alpha=1"], "what does not fit stands below"
    assert lines[6].split() == ["method", "clients_per_round=3", "rank"]
    assert sum(line.count("*") for line in lines[:9]) >= 4
    wide = swept.table(wide=True)
    assert "alpha=0.1, clients_per_round=2:" in wide
    assert "over first" in wide


def test_what_is_the_same_for_all_and_what_does_not_fit_is_said_once(cli):
    asked = ["compare", "--methods", "fedavg,fedprox", "--seeds", "2", "-q", "--set", "train.rounds=1"]
    _, out, _ = cli(*asked)
    assert max(map(len, out.splitlines())) <= 80
    assert "the same for all: 192 kB up, 192 kB down, 10 updates, 1 rounds" in out
    assert "more with --wide: " in out
    assert out.splitlines()[-1] == "figures and curves: fedstrata report runs/compare-1"
    heads = cli("compare", "--resume", "runs/compare-1", "--wide", "-q")[1].splitlines()[0].split("  ")
    assert [head.strip() for head in heads if head][-4:] == ["updates", "rounds", "time", "seconds"]


def row(condition, method, accuracy, p=None, **more):
    low_high = [accuracy - 0.01, accuracy + 0.01]
    figure = {"mean": accuracy, "interval": low_high}
    over = {"mean": 0.1, "interval": [0.05, 0.15], "p": p, "p_holm": p}
    rank = {"mean": 1.5, "interval": None}
    return {
        "condition": condition,
        "method": method,
        "seeds": 6,
        "accuracy": figure,
        "accuracy_over_first": over,
        "rank": rank,
    } | more


ROWS = [
    row("a_1, k=2", "fedavg", 0.5),
    row("a_1, k=2", "100%|mine", 0.6, p=0.03),
    row("a_1, k=3", "fedavg", 0.7),
    row("a_1, k=3", "100%|mine", 0.65, p=0.2),
]


LEGEND = (
    "accuracy in %: mean [95 % interval] over 6 seeds; bold: the best of a condition; "
    "rank: mean over conditions and seeds"
)


def test_latex_groups_what_conditions_share_and_escapes():
    before, begin, lines = latex(ROWS).partition(r"\begin{tabular}")
    caption = rf"\caption{{A{LEGEND[1:]}.}}".replace("%", r"\%")
    assert before.splitlines() == [
        r"% needs \usepackage{booktabs}",
        f"% {LEGEND}",
        r"\begin{table}",
        r"\centering",
        caption,
    ]
    assert lines.splitlines()[-2:] == [r"\end{tabular}", r"\end{table}"]
    lines = ["", *f"{begin}{lines}".splitlines()]
    assert lines[1] == r"\begin{tabular}{lrrr}"
    assert lines[3] == r"\multicolumn{1}{c}{} & \multicolumn{2}{c}{a\_1} & \multicolumn{1}{c}{} \\"
    assert lines[4] == r"method & k=2 & k=3 & rank \\"
    assert lines[7] == (
        r"100\%|mine & \textbf{60.0 {\scriptsize [59.0, 61.0]}} & 65.0 {\scriptsize [64.0, 66.0]} & 1.5 \\"
    )
    assert [line for line in lines if line.endswith("rule")] == [r"\toprule", r"\midrule", r"\bottomrule"]


def test_markdown_has_a_line_a_method():
    assert markdown(ROWS).splitlines() == [
        "| method | a_1, k=2 | a_1, k=3 | rank |",
        "| --- | ---: | ---: | ---: |",
        "| fedavg | 50.0 [49.0, 51.0] | **70.0 [69.0, 71.0]** | 1.5 |",
        r"| 100%\|mine | **60.0 [59.0, 61.0]** | 65.0 [64.0, 66.0] | 1.5 |",
        "",
        f"A{LEGEND[1:]}.",
    ]


def test_a_terminal_marks_the_best_and_what_the_test_tells_apart():
    assert [line.split() for line in terminal_table(ROWS).splitlines()[2:4]] == [
        ["fedavg", "50.0", "[49.0,", "51.0]", "70.0", "[69.0,", "71.0]*", "1.5"],
        ["100%|mine", "60.0", "[59.0,", "61.0]+*", "65.0", "[64.0,", "66.0]", "1.5"],
    ]


def test_a_legend_says_what_stands_in_a_table_of_figures():
    rows = [{k: v for k, v in row.items() if k != "condition"} | {"metrics": ["accuracy"]} for row in ROWS[:2]]
    rows = [row | {"time": {"mean": 3.0, "interval": None}} for row in rows]
    rows[0] |= {"seeds": 4, "worst10": {"mean": 0.2, "interval": None}}
    rows[1] |= {"worst10": {"mean": 0.3, "interval": None}, "seconds": {"mean": 2.0, "interval": None}}
    said = (
        "accuracy in %: mean [95 % interval] over 4 to 6 seeds; over first: paired difference in points; p: of its "
        "permutation test; worst 10 % in % too; seconds are real"
    )
    assert said in " ".join(terminal_table(rows, 200).split())
    assert f"A{said[1:]}." in markdown(rows)
    assert "over one seed" in markdown([rows[0] | {"seeds": 1}])


def test_one_number_is_written_in_one_way():
    twice = 0.7555, 0.7555000000000001, 0.7554999999999999
    assert {write_value("accuracy", value) for value in twice} == {"75.5"}
    assert {write_value("accuracy_over_first", -value) for value in twice} == {"-75.5"}
    assert {share(value) for value in twice} == {"75.5 %"}


def test_a_cell_that_is_not_there_is_a_dash():
    assert grid_of_conditions(ROWS[:3]).lines == [
        ["fedavg", "50.0 [49.0, 51.0]", "70.0 [69.0, 71.0]", "1.5"],
        ["100%|mine", "60.0 [59.0, 61.0]", "-", "1.5"],
    ]


def test_units_are_those_of_people():
    assert [write_bytes(n) for n in (0, 999, 1.5e6, 2e15)] == ["0 B", "999 B", "1.5 MB", "2e+03 TB"]
    assert [write_seconds(n) for n in (0.25, 90, 600, 36_000)] == ["0.25 s", "90 s", "10 min", "10 h"]
    assert write_figure("client_updates", {"mean": 12345.0}) == "12,345"


def test_csv_has_every_figure_of_every_row(swept):
    lines = list(csv.DictReader(csv_text(swept.rows).splitlines()))
    assert len(lines) == 8
    assert lines[3]["condition"] == "alpha=0.1, clients_per_round=3"
    assert float(lines[3]["accuracy"]) == swept.rows[3]["accuracy"]["mean"]
    assert float(lines[3]["accuracy_over_first_p"]) == swept.rows[3]["accuracy_over_first"]["p"]


def test_tables_are_written_into_files_and_other_endings_are_refused_at_once(cli, swept, tmp_path):
    files = [tmp_path / name for name in ("t.tex", "new/t.md", "t.csv")]
    code, _, _ = cli("compare", "--resume", str(swept.path), "-q", *(f"--table={file}" for file in files))
    assert code == 0
    assert [file.read_text() for file in files] == [f(swept.rows) for f in (latex, markdown, csv_text)]
    code, _, err = cli("compare", "--methods", "fedavg,sfl", "--table", "t.xlsx")
    assert (code, "the name must end with .tex, .md, .csv" in err) == (2, True)
    assert not Path("runs").exists()


def test_the_report_has_one_table_with_heat_and_small_curves(swept):
    gathered = gather([swept.path])
    assert not gathered.warnings, "data differ between conditions, and may"
    assert make_title(gathered) == "2 methods on digits under 4 conditions, 2 seeds"
    assert outcome(gathered).startswith("Of 2 methods, each has the highest accuracy under so many of 4 conditions")
    text = page(gathered)
    assert "<caption>" not in text, "it is as wide as its table, and would be cut off where that scrolls"
    table = text[text.index('<table class="heat">') : text.index("</table>")]
    heats = [int(heat) for heat in re.findall(r"--heat:(\d+)%", table)]
    assert len(heats) == 8
    assert table.count("<svg") == 8
    assert table.count("<strong>") >= 4
    for column in range(4):
        means = [swept.rows[2 * column + method]["accuracy"]["mean"] for method in (0, 1)]
        assert heats[column + 4 * (means[1] > means[0])] == (55 if means[0] != means[1] else 0)
    assert text.count("Differences, tests and costs under ") == 4
    assert "Accuracy under alpha=1, clients_per_round=3" in text
    alone = gather([swept.path / "alpha=1,clients_per_round=3"])
    assert [run.group for run in alone.runs_data] == ["fedavg", "fedavg", "sfl", "sfl"]


def test_a_report_of_two_comparisons_of_which_one_has_conditions(swept, tmp_path):
    plain = fedstrata.compare(methods=["fedavg", "sfl"], overrides=QUICK | {"train.rounds": 1}, out=tmp_path / "plain")
    text = page(gather([swept.path, plain.path]))
    assert text.count('<table class="heat">') == 1
    assert "plain/sfl" in text
