"""Take the pictures of the board: `python docs/pictures/board.py` makes a few short runs and writes them beside this.

Needs the extras of `fedstrata[dev]` and Chromium.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from browser import BROWSERS, FLAGS  # beside this file
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
FEDSTRATA = [sys.executable, "-m", "fedstrata"]
SHORT = ["--set", "train.rounds=12", "-q"]
COMMANDS = [
    ["compare", "--methods", "fedavg,flips,scaffold", "--seeds", "3", "--out", "runs/skewed", *SHORT],
    ["run", "--out", "runs/as-it-is", *SHORT],
    ["run", "--set", "train.lr=0.05", "--set", "train.epochs=4", "--out", "runs/smaller-steps", *SHORT],
]
SHOWN = {  # file: what is chosen, width, height, colours
    "board.png": ("", 1280, 860, "light"),
    "board-two.png": ("?run=as-it-is&run=smaller-steps", 1280, 1000, "light"),
    "board-narrow.png": ("?run=smaller-steps", 390, 780, "dark"),
}


def take(folder: Path) -> None:
    """Make the runs in a folder, and take the pictures while another goes on."""
    for words in COMMANDS:
        subprocess.run([*FEDSTRATA, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    board = subprocess.Popen(
        [*FEDSTRATA, "board", "runs", "--port", "0"], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    going_on = ["run", "--set", "train.rounds=5000", "--out", "runs/going-on", "-q"]
    live = subprocess.Popen([*FEDSTRATA, *going_on], cwd=folder)
    try:
        _wait_for(folder / "runs/going-on/events.jsonl", rounds=60)
        address = re.search(r"http://\S+", board.stdout.readline() if board.stdout else "")
        with sync_playwright() as playwright:
            own = next(filter(None, map(shutil.which, BROWSERS)), None)
            browser = playwright.chromium.launch(executable_path=own, args=FLAGS)
            for name, (chosen, width, height, scheme) in SHOWN.items():
                size = {"width": width, "height": height}
                page = browser.new_context(viewport=size, color_scheme=scheme).new_page()  # type: ignore[arg-type]
                page.goto(f"{address[0] if address else ''}{chosen}")
                page.wait_for_selector("text=left")
                page.wait_for_selector("[data-figure=accuracy] .main-svg")
                page.screenshot(path=HERE / name)
            browser.close()
    finally:
        live.terminate()
        board.terminate()
        live.wait()


def _wait_for(events: Path, rounds: int) -> None:
    """Wait until a run has something to show."""
    until = time.monotonic() + 300
    while not events.exists() or events.read_text().count('"event": "round"') < rounds:
        if time.monotonic() > until:
            raise SystemExit(f"{events} has no {rounds} rounds yet")
        time.sleep(0.2)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        take(Path(folder))
