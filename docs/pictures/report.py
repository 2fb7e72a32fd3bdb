"""Take the pictures of reports: `python docs/pictures/report.py` runs the demo and writes them.

docs/report.png is the top of the demo's report, docs/pictures/replay.png a round in which a fifth of the reports
is late. Needs the extras of `fedstrata[dev]` and Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from browser import BROWSERS, FLAGS  # beside this file
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
FEDSTRATA = [sys.executable, "-m", "fedstrata"]
DEMO = str(HERE.parents[1] / "examples" / "one_label.toml")
LATE = ["--methods", "fedavg,flips", "--seeds", "1", "--set", "system.stragglers.rate=0.2", "--set", "train.rounds=10"]


def take(folder: Path) -> None:
    """Run the comparisons in a folder, and take the pictures of their reports."""
    for name, more in (("demo", []), ("late", LATE)):
        subprocess.run([*FEDSTRATA, "compare", DEMO, "--out", name, "-q", *more], cwd=folder, check=True)
        subprocess.run([*FEDSTRATA, "report", name, "-o", f"{name}.html"], cwd=folder, check=True)
    with sync_playwright() as playwright:
        own = next(filter(None, map(shutil.which, BROWSERS)), None)
        browser = playwright.chromium.launch(executable_path=own, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 1250}, color_scheme="light")
        page.goto((folder / "demo.html").as_uri())
        page.wait_for_selector("html[data-drawn]")
        page.screenshot(path=HERE.parent / "report.png")
        page.set_viewport_size({"width": 900, "height": 900})
        page.goto((folder / "late.html").as_uri())
        for _ in range(2):  # the model goes down, clients work, reports go up
            page.locator("[data-step]").click()
        page.wait_for_function("() => document.getAnimations().length === 0")
        page.locator(".replay").screenshot(path=HERE / "replay.png")
        browser.close()


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        take(Path(folder))
