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
from fedstrata.config import tables
from fedstrata.config.experiment import Experiment
from fedstrata.runs.compare import ComparisonRequest
from fedstrata.runs.compare.design import Design, read_same
from fedstrata.testing import check_correction, check_selector

ROOT = Path(__file__).parents[1]
quick_processes = pytest.mark.usefixtures("quick_processes")


@quick_processes
@pytest.mark.extended
@pytest.mark.parametrize(
    "name", ["own_selector", "own_correction", "own_data", "own_csv", "own_images", "hybrid", "noisy_samples"]
)
def test_an_example_runs(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / f"examples/{name}.py")], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


@pytest.mark.sites
def test_the_example_at_real_sites_runs_and_only_a_site_names_labels(tmp_path):
    pytest.importorskip("flwr")
    command = [sys.executable, str(ROOT / "examples/masked_sites.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the server says: 0,placeholder" in done.stdout
    assert float(done.stdout.split()[-1]) > 0.5


def test_own_parts_conform(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    for name, part, check in (
        ("own_selector", "LongestWait", check_selector),
        ("own_correction", "SmallTrainHead", check_correction),
    ):
        check(getattr(importlib.import_module(name), part)())


@quick_processes
@pytest.mark.extended
def test_the_combined_experiment_runs_and_reaches_its_target(tmp_path):
    command = [sys.executable, "-m", "fedstrata", "run", "-q", "--json", str(ROOT / "examples/combined.toml")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["accuracy"] > 0.9


@quick_processes
@pytest.mark.extended
def test_the_experiment_on_devices_runs_and_tells_the_time(tmp_path):
    command = [sys.executable, "-m", "fedstrata", "run", "-q", "--json", str(ROOT / "examples/devices.toml")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["time"] >= answer["time_to_target"] > 0


@quick_processes
@pytest.mark.extended
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


DIGITS = ["--set", "data.name=digits", "--set", "model.name=mlp", "--set", "train.rounds=1", "--set", "train.epochs=1"]
TABLES = {  # files that hold a comparison: each as it is, and how few of its cells, on digits, show that it runs
    "flips_fashion": (
        5,
        36,
        ["--set=data.clients=20", "--over=data.partition.alpha=0.6", "--over=train.clients_per_round=0.2"],
        ["--over=system.stragglers.rate=0.2"],
        15,
    ),
    "fedbss_table1": (
        9,
        18,
        ["--set=data.clients=10", "--condition=cifar10: data.clients=11", "--condition=cifar100: data.clients=12"],
        ["--over=data.partition={kind='shards',shards=2}"],
        27,
    ),
    "server_rates": (
        7,
        3,
        ["--set=data.clients=10", "--condition=uci-har: data.clients=11"],
        ["--condition=fashion-mnist, CNN: data.clients=12"],
        21,
    ),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_one_file_and_one_command(name, cli):
    rows, conditions, small, fewer, cells = TABLES[name]
    file = ROOT / f"examples/{name}.toml"
    source = tables.read(file)
    asked = ComparisonRequest.from_table(source.pop("compare"))
    design = Design(source, {}, asked.entries(), asked.list_conditions(), [0], read_same(asked.same))
    design.check()  # the whole of it; data are not needed for that
    assert (len(design.entries), len(design.conditions)) == (rows, conditions)
    code, out, err = cli("compare", str(file), *DIGITS, *small, *fewer, "--seeds=1", "--jobs=1", "-q", "--json")
    assert code == 0, err
    found = json.loads(out)["rows"]
    assert len(found) == cells
    assert all(row["accuracy"]["mean"] is not None for row in found)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_import_only_from_the_package_itself(path):
    assert set(re.findall(r"^(?:from|import) (fedstrata[\w.]*)", path.read_text(), re.M)) <= {"fedstrata"}
