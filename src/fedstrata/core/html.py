"""Small pieces of HTML, as notebooks show objects: `_repr_html_` is made of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape

LEFT = ' style="text-align:left"'  # notebooks set cells at the right
WIDTH, HEIGHT = 320, 60  # of a curve


def title(text: str) -> str:
    """Return a heading."""
    return f"<p><b>{escape(text)}</b></p>"


def table(
    heads: Sequence[str], lines: Iterable[Sequence[object]], best: Collection[tuple[int, int]] = (), words: int = 0
) -> str:
    """Return a table; cells in `best`, by line and column, are bold; `words` columns begin at the left."""
    body = "".join(f"<tr>{_cells(line, at, best, words)}</tr>" for at, line in enumerate(lines))
    head = "".join(f"<th{LEFT * (column < words)}>{escape(name)}</th>" for column, name in enumerate(heads))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts(known: Mapping[str, object]) -> str:
    """Return names and what is known under them."""
    lines = (f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in known.items())
    return f"<table><tbody>{''.join(lines)}</tbody></table>"


def notes(said: Iterable[str]) -> str:
    """Return a list of remarks; nothing where there is none."""
    lines = "".join(f"<li>{escape(line)}</li>" for line in said)
    return f"<ul>{lines}</ul>" if lines else ""


def curve(values: Sequence[float]) -> str:
    """Draw shares from 0 to 1, one after another; nothing where there are fewer than two."""
    if len(values) < 2:
        return ""
    step = WIDTH / (len(values) - 1)
    points = " ".join(f"{at * step:.1f},{HEIGHT * (1 - value):.1f}" for at, value in enumerate(values))
    line = f'<polyline fill="none" stroke="currentColor" stroke-width="1.5" points="{points}"/>'
    return f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="accuracy by evaluation">{line}</svg>'


def _cells(line: Sequence[object], at: int, best: Collection[tuple[int, int]], words: int) -> str:
    texts = ("" if value is None else escape(str(value)) for value in line)
    return "".join(
        f"<td{LEFT * (column < words)}>{f'<b>{t}</b>' if (at, column) in best else t}</td>"
        for column, t in enumerate(texts)
    )
