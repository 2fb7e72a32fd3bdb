"""The board beside its figures: comparisons as one entry, settings, what is left, logs, notes and who may keep them."""

from __future__ import annotations

import asyncio
import json
from datetime import date

import httpx
import pytest
import written

from fedstrata import Run
from fedstrata.board.app import LARGEST, pages
from fedstrata.board.details import DetailReader
from fedstrata.board.feed import Board
from fedstrata.board.groups import group_rows
from fedstrata.board.index import RunIndex
from fedstrata.board.notes import FILE, Notes, read_notes, write_notes
from fedstrata.board.settings import flatten
from fedstrata.core.errors import RequestError

HERE = {"origin": "http://localhost:8765", "content-type": "application/json"}


def finished(path, accuracy: float, **how) -> Run:
    run = written.begun(path, **how)
    written.write_rounds(run, 1, 5)
    written.conclude(run, accuracy=accuracy)
    return run


@pytest.fixture
def comparison(tmp_path):
    """Two methods with three seeds each, of which one has the best seed and the other the better mean; and a trial."""
    for name, figures in {"fedavg": (0.99, 0.40, 0.41), "flips": (0.80, 0.81, 0.82)}.items():
        for seed, accuracy in enumerate(figures):
            finished(tmp_path / f"runs/cmp/{name}/seed-{seed}", accuracy, method=name, seed=seed)
    finished(tmp_path / "runs/cmp/tuning/fedavg/lr=1/seed-0", 0.999)
    (tmp_path / "runs/cmp/comparison.json").write_text("{}")
    finished(tmp_path / "runs/alone", 0.5)
    return tmp_path / "runs"


def test_a_comparison_is_one_entry_ranked_by_means_and_not_by_the_best_seed(comparison):
    index = RunIndex(comparison)
    index.look()
    (group,) = group_rows(comparison, index.rows)
    assert (group.path, group.running) == ("cmp", 0)
    assert [method.name for method in group.methods] == ["flips", "fedavg"]  # though the best seed is fedavg's
    best = group.methods[0]
    assert best.mean == pytest.approx(0.81)
    assert best.interval == pytest.approx((0.80, 0.82))  # three seeds: their range
    assert best.runs == tuple(f"cmp/flips/seed-{seed}" for seed in range(3))
    assert best.finished == 3


def test_runs_that_have_not_finished_are_counted_and_do_not_enter_a_mean(comparison):
    written.write_rounds(written.begun(comparison / "cmp/flips/seed-3", method="flips", seed=3), 1, 1)
    index = RunIndex(comparison)
    index.look()
    with Run(comparison / "cmp/flips/seed-3").locked():
        index.look()
        (group,) = group_rows(comparison, index.rows)
    assert group.running == 1
    assert (len(group.methods[0].runs), group.methods[0].finished) == (4, 3)
    assert group.methods[0].mean == pytest.approx(0.81)


def test_a_browser_is_told_of_comparisons_with_its_runs(comparison):
    ((kind, data),) = Board(comparison, pause=0).watch([]).rows()
    assert kind == "runs"
    assert [group["path"] for group in json.loads(data)["groups"]] == ["cmp"]


def test_settings_that_are_not_the_defaults_are_told(tmp_path):
    run = Run.create(tmp_path / "one", "[train]\nlr = 0.5\nseed = 3\n[method]\nname = 'flips'\n")
    run.log("start", clients=3)
    index = RunIndex(tmp_path)
    index.look()
    assert index.rows["one"].settings == {"train.lr": 0.5}


def test_what_is_left_is_told_from_the_pace_of_the_last_rounds(tmp_path):
    run = written.begun(tmp_path / "live", rounds=100)
    written.write_rounds(run, 1, 30)  # a second each
    index = RunIndex(tmp_path)
    index.look()
    assert index.rows["live"].pace is None  # it does not run
    with run.locked():
        written.write_rounds(run, 31, 31)
        index.look()
        assert index.rows["live"].pace == pytest.approx(1.0)


