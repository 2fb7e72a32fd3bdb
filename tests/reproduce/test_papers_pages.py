"""Pages and figures that are committed are those that the commands write from what is committed."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import _speeds
from fedstrata.cli import paper_list
from fedstrata.reproduce import work
from fedstrata.reproduce.minutes import in_words
from fedstrata.reproduce.overview import judge_all, of_paper
from fedstrata.reproduce.pages import markdown_pages, with_headlines
from fedstrata.reproduce.picture import gains_picture
from fedstrata.reproduce.table import PAPERS, all_tables

ROOT = Path(__file__).parents[2]
AGAIN = "out of step: type `fedstrata reproduce page`"


@pytest.fixture(scope="module")
def judged():
    return judge_all(ROOT / "reproduce/results")


def test_the_papers_pages_are_in_step_with_the_results(judged):
    written = markdown_pages(judged)
    assert {path.name for path in (ROOT / "docs/papers").iterdir()} == written.keys()
    for name, text in written.items():
        assert (ROOT / "docs/papers" / name).read_text() == text, AGAIN


def test_the_readme_s_first_table_is_in_step_with_the_results(judged):
    readme = (ROOT / "README.md").read_text()
    assert with_headlines(readme, judged) == readme, AGAIN
    first = readme.index("| ")
    assert readme[first:].startswith("| paper | table |")


def test_the_picture_of_gains_has_them_at_scale(judged):
    firsts = [of_paper(paper, judged)[0] for paper in PAPERS]
    drawn = gains_picture(judged)
    at = {int(tick): float(x) for x, tick in re.findall(r'<text x="([\d.]+)"[^>]*middle[^>]*>([+-]?\d+)<', drawn)}
    scale = (at[10] - at[0]) / 10
    full = re.findall(r'<circle cx="([\d.]+)" cy="\d+" r="5" fill="#', drawn)[1:]  # after the legend
    hollow = re.findall(r'<circle cx="([\d.]+)" cy="\d+" r="5" fill="none"', drawn)[1:]
    for own, ours, theirs in zip(firsts, full, hollow, strict=True):
        assert (float(ours) - at[0]) / scale == pytest.approx(100 * own.verdict.contrast.mean, abs=0.05)
        assert (float(theirs) - at[0]) / scale == pytest.approx(100 * own.verdict.contrast.claimed, abs=0.05)
        assert f">{own.verdict.word}</text>" in drawn


def test_the_readme_says_where_runs_had_a_part_of_the_data(judged):
    text = with_headlines((ROOT / "README.md").read_text(), judged)
    first = {name: next(own for own in judged.values() if own.results.table.paper == name) for name in PAPERS}
    assert any(own.results.partial for own in first.values())
    for paper, own in first.items():
        line = next(line for line in text.splitlines() if f"](docs/papers/{paper}.md)" in line)
        assert ("on a part of the data" in line) is (own.results.partial > 0)


def test_every_table_says_how_long_it_takes_on_a_cpu_and_on_a_gpu(judged):
    for own in judged.values():
        minutes = own.to_json()["minutes"]
        assert min(minutes.values()) > 0
        assert minutes["cpu"] > minutes["gpu"] or minutes["cpu"] < 10  # a GPU is no help to a small table


def test_in_eighty_columns_only_what_a_table_is_about_is_cut(judged, capsys, monkeypatch):
    monkeypatch.setattr(paper_list, "UNKNOWN_WIDTH", 80)
    paper_list.print_list(judged)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    shown = {line.split()[0]: line for line in reversed(lines)}  # readings stand below their tables
    for name, own in judged.items():
        if " " not in name:  # no reading
            assert "…" not in shown[name].rsplit("  ", 1)[0]
            assert all(
                paper_list.short(t.minutes(own.results.table.wanted())) in shown[name] for t in own.times.values()
            )


def test_what_work_costs_was_measured():
    assert json.loads(_speeds.SPEEDS.read_text()) == _speeds.speeds(), "type `python -m benchmarks._speeds`"


def test_the_work_of_a_run_follows_from_its_settings():
    """B2 by hand: 200 rounds of 10 epochs on a tenth of 60,000 samples, and 10,000 are tested after each."""
    own = all_tables()["B2"].work("Dirichlet 0.1", "fedavg")
    passes = 200 * 10 * 6000
    network = work.speeds()["products"]["cnn-fedbss 1x28x28"]
    assert own.steps == pytest.approx(passes / 64)
    assert own.sequence == pytest.approx(passes / 64 / 10), "ten clients train side by side"
    assert own.rounds == 200
    assert own.products == pytest.approx(network * (3 * passes + 200 * 10_000))
    stratify = all_tables()["S6"]  # a round is one schedule, as long as the training data
    rounds = stratify.settings("#C=1", "stratify")["train.rounds"]
    costs = stratify.work("#C=1", "stratify")
    assert costs.steps == costs.sequence == pytest.approx(rounds * 50_000 / 64)


@pytest.mark.parametrize(
    ("minutes", "said"), [(0.5, "30 s"), (1, "1 min"), (89, "89 min"), (90, "2 h"), (6000, "4 days"), (2e6, "4 years")]
)
def test_times_are_told_as_people_say_them(minutes, said):
    assert in_words(minutes) == said
