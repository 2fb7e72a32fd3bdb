"""A private place for a site's socket."""

from __future__ import annotations

import pytest


@pytest.fixture
def path(tmp_path):
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    return folder / "s"
