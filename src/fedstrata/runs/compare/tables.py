"""Tables of a comparison, written for a terminal, for Markdown, for LaTeX (booktabs), and as CSV with every figure."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from fedstrata.core import html
from fedstrata.core.errors import RequestError
from fedstrata.core.storage.files import write_atomically
from fedstrata.runs.compare.friedman import Friedman
from fedstrata.runs.compare.grid import (
    OVER_FIRST,
    SEARCHED,
    Grid,
    Row,
    conditions_of,
    grid_of_conditions,
    grid_of_figures,
    grid_of_settings,
    metrics_in,
    title_of,
    write_figure,
)
from fedstrata.runs.compare.settings import describe
from fedstrata.runs.metrics import Criterion, is_share

TUNED = "settings chosen on samples that clients held out of their training data"
WIDTH = 80  # of a terminal that does not say
ROOM = 25  # columns that figures need beside the names of a line
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def terminal_table(rows: Sequence[Row], width: int = WIDTH, wide: bool = False, tested: Friedman | None = None) -> str:
    """Write rows as plain text: by figures or, under conditions, by condition. No line is broken but between columns.

    What does not fit into the width is named, unless it shall be as wide as it gets: then every figure is there, under
    conditions for one condition after another.
    """
    if not any(row.get("seeds") for row in rows):
        return "no run has finished yet"
    names = conditions_of(rows)
    if not names:
        return "\n".join([*_of_figures(rows, width, wide), *_of_stages(rows), *_of_settings(rows, width, wide)])
    text: list[str] = []
    for metric, grid in _grids(rows, marked=True):
        text += [*([""] if text else []), *in_blocks(grid, 10**6 if wide else width)]
        text += _wrapped(legend(rows, metric, grid, best="*", marked=True), width)
    for line in tested.describe() if tested else ():
        text += _wrapped(line, width)
    for name in names if wide else ():
        own = [row for row in rows if row["condition"] == name]
        text += ["", f"{name}:", *_of_figures(own, width, wide), *_of_stages(own)]
    if not wide:
        text += _wrapped("differences to the first method, p and costs of each condition: --wide or --json", width)
    text += _of_settings(rows, width, wide)
    return "\n".join(text)


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Write a file in the format that its ending says."""
    check_format(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, WRITERS[path.suffix](rows).encode())
    except OSError as error:
        raise RequestError(f"--table {path} cannot be written: {error}") from None


def check_format(path: Path) -> None:
    """Refuse a file whose ending says no format."""
    if path.suffix not in WRITERS:
        raise RequestError(f"--table {path}: the name must end with {', '.join(WRITERS)}")


def markdown(rows: Sequence[Row]) -> str:
    """Write rows for Markdown, each table with how to read it; of several metrics, each has a table."""
    return "\n".join(f"{markdown_grid(grid)}\n{_sentence(about)}\n" for about, grid in _explained(rows))


def markdown_grid(grid: Grid) -> str:
    """Write a grid for Markdown; the best of a column is bold."""
    lines = [
        [_bold(cell, (at, c) in grid.best, "**{}**") for c, cell in enumerate(line)]
        for at, line in enumerate(grid.lines)
    ]
    aligned = [*["---"] * grid.words, *["---:"] * (len(grid.titles) - grid.words)]
    said = [[cell.replace("|", "\\|") for cell in line] for line in (grid.titles, *lines)]
    table = "".join(f"| {' | '.join(line)} |\n" for line in (said[0], aligned, *said[1:]))
    return f"{table}\nThe same for all: {', '.join(grid.shared)}.\n" if grid.shared else table


def latex(rows: Sequence[Row]) -> str:
    """Write rows for LaTeX with booktabs, a float a table, whose caption says how to read it.

    A table of all figures is wider than a page: what is compared and what beside it was measured are two.
    """
    tables = _explained(rows) if conditions_of(rows) else [*_in_two(rows), *_explained(rows)[1:]]
    return "% needs \\usepackage{booktabs}\n" + "\n".join(_float(grid, about) for about, grid in tables)


