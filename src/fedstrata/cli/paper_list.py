"""The tables of the papers, a line each, as wide as the terminal allows."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedstrata.reproduce.minutes import DEVICES, in_words
from fedstrata.reproduce.overview import Judged, of_paper
from fedstrata.reproduce.show import fetch_commands
from fedstrata.reproduce.table import PAPERS
from fedstrata.reproduce.work import speeds

UNKNOWN_WIDTH = 160  # where nobody looks, such as in a pipe: nothing is cut off
LEAST = 20  # columns for what a table is about: where there are fewer, long verdicts are broken
SHORT = {"years": "y", "days": "d"}  # units, so that eighty columns leave room for what a table is about
STYLES = {"holds": "green", "does not hold": "yellow", "not run yet": "dim"}


def print_list(judged: Mapping[str, Judged]) -> None:
    """Print the tables, paper by paper, under headings that say what stands below them."""
    console = Console(width=None if sys.stdout.isatty() else UNKNOWN_WIDTH, highlight=False)
    shown = Table(box=None, header_style="bold", pad_edge=False)
    lines = {PAPERS[paper]: [_cells(own) for own in of_paper(paper, judged)] for paper in PAPERS}
    titles = ("id", "data", *map(str.upper, DEVICES), "verdict")
    widths = [
        max(len(title), *(len(cells[at]) for own in lines.values() for cells in own)) for at, title in enumerate(titles)
    ]
    widths[-1] -= max(0, min(widths[-1] - len("not run yet"), sum(widths) + 2 * len(widths) + LEAST - console.width))
    for title, width in zip(titles, widths, strict=True):
        shown.add_column(title, justify="right" if title.lower() in DEVICES else "left", width=width)
    room = console.width - sum(widths) - 2 * len(widths)
    shown.add_column("what", width=max(room, 1), no_wrap=True, overflow="ellipsis")
    for paper, own in lines.items():
        shown.add_row(Text(paper, style="bold"))
        for cells in own:
            shown.add_row(*cells)
    console.print(shown)
    for line in _legend(judged):
        console.print(line, markup=False, style="dim")


def _cells(own: Judged) -> list[str | Text]:
    table, runs = own.results.table, len(own.results.runs)
    times = [f"{'' if t.measured else '~'}{short(t.minutes(table.wanted()))}" for t in own.times.values()]
    word = own.verdict.word
    if word == "open":
        word = f"{runs} of {len(table.wanted())} runs" if runs else "not run yet"
    read = [f"with {table.method}"] if table.base else []
    read += [f"read as {table.reading}"] if table.reading else []
    missing = bool(fetch_commands(table))
    return [
        table.file_id,
        "fetch" if missing else "here",
        *times,
        Text(word, style=STYLES.get(word, "")),
        ", ".join(read) or table.what,
    ]


def short(minutes: float) -> str:
    """Write minutes in few columns."""
    number, unit = in_words(minutes).split()
    return f"{number} {SHORT.get(unit, unit)}"


def _legend(judged: Mapping[str, Judged]) -> list[str]:
    costs = speeds()
    lines = [
        f"CPU and GPU: how long all runs of a table take on {costs['cpu']['hardware']}, and on one "
        f"{costs['gpu']['hardware']}; ~ is reckoned by the work, as no run was made on such a device yet."
    ]
    commands = dict.fromkeys(command for own in judged.values() for command in fetch_commands(own.results.table))
    if commands:
        named = ", ".join(command.removeprefix("fedstrata data fetch ") for command in commands)
        lines.append(f"fetch: data that are not here yet; fedstrata data fetch NAME gets {named}.")
    return [
        *lines,
        "fedstrata reproduce show ID: the paper's figures, ours, settings. fedstrata reproduce run ID: reproduce it.",
    ]
