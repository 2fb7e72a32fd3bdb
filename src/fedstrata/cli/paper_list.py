"""The tables of the papers, a line each, as wide as the terminal allows."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from fedstrata.reproduce.minutes import DEVICES, in_words
from fedstrata.reproduce.overview import Judged, of_paper
from fedstrata.reproduce.show import fetch_commands
from fedstrata.reproduce.table import PAPERS
from fedstrata.reproduce.work import speeds

NARROW = 110  # columns below which what a table shows is cut off rather than folded: one line each
UNKNOWN_WIDTH = 120  # where nobody looks, such as in a pipe
MISSING = "o"


def print_list(judged: Mapping[str, Judged]) -> None:
    """Print the tables, paper by paper."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNKNOWN_WIDTH
    console = Console(width=width, highlight=False)
    shown = Table(box=None, header_style="bold", pad_edge=False)
    lines = {PAPERS[paper]: [_cells(own) for own in of_paper(paper, judged)] for paper in PAPERS}
    lines = {paper: own for paper, own in lines.items() if own}
    room = width
    for at, title in enumerate(("  id", "runs", *map(str.upper, DEVICES), "verdict")):
        longest = max(len(title), *(len(cells[at]) for own in lines.values() for cells in own))
        longest = max(longest, *map(len, lines)) if at == 0 else longest
        shown.add_column(title, width=longest, justify="left" if at in (0, 4) else "right")
        room -= longest + 2
    shown.add_column("what", width=max(room, 1))
    for paper, own in lines.items():
        shown.add_row(f"[bold]{paper}[/bold]")
        for *cells, what in own:
            cut = width < NARROW and len(what) > room
            shown.add_row(*cells, f"{what[: room - 3]}..." if cut else what)
    console.print(shown)
    for line in _legend(judged):
        console.print(line, markup=False, style="dim")


def _cells(own: Judged) -> list[str]:
    table = own.results.table
    times = [f"{'' if t.measured else '~'}{in_words(t.minutes(table.wanted()))}" for t in own.times.values()]
    there = " " if not fetch_commands(table) else MISSING
    runs = f"{len(own.results.runs)}/{len(table.wanted())}"
    return [f"{there} {table.id}", runs, *times, own.verdict.word, table.what]


def _legend(judged: Mapping[str, Judged]) -> list[str]:
    costs = speeds()
    lines = [
        f"CPU and GPU: all runs of a table, on {costs['cpu']['hardware']} and on one {costs['gpu']['hardware']}; "
        "~ by the work it is, as nothing was played on such a device yet."
    ]
    commands = dict.fromkeys(command for own in judged.values() for command in fetch_commands(own.results.table))
    if commands:
        named = ", ".join(command.removeprefix("fedstrata data fetch ") for command in commands)
        lines.append(f"{MISSING} needs data that are not here: fedstrata data fetch NAME, of {named}.")
    return [
        *lines,
        "fedstrata reproduce show ID: the paper's figures, ours, settings. fedstrata reproduce run ID: play.",
    ]
