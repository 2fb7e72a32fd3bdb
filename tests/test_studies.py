"""Studies run in a small size and say what they are there to say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sweeping import sweep

from fedstrata import Stratified
from fedstrata.core import registry
from fedstrata.testing.attacks import ATTACKS
from studies import _grid, attacks, client_choice, server_rates, strata, strata_search, transfers, which_method
from studies._looks import LARGEST, looks


@pytest.mark.parametrize("mode", ["single", "batch"])
def test_clients_in_even_turns_give_steadier_gradients_and_nobody_rules_the_end(mode):
    def measured(clients, **options):
        schedule = Stratified(frequency="capped", order="spread", clients=clients, **options)
        return client_choice.measure(looks(), schedule, mode, epochs=3)

    (parts, errors), (_, drawn), (ruled, _) = (measured(clients) for clients in ("spread", "weighted", "uniform"))
    assert errors.mean() < 0.8 * drawn.mean()
    assert abs(parts[3] - LARGEST) < 0.12
    assert ruled[3] > 0.98
    if mode == "single":
        parts, _ = measured("spread", chunk=1)
        assert abs(parts - LARGEST).max() < 0.02


def test_the_frontier_of_transfers():
    settings = [{"chunk": 1}, {"chunk": 5}, {"chunk": 50, "slack": 2}]
    rows = list(transfers.frontier("labels", "weighted", seeds=1, epochs=1, settings=settings))
    saved = [1 - each / rows[0][1] for _, each, _ in rows]
    assert 0.25 < saved[1] < 0.45
    assert saved[2] > 0.7
    assert all(accuracies[0] > 0.8 for *_, accuracies in rows)


def test_pages_and_rules_are_what_the_stored_runs_say():
    grid = _grid.read(which_method.STUDY)
    again = "; write them anew: python -m studies which_method --write; python -m studies strata --write"
    assert which_method.PAGE.read_text() == which_method.page(grid), again
    assert json.loads(which_method.RULES.read_text()) == which_method.fitted_rules(grid), again
    search, long = _grid.read(strata_search.STUDY), _grid.read(strata_search.LONG_STUDY)
    assert strata.PAGE.read_text() == strata.page(search, grid, long), again


def test_the_page_of_server_rates_is_what_the_stored_runs_say():
    lines = _grid.read(server_rates.STUDY)
    long = _grid.read(server_rates.LONG_STUDY)
    assert server_rates.PAGE.read_text() == server_rates.page(lines, long), "python -m studies server_rates --write"
    there = {(line["data"], line["row"], line["seed"]) for line in long}
    assert there == {(d, row.name, s) for d, model in server_rates.LONG_MODELS.items()
                     for row in server_rates.long_rows(model) for s in server_rates.SEEDS}  # fmt: skip
    there = {(line["data"], line["row"], line["seed"]) for line in lines}
    wanted = {(d, row.name, s) for d, model in server_rates.MODELS.items() for row in server_rates.rows(model)
              for s in server_rates.SEEDS}  # fmt: skip
    assert there == wanted


@pytest.mark.parametrize("kind", server_rates.STEPS)
def test_server_steps_with_a_rate_of_their_own_do_not_collapse_on_any_data_set(kind):
    lines = {(line["data"], line["row"], line["seed"]): line for line in _grid.read(server_rates.STUDY)}
    for data in server_rates.MODELS:
        own, plain = (
            np.mean([_grid.figure(lines[data, row, seed]) for seed in server_rates.SEEDS])
            for row in (f"{kind} auto", "fedavg")
        )
        assert own > plain, data
    collapsed = [_grid.figure(lines["fashion-mnist", f"{kind} 0.1", seed]) for seed in server_rates.SEEDS]
    assert min(collapsed) < 0.3  # what a fixed rate does to a CNN


def test_a_study_runs_what_is_missing_once(monkeypatch, tmp_path):
    monkeypatch.setattr(_grid, "RESULTS", tmp_path)
    monkeypatch.setitem(_grid.ALL, "1 label", replace(_grid.ALL["1 label"], updates=20))
    rows = [row for row in which_method.rows() if row.name in ("fedavg", "flips", "strata")]
    for _ in range(2):
        _grid.run_missing("tiny", ["digits"], ["1 label"], rows, [0])
    lines = _grid.read("tiny")
    assert [line["row"] for line in lines] == ["fedavg", "flips", "strata"]
    assert len(Path(tmp_path / "tiny/digits.jsonl").read_text().splitlines()) == 3
    assert lines[2]["choices"]["selector"]["kind"] == "flips"
    assert lines[0]["curve"][-1][0] == 20
    assert lines[0]["curve"][-1][1] == lines[0]["bytes"]
    assert lines[0]["measured"]["effective_labels"] == pytest.approx(1.0)


# ---- docs/attacks.md

ROBUST = ("robust", "krum", "geometric_median")  # modules of combiners that bear attackers


def read_tables(page):
    """Read the figures of the page: by partition, defence, attack and share, as text."""
    found = {}
    for partition, title in attacks.PARTITIONS.items():
        section = page[page.index(f"## {title}\n") :].split("\n## ")[0]
        by_share, by_attack = (
            [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
            for table in section.split("\n\n")[1:]
        )
        assert by_share[0][1:] == ["0% attackers", "10% attackers", "20% attackers", "30% attackers"]
        assert by_attack[0] == ["20% attackers", *ATTACKS]
        for defence, none, *cells in by_share[2:]:
            found[partition, defence, None, 0.0] = none
            for share, cell in zip(attacks.SHARES[1:], cells, strict=True):
                figure, attack = cell.rstrip(")").split(" (")
                found[partition, defence, attack, share] = figure
        for defence, *cells in by_attack[2:]:
            for attack, cell in zip(ATTACKS, cells, strict=True):
                assert found.setdefault((partition, defence, attack, 0.2), cell) == cell
    return found


def test_the_page_of_attacks_is_what_the_study_writes():
    page = attacks.PAGE.read_text()
    text = page[page.index("## ") :]
    assert page == attacks.page(text, attacks.ROUNDS, attacks.SEEDS)
    found = read_tables(page)
    assert {defence for _, defence, _, _ in found} == set(attacks.DEFENCES)
    robust = {name for name, path in registry.names("combiners").items() if path.split(".")[-1].split(":")[0] in ROBUST}
    assert robust == {"median", "trimmed-mean", "norm-clip", "krum", "multi-krum", "geometric-median"}
    assert all(any(f"`{name}`" in defence for defence in attacks.DEFENCES) for name in robust)


@sweep(
    lambda cell: cell[1] == "`size`, bounded as at sites",
    cell=[
        ("even", "`size`, bounded as at sites", "sign-flip", 0.2),
        ("even", "`size`: none", None, 0.0),
        ("skewed", "`multi-krum`", "scaling", 0.2),
        ("skewed", "`geometric-median`", "lying-counts", 0.2),
    ],
)
def test_the_page_of_attacks_has_the_figures_of_the_study(cell):
    shown = read_tables(attacks.PAGE.read_text())[cell]
    (figure,) = attacks.figures([cell], attacks.ROUNDS, attacks.SEEDS).values()
    for number, text in zip((figure.accuracy, figure.rare), shown.split(" / "), strict=True):
        assert number == pytest.approx(float(text), abs=0.04)  # the last bits of a machine move a few answers


def test_a_rare_label_lies_with_few_clients_and_everybody_has_two_labels():
    even, skewed = (attacks.federation(partition, 0) for partition in attacks.PARTITIONS)
    assert (even.counts[:, attacks.RARE] > 0).mean() > 0.8
    assert (skewed.counts[:, attacks.RARE] > 0).sum() == attacks.HOLDERS
    usual = skewed.counts[:, : attacks.RARE]
    assert {int(n) for n in (usual > 0).sum(1)} == {2}
    assert even.samples == skewed.samples


def test_what_the_page_of_attacks_says_in_words_is_in_its_figures():
    accuracies, rare = (
        {cell: float(text.split(" / ")[place]) for cell, text in read_tables(attacks.PAGE.read_text()).items()}
        for place in (0, 1)
    )

    def worst(partition, defence, share):
        return min(a for cell, a in accuracies.items() if cell[:2] == (partition, defence) and cell[3] == share)

    leaving_out = [f"`{name}`" for name in ("median", "trimmed-mean", "multi-krum", "geometric-median")]
    assert all(worst("even", defence, 0.3) > 0.85 for defence in leaving_out)
    assert all(worst("skewed", defence, 0.2) < 0.7 for defence in attacks.DEFENCES)
    assert all(rare["skewed", defence, None, 0.0] < 0.1 for defence in (*leaving_out, "`krum`"))
    bounded = accuracies["skewed", "`size`, bounded as at sites", None, 0.0]
    assert all(bounded > accuracies["skewed", defence, None, 0.0] for defence in leaving_out)
