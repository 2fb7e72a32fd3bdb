from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    """A data folder of the test's own, beside the files it writes."""
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def src(tmp_path):
    (tmp_path / "src").mkdir()
    return tmp_path / "src"
