"""The examples run, and the parts they write pass the suites they show."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedstrata import Run, client_updates
from fedstrata.config.experiment import Experiment
from fedstrata.testing import check_correction, check_selector

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["own_selector", "own_correction", "own_data", "hybrid", "noisy_samples"])
def test_an_example_runs(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / f"examples/{name}.py")], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


def test_own_parts_conform(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    for name, part, check in (
        ("own_selector", "LongestWait", check_selector),
        ("own_correction", "SmallTrainHead", check_correction),
    ):
        check(getattr(importlib.import_module(name), part)())


def test_the_combined_experiment_runs_and_reaches_its_target(tmp_path):
    command = [sys.executable, "-m", "fedstrata", "run", "-q", "--json", str(ROOT / "examples/combined.toml")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["accuracy"] > 0.9


def test_the_experiment_on_devices_runs_and_tells_the_time(tmp_path):
    command = [sys.executable, "-m", "fedstrata", "run", "-q", "--json", str(ROOT / "examples/devices.toml")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["time"] >= answer["time_to_target"] > 0


@pytest.mark.parametrize(("name", "kind"), [("label_noise", "label-noise"), ("feature_noise", "feature-noise")])
def test_the_noise_experiments_compare_methods_that_rank_samples(name, kind, tmp_path):
    command = [sys.executable, "-m", "fedstrata", "compare", "-q", "--json", str(ROOT / f"examples/{name}.toml")]
    command += ["--methods", "fedavg,fedbss", "--set", "train.rounds=4", "--out", "runs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)["rows"]
    assert [row["method"] for row in rows] == ["fedavg", "fedbss"]
    run = Run(tmp_path / rows[1]["run_dirs"][0])
    assert [noise["kind"] for noise in Experiment.of(run.path / "experiment.toml").data.noise] == [kind]
    assert {update.round for update in client_updates(run) if update.cut is not None} == {2, 3, 4}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_import_only_from_the_package_itself(path):
    assert set(re.findall(r"^(?:from|import) (fedstrata[\w.]*)", path.read_text(), re.M)) == {"fedstrata"}