def _in_two(rows: Sequence[Row]) -> list[tuple[str, Grid]]:
    grid, metrics = grid_of_figures(rows), metrics_in(rows)
    asked = {*(title_of(metric.name) for metric in metrics), "over first", "p", "Holm's p", "rank"}
    outcome = grid.take([c for c, title in enumerate(grid.titles) if c < grid.words or title in asked])
    beside = grid.take([c for c, title in enumerate(grid.titles) if c < grid.words or title not in asked])
    about = "; ".join([f"what else was measured: means over {_seeds(rows)}", *_of_columns(rows, beside)])
    outcome.shared = []  # it stands beside the other costs
    told = [(legend(rows, metrics[0], outcome), outcome), (about, beside)]
    return [(about, part) for about, part in told if len(part.titles) > part.words]


def _float(grid: Grid, about: str) -> str:
    caption = rf"\caption{{{_escaped(_sentence(about))}}}"
    parts = (f"% {about}", r"\begin{table}", r"\centering", caption, _latex(grid), r"\end{table}")
    return "\n".join([*parts, ""])


def _latex(grid: Grid) -> str:
    """Write a grid for LaTeX; values that conditions share stand once above them."""
    *upper, last = grid.heads
    heads = [_spanning(grid.heads[: level + 1]) for level in range(len(upper))]
    heads.append([_escaped(cell) for cell in last])
    lines = [
        [_bold(_small_interval(_escaped(cell)), (at, c) in grid.best, r"\textbf{{{}}}") for c, cell in enumerate(line)]
        for at, line in enumerate(grid.lines)
    ]
    shared = [f"% the same for all: {', '.join(grid.shared)}"] if grid.shared else []
    begin = rf"\begin{{tabular}}{{{'l' * grid.words}{'r' * (len(last) - grid.words)}}}"
    table = [r"\toprule", *_rows(heads), r"\midrule", *_rows(lines), r"\bottomrule"]
    return "\n".join([*shared, begin, *table, r"\end{tabular}"])


def html_text(rows: Sequence[Row], remarks: Sequence[str]) -> str:
    """Write the rows as a notebook shows them: the tables with how to read them, then what not to miss."""
    parts = []
    for about, grid in _explained(rows):
        parts.append(html.table(grid.titles, grid.lines, grid.best, grid.words))
        parts.append(html.notes([about, *([f"the same for all: {', '.join(grid.shared)}"] if grid.shared else [])]))
    return "".join([*parts, html.notes(remarks)])


def csv_text(rows: Sequence[Row]) -> str:
    """Write every figure of every row: means, ends of intervals, and p of what is tested."""
    names, lines = flat_table(rows)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([names, *lines])
    return text.getvalue()


def flat_table(rows: Sequence[Row]) -> tuple[list[str], list[list[Any]]]:
    """Return names and lines with every figure of every row, as numbers."""
    columns: dict[str, list[Any]] = {"condition": [r.get("condition") for r in rows]} if conditions_of(rows) else {}
    columns |= {"method": [row["method"] for row in rows], "seeds": [r.get("seeds") for r in rows]}
    for name in figures_of(rows):
        told = [row.get(name) or {} for row in rows]
        columns[name] = [own.get("mean") for own in told]
        for at, end in enumerate(("from", "to")):
            columns[f"{name}_{end}"] = [(own.get("interval") or (None, None))[at] for own in told]
        for more in ("p", "p_holm", "reached", "runs"):
            if any(more in own for own in told):
                columns[f"{name}_{more}"] = [own.get(more) for own in told]
    if any(row.get("tuned") for row in rows):
        found = [row.get("tuned") or {} for row in rows]
        columns["tuned"] = [describe(own["set"]) if own.get("set") else None for own in found]
        for name in ("validation", "trials", "pruned", "failed", *SEARCHED):
            columns[f"tuned_{name}"] = [own.get(name) for own in found]
    return list(columns), [list(row) for row in zip(*columns.values(), strict=True)]


def figures_of(rows: Sequence[Row]) -> list[str]:
    """Name the figures that rows of a comparison have, in their order."""
    return list(dict.fromkeys(k for row in rows for k, v in row.items() if isinstance(v, Mapping) and "mean" in v))


