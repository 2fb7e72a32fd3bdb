"""The README's figures are those of the results that are kept, and the results say where they come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import _readme

RESULTS = sorted((Path(_readme.__file__).parent / "results").glob("*.json"))


def test_the_readme_shows_what_was_measured():
    text = _readme.README.read_text()
    assert text == _readme.written(text), "run python -m benchmarks._readme"
    assert _readme.SPEED.read_text() == _readme.page(), "run python -m benchmarks._readme"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_say_when_where_and_with_what(path):
    kept = json.loads(path.read_text())
    assert kept["benchmark"] == path.stem
    assert kept["date"][:4].isdigit()
    assert {"cpu", "cores"} <= set(kept["machine"])
    assert {"python", "torch", "fedstrata"} <= set(kept["versions"])
    assert all({"name", "value", "unit", "goal", "met"} <= set(row) for row in kept["rows"])
