"""Who won, where that can be said, and in what runs differ."""

from __future__ import annotations

import csv
import json
import re

import pytest
from written import begun, conclude, write_rounds

from fedstrata.report import tables
from fedstrata.report.document import figure_of
from fedstrata.report.figures import Shown
from fedstrata.report.figures.ranks import critical_difference
from fedstrata.report.gather import GatheredRuns, gather
from fedstrata.report.html_tables import best_of, comparison_tables
from fedstrata.report.outcome import outcome
from fedstrata.report.page import draw, make_title, page
from fedstrata.runs.compare.friedman import friedman
from fedstrata.runs.compare.rows import FIGURES, rows_of
from fedstrata.runs.compare.settings import Entry


def finished(path, method="fedavg", rounds=3, **about):
    run = begun(path, method=method, rounds=rounds, **about)
    write_rounds(run, 1, rounds)
    conclude(run, rounds=rounds)
    return run.path


def row(method, mean, interval=None):
    return {"method": method, "seeds": 3, "metrics": ["accuracy"], "accuracy": {"mean": mean, "interval": interval}}


# ---- no ranking of what cannot be compared


def test_runs_that_differ_only_in_the_method_are_ranked(tmp_path):
    one, other = finished(tmp_path / "a"), finished(tmp_path / "b", "scaffold")
    assert "is the most accurate" in outcome(gather([one, other]))


def test_runs_on_other_data_are_not_ranked(tmp_path):
    one, other = finished(tmp_path / "a"), finished(tmp_path / "b", "scaffold")
    events = other / "events.jsonl"
    events.write_text(events.read_text().replace('"fingerprint": "abc"', '"fingerprint": "def"'))
    said = outcome(gather([one, other]))
    assert "most accurate" not in said
    assert "not ranked" in said
    assert "different data" in said


def test_runs_with_other_settings_are_not_ranked_and_the_settings_are_named(tmp_path):
    one, other = finished(tmp_path / "a"), finished(tmp_path / "b", "scaffold", rounds=4)
    said = outcome(gather([one, other]))
    assert "most accurate" not in said
    assert "they differ in train.rounds, not only in the method" in said


def test_a_run_that_goes_on_is_not_ranked_against_one_that_is_further(tmp_path):
    one, other = finished(tmp_path / "a"), begun(tmp_path / "b", method="scaffold", rounds=3)
    write_rounds(other, 1, 2)
    assert outcome(gather([one, other.path])) == "2 runs, which are not ranked: scaffold has come to round 2 only."
    write_rounds(other, 3, 3)
    assert "is the most accurate" in outcome(gather([one, other.path]))


def test_before_a_comparison_ends_methods_are_ranked_by_their_means_never_by_a_seed(tmp_path):
    skills = {"fedavg": (0.5, 0.9), "scaffold": (0.8, 0.8)}  # the best seed is fedavg's
    for method, own in skills.items():
        for seed, skill in enumerate(own):
            run = begun(tmp_path / method / f"seed-{seed}", method=method, seed=seed, rounds=1)
            write_rounds(run, 1, 1)
            lines = (run.path / "events.jsonl").read_text().splitlines()
            event = json.loads(lines[-1]) | {"accuracy": skill}
            (run.path / "events.jsonl").write_text("\n".join([*lines[:-1], json.dumps(event)]) + "\n")
    said = outcome(gather([tmp_path]))
    assert said.startswith("Of 2 methods, scaffold has the highest mean accuracy so far: 80.0 % (80.0 % to 80.0 %)")
    assert "then fedavg 70.0 % (50.0 % to 90.0 %)" in said


# ---- the winner


def test_the_best_is_judged_by_paired_differences_not_by_intervals_of_different_seeds():
    values = {"fedavg": [0.3, 0.5, 0.7], "fedrs": [0.41, 0.61, 0.79], "strata": [0.5, 0.69, 0.91]}  # seeds differ more
    told = dict.fromkeys((*FIGURES, "stopped", "run_dir"), 1.0)
    done = {(m, seed): told | {"accuracy": v} for m, own in values.items() for seed, v in enumerate(own)}
    rows = rows_of(list(map(Entry, values)), range(3), done)
    assert rows[1]["accuracy_best_over"]["mean"] == pytest.approx(0.29 / 3)
    assert rows[2]["accuracy_best_over"] == {"mean": 0.0, "interval": [0.0, 0.0]}
    assert rows[1]["accuracy"]["interval"][1] > rows[2]["accuracy"]["interval"][0]
    assert best_of(rows) == {2: "best mean"}
    said = outcome(GatheredRuns(rows=rows))
    assert said.endswith("Paired by seed, they differ by +9.7 [+8.0, +12.0] in points.")
    assert "best over" not in " ".join(comparison_tables(rows)), "for the badge, not a cost"
    done["fedrs", 2]["accuracy"] = 0.92
    rows = rows_of(list(map(Entry, values)), range(3), done)
    assert best_of(rows) == {2: "best, but close"}
    assert outcome(GatheredRuns(rows=rows)).endswith("[-1.0, +9.0] in points: perhaps not at all.")


