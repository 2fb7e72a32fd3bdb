"""The report: what it shows of one run, of several and of comparisons, as a page, as tables and in a notebook."""

from __future__ import annotations

import csv
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from reported import SMALL, copied, names

import fedstrata
from benchmarks.report import write_long_run
from fedstrata import RequestError, Run, compare, plots, train
from fedstrata.core.events import FAULTS
from fedstrata.report import figures
from fedstrata.report.figures import curves, style
from fedstrata.report.gather import gather
from fedstrata.report.html_tables import comparison_tables as compared_html
from fedstrata.report.outcome import outcome
from fedstrata.report.page import draw, make_title, page
from fedstrata.report.run_data import RunData
from fedstrata.runs.progress import describe_remark
from fedstrata.testing import tiny_federation


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    return write_long_run(tmp_path_factory.mktemp("long") / "run", rounds=300, clients=200)


# ---- what events tell, and what they must not


def test_private_runs_tell_neither_labels_nor_clients(tmp_path):
    run = train(overrides=SMALL | {"privacy.aggregate": "masked"}, federation=tiny_federation(), out=tmp_path / "run")
    told = {key for event in run.events() for key in event}
    assert not told & {"labels", "mix", "client_accuracy", "client_deciles", "label_divergence", "counts"}
    shown = names(draw(gather([run.path])))
    assert {"accuracy", "recall", "participation"} <= set(shown)
    assert not {"balance", "client-accuracy", "ranked"} & set(shown)


# ---- figures


@pytest.mark.parametrize(
    ("method", "own"),
    [
        ("flips", {"clusters", "cluster-participation"}),
        ("terraform", {"splits", "hard-clients"}),
        ("fedbss", {"cuts", "biased"}),
        ("stratify-batch", {"exposure", "schedule"}),
        ("fedavg", set()),
    ],
)
def test_a_method_shows_what_it_did(tmp_path, method, own):
    run = train(method=method, overrides=SMALL, federation=tiny_federation(), out=tmp_path / "run")
    method_figures = {shown.name for shown in figures.of_one(RunData.read(run.path)) if shown.section == "method"}
    assert method_figures - {"cluster-search"} == own
    if own:
        assert plots.method(run)[0].data
    else:
        with pytest.raises(RequestError, match="does not have"):
            plots.method(run)


def test_clusters_hold_the_labels_of_their_clients(tmp_path):
    run = train(method="flips", overrides=SMALL, federation=tiny_federation(), out=tmp_path / "run")
    run_data = RunData.read(run.path)
    members = np.array(run_data.clusters["members"])
    heat = plots.method(run)[0].data[0]
    assert np.allclose(np.sum(heat.z, axis=1), 1, atol=1e-3)
    sizes = np.bincount(members).tolist()
    assert [int(re.search(r"(\d+) client", row)[1]) for row in heat.y] == sizes
    assert [" clients, " in row for row in heat.y] == [size > 1 for size in sizes]


def test_lost_reports_are_drawn_by_reason(tmp_path):
    lossy = SMALL | {"system.stragglers.rate": 0.4}
    run = train(overrides=lossy, federation=tiny_federation(), out=tmp_path / "run")
    lost = sum(len(e["clients"]) for e in run.events() if e["event"] == "dropped")
    (bars,) = [bar for bar in plots.faults(run).data if bar.name == "report lost: late"]
    assert sum(bars.y) == lost > 0


AT_SITES = [
    ({"event": "site_refused", "round": 0, "site": "bonn", "client": 1, "why": "broken"}, None, "bonn: broken"),
    ({"event": "site_away", "site": "bonn", "client": 1}, 3, "bonn"),
    ({"event": "waiting", "sites": ["bonn"], "wanted": 3}, 3, "3 sites are needed; away are bonn"),
    ({"event": "site_back", "site": "bonn", "client": 1}, 3, "bonn"),
    ({"event": "site_changed", "site": "bonn", "client": 1, "samples": 5, "before": 9}, 3, "bonn has 5 samples"),
    ({"event": "state_lost", "round": 4, "step": 0, "site": "bonn", "client": 1}, 4, "bonn"),
    (
        {
            "event": "samples_overstated",
            "round": 4,
            "clients": [1],
            "sites": ["bonn"],
            "said": [99],
            "to": 9,
            "why": "so",
        },
        4,
        "bonn: 99 were claimed, 9 count: so",
    ),
    ({"event": "samples_bounded", "round": 4, "clients": [1], "said": [99], "to": 9}, 4, "99 were claimed, 9 count"),
    ({"event": "poisoned_sum", "round": 4, "clients": [0, 1], "why": "too long"}, 4, "too long"),
    ({"event": "not_scored_by_label", "round": 4, "why": "no sum"}, 4, "no sum"),
]


