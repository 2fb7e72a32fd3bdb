"""Campaigns in a small size: nothing may be lost. Their tables are stored, and the page says what stands there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("resource")

import campaigns
from campaigns import _write, crash, determinism, fuzz, load, storage
from campaigns._clock import end_after, in_time
from campaigns._command import command, run_parts
from campaigns._faults import Disk
from campaigns._reader import Reader
from campaigns._table import NOT_KEPT, RESULTS, Row, Table
from campaigns.fuzz import run_cases

NAMES = {file.stem for file in Path(campaigns.__file__).parent.glob("*.py") if not file.stem.startswith("_")}


def nothing_lost(rows: list[Row], kinds: int) -> None:
    assert len(rows) >= kinds
    assert all(row.tried for row in rows)
    assert {row.name: row.examples for row in rows if row.lost} == {}


@pytest.mark.extended
def test_no_reader_falls_over_what_it_reads(tmp_path):
    rows = run_cases(tmp_path, 6_000, Table())
    assert sum(row.tried for row in rows) > 5_000
    nothing_lost(rows, 20)


@pytest.mark.extended
def test_nothing_is_lost_where_processes_die():
    nothing_lost(run_parts(crash.PARTS, Table(quick=True)), 10)


@pytest.mark.extended
def test_nothing_is_lost_on_bad_disks():
    nothing_lost(run_parts(storage.PARTS, Table(quick=True)), 9)


@pytest.mark.extended
def test_many_sites_and_many_rounds_take_no_more_memory():
    pytest.importorskip("grpc")
    nothing_lost(run_parts(load.PARTS, Table(quick=True)), 4)


@pytest.mark.extended
def test_the_same_experiment_gives_the_same_run_elsewhere():
    nothing_lost(run_parts(determinism.PARTS, Table(quick=True)), 2)


# ---- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_campaign_was_run_and_lost_nothing(name):
    rows = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    assert rows
    assert [row["name"] for row in rows if row["lost"] or not row["tried"]] == []
    typed = [command for row in rows for command in row["commands"] or ["nothing"] if row["commands"] != [NOT_KEPT]]
    assert [command for command in typed if not command.startswith(f"python -m campaigns {name} ")] == []
    assert [command for command in typed if "--save" not in command or "--quick" in command] == []


def test_the_page_says_what_the_tables_say():
    assert _write.written(_write.PAGE.read_text()) == _write.PAGE.read_text()


def call(file: Path, arguments: str, names: str, cases: int = 3, minutes: float = 1.0, bad: int = -1) -> list[Row]:
    """Run a campaign of nothing: as many cases a row as asked for, one of which is lost."""
    end_after(minutes)
    try:
        table = Table(file=file, command=f"python -m campaigns some {arguments}", go_on="--go-on" in arguments)
        for row, case in table.left((table.row(name), case) for name in names for case in range(cases)):
            row.note("lost" if case == bad else None)
            if minutes > 1:  # time that ends after a case
                end_after(-1)
        return list(table.rows.values())
    finally:
        end_after(float("inf"))


def stored(file: Path) -> list[tuple[str, int, int, int, list[str]]]:
    rows = json.loads(file.read_text())["rows"]
    return [(row["name"], row["tried"], row["wanted"], row["lost"], row["commands"]) for row in rows]


def test_a_part_of_a_campaign_leaves_the_other_rows_as_they_are(tmp_path):
    first, second = (f"python -m campaigns some {arguments}" for arguments in ("--save", "--part b --save"))
    call(file := tmp_path / "some.json", "--save", "ab", bad=1)
    call(file, "--part b --save", "b")
    assert stored(file) == [("a", 3, 3, 1, [first]), ("b", 3, 3, 0, [second])]


@pytest.fixture
def one_reader(monkeypatch):
    monkeypatch.setattr("campaigns.fuzz.readers", lambda folder: [Reader("events", lambda rng: b"", bytes)])


def test_more_cases_for_the_readers_begin_where_earlier_ones_ended(tmp_path, monkeypatch, one_reader):
    cases_run = []
    monkeypatch.setattr("campaigns.fuzz.attempt", lambda reader, number: cases_run.append(number))
    kept = {"file": tmp_path / "fuzz.json", "command": "python -m campaigns fuzz", "go_on": True}
    for cases, tried, numbers in ((5, 5, [0, 1, 2, 3, 4]), (8, 8, [5, 6, 7]), (8, 8, []), (3, 8, [])):
        cases_run.clear()
        (row,) = run_cases(tmp_path, cases, Table(**kept))
        assert cases_run == numbers
        assert row.tried == row.wanted == tried


def test_a_reader_that_is_stopped_goes_on_there(tmp_path, monkeypatch, one_reader):
    def stop(reader, number):
        if number == 3:
            raise KeyboardInterrupt

    kept = {"file": tmp_path / "fuzz.json", "command": "python -m campaigns fuzz", "go_on": True}
    monkeypatch.setattr("campaigns.fuzz.attempt", stop)
    with pytest.raises(KeyboardInterrupt):
        run_cases(tmp_path, 6, Table(**kept))
    numbers = []
    monkeypatch.setattr("campaigns.fuzz.attempt", lambda reader, number: numbers.append(number))
    run_cases(tmp_path, 6, Table(**kept))
    assert numbers == [3, 4, 5]


@pytest.mark.parametrize("campaign", [fuzz, crash])
def test_to_go_on_without_the_stored_table_is_refused(campaign, capsys):
    with pytest.raises(SystemExit, match="2"):
        campaign.main(["--go-on"])
    assert "say --save too" in capsys.readouterr().err


def test_a_reader_that_is_not_there_is_no_success(capsys, one_reader):
    with pytest.raises(SystemExit, match="2"):
        fuzz.main(["--reader", "tea leaves", "--cases", "1"])
    assert "there is no reader tea leaves; there are: events" in capsys.readouterr().err


def test_calls_that_go_on_add_up_and_are_all_named(tmp_path):
    """Every case once, with all that was typed; what is lost stays lost; a call that begins anew replaces."""
    first, second = (f"python -m campaigns some {arguments}" for arguments in ("--save --minutes 2", "--save --go-on"))
    call(file := tmp_path / "some.json", "--save --minutes 2", "a", minutes=2, bad=0)
    assert stored(file) == [("a", 1, 3, 1, [first])]
    call(file, "--save --go-on", "a")
    assert stored(file) == [("a", 3, 3, 1, [first, second])]
    call(file, "--save --go-on --minutes 1", "a")  # nothing was left, and it says so
    assert stored(file) == [("a", 3, 3, 1, [first, second])]
    call(file, "--save", "a")
    assert stored(file) == [("a", 3, 3, 0, ["python -m campaigns some --save"])]


def test_the_command_is_what_was_typed(tmp_path, monkeypatch):
    monkeypatch.setattr("campaigns._table.RESULTS", tmp_path)

    def run_nothing(folder: Path, table: Table) -> None:
        for row, _ in table.left([(table.row("nothing"), 1)]):
            row.note(None)

    try:
        assert command("some", {"one of": run_nothing}, ["--part", "one of", "--minutes", "7", "--save"], None) == 0
    finally:
        end_after(float("inf"))
    assert stored(tmp_path / "some.json")[0][-1] == ["python -m campaigns some --part 'one of' --minutes 7 --save"]


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
