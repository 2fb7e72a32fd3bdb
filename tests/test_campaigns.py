"""Campaigns in a small size: nothing may be lost. Their tables are stored, and the page says what stands there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("resource")

import campaigns
from campaigns import _write, crash, determinism, load, storage
from campaigns._clock import end_after, in_time
from campaigns._command import play_parts
from campaigns._faults import Disk
from campaigns._table import RESULTS, Row, store
from campaigns.fuzz import play

NAMES = {file.stem for file in Path(campaigns.__file__).parent.glob("*.py") if not file.stem.startswith("_")}


def nothing_lost(rows: list[Row], kinds: int) -> None:
    assert len(rows) >= kinds
    assert all(row.tried for row in rows)
    assert {row.name: row.examples for row in rows if row.lost} == {}


@pytest.mark.extended
def test_no_reader_falls_over_what_it_reads(tmp_path):
    rows = play(tmp_path, cases=6_000)
    assert sum(row.tried for row in rows) > 5_000
    nothing_lost(rows, 20)


@pytest.mark.extended
def test_nothing_is_lost_where_processes_die():
    nothing_lost(play_parts(crash.PARTS, quick=True), 10)


@pytest.mark.extended
def test_nothing_is_lost_on_bad_disks():
    nothing_lost(play_parts(storage.PARTS, quick=True), 9)


@pytest.mark.extended
def test_many_sites_and_many_rounds_take_no_more_memory():
    pytest.importorskip("grpc")
    nothing_lost(play_parts(load.PARTS, quick=True), 3)


@pytest.mark.extended
def test_the_same_experiment_gives_the_same_run_elsewhere():
    nothing_lost(play_parts(determinism.PARTS, quick=True), 2)


# ---- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_campaign_was_played_and_lost_nothing(name):
    table = json.loads((RESULTS / f"{name}.json").read_text())
    assert table["command"].startswith(f"python -m campaigns {name}")
    assert "--quick" not in table["command"]
    assert table["rows"]
    assert [row["name"] for row in table["rows"] if row["lost"] or not row["tried"]] == []


def test_the_page_says_what_the_tables_say():
    assert _write.written(_write.PAGE.read_text()) == _write.PAGE.read_text()


def test_a_part_of_a_campaign_leaves_the_other_rows_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr("campaigns._table.RESULTS", tmp_path)
    store("some", "python -m campaigns some --save", [Row("a", 1, 1), Row("b", 1, 0)])
    store("some", "python -m campaigns some --save", [Row("b", 2, 2)], whole=False)
    rows = json.loads((tmp_path / "some.json").read_text())["rows"]
    assert [(row["name"], row["tried"], row["lost"]) for row in rows] == [("a", 1, 0), ("b", 2, 0)]


def test_a_campaign_ends_when_its_time_is_over():
    end_after(-1)
    try:
        assert list(in_time(range(3))) == []
    finally:
        end_after(float("inf"))
    assert list(in_time(range(3))) == [0, 1, 2]


# ---- the disk that loses what was not synced -------------------------------------------------------------------------


def test_a_power_cut_takes_what_was_not_synced_and_nothing_else(tmp_path):
    """The campaign's own disk: otherwise it would find nothing."""
    disk = Disk(tmp_path, "power", 0)
    safe, cut, new = tmp_path / "safe", tmp_path / "cut", tmp_path / "new"
    for file in (safe, cut, new):
        file.write_bytes(b"0123456789")
    disk.synced = {str(safe): 10, str(cut): 4}
    disk.undone = {str(tmp_path): [new.unlink]}
    sizes = set()
    for at in range(40):
        disk.at = at
        cut.write_bytes(b"0123456789")
        new.write_bytes(b"0123456789")
        disk._lose()
        assert safe.stat().st_size == 10
        sizes.add((cut.stat().st_size, new.exists()))
    assert {size for size, _ in sizes} <= set(range(4, 11))
    assert {there for _, there in sizes} == {True, False}
