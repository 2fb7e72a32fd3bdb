"""The log of what left a site: everything is in it, and whoever changes it is found out."""

from __future__ import annotations

import json
import os
import threading
from hashlib import sha256

import pytest
from in_process_sites import SITES, SMALL, Here, hosts, introduce

from fedstrata import RequestError
from fedstrata.config.experiment import Experiment
from fedstrata.remote.protocol import split
from fedstrata.remote.server.session import run_at_sites
from fedstrata.remote.site.policy.audit import FIRST, AuditLog, verify


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "audit.jsonl"
    written = AuditLog(path)
    for i in range(5):
        written.append("task", b"reply %d" % i, run="r", round=i)
    return path


def test_everything_that_leaves_is_in_the_log_before_it_leaves(tmp_path):
    heard, path = [], tmp_path / "memory/bonn/audit.jsonl"

    def leaves(name, kind, reply):
        if name == "bonn":
            last = json.loads(path.read_bytes().splitlines()[-1])
            assert (last["kind"], last["sha256"], last["bytes"]) == (kind, sha256(reply).hexdigest(), len(reply))
            heard.append(kind)
        return reply

    transport = Here(hosts(SMALL, memory=tmp_path / "memory"), leaves)
    run_at_sites(transport, Experiment.of(None, **SMALL), tmp_path / "run", len(SITES))
    transport.hosts["bonn"].answer(b"nonsense")
    lines, found = verify(path)
    assert found.wrong is None
    assert [line["kind"] for line in lines] == [*heard, "unknown"]
    assert heard.count("task") == 3
    assert [line["round"] for line in lines if line["kind"] == "task"] == [0, 1, 2]
    assert "refused" in lines[-1]
    assert len({line["run"] for line in lines[:-1]}) == 1
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_the_log_goes_on_after_a_restart(log):
    again = AuditLog(log)
    again.append("evaluate", b"more")
    lines, found = verify(log)
    assert (found.lines, found.wrong, lines[-1]["number"]) == (6, None, 6)
    assert [line["number"] for line in again.newest_first()] == [6, 5, 4, 3, 2, 1]


def changed(lines):
    line = json.loads(lines[2])
    return [*lines[:2], json.dumps({**line, "bytes": 1}).encode(), *lines[3:]]


def forged(lines):
    """Change a line, and its hash with it."""
    line = {k: v for k, v in json.loads(lines[2]).items() if k != "hash"} | {"round": 77}
    line["hash"] = sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()
    return [*lines[:2], json.dumps(line).encode(), *lines[3:]]


@pytest.mark.parametrize(
    ("tamper", "where"),
    [
        (changed, 3),
        (forged, 4),
        (lambda lines: lines[:2] + lines[3:], 3),
        (lambda lines: lines[1:], 1),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], 4),
        (lambda lines: [lines[1], lines[0], *lines[2:]], 1),
        (lambda lines: [*lines, b"{}"], 6),
        (lambda lines: [*lines, b"[" * 100_000], 6),
    ],
)
def test_whoever_changes_the_log_is_found_out(log, tamper, where):
    log.write_bytes(b"\n".join(tamper(log.read_bytes().splitlines())) + b"\n")
    assert f"line {where} is not the one" in str(verify(log)[1].wrong)


def test_lines_that_are_cut_off_are_missed_by_whoever_noted_the_newest(log):
    newest = verify(log)[1].newest
    log.write_bytes(b"\n".join(log.read_bytes().splitlines()[:3]) + b"\n")
    assert verify(log)[1].wrong is None
    assert "lines at its end are missing" in str(verify(log, newest)[1].wrong)
    assert verify(log, verify(log)[1].newest)[1].wrong is None


def test_a_line_that_a_power_cut_left_unfinished_is_cut_off(log):
    newest = verify(log)[1].newest
    with log.open("ab") as file:
        file.write(b'{"number": 6, "at": "20')
    AuditLog(log).append("task", b"next")
    _, found = verify(log, newest)
    assert (found.lines, found.wrong) == (6, None)


def test_the_last_line_is_safe_on_disk_soon_also_where_no_other_follows(tmp_path, monkeypatch):
    synced, sync = [], os.fsync
    soon = threading.Event()

    def note(file):
        sync(file)
        synced.append((tmp_path / "audit.jsonl").read_bytes().count(b"\n"))
        if synced[-1] == 3:
            soon.set()

    log = AuditLog(tmp_path / "audit.jsonl")
    monkeypatch.setattr("fedstrata.remote.site.policy.audit.os.fsync", note)
    monkeypatch.setattr("fedstrata.remote.site.policy.audit.time.monotonic", lambda: 1000.0)  # no time passes
    for number in range(3):
        log.append("task", b"x", round=number)
    assert synced[0] == 1
    assert soon.wait(60), "the line after which nothing comes"


@pytest.mark.parametrize("line", [b"garbage", b'{"at": "2026-01-31T12:00:00+00:00", "number": 6}', b"[" * 100_000])
def test_a_damaged_log_keeps_a_site_from_starting(log, line):
    log.write_bytes(log.read_bytes() + line + b"\n")
    with pytest.raises(RequestError, match="is damaged; `fedstrata deploy audit` says where"):
        AuditLog(log)


def test_nothing_leaves_where_it_cannot_be_written_down(tmp_path, monkeypatch, caplog):
    host = hosts(SMALL, memory=tmp_path / "memory")["bonn"]

    write = os.write

    def full(file, data):
        return write(file, data[:20])  # what a disk does that has room for a little more

    monkeypatch.setattr(os, "write", full)
    reply = host.answer(introduce())
    assert split(reply) == (b"failed", b"it cannot write down what leaves it, and so nothing does: is its disk full?")
    assert [(r.message, r.exc_info) for r in caplog.records] == [
        ("the audit log cannot be written, so nothing leaves this site: the disk is full", None)
    ], "one line, no traceback"
    monkeypatch.undo()
    assert split(host.answer(introduce()))[0] == b"done"
    lines, found = verify(tmp_path / "memory/bonn/audit.jsonl")
    assert (len(lines), found.wrong) == (1, None)


def test_a_long_log_is_read_from_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("fedstrata.remote.site.policy.audit.BLOCK", 100)
    log = AuditLog(tmp_path / "audit.jsonl")
    assert list(log.newest_first()) == []
    for i in range(30):
        log.append("task", b"x" * i, round=i)
    assert [line["round"] for line in log.newest_first()] == list(range(29, -1, -1))
    assert [line["round"] for line in AuditLog(tmp_path / "audit.jsonl").newest_first()] == list(range(29, -1, -1))


def test_an_empty_log_is_whole(tmp_path):
    AuditLog(tmp_path / "audit.jsonl")
    assert verify(tmp_path / "audit.jsonl")[1].newest == FIRST
    with pytest.raises(RequestError, match="cannot be read"):
        verify(tmp_path / "nowhere")
