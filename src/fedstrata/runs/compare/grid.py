"""What a table of a comparison shows, before it is written: one row a method, columns are figures or conditions.

Shares are told in percent, and differences of shares in points, as papers do; bytes and seconds in units that a person
reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

HEADLINE = "accuracy"  # the figure that is compared
SHARES = ("accuracy", "balanced_accuracy", "worst10")
DIFFERENCES = ("accuracy_over_first", "brings")
TITLES = {  # in the order in which they matter: what does not fit into a line is left out from the end
    "accuracy": "accuracy",
    "accuracy_over_first": "over first",
    "p": "p",
    "rank": "rank",
    "balanced_accuracy": "balanced",
    "worst10": "worst 10 %",
    "bytes_up": "up",
    "bytes_down": "down",
    "bytes_p2p": "p2p",
    "client_updates": "updates",
    "rounds": "rounds",
    "time": "time",
    "seconds": "seconds",
}
COSTS = ("bytes_up", "bytes_down", "bytes_p2p", "client_updates", "rounds", "time")  # told once where all are equal
PAIRED = ("accuracy_over_first", "p", "rank")  # what one row alone does not have
SIGNIFICANT = 0.05

Row = Mapping[str, Any]


@dataclass
class Grid:
    """A table in words: lines of headings, lines of cells, and which cells are the best of their column."""

    heads: list[list[str]]
    lines: list[list[str]]
    best: set[tuple[int, int]] = field(default_factory=set)  # line and column
    shared: list[str] = field(default_factory=list)  # figures that are the same in all lines, in words

    @property
    def titles(self) -> list[str]:
        """The headings of the columns, each in one."""
        return [", ".join(filter(None, parts)) for parts in zip(*self.heads, strict=True)]

    def take(self, columns: Sequence[int]) -> Grid:
        """Return some of the columns."""
        place = {column: at for at, column in enumerate(columns)}
        heads, lines = ([[line[c] for c in columns] for line in part] for part in (self.heads, self.lines))
        return Grid(heads, lines, {(line, place[c]) for line, c in self.best if c in place}, self.shared)


def conditions_of(rows: Sequence[Row]) -> list[str]:
    """Return the names of the conditions, in order; none where the rows have none."""
    return list(dict.fromkeys(row["condition"] for row in rows if row.get("condition")))


def grid_of_figures(rows: Sequence[Row], whole: bool = False) -> Grid:
    """Return one row a method and a column a figure; costs that are the same for all are told once, unless `whole`."""
    kept, shared = {"method": "method"}, []
    several, tested = len(rows) > 1, any((row.get("seeds") or 0) > 1 for row in rows)
    for key, title in TITLES.items():
        cells = [write_cell(key, row) for row in rows]
        if set(cells) == {"-"} or (key in PAIRED and not several) or (key == "p" and not tested):
            continue
        if key in COSTS and several and not whole and len(set(cells)) == 1:
            if rows[0][key]["mean"]:
                shared.append(f"{cells[0]} {'virtual time' if key == 'time' else title}")
            continue
        kept[key] = title
    lines = [[row["method"], *(write_cell(key, row) for key in kept if key != "method")] for row in rows]
    return Grid([list(kept.values())], lines, shared=shared)


def grid_of_conditions(rows: Sequence[Row], marked: bool = False) -> Grid:
    """Return one row a method and a column a condition, then the mean rank over all conditions."""
    names, methods = conditions_of(rows), list(dict.fromkeys(row["method"] for row in rows))
    at = {(row["condition"], row["method"]): row for row in rows}
    levels = max(len(name.split(", ")) for name in names)
    parts = [[*name.split(", "), *[""] * levels][:levels] for name in names]
    heads = [["", *level, ""] for level in zip(*parts, strict=True)]
    heads[-1][0], heads[-1][-1] = "method", "rank"
    lines = [[method, *(_of_condition(at[name, method], marked) for name in names)] for method in methods]
    for line, method in zip(lines, methods, strict=True):
        ranks = [at[name, method]["rank"]["mean"] for name in names]
        known = [rank for rank in ranks if rank is not None]
        line.append(f"{sum(known) / len(known):.1f}" if known else "-")
    best = set()
    for column, name in enumerate(names, start=1):
        means = [at[name, method][HEADLINE]["mean"] for method in methods]
        top = max((mean for mean in means if mean is not None), default=None)
        best |= {(line, column) for line, mean in enumerate(means) if mean is not None and mean == top}
    return Grid(heads, lines, best if len(methods) > 1 else set())


def write_cell(key: str, row: Row) -> str:
    """Write a figure of a row; the first has no difference to itself."""
    if key in ("p", "accuracy_over_first"):
        p = row["accuracy_over_first"]["p"]
        if p is None or key == "p":
            return "-" if p is None else f"{p:.3g}"
    return write_figure(key, row.get(key) or {})


def write_figure(name: str, figure: Mapping[str, Any], interval: bool = True) -> str:
    """Write a mean, and the interval of what is compared."""
    mean, ends = figure.get("mean"), figure.get("interval")
    if mean is None:
        return "-"
    if name in (HEADLINE, *DIFFERENCES):
        sign = "+" if name in DIFFERENCES else ""
        between = f" [{100 * ends[0]:{sign}.1f}, {100 * ends[1]:{sign}.1f}]" if ends and interval else ""
        return f"{100 * mean:{sign}.1f}{between}"
    if name in SHARES:
        return f"{100 * mean:.1f}"
    if name.startswith("bytes"):
        return write_bytes(mean)
    if name in ("time", "seconds"):
        return write_seconds(mean)
    return f"{mean:.1f}" if name == "rank" else f"{mean:,.0f}"


def write_bytes(amount: float) -> str:
    """Write bytes in a unit that leaves few digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.3g} TB"


def write_seconds(amount: float) -> str:
    """Write a duration in a unit that leaves few digits."""
    if amount < 120:
        return f"{amount:.3g} s"
    return f"{amount / 60:.3g} min" if amount < 7200 else f"{amount / 3600:,.3g} h"


def _of_condition(row: Row, marked: bool) -> str:
    """Write what is compared; marked where the test against the first says that it differs."""
    over = row["accuracy_over_first"]
    told = marked and over["p"] is not None and over["p"] < SIGNIFICANT
    return write_figure(HEADLINE, row[HEADLINE]) + (("+" if over["mean"] > 0 else "-") if told else "")
