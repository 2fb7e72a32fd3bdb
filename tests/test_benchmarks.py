"""The README's figures are those of the results that are kept, and the results say where they come from."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks import _readme, peers
from benchmarks.__main__ import table
from benchmarks._rows import row

RESULTS = sorted((Path(_readme.__file__).parent / "results").glob("*.json"))


def test_the_readme_shows_what_was_measured():
    text = _readme.README.read_text()
    assert text == _readme.written(text), "run python -m benchmarks._readme"
    assert _readme.SPEED.read_text() == _readme.page(), "run python -m benchmarks._readme"


def test_the_page_on_gpus_says_of_when_the_stored_figures_are():
    text = (_readme.SPEED.parent / "gpu.md").read_text()
    kept = {
        path.stem: json.loads(path.read_text()) for path in RESULTS if path.stem in ("gpu", "gpu_cifar10", "gpu_rounds")
    }
    assert len(kept) == 3
    for one in kept.values():
        assert f"are of {one['date'][:10]}" in text
    rows = {row["name"]: row["value"] for row in kept["gpu_rounds"]["rows"]}
    for measured, precision in re.findall(r"([\d.]+) x in (\w+)", text):
        assert any(f"{value:.3g}" == measured and name.endswith(precision) for name, value in rows.items())


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_say_when_where_and_with_what(path):
    kept = json.loads(path.read_text())
    assert kept["benchmark"] == path.stem
    assert kept["date"][:4].isdigit()
    assert {"cpu", "cores"} <= set(kept["machine"])
    assert {"python", "torch", "fedstrata"} <= set(kept["versions"])
    assert all({"name", "value", "unit", "goal", "met"} <= set(row) for row in kept["rows"])


@pytest.mark.parametrize(
    ("value", "goal", "met", "said"),
    [
        (1.0, {"at_most": 2.0}, True, "goal 2: met"),
        (3.0, {"at_most": 2.0}, False, "goal 2: missed"),
        (3.0, {"at_least": 2.0}, True, "goal 2: met"),
        (1.0, {"at_least": 2.0}, False, "goal 2: missed"),
        (None, {"at_least": 2.0}, None, "goal 2: not measured"),
        (1.0, {}, True, ""),
        (None, {}, True, ""),
    ],
)
def test_a_row_says_whether_its_goal_was_met_and_without_a_goal_nothing_is_missed(value, goal, met, said):
    told = row("rounds", value, "x", **goal)
    assert told["met"] is met
    assert table([told]).partition(" x ")[2].strip() == said


@pytest.mark.parametrize(
    ("version", "tried"),
    [
        ("2.13.0+cpu", [("torch==2.13.0", False), ("torch==2.13.0+cpu", True)]),
        ("2.13.0+cu130", [("torch==2.13.0", False)]),
        ("2.13.0", [("torch==2.13.0", False)]),
    ],
)
def test_a_peer_comes_from_the_default_index_first_and_without_any_it_is_left_out(
    version, tried, monkeypatch, tmp_path, capsys
):
    installed = []

    def run(command, timeout, **_):
        assert timeout is not None
        if "pip" in command:
            assert {"--timeout", "--retries"} <= set(command)
            pins = [word for word in command if word.startswith("torch==")]
            installed.append((*pins, "--extra-index-url" in command))
            raise subprocess.CalledProcessError(1, command, stderr="Looking...\nERROR: no such index\n")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("torch.__version__", version)
    monkeypatch.setenv("FEDSTRATA_PEERS", str(tmp_path))
    assert peers.python_of.__wrapped__("pfl") is None
    assert installed == tried
    assert capsys.readouterr().err.splitlines()[-1] == (
        "pfl is left out, because it cannot be installed: ERROR: no such index"
    )
