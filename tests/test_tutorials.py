"""Tutorials are played as they are printed, in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from tutorial import play

TUTORIALS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.md"))
AT_SITES = ("three-sites",)


@pytest.mark.extended
@pytest.mark.parametrize("page", [page for page in TUTORIALS if page.stem not in AT_SITES], ids=lambda page: page.stem)
def test_a_tutorial_can_be_followed(page, tmp_path):
    (tmp_path / "empty").mkdir()
    play(page, tmp_path / "empty")


@pytest.mark.sites
@pytest.mark.parametrize("page", [page for page in TUTORIALS if page.stem in AT_SITES], ids=lambda page: page.stem)
def test_a_tutorial_at_sites_can_be_followed(page, tmp_path):
    pytest.importorskip("flwr")
    (tmp_path / "empty").mkdir()
    play(page, tmp_path / "empty")