def test_details_hold_settings_the_last_figures_and_the_end_of_the_log(tmp_path):
    run = written.begun(tmp_path / "one")
    written.write_rounds(run, 1, 4)
    run.log("dropped", round=4, clients=[1, 2], why="late\x1b[2J")
    reader = DetailReader(run.path, "one")
    details = reader.read()
    assert details.settings["train.rounds"] == 5
    assert details.figures["accuracy"] == written.round_event(4)["accuracy"]
    assert details.log[-1] == "round 4  dropped  clients=2 values  why=late [2J"
    assert details.log[0].startswith("start")
    assert reader.read() is details  # nothing was written since
    write_notes(run.path, Notes("good", ("first",)))
    assert reader.read().note == "good"


def test_a_damaged_run_has_the_details_that_can_be_read(tmp_path):
    run = written.begun(tmp_path / "one")
    (run.path / "experiment.toml").write_text("[[[")
    (run.path / FILE).write_text("{")
    details = DetailReader(run.path, "one").read()
    assert details.settings == {}
    assert details.note == ""
    assert details.log


# ---- notes


def post(root, body: bytes | str, run: str = "one", headers=HERE, **how) -> httpx.Response:
    async def ask() -> httpx.Response:
        board = Board(root, pause=0)
        board.look()
        transport = httpx.ASGITransport(pages(board, **how))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8765") as client:
            return await client.post("/notes", params={"run": run}, content=body, headers=headers)

    return asyncio.run(ask())


@pytest.fixture
def root(tmp_path):
    written.begun(tmp_path / "runs/one")
    return tmp_path / "runs"


def test_notes_and_tags_are_kept_beside_the_run_and_found_in_the_list(root):
    body = json.dumps({"note": "best so far\nask Ana", "tags": [" paper ", "paper", ""]})
    assert post(root, body).status_code == 204
    assert read_notes(root / "one") == Notes("best so far\nask Ana", ("paper",))
    index = RunIndex(root)
    index.look()
    assert (index.rows["one"].note, index.rows["one"].tags) == ("best so far\nask Ana", ("paper",))


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/json"},  # no page of ours leaves its origin out
        {**HERE, "origin": "http://evil.example"},
        {**HERE, "origin": "null"},
        {**HERE, "content-type": "text/plain"},  # what a form elsewhere can send without asking
    ],
)
def test_other_pages_cannot_keep_notes(root, headers):
    assert post(root, '{"note": "x", "tags": []}', headers=headers).status_code == 403
    assert not (root / "one" / FILE).exists()


def test_without_the_token_nobody_keeps_notes(root):
    answer = post(root, "{}", token="a token of enough letters", only_this_machine=False)
    assert answer.status_code == 401


@pytest.mark.parametrize("run", ["..", "two", "", "one/../one", "/etc", "one/checkpoint"])
def test_notes_are_kept_of_listed_runs_only(root, run):
    assert post(root, "{}", run=run).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "nonsense",
        '{"note": 1}',
        '{"tags": [1]}',
        json.dumps({"note": "x" * 10_001}),
        json.dumps({"tags": [f"tag {i}" for i in range(21)]}),
        json.dumps({"tags": ["x" * 41]}),
        "[" * 100_000,
        b"x" * (LARGEST + 1),
    ],
    ids=range(10),
)
def test_what_is_no_note_is_refused_and_nothing_is_written(root, body):
    answer = post(root, body)
    assert answer.status_code == 400
    assert answer.text.startswith("not kept: ")
    assert not (root / "one" / FILE).exists()


def test_a_disk_that_refuses_is_told(root, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedstrata.board.app.write_notes", full)
    answer = post(root, "{}")
    assert (answer.status_code, answer.text) == (507, "not kept: No space left on device")


def test_notes_are_plain_text():
    assert Notes.of({"note": "a\x1b[2J\nb\u202e", "tags": []}).note == "a [2J\nb "
    with pytest.raises(RequestError, match="notes are"):
        Notes.of(None)


def test_settings_that_json_does_not_know_are_told_in_words():
    asked = {"train": {"lr": float("inf"), "targets": [float("nan"), 0.5]}, "begun": date(2026, 11, 18)}
    told = {"train.lr": "inf", "train.targets": ["nan", 0.5], "begun": "2026-11-18"}
    assert flatten(asked) == told
    json.dumps(flatten(asked), allow_nan=False)
