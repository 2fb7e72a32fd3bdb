"""What is read of a run's folder, as far as it has come, and of folders that are broken, foreign or newer."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from reported import copied, names

from fedstrata import RequestError
from fedstrata.report.gather import gather
from fedstrata.report.outcome import outcome
from fedstrata.report.page import draw, page
from fedstrata.report.run_data import SEEN, RunData
from fedstrata.report.sanity import newer


def test_a_trail_holds_what_the_events_say(small):
    run_data, events = RunData.read(small.path), small.events()
    rounds = [e for e in events if e["event"] == "round"]
    assert run_data.column("accuracy").tolist() == small.curve("accuracy")
    assert np.allclose(run_data.recall, [e["recall"] for e in rounds], atol=1e-6)
    assert run_data.traffic.tolist() == [e["bytes_up"] + e["bytes_down"] for e in rounds]
    took = np.zeros((6, 4))
    for event in rounds:
        for client in event["steps"][0]["clients"]:
            took[client, event["round"] - 1] += 1
    assert run_data.participation().tolist() == took.tolist()
    assert run_data.client_updates.update_norm.tolist() == [
        d for e in rounds for d in e["steps"][0]["update_norm"].values()
    ]
    assert run_data.mix.sum() == pytest.approx(1)
    assert run_data.labels.tolist() == [run_data.counts[took[:, r] > 0].sum(0).tolist() for r in range(4)]


def test_a_figure_that_no_round_has_is_refused(small):
    run_data = RunData.read(small.path)
    with pytest.raises(RequestError, match=r'no round has "worst" \(did you mean "worst10"\?\); there are accuracy, '):
        run_data.column("worst")
    assert {"accuracy", "worst10", "bytes_up"} <= run_data.figures
    assert np.isnan(run_data.known("worst")).all(), "where several runs are drawn, one of them may lack a figure"


def test_clients_accuracies_average_to_the_mean_and_the_worst_that_are_told(small):
    run_data = RunData.read(small.path)
    own = run_data.client_accuracy
    assert own.shape == (4, 6)
    assert np.nanmean(own, axis=1) == pytest.approx(run_data.column("client_mean"), abs=1e-3)
    assert np.nanmin(own, axis=1) == pytest.approx(run_data.column("worst10"), abs=1e-3)


def test_a_second_look_reads_new_lines_only_and_equals_a_first_one(small, tmp_path, monkeypatch):
    lines = (small.path / "events.jsonl").read_text().splitlines(keepends=True)
    run = copied(small, tmp_path / "run")
    events = run.path / "events.jsonl"
    events.write_text("".join(lines[:5]) + lines[5][:40])  # a line that is being written
    run_data = RunData.read(run.path)
    seen = len(run_data)
    assert seen == sum('"event": "round"' in line for line in lines[:5])
    assert not run_data.refresh()
    events.write_text("".join(lines))
    read = []
    monkeypatch.setattr(
        "fedstrata.core.storage.event_lines.json",
        SimpleNamespace(loads=lambda line: read.append(line) or json.loads(line)),
    )
    assert run_data.refresh()
    assert read == [line.rstrip("\n").encode() for line in lines[5:]]
    monkeypatch.undo()
    assert run_data.column("accuracy").tolist() == RunData.read(small.path).column("accuracy").tolist()
    assert np.array_equal(run_data.participation(), RunData.read(small.path).participation())


def test_a_run_that_went_on_from_its_checkpoint_is_read_anew(small, tmp_path):
    lines = (small.path / "events.jsonl").read_text().splitlines(keepends=True)
    run = copied(small, tmp_path / "run")
    events = run.path / "events.jsonl"
    run_data = RunData.read(run.path)
    resumed = json.dumps({"event": "resumed", "wall": {"round": 2}}) + "\n"
    events.write_text("".join(lines[:-2]) + resumed + "".join(lines[-2:]) + " " * SEEN)
    assert run_data.refresh()
    assert run_data.rounds.tolist() == [1, 2, 3, 4]
    assert [f.kind for f in run_data.faults] == ["resumed"]


@pytest.mark.parametrize("strange", ["not json", "[1, 2]", '{"event": "round"}', '{"event": "clients", "counts": "x"}'])
def test_a_line_that_cannot_be_understood_is_left_out_with_a_warning(small, tmp_path, strange):
    run = copied(small, tmp_path / "run")
    with (run.path / "events.jsonl").open("a") as file:
        file.write(f"{strange}\n")
    gathered = gather([run.path])
    assert len(gathered.runs_data[0]) == 4
    assert any("cannot be understood" in said for said in gathered.warnings)


def test_a_run_of_a_newer_version_shows_what_is_known(small, tmp_path):
    run = copied(small, tmp_path / "run")
    text = (run.path / "events.jsonl").read_text().replace('"version": "', '"version": "9', 1)
    (run.path / "events.jsonl").write_text(text + '{"event": "telepathy", "round": 3}\n')
    with (run.path / "experiment.toml").open("a") as file:
        file.write("[oracle]\nkey = 1\n")
    gathered = gather([run.path])
    assert any("newer" in said for said in gathered.warnings)
    assert "accuracy" in names(draw(gathered))
    assert not newer("0.0.9")


def test_a_crashed_run_is_shown_as_far_as_it_came(small, tmp_path):
    run = copied(small, tmp_path / "run")
    (run.path / "summary.json").unlink()
    text = (run.path / "events.jsonl").read_text()
    (run.path / "events.jsonl").write_text(text[: text.rindex('{"event": "round"') + 30])
    gathered = gather([run.path])
    assert "after 3 of 4 rounds, not finished" in outcome(gathered)
    assert "is not finished: 3 of 4" in page(gathered)
    (run.path / "summary.json").write_text("{")
    assert "damaged" in page(gather([run.path]))
    assert len(run.events()) == len(text.splitlines()) - 1


def test_a_run_that_has_not_begun_has_a_page(small, tmp_path):
    run = copied(small, tmp_path / "run")
    (run.path / "summary.json").unlink()
    (run.path / "events.jsonl").write_text("")
    assert "has not been scored" in page(gather([run.path]))


def test_folders_that_are_no_runs_are_refused(tmp_path, small):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match=r"empty is not a run folder"):
        gather([tmp_path / "empty"])
    with pytest.raises(RequestError, match="not a folder"):
        gather([tmp_path / "nowhere"])
    with pytest.raises(RequestError, match="named twice"):
        gather([small.path, small.path])
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "experiment.toml").write_text("a = 1")
    (foreign / "events.jsonl").write_text('{"what": "else"}\n')
    with pytest.raises(RequestError, match="tells of no run"):
        gather([foreign])
