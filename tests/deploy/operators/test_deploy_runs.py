"""`fedstrata deploy run`: the app that sites get, how a run is described, handed over, followed and given up."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import tomllib
import zipfile
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomli_w
from deployed import a_run, a_server

from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.storage.file_lock import take_lock
from fedstrata.deploy import flower, run_app, state
from fedstrata.deploy.authority import Authority
from fedstrata.deploy.operators import submit
from fedstrata.deploy.server import federation_server
from fedstrata.deploy.server.run_launcher import SUBMIT
from fedstrata.deploy.site.answering import PULL, look_often
from fedstrata.deploy.site.supernode import foreign
from fedstrata.remote.flower.app_config import BLANK
from fedstrata.remote.server.waiting_note import FILE as WAITING
from fedstrata.runs.folder import Run


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_the_app_is_thin_and_the_same_for_every_run():
    pytest.importorskip("flwr")
    with zipfile.ZipFile(BytesIO(run_app.bundle())) as archive:
        told = tomllib.loads(archive.read("pyproject.toml").decode())
    assert set(told["project"]["name"]) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert told["project"]["dependencies"] == []
    components = told["tool"]["flwr"]["app"]["components"]
    assert components["serverapp"] == "fedstrata.remote.flower.server_app:app"
    assert components["clientapp"] == "fedstrata.remote.flower.client_app:app"
    assert foreign(run_app.bundle()) is None


def test_a_run_is_described_by_keys_that_the_app_has(tmp_path):
    asked = submit.new(a_server(keys="/k"), Experiment.of({"train": {"rounds": 3}}), tmp_path / "out", 3)
    config = asked.config(tmp_path / "e.toml")
    assert set(config) == set(BLANK)
    assert {k: type(v) for k, v in config.items()} == {k: type(v) for k, v in BLANK.items()}
    assert (config["sites"], config["resume"], config["out"]) == (3, False, str(tmp_path / "out"))
    assert (config["experiment"], config["keys"]) == (str(tmp_path / "e.toml"), "/k")
    assert (config["stream"], config["listen"], config["fine"]) == ("h:8001", "0.0.0.0:8001", False)
    claimed = submit.new(a_server(), Experiment.of(None), None, 3)
    assert claimed.path == tmp_path / "runs/fedavg-1"


def bundle(pyproject: str, **files: str) -> bytes:
    written = BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, text in {"pyproject.toml": pyproject, ".info/CONTENT": "", **files}.items():
            archive.writestr(name, text)
    return written.getvalue()


def test_a_site_runs_our_app_and_no_other():
    ours = tomli_w.dumps(run_app.pyproject())
    assert foreign(bundle(ours)) is None
    assert foreign(bundle(ours, **{"fedstrata/__init__.py": ""})) == "it holds other files"
    assert foreign(bundle(ours.replace("client_app:app", "other:app"))) == "it points to other code"
    assert foreign(bundle(ours.replace("dependencies = []", 'dependencies = ["x"]'))) == "it wants packages installed"
    assert foreign(bundle(ours + "# " + "x" * 70_000)) == "its description is too long"
    for broken in (b"", b"PK", bundle("["), bundle(""), bundle("tool = 1"), bundle(ours)[:-30]):
        assert foreign(broken) == "it cannot be read"


def test_a_site_looks_often_for_messages_while_a_run_is_on(monkeypatch):
    """And where the server held its last look until there was nothing to say, it looks again at once."""
    now, slept, runs = [0.0], [], iter([(None, 0), (7, 0), (None, 0), (None, 0), (None, 20)])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", slept.append)

    def pull(node_config):
        run, took = next(runs)
        now[0] += took
        return run

    node = SimpleNamespace(**{PULL: pull}, time=time)
    look_often(node, threading.Event())
    for now[0] in (0.0, 10.0, 65.0, 75.0, 80.0):
        getattr(node, PULL)(node_config={})
        node.time.sleep(3)
    assert slept == [3, 0.3, 0.3, 3, 0.05]


@pytest.mark.parametrize(
    ("method", "fine"),
    [("fedavg", False), ("terraform", False), ("scaffold", False), ("stratify-batch", True), ("sfl", True)],
)
def test_methods_that_exchange_single_batches_need_the_stream(tmp_path, method, fine):
    experiment = Experiment.of({"method": {"name": method}})

    def asked(stream):
        config = submit.new(a_server(), experiment, tmp_path / "out", 3, stream=stream).config(tmp_path)
        return config["stream"], config["listen"], config["fine"]

    assert asked(None) == ("h:8001", "0.0.0.0:8001", fine)
    assert asked(True) == ("h:8001", "0.0.0.0:8001", True)
    assert asked(False) == ("", "", False)


def test_submitting_tells_the_server_and_removes_what_was_written(tmp_path, monkeypatch, flower_is_there):
    seen, answers = {}, [(409, "no\nfederation"), (404, "page"), (200, "77")]

    def tell(address, path, authority, body, seconds):
        seen.update(json.loads(body), where=(address, path))
        seen["rounds"] = Experiment.of(Path(seen["experiment"])).train.rounds
        return answers.pop()

    monkeypatch.setattr(federation_server, "tell", tell)
    there = a_server()
    state.private(there.folder)
    (there.folder / WAITING).write_text("{}")  # of a run that was killed
    asked = submit.new(there, Experiment.of({"train": {"rounds": 3}}), tmp_path / "out", 2)
    with submit.submitted(asked) as number:
        assert number == "77"
        assert not (there.folder / WAITING).exists()
        assert Path(seen["experiment"]).exists(), "the server side has yet to read it"
    assert (seen["rounds"], seen["where"]) == (3, (there.address, SUBMIT))
    assert not list(there.folder.glob("run-*"))
    for said in ("another version", r"\(409\): no federation"):
        with pytest.raises(FedstrataError, match=said), submit.submitted(asked):
            pass


def test_a_folder_with_a_run_is_refused_before_anybody_is_asked(tmp_path):
    Run.create(tmp_path / "out", "")
    with pytest.raises(RequestError, match="continue a run with --resume"):
        submit.new(a_server(), Experiment.of(None), tmp_path / "out", 2)


def test_a_folder_that_was_taken_while_a_run_waited_is_left_as_it_is(tmp_path, flower_is_there):
    asked = submit.new(a_server(), Experiment.of(None), tmp_path / "out", 2)
    Run.create(tmp_path / "out", "")
    (tmp_path / "out" / submit.FAILED).write_text("theirs")
    with pytest.raises(RequestError, match="is there already"), submit.submitted(asked):
        pass
    assert (tmp_path / "out" / submit.FAILED).read_text() == "theirs"


def test_following_shows_what_the_folder_gets(tmp_path):
    asked = submit.Submission(a_server(), Experiment.of({"train": {"rounds": 2}}), tmp_path / "out", 2)
    seen = []
    run = a_run(tmp_path / "out", 2)
    run.write_result({}, {}, {"method": "fedavg"})
    done = submit.follow(asked, "1", seen.append, lambda _: None)
    assert done.summary == {"method": "fedavg"}
    assert [e["event"] for e in seen] == ["begin", "start", "sites", "round", "round"]
    assert (seen[0]["round"], seen[0]["rounds"], seen[0]["run_dir"]) == (0, 2, str(tmp_path / "out"))


def test_following_a_resumed_run_begins_where_it_goes_on(tmp_path):
    run = a_run(tmp_path / "out", 2)
    size = run.sync_events()
    run.log("round", round=3, steps=[])  # after the checkpoint: it will be cut off
    lines = submit.EventLines(run, {"events": size, "round": 2})
    assert list(lines.new()) == []
    run.cut_events(size)
    assert list(lines.new()) == []
    run.log("resumed", wall={"round": 2})
    run.log("round", round=3, steps=[])
    with (run.path / "events.jsonl").open("a") as file:
        file.write('{"event": "rou')
    assert [e["event"] for e in lines.new()] == ["resumed", "round"]
    with (run.path / "events.jsonl").open("a") as file:
        file.write('nd", "round": 4}\n')
    assert [e["round"] for e in lines.new()] == [4]


@pytest.mark.parametrize(
    ("told", "kind", "said"),
    [
        ({"error": "RequestError", "message": "no", "exit_code": 2, "trace": None}, RequestError, "^no$"),
        (
            {"error": "KeyError", "message": "x", "exit_code": 1, "trace": "..."},
            FedstrataError,
            "failed with KeyError: x;",
        ),
        ({}, FedstrataError, "cannot be read"),
    ],
)
def test_a_run_that_failed_says_why(tmp_path, told, kind, said):
    asked = submit.Submission(a_server(), Experiment.of(None), tmp_path / "out", 2)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / submit.FAILED).write_text(json.dumps(told))
    with pytest.raises(FedstrataError, match=said) as raised:
        submit.follow(asked, "1", lambda _: None, lambda _: None)
    assert type(raised.value) is kind
    again = submit.new(a_server(), Experiment.of(None), tmp_path / "out", 2)
    assert again.path == tmp_path / "out", "what failed before it began can be tried again in the same folder"


@pytest.fixture
def server_runs():
    """Hold the lock that a server holds while it lives."""
    lock = take_lock(state.private(a_server().folder) / "lock")
    yield
    os.close(lock)


def test_a_run_whose_process_is_gone_is_given_up(tmp_path, monkeypatch, server_runs):
    monkeypatch.setattr(submit, "GONE", 0.3)
    monkeypatch.setattr(flower, "log_of", lambda *_: "its last words\n")
    asked = submit.Submission(a_server(), Experiment.of({"train": {"rounds": 2}}), tmp_path / "out", 2)
    run = a_run(tmp_path / "out", 2)
    with run.locked():
        assert run.running
    assert not run.running
    with pytest.raises(
        FedstrataError,
        match=r"(?s)its process is gone; continue with: fedstrata deploy run --resume .*out.*its last words",
    ):
        submit.follow(asked, "1", lambda _: None, lambda _: None)


def test_a_server_that_is_gone_is_named_in_one_line_with_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setattr(submit, "GONE", 0.3)
    monkeypatch.setattr(flower, "log_of", lambda *_: "Using SuperLink\n")
    run = a_run(tmp_path / "out", 2)
    asked = submit.Submission(a_server(), Experiment.of({"train": {"rounds": 2}}), run.path, 2)
    said = r"^the server is gone, and the run with it; start it again; continue with: fedstrata deploy run --resume .*$"
    with run.locked(), pytest.raises(FedstrataError, match=said):
        submit.follow(asked, "1", lambda _: None, lambda _: None)
    unbegun = submit.Submission(a_server(), Experiment.of(None), tmp_path / "other", 2)
    with pytest.raises(FedstrataError, match=r"^the server is gone, and the run with it; start it again, and then the"):
        submit.follow(unbegun, "1", lambda _: None, lambda _: None)


def test_a_run_that_flower_could_not_start_is_given_up(tmp_path, monkeypatch, server_runs):
    monkeypatch.setattr(submit, "ASK", 0.1)
    answers = iter(
        [{"runs": [{"status": "pending", "status-details": "N/A"}]}, {"runs": [{"status": "finished:failed"}]}]
    )
    monkeypatch.setattr(flower, "flwr", lambda *_: next(answers))
    monkeypatch.setattr(flower, "log_of", lambda *_: "")
    asked = submit.Submission(a_server(), Experiment.of(None), tmp_path / "out", 2)
    said = []
    with pytest.raises(FedstrataError, match="the run did not finish: finished:failed"):
        submit.follow(asked, "1", lambda _: None, said.append)
    assert "no news of the run yet (Flower: pending)" in said[0]


def test_a_run_that_ends_while_flower_is_asked_is_not_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(submit, "ASK", 0.1)

    def call(*_):
        a_run(tmp_path / "out", 2).write_result({}, {}, {"method": "fedavg"})
        return {"runs": [{"status": "finished:completed"}]}

    monkeypatch.setattr(flower, "flwr", call)
    asked = submit.Submission(a_server(), Experiment.of({"train": {"rounds": 2}}), tmp_path / "out", 2)
    seen = []
    assert submit.follow(asked, "1", seen.append, lambda _: None).summary == {"method": "fedavg"}
    assert [e["event"] for e in seen] == ["begin", "start", "sites", "round", "round"]


def test_going_on_takes_the_number_of_sites_from_the_run(tmp_path):
    a_run(tmp_path / "out", 2)
    assert submit.again(a_server(), tmp_path / "out", None).sites == 2
    assert submit.again(a_server(), tmp_path / "out", 3).sites == 3
    Run.create(tmp_path / "new", Experiment.of(None).to_toml())
    with pytest.raises(RequestError, match="--sites is required"):
        submit.again(a_server(), tmp_path / "new", None)


def test_going_on_does_not_wait_for_who_is_off_the_roll(tmp_path, made):
    own = shutil.copytree(made, tmp_path / "keys")
    there, said = a_server(keys=str(own / "server")), []
    a_run(tmp_path / "out", 2)
    assert submit.again(there, tmp_path / "out", None, said.append).sites == 2
    Authority.open(own).revoke("b")
    shutil.copy(own / "ca/roll.json", own / "server/roll.json")
    assert submit.again(there, tmp_path / "out", None, said.append).sites == 1
    assert submit.again(there, tmp_path / "out", 2).sites == 1, "as the command that a stopped run tells to type"
    assert said == ["off the roll, and so not waited for: site b"]


@pytest.mark.parametrize(("key", "value"), [("aggregate", "masked"), ("clustering", "masked")])
def test_masks_are_not_resumed_without_a_site_that_agreed_on_them(tmp_path, made, key, value):
    own = shutil.copytree(made, tmp_path / "keys")
    there = a_server(keys=str(own / "server"))
    Authority.open(own).revoke("b")
    shutil.copy(own / "ca/roll.json", own / "server/roll.json")
    experiment = Experiment.of({"method": {"name": "flips"}, "privacy": {key: value, "labels": "prf"}})
    Run.create(tmp_path / "out", experiment.to_toml()).log("sites", wall={"sites": ["a", "b", "c"]})
    with pytest.raises(RequestError, match=f'privacy.{key} = "{value}".*site b left the roll; begin a new run'):
        submit.again(there, tmp_path / "out", 2)
