"""Tutorials are run as they are printed, in an empty folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tutorial import follow

TUTORIALS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.md"))
AT_SITES = ("three-sites",)
RUNS = {
    "first": {"berlin", "lyon", "oslo"},
    "second": {"berlin", "lyon", "oslo", "paris"},
    "third": {"berlin", "oslo", "paris"},
}
DEPLOY = Path(__file__).parents[1] / "docs" / "deploy.md"


@pytest.mark.extended
@pytest.mark.parametrize("page", [page for page in TUTORIALS if page.stem not in AT_SITES], ids=lambda page: page.stem)
def test_a_tutorial_can_be_followed(page, tmp_path):
    (tmp_path / "empty").mkdir()
    follow(page, tmp_path / "empty")


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_names_what_its_commands_need_beside_fedstrata_before_them(page):
    text = page.read_text()
    for option, extra in (("--onnx", "fedstrata[onnx]"),):
        assert option not in text or extra in text.split(option)[0]


@pytest.mark.sites
@pytest.mark.parametrize("page", [page for page in TUTORIALS if page.stem in AT_SITES], ids=lambda page: page.stem)
def test_a_tutorial_at_sites_can_be_followed(page, tmp_path):
    pytest.importorskip("flwr")
    (tmp_path / "empty").mkdir()
    follow(page, tmp_path / "empty")


@pytest.mark.sites
def test_three_hospitals_go_from_nothing_to_a_prediction_as_the_page_says(tmp_path, monkeypatch):
    """Keys, tables, masks, a site and the server killed, the model fetched and used, a site added, one revoked."""
    pytest.importorskip("flwr")
    monkeypatch.setenv("FEDSTRATA_STATE", str(tmp_path / "state"))
    folder = tmp_path / "empty"
    folder.mkdir()
    follow(DEPLOY, folder)
    took_part = {name: set(json.loads((folder / f"runs/{name}/sites.json").read_text())["sites"]) for name in RUNS}
    assert took_part == RUNS
    events = [json.loads(line) for line in (folder / "runs/first/events.jsonl").read_text().splitlines()]
    assert [event["site"] for event in events if event["event"] == "site_away"] == ["lyon"]  # once, and not every round
    assert [event["event"] for event in events].count("resumed") == 1
