"""A browser, windows that note what goes wrong in them, and a board that is served."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

from benchmarks._browser import BROWSERS, FLAGS

NONE = "no Chromium here: the browser tests are skipped; `make browser` tries to get one"
expect.set_options(timeout=60_000)  # machines that run tests are busy

Open = Callable[..., Page]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The system's browser, or else Playwright's own."""
    with sync_playwright() as playwright:
        try:
            own = next(filter(None, map(shutil.which, BROWSERS)), None)
            browser = playwright.chromium.launch(executable_path=own, args=FLAGS)
        except Error as error:
            if os.environ.get("FEDSTRATA_REQUIRE_BROWSER"):
                raise
            pytest.skip(f"{NONE} ({str(error).splitlines()[0]})")
        yield browser
        browser.close()


@contextmanager
def opening(chromium: Browser) -> Iterator[Open]:
    """Open addresses. Whatever is said on the console, or requested from elsewhere, is a failure."""
    said: list[str] = []
    contexts = []

    def show(address: str, width: int = 1440, height: int = 900, scheme: str = "light", forgiven: str = "-") -> Page:
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        here = re.match(r"file://|http://[^/]+/", address)[0]
        page.on("console", lambda message: forgiven in message.text or said.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("request", lambda r: r.url.startswith((here, "data:", "blob:")) or said.append(f"requested: {r.url}"))
        page.on("requestfailed", lambda r: "/events" in r.url or said.append(f"failed: {r.url}"))  # streams are cut
        page.goto(address)
        return page

    yield show
    for context in contexts:
        context.close()
    assert said == []


@pytest.fixture
def window(chromium) -> Iterator[Open]:
    """Opens an address, for one test."""
    with opening(chromium) as show:
        yield show


@pytest.fixture(scope="module")
def shared_window(chromium) -> Iterator[Open]:
    """Opens an address, or shows it again as the last test of the module left it: to draw a page takes longest."""
    with opening(chromium) as show:
        yield cache(show)


@pytest.fixture(scope="session")
def served(tmp_path_factory) -> Iterator[tuple[str, Path]]:
    """A board, as the command serves it: its address, and the folder of its runs."""
    runs = tmp_path_factory.mktemp("board") / "runs"
    runs.mkdir()
    command = [sys.executable, "-m", "fedstrata", "board", str(runs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = re.search(r"http://\S+", process.stdout.readline())[0]
            yield address, runs
        finally:
            process.terminate()
