"""What a table of a comparison shows, before it is written: one row a method, columns are figures or conditions.

Shares are told in percent, and differences of shares in points, as papers do; bytes and seconds in units that a person
reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedstrata.runs.amounts import DIGITS, write_bytes, write_seconds, write_share
from fedstrata.runs.compare.paired import SIGNIFICANT
from fedstrata.runs.compare.settings import describe
from fedstrata.runs.metrics import BALANCED, Criterion, is_share

TITLES = {  # in the order in which they matter: what does not fit into a line is left out from the end
    "accuracy": "accuracy",
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
SEARCHED = {"rounds": "rounds", "client_updates": "updates", "bytes": "bytes", "seconds": "seconds"}  # costs of tuning
OVER_FIRST = "_over_first"
BEST_OVER = "_best_over"  # the paired difference of the best row to one

Row = Mapping[str, Any]

NOTHING: dict[str, Any] = {"mean": None, "interval": None}
UNKNOWN: Row = {"rank": NOTHING}


@dataclass
class Grid:
    """A table in words: lines of headings, lines of cells, and which cells are the best of their column."""

    heads: list[list[str]]
    lines: list[list[str]]
    best: set[tuple[int, int]] = field(default_factory=set)  # line and column
    shared: list[str] = field(default_factory=list)  # figures that are the same in all lines, in words
    words: int = 1  # columns at the left that hold words; the others hold figures

    @property
    def titles(self) -> list[str]:
        """The headings of the columns, each in one."""
        return [", ".join(filter(None, parts)) for parts in zip(*self.heads, strict=True)]

    def take(self, columns: Sequence[int]) -> Grid:
        """Return some of the columns."""
        place = {column: at for at, column in enumerate(columns)}
        heads, lines = ([[line[c] for c in columns] for line in part] for part in (self.heads, self.lines))
        best = {(line, place[c]) for line, c in self.best if c in place}
        return Grid(heads, lines, best, self.shared, sum(c < self.words for c in columns))


def conditions_of(rows: Sequence[Row]) -> list[str]:
    """Return the names of the conditions, in order; none where the rows have none."""
    return list(dict.fromkeys(row["condition"] for row in rows if row.get("condition")))


def metrics_in(rows: Sequence[Row]) -> list[Criterion]:
    """Return what rows are compared by; ranks follow the first."""
    return [Criterion.of(name, (name,)) for name in rows[0].get("metrics", ("accuracy",))]


def title_of(name: str) -> str:
    """Return what to call a metric or another figure."""
    return TITLES.get(name, name.replace("_", " ").replace(":", " "))


def standing(row: Row, metric: Criterion) -> tuple[float, float] | None:
    """Return by what rows are ordered, the best highest: first how many runs got there, then the mean."""
    figure = row.get(metric.name) or {}
    mean = figure.get("mean")
    if not metric.lower:
        return None if mean is None else (1.0, mean)
    return (figure["reached"] / figure["runs"], -math.inf if mean is None else -mean) if figure.get("runs") else None


def cells_of(rows: Sequence[Row]) -> dict[tuple[str, str], Row]:
    """Return the row of every condition and method; where there is none, one that knows nothing."""
    there = {(row["condition"], row["method"]): row for row in rows if row.get("condition")}
    methods = dict.fromkeys(method for _, method in there)
    return {(name, method): there.get((name, method), UNKNOWN) for method in methods for name in conditions_of(rows)}


def grid_of_figures(rows: Sequence[Row], whole: bool = False) -> Grid:
    """Return one row a method and a column a figure; costs that are the same for all are told once, unless `whole`."""
    kept, shared = {"method": "method"}, []
    for key, title in _columns(rows).items():
        cells = [write_cell(key, row) for row in rows]
        if set(cells) == {"-"}:
            continue
        if key in COSTS and len(rows) > 1 and not whole and len(set(cells)) == 1:
            if rows[0][key]["mean"]:
                shared.append(f"{cells[0]} {'virtual time' if key == 'time' else title}")
            continue
        kept[key] = title
    lines = [[row["method"], *(write_cell(key, row) for key in kept if key != "method")] for row in rows]
    return Grid([list(kept.values())], lines, shared=shared)


def _columns(rows: Sequence[Row]) -> dict[str, str]:
    """Return the figures of a table with their titles; a row alone has no differences, and two need no correction."""
    first, *others = (metric.name for metric in metrics_in(rows))
    tested = any((row.get("seeds") or 0) > 1 for row in rows)
    paired = {f"{first}{OVER_FIRST}": "over first"} | ({"p": "p"} if tested else {})
    paired |= ({"p_holm": "Holm's p"} if tested and len(rows) > 2 else {}) | {"rank": "rank"}
    columns = {first: title_of(first)} | (paired if len(rows) > 1 else {}) | {name: title_of(name) for name in others}
    return columns | {name: title for name, title in TITLES.items() if name not in columns}


def grid_of_conditions(rows: Sequence[Row], marked: bool = False, metric: Criterion | None = None) -> Grid:
    """Return one row a method and a column a condition, then the mean rank over all conditions by the first metric."""
    at, metric = cells_of(rows), metric or metrics_in(rows)[0]
    names, methods = conditions_of(rows), list(dict.fromkeys(method for _, method in at))
    levels = max(len(name.split(", ")) for name in names)
    parts = [[*name.split(", "), *[""] * levels][:levels] for name in names]
    heads = [["", *level, ""] for level in zip(*parts, strict=True)]
    heads[-1][0], heads[-1][-1] = "method", "rank"
    lines, best = [], set()
    for method in methods:
        cells = [_of_condition(at[name, method], at[name, methods[0]], metric, marked) for name in names]
        ranks = [at[name, method]["rank"]["mean"] for name in names]
        known = [rank for rank in ranks if rank is not None]
        lines.append([method, *cells, f"{sum(known) / len(known):.1f}" if known else "-"])
    for column, name in enumerate(names, start=1):
        stand = [standing(at[name, method], metric) for method in methods]
        top = max((one for one in stand if one is not None), default=None)
        best |= {(line, column) for line, one in enumerate(stand) if one is not None and one == top and one[0]}
    return Grid(heads, lines, best if len(methods) > 1 else set())


def grid_of_settings(rows: Sequence[Row]) -> Grid | None:
    """Return what tuning chose for each row, how good that was on validation samples, and what the search cost."""
    tuned = [row for row in rows if row.get("tuned")]
    if not tuned:
        return None
    named = bool(conditions_of(rows))
    heads = ["method", *(["condition"] if named else []), "setting", "validation", "tried"]
    lines = []
    for row in tuned:
        own = row["tuned"]
        setting = "none" if own["set"] is None else describe(own["set"])
        value = "-" if own["validation"] is None else write_value(own["metric"], own["validation"])
        ended = ", ".join(f"{own[what]} {what}" for what in ("pruned", "failed") if own[what])
        tried = f"{own['trials']}{f' ({ended})' if ended else ''}"
        costs = [write_value(name, own[name]) for name in SEARCHED]
        lines.append([row["method"], *([row["condition"]] if named else []), setting, value, tried, *costs])
    return Grid([[*heads, *SEARCHED.values()]], lines, words=heads.index("setting") + 1)


def write_cell(key: str, row: Row) -> str:
    """Write a figure of a row; the first has no difference to itself."""
    first = row.get("metrics", ("accuracy",))[0]
    over = row[f"{first}{OVER_FIRST}"]
    if key in ("p", "p_holm"):
        return "-" if over.get(key) is None else f"{over[key]:.3g}"
    if key.endswith(OVER_FIRST) and over["p"] is None:
        return "-"
    return write_figure(key, row.get(key) or {}, interval=key.removesuffix(OVER_FIRST) in row.get("metrics", (first,)))


def write_figure(name: str, figure: Mapping[str, Any], interval: bool = True) -> str:
    """Write a mean, with its interval where that is wanted; of what was not always reached, how often it was."""
    mean, ends, reached = figure.get("mean"), figure.get("interval"), figure.get("reached")
    if reached == 0 and figure["runs"]:
        return "never"
    if mean is None:
        return "-"
    between = f" [{write_value(name, ends[0])}, {write_value(name, ends[1])}]" if ends and interval else ""
    often = f" ({reached} of {figure['runs']})" if reached is not None and reached < figure["runs"] else ""
    return f"{write_value(name, mean)}{between}{often}"


def write_value(name: str, value: float) -> str:
    """Write a value in the unit of its figure; a difference has a sign."""
    figure = name.partition(":")[0].removesuffix(OVER_FIRST)
    value = round(value, DIGITS)
    sign = ("+" if value >= 0 else "-") if name.endswith(OVER_FIRST) else ""
    amount = abs(value) if sign else value
    if is_share(figure):
        return f"{sign}{write_share(amount)}"
    figure = figure.removeprefix(BALANCED)
    if figure.startswith("bytes"):
        return f"{sign}{write_bytes(amount)}"
    if figure in ("time", "seconds", "time_to"):
        return f"{sign}{write_seconds(amount)}"
    return f"{sign}{amount:.1f}" if figure in ("rank", "rounds_to") else f"{sign}{amount:,.0f}"


def _of_condition(row: Row, first: Row, metric: Criterion, marked: bool) -> str:
    """Write what is compared; marked where it is better or worse than the first by Holm's p."""
    p = (row.get(f"{metric.name}{OVER_FIRST}") or {}).get("p_holm")
    stands, theirs = standing(row, metric), standing(first, metric)
    mark = ""
    if marked and p is not None and p < SIGNIFICANT and stands is not None and theirs is not None:
        mark = "+" if stands > theirs else "-"
    return write_figure(metric.name, row.get(metric.name) or {}) + mark