def test_rows_of_several_comparisons_are_judged_by_their_intervals(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        finished(tmp_path / name / "fedavg" / "seed-0")
        known = {"rows": [row("fedavg", 0.5, [0.4, 0.6]) | {"accuracy_best_over": {"mean": 0.0, "interval": [0, 0]}}]}
        (tmp_path / name / "comparison.json").write_text(json.dumps(known))
    found = gather([tmp_path / "one", tmp_path / "other"])
    assert [own["method"] for own in found.rows] == ["one/fedavg", "other/fedavg"]
    assert not [key for own in found.rows for key in own if key.endswith("_best_over")]


def test_the_winner_is_marked_and_it_is_said_where_intervals_overlap():
    apart = [row("a", 0.5, [0.4, 0.6]), row("b", 0.9, [0.8, 0.95])]
    close = [row("a", 0.85, [0.7, 0.9]), row("b", 0.9, [0.8, 0.95])]
    assert best_of(apart) == {1: "best mean"}
    assert best_of(close) == {1: "best, but close"}
    assert best_of([row("a", 0.5), row("b", 0.5)]) == {0: "best mean", 1: "best mean"}
    assert best_of(apart[:1]) == {}
    marked = next(comparison_tables(apart))
    assert re.search(r'<tr[^>]*class="winner"><td[^>]*>b<span class="badge">best mean</span>', marked)
    assert "winner" not in next(comparison_tables(apart, ranked=False))


def test_single_figures_are_of_the_first_method_and_of_the_best_others(tmp_path):
    methods = ["fedavg", "fedprox", "scaffold", "moon", "flips", "oort"]
    runs_data = []
    for method in methods:
        finished(tmp_path / method / "seed-0", method)
    found = gather([tmp_path])
    runs_data = sorted(found.runs_data, key=lambda own: methods.index(own.row))
    rows = [row(method, mean) for method, mean in zip(methods, (0.1, 0.2, 0.9, 0.3, 0.8, 0.7), strict=True)]
    gathered = GatheredRuns(runs_data, rows)
    assert [own.row for own in gathered.featured(4)] == ["fedavg", "scaffold", "flips", "oort"]
    assert len(gathered.featured(6)) == 6


# ---- in what runs differ


def test_a_report_says_in_what_runs_differ(tmp_path, cli):
    one, other = finished(tmp_path / "a"), finished(tmp_path / "b", "scaffold", rounds=4)
    table = tables.differences(gather([one, other]).firsts)
    told = {key: values for key, *values in table.rows}
    assert told["train.rounds"] == ["3", "4"]
    assert told["method.name"] == ["fedavg", "scaffold"]
    assert "train.lr" not in told
    assert "In what these runs differ" in page(gather([one, other]))
    assert "In what these runs differ" not in page(gather([one]))
    code, _, _ = cli("report", str(one), str(other), "-o", str(tmp_path / "r.html"), "--csv", str(tmp_path / "t"))
    assert code == 0
    with (tmp_path / "t" / "differences.csv").open() as file:
        assert ["train.rounds", "3", "4"] in list(csv.reader(file))


# ---- what is the same is shown once, and a method's parts can be hidden


def test_panels_that_are_the_same_for_several_runs_are_drawn_once(tmp_path):
    paths = [finished(tmp_path / m / "seed-0", m).parents[1] for m in ("fedavg", "fedprox", "scaffold")]
    shown = draw(gather([paths[0]]))
    took_part = [own for own in shown if own.name.startswith("participation")]
    assert [own.title for own in took_part] == ["Who took part: fedavg, fedprox and scaffold, seed-0"]
    assert took_part[0].methods == ("fedavg", "fedprox", "scaffold")


def test_parts_of_the_page_say_whose_they_are(tmp_path):
    one, other = finished(tmp_path / "a"), finished(tmp_path / "b", "scaffold")
    text = page(gather([one, other]))
    assert re.findall(r'data-method="([^"]+)"', text) == ["fedavg", "scaffold"]
    assert '<tr data-methods="[&quot;scaffold&quot;]">' in text
    assert 'data-methods="[&quot;fedavg&quot;, &quot;scaffold&quot;]"><h3>Who took part' in text
    assert "data-method=" not in page(gather([one])).partition("<script")[0]


def test_the_same_figure_of_several_runs_stands_in_a_row_and_is_explained_once(tmp_path):
    one, other = finished(tmp_path / "a"), finished(tmp_path / "b", "scaffold")
    events = (other / "events.jsonl").read_text()
    for ones in re.findall(r'"client_accuracy": \[[^]]*\]', events):  # of the other run, clients fare differently
        events = events.replace(
            ones, json.dumps({"client_accuracy": json.loads(f"{{{ones}}}")["client_accuracy"][::-1]})[1:-1]
        )
    (other / "events.jsonl").write_text(events)
    text = page(gather([one, other]))
    assert text.count("<h3>Accuracy of each client by round</h3>") == 1
    panels = re.findall(r'<figure id="figure-client-accuracy[^>]*><h4>([^<]*)</h4>', text)
    assert panels == ["fedavg", "scaffold"]
    assert "<h4>" not in page(gather([one]))


@pytest.mark.parametrize(("most", "bar"), [(1, False), (2, True)])
def test_a_matrix_of_yes_and_no_has_no_colour_scale(tmp_path, most, bar):
    run = begun(tmp_path / "run")
    for round in (1, 2):
        step = {"kind": "train", "clients": [round]}
        steps = [step] * most if round == 1 else [step]
        run.log("round", round=round, accuracy=0.5, steps=steps, bytes_up=1, bytes_down=1, bytes_p2p=0)
    (heat,) = next(own.figure.data for own in draw(gather([run.path])) if own.name == "participation")
    assert bool(heat.showscale) == bar
    assert len(heat.colorscale) == (6 if bar else 2)


# ---- what things are called


def test_means_of_the_last_evaluations_say_of_how_many_they_are(tmp_path):
    few, more, many = (finished(tmp_path / str(rounds), rounds=rounds) for rounds in (3, 4, 12))
    for paths, said in (([few], "the last 3"), ([many], "the last ten"), ([few, more], "the last ten or fewer")):
        titles = tables.runs(gather(paths).runs_data).titles
        assert titles == {"accuracy_last10": f"mean of {said}", "accuracy_last10_std": f"spread of {said}"}
    for paths, said in (([few], "<dt>mean of the last 3</dt>"), ([few, more], ">mean of the last ten or fewer</th>")):
        summary = json.loads((few / "summary.json").read_text())
        (few / "summary.json").write_text(json.dumps({**summary, "accuracy_last10": 0.5}))
        text = page(gather(paths))
        assert said in text
        assert "accuracy last10" not in text
    assert "accuracy_last10" in tables.runs(gather([few]).runs_data).columns, "CSV files keep the name"


def test_a_title_names_the_file_of_own_data(tmp_path):
    path = finished(tmp_path / "run")
    toml = path / "experiment.toml"
    toml.write_text(toml.read_text().replace('name = "digits"', 'name = "own"\npath = "/data/my iris.csv"'))
    assert make_title(gather([path])) == "fedavg on my iris.csv"


def test_pictures_of_several_partitions_are_called_after_their_conditions(tmp_path):
    cells = {"alpha=0.1": "abc", "alpha=1": "def"}
    for condition, fingerprint in cells.items():
        for method in ("fedavg", "scaffold"):
            path = finished(tmp_path / condition / method / "seed-0", method)
            counts = json.dumps({"event": "clients", "counts": [[1, 2, 3, 4]] * 8})
            text = (
                (path / "events.jsonl").read_text().replace('"fingerprint": "abc"', f'"fingerprint": "{fingerprint}"')
            )
            (path / "events.jsonl").write_text(f"{text}{counts}\n")
    held = [(own.name, own.title) for own in draw(gather([tmp_path])) if own.section == "federation"]
    assert held == [
        ("holds-alpha-0-1", "Who holds what: alpha=0.1"),
        ("holds-alpha-1", "Who holds what: alpha=1"),
    ]
    alone = [own.name for own in draw(gather([tmp_path / "alpha=1"])) if own.section == "federation"]
    assert alone == ["holds"]


# ---- the diagram of mean ranks


def test_names_in_the_rank_diagram_stand_in_margins_that_hold_them_at_any_width():
    long = "fedprox(corrections.0.mu=0.01, train.epochs=5)"
    drawn = critical_difference(friedman("accuracy", {"a": [1, 1, 1], long: [2, 2, 2], "fedavg-again": [0, 0, 0]}))
    texts = {note.name: (note.xanchor, note.text) for note in drawn.layout.annotations if note.name}
    assert texts == {
        long: ("right", "fedprox…rain.epochs=5) (1.00)"),
        "a": ("right", "a (2.00)"),
        "fedavg-again": ("left", "fedavg-again (3.00)"),
    }
    margin, letter = drawn.layout.margin, 7
    assert margin.l >= letter * len(texts[long][1])
    assert letter * len("fedavg-again (3.00)") <= margin.r < margin.l
    held = figure_of(Shown("curves", "ranks", "", "", drawn))["layout"]["margin"]
    assert held == {"l": margin.l, "r": margin.r}, "the page keeps these, and the room above is for titles in notebooks"
