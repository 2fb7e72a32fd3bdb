"""Every table of the five papers is an experiment file that can be built, and says what the paper prints."""

from __future__ import annotations

import math
import re

import pytest
from paper_files import BY_ID, FILES, design

from fedstrata.config import tables
from fedstrata.reproduce.execute import run_quickly
from fedstrata.reproduce.results import ALWAYS
from fedstrata.reproduce.table import all_tables, find_table
from fedstrata.runs.metrics import Criterion, metrics_of

TABLES = {  # every table and figure with results: part of a paper, data set where one has several
    "stratify": "S1 S2 S3 S4 S5-pacs S5-digits-dg S6 S7 S8 S9-covtype S9-pacs S9-digits-dg S10-single S10-batch S10-bn "
    "S11-cifar10 S11-pacs S11-digits-dg S11-transfers S12-cifar10 S12-cifar100 S13-fedtan",
    "flips": "L1 L2 L3 L4 L5 L6 L6-mit-bih L6-ham10000 L6-femnist",
    "fedpbs": "P1 P2 P3 P4",
    "fedbss": "B1 B1-cifar10 B1-cifar100 B2 B2-cifar10 B2-cifar100 B3 B3-cifar10 B3-cifar100 B4-domainnet B4-warmup "
    "B4-growth",
    "terraform": "T1 T2-cifar100 T2-tiny-imagenet T2-femnist T3 T4 T4-femnist T5-cifar100 T5-tiny-imagenet T6-cifar100 "
    "T6-tiny-imagenet",
}
KEYS = ["id", "paper", "what", "claim", "status", "method", "seeds", "order", "notes", "quick"]
FURTHER = ["baselines", "figures", "deviations", "costs", "readings", "oddities", "not_comparable"]

every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def test_every_table_of_the_papers_has_a_file_and_a_place_in_the_order():
    papers = [tables.read(path)["paper"] for path in FILES]
    assert {path.parent.name: "" for path in FILES}.keys() == TABLES.keys()
    for paper, ids in TABLES.items():
        assert {path.stem for path in FILES if path.parent.name == paper} == set(ids.split())
    assert len({paper["order"] for paper in papers}) == len(papers)
    first = sorted(papers, key=lambda paper: paper["order"])[:7]
    assert [paper["id"] for paper in first] == ["B2", "T1", "T3", "L5", "L6", "S6", "S2"]


@every_file
def test_a_file_says_what_the_paper_prints(path):
    table = tables.read(path)
    paper, built = table["paper"], design(table)
    rows, conditions = [e.name for e in built.entries], built.conditions
    assert set(KEYS) <= paper.keys() <= {*KEYS, *FURTHER}
    assert (paper["id"], paper["paper"]) == (path.stem, path.parent.name)
    assert paper["status"] in ("A", "B", "C")
    assert paper["claim"].endswith(".")
    assert all(note.endswith(".") for note in (*paper["notes"], *paper.get("oddities", ())))
    assert paper["method"] in rows
    assert paper["seeds"] >= table["compare"]["seeds"]
    assert set(paper.get("baselines", ())) <= set(rows) - {paper["method"]}
    figures = paper.get("figures", {})
    if figures:
        asked = metrics_of(table["compare"]["metric"])
        assert [metric.name for metric in asked] == [metric.name for metric in metrics_of(list(figures))]
        printed = next(iter(figures.values()))
        assert paper["method"] in printed
        assert set(paper.get("baselines", ())) <= printed.keys()
    shown = paper.get("costs", {})
    for named in (*figures.values(), *paper.get("deviations", {}).values(), *shown.values()):
        assert named.keys() <= set(rows)
        assert all(len(values) == len(conditions) for values in named.values())
    for metric in metrics_of(list(figures)) if figures else ():
        for value in (v for values in figures[metric.name].values() for v in values):
            most = table["train"]["rounds"] if metric.lower else 100
            assert math.isnan(value) or 0 < value <= most or (metric.lower and math.isinf(value))
    for metric, spread in paper.get("deviations", {}).items():
        assert spread.keys() == figures[metric].keys()


@every_file
def test_what_a_paper_leaves_open_is_marked(path):
    text = path.read_text()
    assert re.search(r"# not stated", text)
    assert find_table(path.stem).not_stated or find_table(path.stem).lost
    assert max(map(len, text.splitlines())) <= 120


