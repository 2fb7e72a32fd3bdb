"""One picture of what the papers claim and what we measured: the gain of each paper's first table, as SVG.

Grey lines and words are read on light and on dark ground; a verdict has its colour and is written beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape

from fedstrata.reproduce.overview import Judged, of_paper
from fedstrata.reproduce.table import PAPERS
from fedstrata.reproduce.verdict import FAILS, IN_ORDER, SMALLER

INK, GOOD, BAD = "#808790", "#009E73", "#D55E00"
COLOURS = {"holds": GOOD, IN_ORDER: GOOD, SMALLER: "#4690C6", FAILS: BAD}
WIDTH, LEFT, RIGHT = 760, 90, 190  # of the picture, and beside the scale
TOP, ROW = 50, 34
TITLE = "Points of accuracy that each paper's method gains over its strongest baseline"


def gains_picture(judged: Mapping[str, Judged]) -> str:
    """Draw a row a paper: the gain that it prints, ours with its interval, and the verdict."""
    firsts = {name: tables[0] for paper, name in PAPERS.items() if (tables := of_paper(paper, judged))}
    known = [0.0, *(value for own in firsts.values() for value in _values(own))]
    low, high = 10 * math.floor(min(known) / 10), max(10, 10 * math.ceil(max(known) / 10))
    bottom = TOP + ROW * len(firsts)

    def at(value: float) -> float:
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def parts() -> Iterator[str]:
        yield _circle(LEFT, 14, INK, full=False) + _word(LEFT + 12, 18, "the paper", "start")
        yield _line(LEFT + 100, 14, LEFT + 124, 14, INK, 3) + _circle(LEFT + 112, 14, INK)
        yield _word(LEFT + 132, 18, "ours, with its 95 % interval", "start")
        for tick in range(low, high + 1, 10):
            yield _line(at(tick), TOP - 12, at(tick), bottom, INK, 1.5 if tick == 0 else 0.4)
            yield _word(at(tick), bottom + 18, f"{tick:+d}" if tick else "0")
        for row, (name, own) in enumerate(firsts.items()):
            y, contrast = TOP + ROW * row + 10, own.verdict.contrast
            colour = COLOURS.get(own.verdict.word, INK)
            yield _word(0, y + 4, name, "start") + _word(WIDTH - RIGHT + 16, y + 4, own.verdict.word, "start", colour)
            if contrast.interval is not None:
                yield _line(at(100 * contrast.interval[0]), y, at(100 * contrast.interval[1]), y, colour, 3)
            if contrast.claimed is not None:
                yield _circle(at(100 * contrast.claimed), y, INK, full=False)
            if contrast.mean is not None:
                yield _circle(at(100 * contrast.mean), y, colour)

    size = f'width="{WIDTH}" height="{bottom + 28}" viewBox="0 0 {WIDTH} {bottom + 28}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" role="img">'
    return f"{head}<title>{TITLE}</title>{''.join(parts())}</svg>\n"


def _values(own: Judged) -> Iterator[float]:
    """Return all that is drawn of a table, in points."""
    contrast = own.verdict.contrast
    yield from (100 * v for v in (contrast.claimed, contrast.mean, *(contrast.interval or ())) if v is not None)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def _circle(x: float, y: float, colour: str, full: bool = True) -> str:
    fill = f'fill="{colour}"' if full else f'fill="none" stroke="{colour}" stroke-width="2"'
    return f'<circle cx="{x:.1f}" cy="{y}" r="5" {fill}/>'


def _word(x: float, y: float, text: str, anchor: str = "middle", colour: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y}" font-size="13" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
