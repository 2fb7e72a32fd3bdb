"""Every benchmark runs, in a small size and wherever it is started; how fast anything was is not looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedstrata
from benchmarks.__main__ import NAMES

ROOT = Path(__file__).parents[1]
SOURCE = Path(fedstrata.__file__).parents[1]  # of what is tested here, which need not be what is installed


def rows(name, folder, path, **around):
    """Measure in a folder, with these places on the path; give what was printed."""
    command = [sys.executable, "-m", "benchmarks", name, "--quick", "--json"]
    around = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), **around}
    done = subprocess.run(command, cwd=folder, env=around, capture_output=True, text=True, timeout=2000, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert isinstance(told, list)
    assert told
    for row in told:
        assert set(row) == {"name", "value", "unit", "goal", "met"}
        assert row["value"] is None or isinstance(row["value"], int | float)
        assert row["met"] is (True if row["goal"] is None else None)  # goals are those of the full size
    return told


@pytest.mark.extended
@pytest.mark.parametrize("name", [name for name in NAMES if name != "sites"])
def test_a_benchmark_runs_in_another_folder(name, tmp_path):
    rows(name, tmp_path, [ROOT, SOURCE])


@pytest.mark.extended
def test_without_a_gpu_one_row_says_that_nothing_was_measured(tmp_path):
    (row,) = rows("gpu", tmp_path, [ROOT, SOURCE], CUDA_VISIBLE_DEVICES="")
    assert row["value"] is None


@pytest.mark.sites
def test_real_sites_are_measured_in_a_fresh_clone():
    rows("sites", ROOT, [SOURCE])  # its processes work in other folders, and only they can find our root by themselves
