"""docs/papers.md names files, names and options that exist, and every option of the five papers' own parts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedstrata.core import registry

PROJECT = Path(__file__).parents[1]
TEXT = (PROJECT / "docs" / "papers.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| paper")
]
THEIRS = {
    "schedules.stratified": {"order", "strata"},  # ours: in which order, and strata other than labels
    "drivers.terraform": set(),
    "selectors.flips": set(),
    "selectors.sur": set(),
    "combiners.soft": set(),
    "corrections.prox": set(),
    "samplers.bias-aware": {"batch", "least", "steps", "follow"},  # those of every sampler, and one for studies
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_what_exists(row):
    place, options, status = row[1:]
    code = re.findall(r"`([^`]+)`", place)
    paths = [PROJECT / "src" / "fedstrata" / name for name in code if "/" in name]
    assert paths
    assert all(path.exists() for path in paths)
    for symbol in [name for name in code if "/" not in name]:
        assert re.search(rf"(class|def) {symbol}\b", "".join(path.read_text() for path in paths if path.is_file()))
    for option in re.findall(r"`([^`]+)`", options):
        kind, part, name = option.split(".")
        assert name in registry.options(kind, part, "page")
    assert re.match(r"(faithful|repaired|ours)\b", status)
    assert not status.startswith("repaired") or ":" in status  # how


def test_all_five_papers_are_there():
    assert re.findall(r"^## (\w+)", TEXT, re.M) == ["Stratify", "FLIPS", "FedPBS", "FedBSS", "Terraform"]


@pytest.mark.parametrize("part", THEIRS)
def test_every_option_of_their_parts_has_its_row(part):
    kind, name = part.split(".")
    named = {option for row in ROWS for option in re.findall(rf"`{re.escape(part)}\.(\w+)`", row[2])}
    assert registry.options(kind, name, "page") - THEIRS[part] == named
