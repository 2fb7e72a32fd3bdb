"""The documents as a site: it builds without a warning, its pictures are those of their script."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import fedstrata

ROOT = Path(__file__).parents[1]


def test_pictures_are_those_that_their_script_draws():
    drawn = runpy.run_path(str(ROOT / "docs/pictures/draw.py"))["pictures"]()
    assert {path.name: path.read_text() for path in (ROOT / "docs/pictures").glob("*.svg")} == drawn


def test_every_page_has_a_place_in_the_site():
    text = (ROOT / "mkdocs.yml").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert not [page for page in pages if f"- {page}\n" not in text]


@pytest.mark.extended
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    around = {**os.environ, "PYTHONPATH": str(Path(fedstrata.__file__).parents[1]), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "fedstrata.train" in (tmp_path / "site/reference/python/index.html").read_text()
    assert "longest" in (tmp_path / "site/tutorials/own-selector/index.html").read_text()
    assert "td:first-child code" in (tmp_path / "site/site.css").read_text()
    assert 'href="../site.css"' in (tmp_path / "site/experiment/index.html").read_text()


def test_the_gallery_shows_the_pictures_that_its_script_takes():
    shown = set(re.findall(r"\(pictures/gallery/([\w-]+)\.png\)", (ROOT / "docs/gallery.md").read_text()))
    taken = set(re.findall(r'photograph\(.*?, "([\w-]+)"', (ROOT / "docs/pictures/gallery.py").read_text()))
    assert shown == taken == {path.stem for path in (ROOT / "docs/pictures/gallery").glob("*.png")}
