"""How much code one needs to read to follow a round: docs/a-round.md lists the files."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import fedstrata
from fedstrata.server import loop

ROOT = Path(__file__).parents[2]
PACKAGE = Path(fedstrata.__file__).parent
MOST = 20  # files


def passed_files(monkeypatch, out: Path) -> set[str]:
    """Run two rounds of FedAvg and return the files of the package that `run_round` passes in the second."""
    files: set[str] = set()
    rounds, run_round = 0, loop.run_round

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            files.add(path.relative_to(PACKAGE).as_posix())

    def run_noted(*arguments: Any) -> Any:
        nonlocal rounds
        rounds += 1
        before = sys.getprofile()
        sys.setprofile(note if rounds == 2 else before)
        try:
            return run_round(*arguments)
        finally:
            sys.setprofile(before)

    monkeypatch.setattr(loop, "run_round", run_noted)
    fedstrata.train(
        overrides={"train.rounds": 2, "engine.workers": 1, "engine.vmap": "never", "engine.device": "cpu"}, out=out
    )
    assert rounds == 2
    return files


def test_a_fedavg_round_passes_at_most_twenty_files_and_the_page_lists_them(monkeypatch, tmp_path):
    files = passed_files(monkeypatch, tmp_path / "run")
    assert len(files) <= MOST, sorted(files)
    section = (ROOT / "docs/a-round.md").read_text().split("## The files of a FedAvg round")[1]
    assert set(re.findall(r"`([\w/]+\.py)`", section.split("|", 1)[1])) == files
    assert f"these {len(files)} files" in section
