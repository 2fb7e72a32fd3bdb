"""Make the pictures of docs/gallery.md: `python docs/pictures/gallery.py` makes small runs and photographs their pages.

It takes a few minutes and needs Playwright with Chromium. Everything that is shown is made by commands that the page
names; nothing is drawn by hand.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, sync_playwright

OUT = Path(__file__).parent / "gallery"
EXAMPLES = Path(__file__).parents[2] / "examples"
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def fedstrata(*words: str, cwd: Path) -> None:
    """Type a command."""
    subprocess.run([sys.executable, "-m", "fedstrata", *words], cwd=cwd, check=True, stdout=subprocess.DEVNULL)


def photograph(page: Page, address: str, name: str, scheme: str = "light", size: dict[str, int] | None = None) -> None:
    """Save what a visitor sees first."""
    page.set_viewport_size(size or WIDE)  # type: ignore[arg-type]
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(address)
    page.locator("[data-figure] .main-svg").first.wait_for(state="attached")  # what is in view is drawn
    page.wait_for_timeout(1500)  # and has come to rest
    page.screenshot(path=OUT / f"{name}.png")


def main() -> None:
    """Make the runs and take the pictures."""
    OUT.mkdir(exist_ok=True)
    with TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place)
        fedstrata("compare", str(EXAMPLES / "one_label.toml"), "-q", "--out", "runs/one-label", cwd=folder)
        fedstrata("run", "-q", "--set", "train.rounds=30", "--out", "runs/fedavg", cwd=folder)
        fedstrata("report", "runs/one-label", "-o", "comparison.html", cwd=folder)
        fedstrata("report", "runs/fedavg", "-o", "run.html", cwd=folder)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        photograph(page, (folder / "comparison.html").as_uri(), "comparison")
        photograph(page, (folder / "comparison.html").as_uri(), "comparison-dark", "dark")
        photograph(page, (folder / "run.html").as_uri(), "run")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        board = subprocess.Popen(
            [sys.executable, "-m", "fedstrata", "board", "runs", "--port", str(port)],
            cwd=folder,
            env=os.environ,
            stdout=subprocess.DEVNULL,
        )
        try:
            _wait_for(port)
            page.goto(f"http://127.0.0.1:{port}/")
            page.get_by_role("link", name="one-label").click()
            photograph(page, page.url, "board")
            photograph(page, page.url, "board-narrow", size=NARROW)
        finally:
            board.terminate()
            board.wait()
        browser.close()


def _wait_for(port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise SystemExit("the board did not come up")


if __name__ == "__main__":
    main()
