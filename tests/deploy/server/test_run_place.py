"""Runs whose folder the server cannot write: refused in one line, before anybody is asked."""

from __future__ import annotations

import errno
import json
import os

import pytest
from deployed import a_server
from test_rest import Calls, submitting

from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.deploy import state
from fedstrata.deploy.operators import submit
from fedstrata.deploy.server import federation_server, run_place
from fedstrata.deploy.server.run_launcher import UNUSABLE, RunLauncher
from fedstrata.deploy.server.run_place import refuse_unusable
from fedstrata.remote.flower.app_config import BLANK


def config(tmp_path, **changes):
    there = {"out": str(tmp_path / "out"), "folder": str(tmp_path), "server": "/var/lib/fedstrata/server-8000"}
    return {**BLANK, **there, **changes}


def test_a_folder_that_the_server_sees_and_may_write_is_taken(tmp_path):
    (tmp_path / "out").mkdir()
    refuse_unusable(config(tmp_path))
    refuse_unusable(BLANK)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(("resume", "option"), [(False, "--out"), (True, "--resume")])
def test_a_folder_on_a_read_only_disk_is_refused_with_what_to_do(tmp_path, monkeypatch, resume, option):
    """As under `ProtectSystem=strict`, and in a container."""

    def read_only(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(run_place.tempfile, "TemporaryFile", read_only)
    with pytest.raises(RequestError) as refused:
        refuse_unusable(config(tmp_path, resume=resume))
    said = str(refused.value)
    assert said.startswith(f"{option} = {tmp_path}/out: the server cannot write there (Read-only file system); ")
    assert said.endswith(f"such as {option} /var/lib/fedstrata/runs/out")
    assert "\n" not in said


def test_a_folder_that_is_another_one_for_the_server_is_refused(tmp_path):
    """A service has a /tmp of its own: what the operator made there is not in it."""
    with pytest.raises(RequestError, match=r"/out: the server cannot write there \(there is no such folder for it\)"):
        refuse_unusable(config(tmp_path))
    with pytest.raises(RequestError, match=r"cannot go to .*/gone, where the run was asked for \(there is no such"):
        refuse_unusable(config(tmp_path, folder=str(tmp_path / "gone")))


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_the_server_looks_before_flower_hears_of_the_run(tmp_path):
    pytest.importorskip("flwr")
    status, said = submitting(RunLauncher(Calls(), [], pytest.fail), json.dumps(config(tmp_path)).encode())
    assert status == UNUSABLE
    assert said.startswith(b"--out = ")


def test_what_the_server_refuses_is_said_in_its_words_and_leaves_no_folder(tmp_path, monkeypatch, flower_is_there):
    monkeypatch.setattr(federation_server, "tell", lambda *_: (UNUSABLE, "--out = x: the server cannot write there"))
    there = a_server()
    state.private(there.folder)
    asked = submit.new(there, Experiment.of(None), tmp_path / "deep/out", 2)
    with pytest.raises(RequestError, match=r"^--out = x: the server cannot write there$"), submit.submitted(asked):
        pass
    assert not (tmp_path / "deep/out").exists()


def test_a_folder_that_whoever_asks_cannot_make_is_refused_with_what_to_do(tmp_path, monkeypatch, flower_is_there):
    (tmp_path / "file").touch()
    asked = submit.new(a_server(), Experiment.of(None), tmp_path / "file/out", 2)
    said = r"--out = .*/file/out cannot be made: .*; name a folder"
    with pytest.raises(RequestError, match=said) as refused, submit.submitted(asked):
        pass
    assert str(refused.value).endswith(f"such as --out {state.folder()}/runs/out")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").touch()
    with pytest.raises(RequestError, match=r"such as --out .*/state/runs/fedavg$"):
        submit.new(a_server(), Experiment.of(None), None, 2)
