"""Figures as files, drawn by a browser that is installed here: no drawing library comes near what the page shows."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from plotly.offline import get_plotlyjs

from fedstrata.core.errors import RequestError
from fedstrata.report.document import embedded, figure_of
from fedstrata.report.figures import Shown
from fedstrata.report.figures.style import template

Format = Literal["png", "svg"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
PATIENCE = 180  # seconds
DRAW = """
const held = JSON.parse(document.getElementById("held").textContent);
(async () => {
  for (const [name, { data, layout }] of Object.entries(held.figures)) {
    const own = { ...layout, template: held.template, width: 900 };
    const image = document.createElement("img");
    image.id = name;
    image.src = await Plotly.toImage({ data, layout: own }, { format: held.format, scale: 2 });
    document.body.append(image);
  }
  for (const script of document.querySelectorAll("script")) script.remove();
  document.title = "drawn";
})();
"""


def write_images(folder: Path, shown: Sequence[Shown], kind: Format) -> list[Path]:
    """Write every figure into a folder, with its title."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise RequestError(
            "--figures needs Chromium or Chrome, and none is installed here; the buttons below the figures of a report "
            "save them as PNG or SVG without one"
        )
    held = {
        "figures": {own.name: _titled(own) for own in shown},
        "template": template().to_plotly_json(),
        "format": kind,
    }
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "figures.html"
        data = f'<script type="application/json" id="held">{embedded(held)}</script>'
        scripts = f"<script>{get_plotlyjs()}</script><script>{DRAW}</script>"
        page.write_text(f'<!doctype html><meta charset="utf-8"><body>{data}{scripts}', encoding="utf-8")
        dom = _dumped([browser, *FLAGS, f"--user-data-dir={scratch}/profile", "--virtual-time-budget=60000"], page)
    images = dict(re.findall(r'<img id="([^"]+)" src="data:image/[^,]+,([^"]+)"', dom))
    if missing := [own.name for own in shown if own.name not in images]:
        raise RequestError(
            f"{browser} did not draw {', '.join(missing)}; the buttons in the report save single figures"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / f"{name}.{kind}" for name in images]
        for path, image in zip(written, images.values(), strict=True):
            path.write_bytes(base64.b64decode(image) if kind == "png" else unquote(image).encode())
    except OSError as error:
        raise RequestError(f"--figures {folder} cannot be written: {error}") from None
    return written


def _titled(shown: Shown) -> dict[str, object]:
    figure = figure_of(shown)
    title = {"text": shown.title, "y": 0.98, "yanchor": "top"}
    layout = figure["layout"] | {"title": title, "margin": {"t": 70, "l": 8, "r": 8, "b": 8}}
    return figure | {"layout": layout | {"height": layout.get("height", 340) + 60}}


def _dumped(command: Sequence[str], page: Path) -> str:
    """Open a page in a browser that shows no window, and give what became of it."""
    call = [*command, "--dump-dom", page.as_uri()]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None)
        raise RequestError(f"{command[0]} could not draw the figures: {str(said or error).strip()[-300:]}") from None
    return done.stdout