def test_faults_of_sites_are_told_with_the_round_in_which_they_happen(small, tmp_path):
    run = copied(small, tmp_path / "run")
    lines = (run.path / "events.jsonl").read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if '"round": 3' in line)
    first, *later = (json.dumps(event) + "\n" for event, _, _ in AT_SITES)
    (run.path / "events.jsonl").write_text("".join([lines[0], first, *lines[1:at], *later, *lines[at:]]))
    run_data = RunData.read(run.path)
    assert [(f.kind, f.round) for f in run_data.faults] == [(event["event"], round) for event, round, _ in AT_SITES]
    assert all(said in fault.why for fault, (_, _, said) in zip(run_data.faults, AT_SITES, strict=True))
    assert run_data.faults[1].clients == (1,)
    assert {bar.name for bar in plots.faults(run).data} == {FAULTS[event["event"]] for event, *_ in AT_SITES[1:]}
    assert "bonn has 5 samples, and had 9" in page(gather([run.path]))
    assert describe_remark(AT_SITES[1][0]) == "site away: bonn (clients 1)"
    assert describe_remark(AT_SITES[5][0]) == "round 4: site lost its state: bonn (clients 1)"


def test_a_fallback_says_the_reason_and_then_what_is_used_instead():
    event = {"event": "fallback", "what": "train.clients_per_round", "used": 20, "why": "fewer clients hold data"}
    said = "fallback: train.clients_per_round: fewer clients hold data; used instead: 20"
    assert describe_remark(event) == said


def test_every_event_is_a_fault_or_known_to_be_none():
    harmless = {"terraform", "schedule", "clusters", "extrapolated", "engine", "sites", "server_lr", "clipped"}
    harmless |= {"labels_masked", "histograms_blurred", "clusters_masked", "features_masked"}
    package = Path(fedstrata.__file__).parent
    logs = package / "deploy"  # servers and sites note in logs of their own
    sources = [path.read_text() for path in package.rglob("*.py") if logs not in path.parents]
    noted = {kind for text in sources for kind in re.findall(r'note\(\s*"(\w+)"', text)}
    assert noted <= FAULTS.keys() | harmless


def test_curves_against_cost_end_where_the_summary_does(small):
    summary = small.summary
    ends = {
        "rounds": summary["rounds"],
        "bytes": (summary["bytes_up"] + summary["bytes_down"]) / 1e6,
        "updates": summary["client_updates"],
        "time": summary["time"],
    }
    for against, end in ends.items():
        line = plots.accuracy(small, against).data[0]
        assert line.x[-1] == pytest.approx(end, rel=1e-6)
        assert line.y[-1] == pytest.approx(summary["accuracy"], rel=1e-6)
    with pytest.raises(RequestError, match="rounds, bytes, updates, time"):
        plots.accuracy(small, "money")


def test_labels_below_half_an_even_share_are_marked_and_come_last(long):
    run_data = RunData.read(long)
    (heat,) = next(shown.figure.data for shown in figures.of_one(run_data) if shown.name == "recall")
    marked = [row.endswith("(rare)") for row in heat.y]
    assert sum(marked) == (run_data.mix < 0.5 / 20).sum() > 0
    assert marked == sorted(marked)


def test_heat_maps_of_many_clients_stay_readable(long):
    for shown in figures.of_one(RunData.read(long)):
        for heat in (trace for trace in shown.figure.data if trace.type == "heatmap"):
            assert len(heat.y) <= style.CLIENTS
            assert len(heat.x) <= style.ROUNDS
            assert len(set(heat.y)) == len(heat.y) == len(heat.z)
            assert len(shown.figure.layout.yaxis.tickvals) <= style.TICKS


def test_bins_hold_the_means_of_what_is_known():
    values = np.array([[1.0, 3.0, np.nan, 5.0, np.nan, np.nan]])
    assert style.bin_values(values, 3).tolist()[0][:2] == [2.0, 5.0]
    assert np.isnan(style.bin_values(values, 3)[0, 2])
    assert style.bin_values(values, 6)[0, 1] == 3.0
    assert style.thin(1000, 10)[[0, -1]].tolist() == [0, 999]