WRITERS: dict[str, Callable[[Sequence[Row]], str]] = {".tex": latex, ".md": markdown, ".csv": csv_text}


def _grids(rows: Sequence[Row], marked: bool = False) -> list[tuple[Criterion, Grid]]:
    """Return a grid of all figures or, under conditions, one a metric; ranks stand in the first."""
    first, *others = metrics_in(rows)
    if not conditions_of(rows):
        return [(first, grid_of_figures(rows))]
    more = [(metric, grid_of_conditions(rows, marked, metric)) for metric in others]
    ranked = grid_of_conditions(rows, marked)
    return [(first, ranked), *((metric, grid.take(range(len(grid.titles) - 1))) for metric, grid in more)]


def _of_figures(rows: Sequence[Row], width: int, wide: bool) -> list[str]:
    grid = grid_of_figures(rows, whole=wide)
    kept = list(range(len(grid.titles)))
    while not wide and len(kept) > 2 and _width(grid.take(kept)) > width:
        kept.pop()
    text = [*aligned(grid.take(kept)), *_wrapped(legend(rows, metrics_in(rows)[0], grid.take(kept)), width)]
    if grid.shared:
        text += _wrapped(f"the same for all: {', '.join(grid.shared)}", width)
    if left := grid.titles[len(kept) :]:
        text += _wrapped(f"more with --wide: {', '.join(left)}", width)
    return text


def _of_stages(rows: Sequence[Row]) -> list[str]:
    """Write what each stage brings, where stages were ablated."""
    brought = [row for row in rows if "brings" in row]
    if not brought:
        return []
    lines, metric = [], metrics_in(rows)[0]
    title = title_of(metric.name)
    for row in brought:
        p = row["brings"]["p"]
        brings = write_figure(f"{metric.name}{OVER_FIRST}", row["brings"])
        lines.append([row["without"], brings, "-" if p is None else f"{p:.3g}"])
    whole, without = f"that of {rows[0]['method']}", f"{title} without the stage"
    about = f"brings: {without} less {whole}" if metric.lower else f"brings: {whole} less {without}, in points"
    return ["", *aligned(Grid([["stage", "brings", "p"]], lines)), about]


def _of_settings(rows: Sequence[Row], width: int, wide: bool) -> list[str]:
    """Write what tuning chose, where rows were tuned; costs that do not fit are named, and left to `wide`."""
    grid = grid_of_settings(rows)
    if grid is None:
        return []
    kept = list(range(len(grid.titles)))
    while not wide and len(kept) > 2 and _width(grid.take(kept)) > width:
        kept.pop()
    left = grid.titles[len(kept) :]
    more = _wrapped(f"more with --wide: {', '.join(left)}", width) if left else []
    return ["", *aligned(grid.take(kept)), *_wrapped(legend_of_settings(rows), width), *more]


def _explained(rows: Sequence[Row]) -> list[tuple[str, Grid]]:
    """Return all tables, each with how to read it."""
    chosen = grid_of_settings(rows)
    tables = [(legend(rows, metric, grid), grid) for metric, grid in _grids(rows)]
    return [*tables, *([(legend_of_settings(rows), chosen)] if chosen else [])]


def legend(rows: Sequence[Row], metric: Criterion, grid: Grid, best: str = "bold:", marked: bool = False) -> str:
    """Say how to read a table: metric, unit, over how many seeds, what is marked."""
    between = any((row.get(metric.name) or {}).get("interval") for row in rows)
    head = f"{_with_unit(metric)}: mean{' [95 % interval]' if between else ''} over {_seeds(rows)}"
    if not conditions_of(rows):
        return "; ".join([head, *_of_columns(rows, grid)])
    said = [head, *([f"{best} the best of a condition"] if grid.best else [])]
    if marked and any(row.get(f"{metric.name}{OVER_FIRST}", {}).get("p_holm") is not None for row in rows):
        said.append("+ and -: better and worse than the first, Holm's p < 0.05")
    ranks = grid.titles[-1] == "rank"
    return "; ".join([*said, *(["rank: mean over conditions and seeds"] if ranks else [])])


