"""Backups of a server, also while a run goes on, and what comes back of them."""

from __future__ import annotations

import json
import shutil
import sqlite3
import stat
import tarfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from deployed import a_run, a_server
from test_model_shelf import WHO

import fedstrata
from fedstrata.core.errors import RequestError
from fedstrata.core.storage.archives import unpack
from fedstrata.deploy import state
from fedstrata.deploy.authority import Authority
from fedstrata.deploy.operators import run_copy
from fedstrata.deploy.operators.backup import backup, restore
from fedstrata.deploy.server import run_book
from fedstrata.deploy.server.roll_watch import RollWatch
from fedstrata.deploy.server.run_book import BookedRun
from fedstrata.remote.server.orders import OperatorOrder, give_order, read_orders
from fedstrata.runs.folder import Run


@pytest.fixture
def kept(made, tmp_path):
    """Write a backup of a server with a run, while its database is open."""
    folder = state.private(state.of_server(8000))
    run = a_run(tmp_path / "runs/first", 2)
    run_book.book(folder, BookedRun("1", str(run.path), "fedavg", {}, 2, 2, WHO))
    (folder / "run").write_text(str(run.path))
    (folder / "nodes.json").write_text('{"a": {"node": "1", "key": "k"}}')
    (folder / "server.json").write_text(json.dumps(vars(a_server(keys=str(made / "server")))))
    (folder / "superlink.log").write_text("long")
    with closing(sqlite3.connect(folder / "superlink.db")) as live:
        live.execute("pragma journal_mode = wal")
        live.execute("create table t (x)")
        live.execute("insert into t values (42)")
        live.commit()
        backup(8000, tmp_path / "b.tar.gz", with_keys=True)
    return tmp_path / "b.tar.gz"


def test_a_server_comes_back_on_another_machine(kept, tmp_path, monkeypatch, made):
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    monkeypatch.setenv("FEDSTRATA_STATE", str(tmp_path / "elsewhere"))
    told = restore(kept, 8100, tmp_path / "back", tmp_path / "keys")
    folder = state.of_server(8100)
    assert told["folder"] == str(folder)
    with closing(sqlite3.connect(folder / "superlink.db")) as database:
        assert database.execute("select x from t").fetchall() == [(42,)]
    (run,) = run_book.read_booked(folder)
    assert run.path == str(tmp_path / "back/first") == (folder / "run").read_text()
    assert (tmp_path / "back/first/events.jsonl").read_bytes() == (tmp_path / "runs/first/events.jsonl").read_bytes()
    assert (tmp_path / "keys/server.key").read_bytes() == (made / "server/server.key").read_bytes()
    assert stat.S_IMODE((tmp_path / "keys/server.key").stat().st_mode) == 0o600
    assert json.loads((folder / "nodes.json").read_text())["a"]["node"] == "1"
    assert not (folder / "superlink.log").exists()


def test_an_older_roll_cannot_be_put_in_place_after_a_restore(made, tmp_path, monkeypatch):
    """The server that comes back still holds the roll that it had taken in, and what operators said."""
    own = shutil.copytree(made, tmp_path / "federation")
    old = (own / "server/roll.json").read_bytes()
    Authority.open(own).revoke("b")
    folder = state.private(state.of_server(8000))
    shutil.copy(own / "ca/roll.json", folder / "roll.json")
    (folder / "superlink.db").touch()
    give_order(folder / "orders.jsonl", OperatorOrder.of("stop", "7", "ann", None))
    (folder / "queue").mkdir()
    for number in (7, 10):
        (folder / f"queue/{number}.lock").touch()
    backup(8000, tmp_path / "b.tar.gz")
    monkeypatch.setenv("FEDSTRATA_STATE", str(tmp_path / "elsewhere"))
    restore(tmp_path / "b.tar.gz")
    folder = state.of_server(8000)
    (own / "server/roll.json").write_bytes(old)
    said = []
    watch = RollWatch(own / "server", folder, said.append)
    assert "b" not in watch.roll.nodes
    assert said == ["roll 1 beside the keys is refused: roll 2 holds here"]
    assert [order.operator for order in read_orders(folder / "orders.jsonl", "7", None)] == ["ann"]
    assert [path.name for path in (folder / "queue").iterdir()] == ["10.lock"], "the next run is 11, and hears nothing"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "queue")} == {0o700}


