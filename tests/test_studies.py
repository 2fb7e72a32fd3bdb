"""Studies run in a small size and say what they are there to say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedstrata import Stratified
from studies import _grid, client_choice, strata, strata_search, transfers, which_method
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
    assert strata.PAGE.read_text() == strata.page(_grid.read(strata_search.STUDY), grid), again


def test_a_study_plays_what_is_missing_once(monkeypatch, tmp_path):
    monkeypatch.setattr(_grid, "RESULTS", tmp_path)
    monkeypatch.setattr(_grid, "UPDATES", 20)
    rows = [row for row in which_method.rows() if row.name in ("fedavg", "flips", "strata")]
    for _ in range(2):
        _grid.play("tiny", ["digits"], ["1 label"], rows, [0])
    lines = _grid.read("tiny")
    assert [line["row"] for line in lines] == ["fedavg", "flips", "strata"]
    assert len(Path(tmp_path / "tiny/digits.jsonl").read_text().splitlines()) == 3
    assert lines[2]["choices"]["selector"]["kind"] == "flips"
    assert lines[0]["curve"][-1][0] == 20
    assert lines[0]["curve"][-1][1] == lines[0]["bytes"]
    assert lines[0]["measured"]["effective_labels"] == pytest.approx(1.0)
