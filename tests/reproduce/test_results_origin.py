"""Where kept runs come from: a commit is named only for its own code."""

from __future__ import annotations

import subprocess

from typer.testing import CliRunner

from fedstrata import cli
from fedstrata.reproduce.results import _commit


def git(where, *args):
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", "-C", str(where), *who, *args], check=True, capture_output=True, text=True).stdout


def test_code_that_was_changed_since_its_commit_says_so(tmp_path):
    package, results = tmp_path / "package", tmp_path / "results.json"
    package.mkdir()
    (package / "code.py").write_text("a = 1\n")
    assert _commit(package) is None
    git(tmp_path, "init", "-q")
    results.write_text("{}\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "--short", "HEAD").strip()
    results.write_text("what a run adds beside the code does not count\n")
    assert _commit(package) == commit
    (package / "code.py").write_text("a = 2\n")
    assert _commit(package) == f"{commit}-dirty"


def test_published_runs_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(cli.app, ["reproduce", "show", "B2"])
    assert shown.exit_code == 0
    assert "runs: 0 of" not in shown.stdout
    assert "runs that come with fedstrata" in shown.stderr