@every_file
def test_other_readings_are_experiments_too(path):
    table = tables.read(path)
    plain = design(table)
    for name, reading in table["paper"].get("readings", {}).items():
        figure = Criterion.of(reading.get("compare", {}).get("metric", "accuracy")).name
        settings = {section: own for section, own in reading.items() if section != "compare"}
        if not settings:  # another figure of the same runs, or some conditions
            looked = {Criterion.of(name).name for name in ALWAYS}
            assert figure in looked or reading["compare"].keys() <= {"conditions", "method"}
            continue
        read = design(table, settings)
        changed = [key for key, own in read.experiments.items() if own.dump() != plain.experiments[key].dump()]
        assert changed, name


@every_file
def test_a_quick_version_has_every_row_and_condition_on_embedded_data(path):
    table = tables.read(path)
    whole, quick = design(table), design(table, table["paper"]["quick"])
    assert quick.experiments.keys() == whole.experiments.keys()
    for experiment in quick.experiments.values():
        assert (experiment.data.name, experiment.model.name, experiment.train.rounds) == ("digits", "mlp", 2)


def test_the_figures_are_those_of_the_papers():
    """Some by hand, one or two of each paper: those that its text or the introduction names."""

    def figure(id, row, condition, metric=None):
        table = tables.read(BY_ID[id])
        names = [c.name for c in design(table).conditions]
        figures = table["paper"]["figures"]
        return figures[metric or next(iter(figures))][row][names.index(condition)]

    assert figure("B2-cifar10", "fedbss", "Dirichlet 0.5") == 45.27
    assert figure("B2-cifar10", "fedlc", "Dirichlet 0.5") == 40.76
    assert figure("B1", "scaffold", "8 shards") == 82.51
    assert figure("L4", "fedyogi-flips", "alpha 0.3, 15 %") == 86.86
    assert figure("L1", "fedyogi-flips", "alpha 0.3, 20 %", "balanced_rounds_to:0.6") == 157
    assert figure("L1", "fedyogi-random", "alpha 0.3, 20 %", "balanced_rounds_to:0.6") == math.inf
    assert figure("L6", "fedyogi-flips", "alpha 0.3, 15 %, stragglers=0.2", "balanced_rounds_to:0.8") == 42
    assert figure("P1", "fedpbs", "alpha 0.2") == 94.0
    assert figure("S6", "stratify", "#C=1") == 90.6
    assert figure("S2", "sfl", "IID") == 82.6
    assert figure("S11-pacs", "single, W, CS50", "#D=1") == 95.5
    assert figure("T3", "oort", "1") == 89.01
    assert figure("T3", "terraform-fedprox", "4") == 87.24 == figure("T4", "5 clients", "4")
    assert figure("T1", "power-of-choice-fedprox", "2") == 20.28


def test_methods_have_as_many_epochs_as_stratify_s_paper_prints_for_them():
    """It trains each for as long as its best epoch on evenly dealt data; no epoch that is printed is later."""
    dealt = [table for table in all_tables().values() if table.conditions[-1] == "IID"]
    found = [table for table in dealt if "best_accuracy_round" in table.costs]
    assert len(found) == 12
    for table in found:
        printed = table.costs["best_accuracy_round"]
        others = max(max(epochs) for row, epochs in printed.items() if row != "stratify")
        for row in table.rows:
            asked = table.settings("IID", row)["train.rounds"]
            assert asked == (max(printed[row]) if row == "stratify" else others), table.id


def run_quick(id, out):
    """Run the quick version, as `fedstrata reproduce run ID --quick` does."""
    table = find_table(id)
    done = run_quickly(table, out, lambda *_: None)
    assert not done.failed
    assert done.finished == len(table.design.entries) + len(table.conditions) - 1


@pytest.mark.parametrize("id", ["B2", "S6", "T4"])
def test_a_quick_version_runs(id, tmp_path):
    run_quick(id, tmp_path)


@pytest.mark.extended
@pytest.mark.parametrize("id", sorted(set(BY_ID) - {"B2", "S6", "T4"}))
def test_every_quick_version_runs(id, tmp_path):
    run_quick(id, tmp_path)
