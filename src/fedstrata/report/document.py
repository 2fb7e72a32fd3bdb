"""An HTML file that holds all it shows and fetches nothing: the frame that reports, inspections and the board share."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from plotly.offline import get_plotlyjs

from fedstrata.report.figures import Shown
from fedstrata.report.figures.curves import AXES
from fedstrata.report.figures.style import SCALES, colour_scale, template

SAVED = {
    "PNG": 'data-save="png"',
    "SVG, 3.5 in": 'data-save="svg" data-inches="3.5"',
    "SVG, 7 in": 'data-save="svg" data-inches="7"',
}
PAPER_FONT = 32 / 3  # pixels: 8 points
THEME = (  # before anything is painted
    'document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";'
)
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def document(title: str, body: Iterable[str], shown: Sequence[Shown], scripts: Sequence[str] = ()) -> str:
    """Write a page with these figures, for which the body has frames; scripts lie beside this file."""
    here = files("fedstrata.report")
    held = {"figures": {own.name: figure_of(own) for own in shown}, **look()}
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            f"<title>{escape(title)} - fedstrata</title>",
            f"<style>\n{(here / 'page.css').read_text()}</style><script>{THEME}</script></head><body>",
            *body,
            f'<script type="application/json" id="held">{embed_json(held)}</script>',
            *([f'<script type="text/plain" id="plotly">{pack_plotly()}</script>'] if shown else []),
            *(f"<script>\n{(here / name).read_text()}</script>" for name in ("page.js", *scripts)),
            "</body></html>\n",
        )
    )


@cache
def pack_plotly() -> str:
    """Return plotly's script, compressed: a third of its size, which every browser of these years can unpack."""
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


def heading(
    title: str, said: str, sections: Iterable[tuple[str, str]], controls: str = "", methods: str = ""
) -> Iterator[str]:
    """Return the top of a page: what it is about in one line; then, always in sight, ways to its sections and controls.

    What stays in sight must not lie in the header, with which it would scroll away.
    """
    links = "".join(f'<a href="#{key}">{escape(name)}</a>' for key, name in sections)
    yield '<a class="skip" href="#main">Skip to the content</a>'
    whole = escape(said).replace(" %", "&nbsp;%")  # no line begins with the sign
    yield f'<header><h1>{escape(title)}</h1><p class="outcome">{whole}</p></header>'
    yield f'<div class="bar"><nav aria-label="Sections">{links}</nav>{controls}'
    yield f'<button type="button" id="theme">Dark colours</button>{methods}</div>'


def chips(styles: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a button for every method, with its line: pressed, its method is shown."""
    dashes = {"solid": "none", "dash": "6 4", "dot": "2 3", "dashdot": "7 3 2 3"}
    made = []
    for name, style in styles.items():
        about = f'stroke="{style["color"]}" stroke-dasharray="{dashes[style["dash"]]}"'
        line = f'<svg width="26" height="8" aria-hidden="true"><line x2="26" y1="4" y2="4" {about}/></svg>'
        pressed = f'aria-pressed="true" data-method="{escape(name)}"'
        made.append(f'<button type="button" class="chip" {pressed}>{line}{escape(name)}</button>')
    hint = "Hide or show a method in all figures and tables; a double click shows it alone"
    return f'<div class="chips" role="group" aria-label="Methods" title="{hint}">{"".join(made)}</div>'


def of_methods(names: Sequence[str]) -> str:
    """Return an attribute: what has it is hidden when all these methods are."""
    return f' data-methods="{escape(json.dumps(list(names)))}"' if names else ""


def frames(family: str, shown: Sequence[Shown]) -> Iterator[str]:
    """Return the frames of figures; those of one family in a row, under one heading that says how to read them."""
    if not family or len(shown) == 1:
        for own in shown:
            yield from frame(own)
        return
    methods = [name for own in shown for name in own.methods]
    yield f'<div class="family"{of_methods(methods)}><h3>{escape(family)}</h3>'
    yield f'<p class="quiet">{escape(shown[0].said)}</p><div class="figures">'
    for own in shown:
        yield from frame(own, small=True)
    yield "</div></div>"


def frame(shown: Shown, small: bool = False) -> Iterator[str]:
    """Return the frame of a figure: its heading, how to read it, where it is drawn, buttons that save it."""
    name, title = escape(shown.name), escape(shown.title)
    head = f"<h4>{escape(shown.of)}</h4>" if small else f"<h3>{title}</h3>"
    yield f'<figure id="figure-{name}"{of_methods(shown.methods)}>{head}'
    yield "" if small else f"<figcaption>{escape(shown.said)}</figcaption>"
    height = int(shown.figure.layout.height or 340)
    label = escape(f"{shown.title}. {shown.said}")
    yield f'<div class="plot" role="img" aria-label="{label}" style="min-height:{height}px" data-figure="{name}"></div>'
    buttons = "".join(
        f'<button type="button" {data} aria-label="Save {title} as {how}">{how}</button>' for how, data in SAVED.items()
    )
    yield f'<div class="save">{buttons}</div></figure>'


def figure_of(shown: Shown) -> dict[str, Any]:
    """Return a figure as a page needs it: the title is a heading there, and colours are the reader's."""
    drawn = json.loads(shown.figure.to_json(validate=False, engine="json"))  # arrays are packed, NaN becomes null
    layout = {key: value for key, value in drawn["layout"].items() if key not in ("template", "title")}
    layout["margin"] = {side: space for side, space in layout.get("margin", {}).items() if side in ("l", "r")}
    for trace in drawn["data"]:
        if "scale" in (trace.get("meta") or {}):
            del trace["colorscale"]  # the page has one for light and one for dark paper
    return {"data": drawn["data"], "layout": layout}


def look() -> dict[str, Any]:
    """Return what a page needs to draw any figure."""
    templates = {name: template(name == "dark").to_plotly_json() for name in ("light", "dark")}
    templates["paper"] = template(size=PAPER_FONT, family="Helvetica, Arial, sans-serif").to_plotly_json()
    scales = {paper: {name: colour_scale(name, paper == "dark") for name in own} for paper, own in SCALES.items()}
    return {"templates": templates, "scales": scales, "axes": AXES}


def embed_json(value: Any) -> str:
    """Return JSON that cannot end the script element it stands in."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
