"""An HTML file that holds all it shows and fetches nothing: the frame that reports, inspections and the board share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files
from typing import Any

from plotly.offline import get_plotlyjs

from fedstrata.report.figures import Shown
from fedstrata.report.figures.curves import AXES
from fedstrata.report.figures.style import template

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def document(title: str, body: Iterable[str], shown: Iterable[Shown]) -> str:
    """Write a page with these figures, for which the body has frames."""
    here = files("fedstrata.report")
    held = {"figures": {own.name: figure_of(own) for own in shown}, **look()}
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            f"<title>{escape(title)} - fedstrata</title>",
            f"<style>\n{(here / 'page.css').read_text()}</style></head><body>",
            *body,
            f'<script type="application/json" id="held">{embedded(held)}</script>',
            f"<script>{get_plotlyjs()}</script>",
            f"<script>\n{(here / 'page.js').read_text()}</script>",
            "</body></html>\n",
        )
    )


def heading(title: str, said: str, sections: Iterable[tuple[str, str]], controls: str = "") -> Iterator[str]:
    """Return the top of a page: what it is about in one line, ways to its sections, and controls of the figures."""
    links = "".join(f'<a href="#{key}">{escape(name)}</a>' for key, name in sections)
    yield '<a class="skip" href="#main">Skip to the content</a>'
    yield f'<header><h1>{escape(title)}</h1><p class="outcome">{escape(said)}</p>'
    yield f'<div class="bar"><nav aria-label="Sections">{links}</nav>{controls}'
    yield '<button type="button" id="theme">Dark colours</button></div></header>'


def frame(shown: Shown) -> Iterator[str]:
    """Return the frame of a figure: its heading, how to read it, where it is drawn, buttons that save it."""
    name, title = escape(shown.name), escape(shown.title)
    yield f'<figure id="figure-{name}"><h3>{title}</h3><figcaption>{escape(shown.said)}</figcaption>'
    height = int(shown.figure.layout.height or 340)
    label = escape(f"{shown.title}. {shown.said}")
    yield f'<div class="plot" role="img" aria-label="{label}" style="min-height:{height}px" data-figure="{name}"></div>'
    buttons = "".join(
        f'<button type="button" data-save="{kind}" aria-label="Save {title} as {kind.upper()}">{kind.upper()}</button>'
        for kind in ("png", "svg")
    )
    yield f'<div class="save">{buttons}</div></figure>'


def figure_of(shown: Shown) -> dict[str, Any]:
    """Return a figure as a page needs it: the title is a heading there, and colours are the reader's."""
    drawn = json.loads(shown.figure.to_json(validate=False, engine="json"))  # arrays are packed, NaN becomes null
    layout = {key: value for key, value in drawn["layout"].items() if key not in ("template", "title", "margin")}
    return {"data": drawn["data"], "layout": layout}


def look() -> dict[str, Any]:
    """Return what a page needs to draw any figure."""
    templates = {name: template(name == "dark").to_plotly_json() for name in ("light", "dark")}
    return {"templates": templates, "axes": AXES}


def embedded(value: Any) -> str:
    """Return JSON that cannot end the script element it stands in."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