# ---- comparisons and several runs


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("compared") / "c"
    return compare(methods=["fedavg", "fedprox"], seeds=2, overrides=SMALL, federation=tiny_federation(), out=out)


def test_a_comparison_shows_means_with_bands_and_its_table(compared):
    gathered = gather([compared.path])
    assert [run_data.group for run_data in gathered.runs_data] == ["fedavg", "fedavg", "fedprox", "fedprox"]
    lines = [line for line in curves.curves(gathered.runs_data, "accuracy").data if line.name]
    runs = [Run(compared.path / "fedavg" / f"seed-{seed}").curve("accuracy") for seed in (0, 1)]
    assert lines[0].y == pytest.approx(np.mean(runs, axis=0), abs=1e-6)
    assert not gathered.warnings
    assert make_title(gathered) == "2 methods on data from Python, 2 seeds"
    assert "2 methods over 2 seeds" in outcome(gathered)
    assert "Means over 2 seeds" in page(gathered)
    assert len(plots.accuracy(compared).data) == 6  # a line and two edges of a band for each method
    (compared.path / "comparison.json").rename(compared.path / "later.json")  # it is still going on
    assert len(gather([compared.path]).runs_data) == 4
    (compared.path / "later.json").rename(compared.path / "comparison.json")


def test_a_figure_names_the_methods_that_it_cannot_show(tmp_path):
    for method in ("fedavg", "stratify-batch"):  # of which a round sums up many steps
        train(method=method, overrides=SMALL, federation=tiny_federation(), out=tmp_path / method)
    shown = figures.overlays(gather([tmp_path / "fedavg", tmp_path / "stratify-batch"]).runs_data)
    said = {figure.name: figure.said for figure in shown}
    assert said["update-norm"].endswith(" Not drawn, because no round tells it: stratify-batch.")
    assert "Not drawn" not in figures.curves.say_absent([RunData.read(tmp_path / "fedavg")], "update_norm")


def test_tables_of_a_comparison_leave_out_what_all_have_in_common(compared):
    gathered = gather([compared.path])
    for seconds, row in enumerate(gathered.rows):
        row["seconds"] = {"mean": seconds, "interval": None}
    gains, *notes, costs = compared_html(gathered.rows, gathered.remarks)
    heads = re.findall(r"<th[^>]*>([^<]+)", gains)
    assert heads == [
        "method",
        "accuracy",
        "points over the first",
        "p",
        "rank",
        "balanced accuracy",
        "worst tenth of clients",
    ]
    assert any("with 2 seeds no p below" in note for note in notes)
    assert "The same for all: " in costs
    assert "rounds 4" in costs
    assert "p2p" not in costs  # nobody sends anything to another client
    assert re.findall(r"<th[^>]*>([^<]+)", costs) == ["method", "seconds"]


