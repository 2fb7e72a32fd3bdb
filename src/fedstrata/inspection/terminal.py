"""An inspection on a terminal, or as plain text where output is piped: shades say what colours say."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedstrata.inspection.advice import Advice
from fedstrata.inspection.heat_map import HeatMap, heat_map
from fedstrata.inspection.inspection import Inspection

ROWS = 24  # most rows of the heat map
CELL = 3  # characters of a column
SHADES, ASCII = " ·░▒▓█", " .:+#@"
COLOUR = "#3b82c4"  # is seen on light and on dark


def show(inspection: Inspection, console: Console) -> None:
    """Print the label matrix, the measures with their meanings, and the advice."""
    m = inspection.measures
    console.print(
        f"{inspection.name}: {m.clients} clients, {m.samples} samples, {m.labels} labels; "
        f"{inspection.k} clients train in a round",
        style="bold",
        highlight=False,
    )
    if m.empty_clients:
        console.print(f"{m.empty_clients} more clients hold nothing")
    for note in inspection.notes:
        console.print(f"note: {note}", markup=False)
    console.print()
    _heat_map(heat_map(inspection.table, ROWS, max((console.width - 24) // CELL, 2)), console)
    console.print()
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title, wrap in (("measure", False), ("value", True), ("what it means", True)):
        table.add_column(title, no_wrap=not wrap, ratio=None if title == "measure" else 1)
    for reading in inspection.readings:
        table.add_row(reading.name, Text(reading.value), reading.meaning)
    console.print(table)
    console.print("\nadvice", style="bold")
    for advice in inspection.advice:
        _advice(advice, console)
    if not inspection.advice:
        _lines("None of the rules applies: fedavg, and whatever you want to compare it with.", console)
    for recipe, why in inspection.refused.items():
        _lines(f"{recipe} would fit the data, but not this experiment: {why}", console)
    cost = inspection.baseline.cost
    known = f"{_bytes(cost.bytes)} and " if inspection.from_samples else ""
    _lines(
        f"Costs are of a round, rehearsed; fedavg takes {known}{cost.client_updates:g} client updates. "
        f"What fedavg reveals to the server: {' '.join(inspection.baseline.reveals)}",
        console,
    )


def _heat_map(shown: HeatMap, console: Console) -> None:
    width = max(map(len, shown.rows))
    short = _short(shown.columns)
    head = "".join(f"{name:{CELL}}" for name in short or map(str, range(len(shown.columns))))
    shades = SHADES if _can_show(SHADES, console) else ASCII
    console.print(f"{shown.title}: {' '.join(shades[1:])} is up to 20, 40, 60, 80, 100 %", highlight=False)
    console.print(f"{'':{width}} {head}", highlight=False, no_wrap=True)
    for name, row in zip(shown.rows, shown.shares, strict=True):
        line = Text(f"{name:>{width}} ")
        for share in row:
            level = 0 if share == 0 else min(int(share * 5 - 1e-9) + 1, 5)
            line.append(shades[level] * (CELL - 1) + " ", style=COLOUR)
        console.print(line, no_wrap=True)
    if short is None:
        _lines(f"labels: {', '.join(f'{at} {name}' for at, name in enumerate(shown.columns))}", console, 0)


def _can_show(text: str, console: Console) -> bool:
    try:
        text.encode(console.encoding)
    except UnicodeEncodeError:
        return False
    return True


def _short(names: Sequence[str]) -> list[str] | None:
    """Return what tells names apart in a cell: how they begin, or go on after what they share; None: nothing does."""
    alike = next((i for i, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), 0)
    common = re.match(r".*[^a-zA-Z0-9]|", names[0][:alike])
    for start in (0, len(common[0]) if common else 0):
        short = [name[start : start + CELL - 1] for name in names]
        if len(set(short)) == len(names):
            return short
    return None


def _advice(advice: Advice, console: Console) -> None:
    console.print(f"  {advice.recipe}", style="bold", highlight=False)
    _lines(f"fits because {advice.because}", console, 4)
    _lines(f"mind: {advice.mind}", console, 4)
    setup = advice.cost["setup_bytes"]
    before = f"; {_bytes(setup)} before the first round" if setup else ""
    _lines(
        f"costs {_times(advice.cost['bytes'])} the bytes and {_times(advice.cost['client_updates'])} the client "
        f"updates of fedavg{before}",
        console,
        4,
    )
    _lines(f"reveals to the server: {' '.join(advice.reveals) or 'no more than fedavg'}", console, 4)
    for recipe, why in advice.not_here.items():
        _lines(f"(instead of {recipe}, which does not go with this experiment: {why})", console, 4)
    console.print(f"    {advice.command}", style="cyan", highlight=False, markup=False, soft_wrap=True)


def _lines(text: str, console: Console, indent: int = 2) -> None:
    space = " " * indent
    for line in textwrap.wrap(text, max(console.width, 40), initial_indent=space, subsequent_indent=space):
        console.print(line, highlight=False, markup=False)


def _times(ratio: float) -> str:
    return f"{ratio:.2f} times" if ratio < 10 else f"{ratio:.0f} times"


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"
