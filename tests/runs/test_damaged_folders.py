"""Run folders as they come back: killed between two writes, with damaged lines, or where nothing can be written."""

from __future__ import annotations

import json
import os
import shutil
import stat

import pytest

import fedstrata
from fedstrata.core.errors import RequestError
from fedstrata.runs.folder import Run

SHORT = {"train.rounds": 3, "train.epochs": 1}


def interrupt(event):
    if event["event"] == "round" and event["round"] == 2:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Return a folder whose run was stopped after a round, as a pattern to copy."""
    path = tmp_path_factory.mktemp("pattern") / "run"
    with pytest.raises(KeyboardInterrupt):
        fedstrata.train(overrides=SHORT, out=path, watch=interrupt)
    return path


@pytest.fixture
def cut(stopped, tmp_path):
    return Run(shutil.copytree(stopped, tmp_path / "run"))


# ---- killed before there was a run ---------------------------------------------------------------------------------


def test_a_run_that_was_killed_between_its_first_two_files_goes_on(cut, cli):
    for name in ("events.jsonl", "checkpoint", "lock"):
        shutil.rmtree(cut.path / name) if (cut.path / name).is_dir() else (cut.path / name).unlink()
    code, _, err = cli("run", "--out", str(cut.path), "--set", "train.rounds=1")
    assert code == 2
    assert f"continue it with --resume {cut.path}" in err
    code, _, err = cli("report", str(cut.path))
    assert code == 2
    assert "stopped before it began; --resume goes on" in err
    assert cli("run", "--resume", str(cut.path), "-q")[0] == 0
    assert cut.summary["rounds"] == 3
    whole = fedstrata.train(overrides=SHORT, out=cut.path.parent / "whole")
    assert cut.events(wall=False) == whole.events(wall=False)


@pytest.mark.parametrize("left", [[], ["lock"], ["experiment.toml.part"], ["experiment.toml.part", "lock"]])
def test_what_a_kill_left_before_the_first_file_is_in_nobodys_way(tmp_path, left):
    path = tmp_path / "run"
    path.mkdir()
    for name in left:
        (path / name).write_text("half")
    assert fedstrata.train(overrides={"train.rounds": 1}, out=path).summary["rounds"] == 1


def test_other_files_are_in_the_way(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(RequestError, match="holds other files"):
        fedstrata.train(overrides={"train.rounds": 1}, out=tmp_path)


def test_a_folder_that_lost_its_events_but_has_a_checkpoint_is_refused(cut):
    (cut.path / "events.jsonl").unlink()
    with pytest.raises(RequestError, match=r"it has no events\.jsonl"):
        fedstrata.resume(cut.path)


# ---- damaged lines -------------------------------------------------------------------------------------------------

DAMAGE = {
    "no JSON": lambda line: b"\xff" + line[1:],
    "deep": lambda line: b"[" * len(line),
    "another value": lambda line: b"1".ljust(len(line)),
    "no kind": lambda line: line.replace(b'"event"', b'"evenT"'),
    "a figure that is none": lambda line: line.replace(b'"accuracy": 0.', b'"accuracy":"0.').replace(b", ", b'", ', 2)[
        : len(line)
    ],
    "a figure under another name": lambda line: line.replace(b'"balanced_accuracy"', b'"balanced_accuracz"'),
    "a round that is none": lambda line: line.replace(b'"round": 1', b'"round":[]'),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_run_with_a_damaged_line_goes_on_and_says_so(cut, damage):
    lines = (cut.path / "events.jsonl").read_bytes().split(b"\n")
    at = next(i for i, line in enumerate(lines) if line.startswith(b'{"event": "round", "round": 1'))
    worse = damage(lines[at])
    assert len(worse) == len(lines[at])
    assert worse != lines[at]
    (cut.path / "events.jsonl").write_bytes(b"\n".join([*lines[:at], worse, *lines[at + 1 :]]))
    run = fedstrata.resume(cut.path)
    assert run.summary["rounds"] == 3
    assert len(run.curve("balanced_accuracy")) == 2
    if "balanced_accuracz" not in worse.decode(errors="replace"):
        said = f"line {at + 1} of events.jsonl cannot be read"
        assert any(said in remark for remark in run.summary["remarks"])
        assert any(said in event["why"] for event in run.events() if event["event"] == "warning")
        assert {"event": "damaged", "line": at + 1} in run.events()


def test_a_summary_is_not_made_of_another_round_than_the_last(cut):
    fedstrata.resume(cut.path)
    (cut.path / "summary.json").unlink()
    text = (cut.path / "events.jsonl").read_text()
    (cut.path / "events.jsonl").write_text(text.replace('"event": "round", "round": 3', '"event": "round", "round": x'))
    with pytest.raises(RequestError, match="cannot have a summary: line"):
        fedstrata.resume(cut.path)


@pytest.mark.parametrize("text", ["[]", "1", '"x"', "[" * 100_000, "{", "\xff"])
def test_a_summary_that_is_none_is_refused_by_name(cut, text):
    (cut.path / "summary.json").write_text(text, encoding="latin-1")
    with pytest.raises(RequestError, match=r"summary\.json is damaged"):
        fedstrata.resume(cut.path)


# ---- checkpoints that are none of ours -----------------------------------------------------------------------------

MANIFESTS = {
    "no table": [],
    "empty": {},
    "no state": {"state": None},
    "an odd state": {"state": {"fields": 7}},
    "a deep state": {"state": json.loads("[" * 900 + "]" * 900)},
    "arrays that are not there": {"state": {"array": "none", "of": "numpy"}},
    "clients that are none": {"clients": [1, 2]},
    "a server that is none": {"server": {"file": "CURRENT", "sha256": "x"}},
    "events that are none": {"events": "many"},
    "seconds that are none": {"seconds": None},
}


@pytest.mark.parametrize("change", MANIFESTS.values(), ids=MANIFESTS)
def test_a_checkpoint_that_is_none_of_ours_is_refused_in_words(cut, change):
    folder = cut.path / "checkpoint"
    entry = json.loads((folder / "CURRENT").read_text())
    manifest = json.loads((folder / entry["file"]).read_text())
    changed = manifest | change if change and isinstance(change, dict) else change
    entry = cut.checkpoints._put(entry["file"], json.dumps(changed).encode())
    (folder / "CURRENT").write_text(json.dumps(entry))
    with pytest.raises(fedstrata.FedstrataError, match=r"damaged|a part's state"):
        fedstrata.resume(cut.path)


# ---- where nothing can be written ----------------------------------------------------------------------------------


def test_a_finished_run_that_cannot_be_written_is_given_back(cut, monkeypatch):
    fedstrata.resume(cut.path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(Run, "locked", lambda self: pytest.fail("nothing may be written"))
    assert fedstrata.resume(cut.path).summary["rounds"] == 3


def test_a_run_whose_events_cannot_be_written_is_refused_in_words(cut, monkeypatch):
    opened = type(cut.path).open

    def refuse(path, mode="r", *args, **how):
        if path.name == "events.jsonl" and set(mode) & set("aw+"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, mode, *args, **how)

    monkeypatch.setattr(type(cut.path), "open", refuse)
    with pytest.raises(RequestError, match="cannot write to"):
        fedstrata.resume(cut.path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_run_in_a_folder_of_somebody_else_is_refused_in_words(cut):
    cut.path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    (cut.path / "lock").chmod(stat.S_IRUSR)
    try:
        with pytest.raises(RequestError, match="cannot write to"):
            fedstrata.resume(cut.path)
    finally:
        cut.path.chmod(stat.S_IRWXU)
