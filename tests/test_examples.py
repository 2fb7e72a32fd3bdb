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
from fedstrata.config.experiment import Experiment, Section
from fedstrata.core import registry
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
    assert {context.round for context in client_updates(run) if context.cut is not None} == {2, 3, 4}


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


@pytest.mark.parametrize("stage", ["samplers", "corrections", "combiners", "server_steps"])
def test_every_option_inside_the_client_and_at_the_server_is_documented(stage):
    rows = [
        line.split("|") for line in (ROOT / "docs/experiment.md").read_text().splitlines() if line.startswith("| `")
    ]
    for name in registry.names(stage):
        told = " ".join(row[2] for row in rows if f"`{name}`" in row[1])
        missing = [option for option in registry.options(stage, name, "") if f"`{option}`" not in told]
        assert told, name
        assert not missing, name


def test_the_readme_names_every_method_and_every_part_of_a_stage():
    text = (ROOT / "README.md").read_text()
    methods = set(re.findall(r"[\w-]+", text[text.index("Named methods:") : text.index("`fedstrata list methods`")]))
    assert set(registry.names("methods")) <= methods
    for stage in ("drivers", "selectors", "samplers", "corrections", "combiners", "server_steps"):
        assert not [name for name in registry.names(stage) if f"`{name}`" not in text], stage


def test_readme_and_docs_name_only_files_that_exist():
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for path in re.findall(r"`((?:src|docs|examples|tests)/[\w./-]+)`", page.read_text()):
            assert (ROOT / path).exists(), f"{page.name} names {path}"
