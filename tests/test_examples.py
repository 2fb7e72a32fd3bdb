"""The examples run, and the parts they write pass the suites they show."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedstrata.experiment import Experiment, Section
from fedstrata.testing import check_local_part, check_selector

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["own_selector", "own_correction", "own_data", "hybrid"])
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
        ("own_correction", "ClipGradient", check_local_part),
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


def test_every_key_of_an_experiment_is_documented():
    text = (ROOT / "docs/experiment.md").read_text()

    def keys(section: type[Section], prefix: str):
        for name, field in section.model_fields.items():
            inner = field.annotation
            if isinstance(inner, type) and issubclass(inner, Section):
                yield from keys(inner, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}"

    missing = [key for key in keys(Experiment, "") if f"`{key}`" not in text]
    assert not missing


def test_readme_and_docs_name_only_files_that_exist():
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for path in re.findall(r"`((?:src|docs|examples|tests)/[\w./-]+)`", page.read_text()):
            assert (ROOT / path).exists(), f"{page.name} names {path}"
