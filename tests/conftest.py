from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    """Runs land under ./runs by default: no test may write into the checkout."""
    monkeypatch.chdir(tmp_path)


def pytest_terminal_summary(terminalreporter):
    """Say loudly that pages were not tested; one skipped test is easily missed."""
    skipped = [r for r in terminalreporter.stats.get("skipped", ()) if "no Chromium here" in str(r.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"WARNING: NO CHROMIUM: {len(skipped)} browser tests WERE SKIPPED", red=True, bold=True
        )
