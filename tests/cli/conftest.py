from __future__ import annotations

import gc

import pytest
from publishing import serving


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A data folder of the test's own."""
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def server(monkeypatch):
    """A server on this machine: fill `server.files` with what it gives by path."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as running:
        yield running
    gc.collect()  # sockets that the HTTP library left open, while the warning about them is still ignored
