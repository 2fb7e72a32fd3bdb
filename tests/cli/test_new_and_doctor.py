"""A folder to begin with, which runs as it is; what a machine has, and what to do about what it has not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedstrata
from fedstrata.config.experiment import Experiment
from fedstrata.deploy import health
from fedstrata.deploy.health import Finding

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("quick_processes")
def test_a_new_experiment_runs_as_it_is_and_its_part_passes_the_suite(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = cli("new", "my-experiment")
    assert code == 0
    assert "cd my-experiment" in out
    around = {**os.environ, "PYTHONPATH": str(Path(fedstrata.__file__).parents[1])}
    for command in (["-m", "fedstrata", "run", "-q", "experiment.toml", "--json"], ["test_my_parts.py"]):
        done = subprocess.run(
            [sys.executable, *command], cwd="my-experiment", env=around, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        if "--json" in command:
            answer = json.loads(done.stdout)
            assert answer["method"] == "fedavg+LongestWait"
            assert answer["accuracy"] > 0.5
    assert done.stdout == "my parts pass\n"


def test_keys_of_the_template_that_are_commented_out_are_valid(tmp_path, monkeypatch):
    text = (ROOT / "src/fedstrata/cli/template/experiment.toml").read_text()
    lines = [line.removeprefix("# ") if " = " in line or line.startswith("# [") else line for line in text.splitlines()]
    whole = "\n".join(lines).replace("my_parts:LongestWait", "random").replace("@NAME@", "x")
    found = Experiment.of(tomllib.loads(whole))
    assert found.method.corrections[0]["kind"] == "prox"
    assert found.privacy.aggregate == "masked"
    assert found.track[0]["kind"] == "tensorboard"


def test_a_folder_that_holds_something_is_left_alone(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/mine.txt").write_text("mine")
    Path("file").write_text("mine")
    assert cli("new", "full")[0] == cli("new", "file")[0] == 2
    assert [path.name for path in Path("full").iterdir()] == ["mine.txt"]


def test_the_name_may_hold_quotes(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = cli("new", 'my "best"', "--json")
    assert code == 0
    assert tomllib.loads(Path('my "best"', "experiment.toml").read_text())["name"] == 'my "best"'
    assert set(json.loads(out)["files"]) == {path.name for path in Path('my "best"').iterdir()}


def test_doctor_knows_every_extra_and_says_how_to_get_it(monkeypatch):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(health.EXTRAS) == set(extras) - {"dev", "track"}  # one for whoever works here, one for three of these
    monkeypatch.setattr(health, "find_spec", lambda name: None)
    missing = [finding for finding in health.examine(("board",)) if finding.what.startswith("[")]
    assert {f"pip install 'fedstrata[{extra}]'" for extra in health.EXTRAS} == {finding.advice for finding in missing}
    assert [finding.what for finding in missing if finding.state == "bad"] == ["[board]"]


def test_doctor_answers_in_json_and_by_its_exit_code(cli, monkeypatch):
    code, out, _ = cli("doctor", "--json")
    answer = json.loads(out)
    assert (code == 0) is answer["healthy"]
    looked = {finding["what"] for finding in answer["findings"]}
    assert {"python", "torch", "gpu", "cores", "memory", "runs", "data folder", "port 8765", "[flower]"} <= looked
    monkeypatch.setattr(health, "find_spec", lambda name: None)
    code, out, _ = cli("doctor", "--need", "flower")
    assert code == 1
    assert "pip install 'fedstrata[flower]'" in out
    assert "to mend: [flower]" in out
    assert cli("doctor", "--need", "flour")[0] == 2


def test_doctor_finds_a_data_folder_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "file"))
    (found,) = [finding for finding in health.examine() if finding.what == "data folder"]
    assert found.state == "bad"
    assert "FEDSTRATA_DATA" in found.advice


def test_doctor_finds_a_port_that_is_taken(monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr(health, "PORTS", {port: "fedstrata board"})
        (found,) = [finding for finding in health.examine() if finding.what == f"port {port}"]
    assert found.state == "note"
    assert "--port" in found.advice


@pytest.mark.parametrize("version", ["2.10.0", "2.14.1"])
def test_doctor_says_which_torch_is_tested(version, monkeypatch):
    monkeypatch.setattr("torch.__version__", version)
    (found,) = [finding for finding in health.examine() if finding.what == "torch"]
    assert found.state == "note"
    assert "torch>=2.11,<2.14" in found.advice


def test_doctor_says_what_is_not_there_although_nothing_requires_it(cli, monkeypatch):
    good, note = Finding("torch", "good", "2.12"), Finding("[timm]", "note", "cannot be imported: it does not fit")
    port = Finding("port 8765", "note", "taken")
    monkeypatch.setattr(health, "examine", lambda _: [good, port, note])
    assert cli("doctor")[1].endswith("all that is required is there; optional, and not there or not usable: timm\n")
    monkeypatch.setattr(health, "examine", lambda _: [good, port])
    assert cli("doctor")[1].endswith("all that is required is there\n")
