"""What tests of `fedstrata deploy` share: a home of their own, and keys."""

from __future__ import annotations

import pytest

from fedstrata.deploy import flower, keys


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSTRATA_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def flower_is_there(monkeypatch):
    monkeypatch.setattr(flower, "require_flower", lambda: None)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "federation"
    keys.make(folder, ["b", "a", "c"], ["flower.example.org", "10.1.2.3"])
    return folder