def legend_of_settings(rows: Sequence[Row]) -> str:
    """Say how to read what tuning chose and cost."""
    name = next(row["tuned"]["metric"] for row in rows if row.get("tuned"))
    metric = Criterion.of(name, (name,))
    return f"{TUNED}; validation: {_with_unit(metric)} on those; then what the search cost; seconds are real"


def _of_columns(rows: Sequence[Row], grid: Grid) -> list[str]:
    """Say what stands in the columns of a table of figures beside its metric."""
    first, *_ = (metric.name for metric in metrics_in(rows))
    shown = set(grid.titles)
    said = []
    if "over first" in shown:
        said.append(f"over first: paired difference{' in points' if is_share(first) else ''}")
    if "p" in shown:
        holm = ", corrected for how many there are by Holm" if "Holm's p" in shown else ""
        said.append(f"p: of its permutation test{holm}")
    shares = [title_of(name) for name in figures_of(rows) if is_share(name) and name != first]
    if others := [title for title in shares if title in shown]:
        said.append(f"{', '.join(others)} in %{' too' if is_share(first) else ''}")
    clocks = {"time": "time is virtual", "seconds": "seconds are real"}
    return said + ([", ".join(own)] if (own := [clocks[name] for name in clocks if name in shown]) else [])


def _with_unit(metric: Criterion) -> str:
    return f"{title_of(metric.name)}{', less is better' if metric.lower else ' in %'}"


def _seeds(rows: Sequence[Row]) -> str:
    """Say over how many seeds means are."""
    counts = sorted({row["seeds"] for row in rows if row.get("seeds")})
    if counts in ([], [1]):
        return "one seed"
    return f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seeds"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def in_blocks(grid: Grid, width: int) -> list[str]:
    """Write a grid below itself, as many columns at a time as fit; those that name a line come again with each.

    Where they leave no room for figures, it is the first alone.
    """
    lines = [
        [_bold(cell, (at, c) in grid.best, "{}*") for c, cell in enumerate(line)] for at, line in enumerate(grid.lines)
    ]
    marked = Grid(grid.heads, lines, words=grid.words)
    names = list(range(grid.words))
    names = names if _width(marked.take(names)) <= width - ROOM else names[:1]
    text: list[str] = []
    left = list(range(len(names), len(grid.titles)))
    while left:
        many = next((n for n in range(len(left), 1, -1) if _width(marked.take([*names, *left[:n]])) <= width), 1)
        text += [*([""] if text else []), *aligned(marked.take([*names, *left[:many]]))]
        left = left[many:]
    return text


def _widths(grid: Grid) -> list[int]:
    return [max(map(len, column)) for column in zip(*grid.heads, *grid.lines, strict=True)]


def _width(grid: Grid) -> int:
    return sum(_widths(grid)) + 2 * (len(grid.titles) - 1)


def aligned(grid: Grid) -> list[str]:
    """Write a grid as plain lines."""
    widths = _widths(grid)
    return [
        "  ".join(_padded(cell, widths[at], at < grid.words) for at, cell in enumerate(line)).rstrip()
        for line in (*(head for head in grid.heads if any(head)), *grid.lines)
    ]


def _padded(cell: str, width: int, word: bool) -> str:
    return cell.ljust(width) if word else cell.rjust(width)


def _bold(cell: str, best: bool, how: str) -> str:
    return how.format(cell) if best else cell


def _spanning(heads: Sequence[Sequence[str]]) -> list[str]:
    """Return the last of these headings for LaTeX; one that neighbours share stands over all of them."""
    together = [list(group) for _, group in groupby(zip(*heads, strict=True))]
    return [rf"\multicolumn{{{len(own)}}}{{c}}{{{_escaped(own[0][-1])}}}" for own in together]


def _rows(lines: Sequence[Sequence[str]]) -> list[str]:
    return [rf"{' & '.join(line)} \\" for line in lines]


def _escaped(text: str) -> str:
    return re.sub(r"[\\~^&%$#_{}]", lambda found: LATEX.get(found[0], f"\\{found[0]}"), text)


def _small_interval(cell: str) -> str:
    signed = re.sub(r"(?<!\w)-(?=\d)", "$-$", cell)
    return re.sub(r" (\[.*\])", r" {\\scriptsize \1}", signed)