def test_a_run_that_is_copied_while_it_goes_on_ends_as_if_it_had_never_stopped(tmp_path, monkeypatch):
    """Many copies, each at a moment of its own; resumed, all come to the model of the run itself, bit for bit."""
    folder = state.private(state.of_server(8000))
    (folder / "superlink.db").touch()
    small = {"model.hidden": (8,), "train.epochs": 1, "train.batch_size": 256, "method.name": "scaffold"}
    small |= {"train.rounds": 40, "train.evaluate.every": 20, "engine.precision": "fp64", "data.clients": 4}
    home = tmp_path / "runs/first"
    run_book.book(folder, BookedRun("1", str(home), "scaffold", {}, 40, 2, WHO))
    made = []
    with ThreadPoolExecutor(1) as thread:
        goes_on = thread.submit(fedstrata.train, overrides=small, out=home)
        while not goes_on.done():
            made.append(tmp_path / f"{len(made)}.tar.gz")
            backup(8000, made[-1])
    run = goes_on.result()
    rounds = set()
    for number, file in enumerate(made):
        monkeypatch.setenv("FEDSTRATA_STATE", str(tmp_path / f"state-{number}"))
        there = tmp_path / f"back-{number}"
        told = restore(file, runs=there)
        if not (there / "first/checkpoint/CURRENT").exists():
            continue  # it had only just begun
        assert told["runs"] == [str(there / "first")]
        copied = Run.open(there / "first")
        manifest = copied.checkpoints.manifest(events=int)
        assert (copied.path / "events.jsonl").stat().st_size >= manifest["events"]
        if manifest["round"] not in rounds and len(rounds) < 3:
            rounds.add(manifest["round"])
            again = fedstrata.resume(copied.path)
            assert all(bool((again.model()[key] == value).all()) for key, value in run.model().items())
    assert len(rounds) > 1, "they are of several moments"


def test_a_checkpoint_that_vanishes_while_it_is_copied_is_copied_anew(tmp_path, monkeypatch):
    run = a_run(tmp_path / "run", 1)
    run.checkpoints.write(1, {"x": 1}, {}, {"events": run.sync_events()})
    held, named = [], run_copy._named

    def overtaken(folder, current):
        told = named(folder, current)
        if len(held) < 3:
            held.append(current)
            run.checkpoints.write(1 + len(held), {"x": 1 + len(held)}, {}, {"events": run.sync_events()})
        return told

    monkeypatch.setattr(run_copy, "_named", overtaken)
    (run.path / "checkpoint/sum-5-0").write_text("kept")
    (run.path / "lock").touch()
    (run.path / "x.part").touch()
    run_copy.copy_run(run.path, tmp_path / "copy")
    copy = Run.open(tmp_path / "copy")
    assert copy.checkpoints.manifest(events=int)["round"] == 4
    assert {path.name for path in copy.path.iterdir()} == {"experiment.toml", "events.jsonl", "checkpoint"}


def test_a_run_whose_checkpoint_is_damaged_is_copied_as_it_is(tmp_path):
    run = a_run(tmp_path / "run", 1)
    run.checkpoints.write(1, {"x": 1}, {}, {"events": run.sync_events()})
    (run.path / "checkpoint/sum-2-0").write_text("kept")
    for broken in ("000001.json", "CURRENT"):
        (run.path / "checkpoint" / broken).write_text("broken")
        run_copy.copy_run(run.path, tmp_path / "copy")
        there = {path.name: path.read_bytes() for path in (tmp_path / "copy/checkpoint").iterdir()}
        assert there == {path.name: path.read_bytes() for path in (run.path / "checkpoint").iterdir()}


def test_what_is_there_is_never_written_over(kept, tmp_path, cli, monkeypatch):
    refused = [
        (["backup", str(kept)], f"{kept} is there already"),
        (["backup", str(tmp_path / "c.tar.gz"), "--server", "127.0.0.1:9"], "nothing to back up"),
        (["restore", str(kept), "--keys", str(tmp_path / "k")], "holds the state of a server; move it away first"),
        (["restore", str(kept), "--port", "8100"], "say where they go: --keys DIR"),
        (
            ["restore", str(kept), "--port", "8100", "--runs", str(tmp_path / "runs"), "--keys", str(tmp_path / "k")],
            "first is there already; name another folder with --runs",
        ),
        (["restore", str(tmp_path / "nowhere")], "cannot be read"),
    ]
    monkeypatch.chdir(kept.parent)
    for words, said in refused:
        if words[0] == "restore" and "--runs" not in words:
            words += ["--runs", str(tmp_path / "new")]
        code, _, err = cli("deploy", *words)
        assert (code, said in err) == (2, True), err
    assert not (tmp_path / "k").exists()
    assert not state.of_server(8100).exists()


def test_a_backup_that_was_changed_is_refused(kept, tmp_path):
    with tarfile.open(kept) as archive:
        unpack(archive, tmp_path / "x")
    (tmp_path / "x/state/nodes.json").write_text("{}")
    with tarfile.open(tmp_path / "y.tar.gz", "w:gz") as archive:
        for path in (tmp_path / "x").iterdir():
            archive.add(path, path.name)
    with pytest.raises(RequestError, match=r"was changed: state/nodes\.json"):
        restore(tmp_path / "y.tar.gz", 8100, tmp_path / "back", tmp_path / "keys")
    (tmp_path / "z.tar.gz").write_bytes(kept.read_bytes()[:2000])
    with pytest.raises(RequestError, match="cannot be read"):
        restore(tmp_path / "z.tar.gz", 8100, tmp_path / "back", tmp_path / "keys")
    assert not state.of_server(8100).exists()