def test_methods_of_two_comparisons_stay_apart(compared, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(compared.path, again)
    gathered = gather([compared.path, again])
    groups = ["c/fedavg", "c/fedprox", "again/fedavg", "again/fedprox"]
    assert list(curves.group_runs(gathered.runs_data)) == [row["method"] for row in gathered.rows] == groups
    assert make_title(gathered) == "4 methods on data from Python, 2 seeds"


def test_an_ablation_shows_what_each_stage_brings(compared):
    first, second = compared.rows
    ablated = {**second, "without": "correct", "brings": second["accuracy_over_first"]}
    gains, *_ = compared_html([first, ablated])
    assert re.findall(r"<th[^>]*>([^<]+)", gains)[2:4] == ["points that the stage brings", "p"]


def test_titles_say_what_is_shown(small, compared, tmp_path):
    other = copied(small, tmp_path / "other")
    cell = compared.path / "fedavg"
    assert make_title(gather([small.path])) == "fedavg on data from Python"
    assert make_title(gather([small.path, other.path])) == "2 runs on data from Python"
    assert make_title(gather([cell / "seed-0", small.path])) == "2 runs on data from Python"
    told = re.search(r'<p class="outcome">(.*?)</p>', page(gather([small.path])))[1]
    assert "&nbsp;%" in told
    assert " %" not in told, "a line of a narrow window could begin with it"


def test_runs_on_different_data_are_shown_with_a_warning(small, tmp_path):
    other = train(overrides=SMALL, federation=tiny_federation(seed=1), out=tmp_path / "other")
    gathered = gather([small.path, other.path])
    assert any("different data" in said for said in gathered.warnings)
    assert len({run_data.name for run_data in gathered.runs_data}) == 2
    assert re.search(r'class="warning" role="alert">[^<]*different data', page(gathered))


def test_runs_that_share_their_data_need_no_warning(small, tmp_path):
    other = train(method="fedprox", overrides=SMALL, federation=tiny_federation(), out=tmp_path / "other")
    assert gather([small.path, other.path]).warnings == []


# ---- the page


class Outline(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for tag, attrs in self.tags if tag == name]


def test_the_page_holds_all_it_shows_and_fetches_nothing(small):
    text = page(gather([small.path]))
    outline = Outline(text)
    assert not outline.all("link")
    assert not outline.all("img")
    assert all("src" not in script for script in outline.all("script"))
    assert all(a["href"].startswith("#") for a in outline.all("a"))
    ids = [attrs["id"] for _, attrs in outline.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for a in outline.all("a")} <= set(ids)
    assert "default-src 'none'" in text
    held = json.loads(re.search(r'id="held">(.*?)</script>', text)[1])
    assert {d["data-figure"] for d in outline.all("div") if "data-figure" in d} == set(held["figures"])
    assert set(held["templates"]) == {"light", "dark", "paper"}


def test_the_page_says_how_to_run_it_again(small):
    text, start = page(gather([small.path])), small.events()[0]
    assert start["fingerprint"] in text
    assert f"fedstrata {start['version']}" in text
    assert "came from Python" in text
    assert "It sees every client" in text  # the privacy statement


def test_labels_of_users_cannot_become_part_of_the_page(tmp_path):
    evil = "</script><b>x"
    run = copied(train(overrides=SMALL, federation=tiny_federation(), out=tmp_path / "a"), tmp_path / "b")
    text = (run.path / "events.jsonl").read_text().replace('"classes": [0,', f'"classes": [{json.dumps(evil)},')
    (run.path / "events.jsonl").write_text(text)
    written = page(gather([run.path]))
    assert "<b>x" not in written
    assert "&lt;b&gt;x" in written


def test_a_long_run_fits_and_so_do_many(long, tmp_path):
    assert len(page(gather([long])).encode()) < 3e6
    many = [long, *(write_long_run(tmp_path / f"r{i}", rounds=60, clients=120, seed=i) for i in range(4))]
    assert len(page(gather(many)).encode()) < 4e6


# ---- the command


def test_the_command_writes_page_and_tables_and_tells_where(cli, small, tmp_path):
    out, tables = tmp_path / "deep" / "report.html", tmp_path / "tables"
    code, said, _ = cli("report", str(small.path), "-o", str(out), "--csv", str(tables), "--json")
    assert code == 0
    told = json.loads(said)
    assert told["report"] == str(out)
    assert told["bytes"] == out.stat().st_size
    with (tables / "rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == small.curve("accuracy")
    assert {path.name for path in tables.iterdir()} == {"runs.csv", "rounds.csv", "labels.csv", "clients.csv"}
    assert told["csv"] == [str(tables / name) for name in ("runs.csv", "rounds.csv", "labels.csv", "clients.csv")]


def test_the_table_of_a_comparison_has_intervals_and_tests(cli, compared, tmp_path):
    code, _, _ = cli("report", str(compared.path), "-o", str(tmp_path / "r.html"), "--csv", str(tmp_path / "tables"))
    assert code == 0
    with (tmp_path / "tables" / "comparison.csv").open() as file:
        first, second = csv.DictReader(file)
    row = compared.rows[1]
    assert float(second["accuracy"]) == row["accuracy"]["mean"]
    assert [float(second[f"accuracy_{end}"]) for end in ("from", "to")] == list(row["accuracy"]["interval"])
    assert float(second["accuracy_over_first_p"]) == row["accuracy_over_first"]["p"]
    assert first["accuracy_over_first_p"] == ""


def test_wrong_requests_are_refused_with_exit_code_2(cli, small, tmp_path):
    code, _, err = cli("report", str(tmp_path))
    assert (code, "not a run folder" in err) == (2, True)
    code, _, err = cli("report", str(small.path), "--format", "gif")
    assert (code, "pdf, svg, png" in err) == (2, True)
    code, _, err = cli("report", str(small.path), "-o", str(tmp_path))
    assert (code, "is a folder" in err) == (2, True)
    (tmp_path / "file").write_text("")
    code, _, err = cli("report", str(small.path), "-o", str(tmp_path / "file" / "r.html"))
    assert (code, "cannot be written" in err) == (2, True)
