from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    """Runs land under ./runs by default: no test may write into the checkout."""
    monkeypatch.chdir(tmp_path)
