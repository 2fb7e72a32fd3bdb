"""Tables as people read them in a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Any

from fedstrata.report.document import of_methods
from fedstrata.report.outcome import may_be_equal, share
from fedstrata.report.tables import FINAL, Table
from fedstrata.runs.amounts import write_bytes
from fedstrata.runs.compare.grid import (
    BEST_OVER,
    OVER_FIRST,
    grid_of_settings,
    metrics_in,
    standing,
    write_figure,
)
from fedstrata.runs.compare.tables import figures_of, legend_of_settings
from fedstrata.runs.metrics import is_share

NOTES = 4  # most that stand open below a table
ROWS = 40  # most rows of a table in the page; CSV files hold all
ACCURACIES = ("accuracy", "balanced_accuracy", "worst10")
PERCENT = {*ACCURACIES, *FINAL, "share", "last_recall", "best_recall", "last_accuracy"}
TITLES = {
    "worst10": "worst tenth of clients",
    "time": "virtual seconds",
    "bytes_p2p": "bytes between clients",
}


def html(
    table: Table,
    caption: str = "",
    first: str = "",
    methods: Sequence[str] = (),
    badges: Mapping[int, str] = MappingProxyType({}),
) -> str:
    """Write a table; of a long one some rows, spread over the rounds or else the first.

    `methods` says of each row whose it is, and `badges` what is written beside its name: that it is the best.
    """
    skip = 1 if table.columns[0] == "run" and first != "run" else 0  # the heading names the run
    kept = list(range(len(table.rows)))
    if len(kept) > ROWS:
        step = len(kept) / ROWS if table.name == "rounds" else 1
        kept = [min(int((i + 1) * step) - 1, len(kept) - 1) for i in range(ROWS)]
    rows = [table.rows[at] for at in kept]
    kinds = [_kind([row[i] for row in rows]) for i in range(len(table.columns))]
    head = "".join(
        f'<th scope="col"{kind}>{escape(table.titles.get(name, name.replace("_", " ")))}</th>'
        for name, kind in list(zip(table.columns, kinds, strict=True))[skip:]
    )
    body = ""
    for at, row in zip(kept, rows, strict=True):
        cells = [
            f"<td{kind}>{escape(write_cell(name, value))}{badge}</td>"
            for name, value, kind, badge in zip(
                table.columns[skip:], row[skip:], kinds[skip:], _beside(badges.get(at), len(row) - skip), strict=True
            )
        ]
        about = of_methods([methods[at]] if methods else ()) + (' class="winner"' if at in badges else "")
        body += f"<tr{about}>{''.join(cells)}</tr>"
    note = f'<p class="quiet">{escape(caption)}</p>' if caption else ""  # a caption is no wider than its table
    region = f'class="scroll" tabindex="0" role="region" aria-label="{escape(caption or table.name)}"'
    return f"{note}<div {region}><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def tiles(table: Table) -> str:
    """Write the only row of a table as figures with their names: nothing to compare, and nothing to scroll to."""
    told = zip(table.columns, table.rows[0], strict=True)
    named = {**TITLES, **table.titles}
    names = {name: named.get(name, name.replace("_", " ")) for name in table.columns}
    made = (
        f"<div><dt>{escape(names[n])}</dt><dd>{escape(write_cell(n, v))}</dd></div>" for n, v in told if v is not None
    )
    return f'<dl class="tiles">{"".join(made)}</dl>'


def _beside(badge: str | None, cells: int) -> list[str]:
    return [f'<span class="badge">{escape(badge)}</span>' if badge else "", *[""] * (cells - 1)]


def best_of(rows: Sequence[dict[str, Any]]) -> dict[int, str]:
    """Return which rows are the best by the first metric, and how to say so; none where there is nothing to beat."""
    metric = metrics_in(rows)[0]
    places = [standing(row, metric) for row in rows]
    known = [place for place in places if place is not None and place[0]]
    if len(known) < 2:
        return {}
    best = {at for at, place in enumerate(places) if place == max(known)}
    top = rows[min(best)]
    close = any(may_be_equal(top, row, metric) for at, row in enumerate(rows) if at not in best)
    return dict.fromkeys(best, "best, but close" if close else "best mean")


def cut(table: Table) -> str:
    """Say that a page does not hold all rows."""
    return f"{ROWS} of {len(table.rows)} rows; --csv writes all." if len(table.rows) > ROWS else ""


def fold(title: str, content: str, methods: Sequence[str] = ()) -> str:
    """Return what opens on a click."""
    return f"<details{of_methods(methods)}><summary>{escape(title)}</summary>{content}</details>"


def comparison_tables(
    rows: Sequence[dict[str, Any]], remarks: Sequence[str] = (), ranked: bool = True
) -> Iterator[str]:
    """Return the tables of a comparison: what came out, with intervals and tests, and the best marked.

    Then what it cost, where that differs.

    What a stage brings is its row's difference to the first, turned round: only one of the two is shown.
    """
    figures, seeds = figures_of(rows), max(row.get("seeds") or 0 for row in rows)
    first, *others = (metric.name for metric in metrics_in(rows))
    over = f"{first}{OVER_FIRST}"
    change = "brings" if "brings" in figures else over
    gains = [name for name in dict.fromkeys((first, change, "rank", *others, *ACCURACIES)) if name in figures]
    costs = [name for name in figures if name not in (*gains, "brings") and not name.endswith((OVER_FIRST, BEST_OVER))]
    same = {name for name in costs if len(rows) > 1 and len({_mean(name, row) for row in rows}) == 1}
    whole = all(row.get("seeds") == seeds for row in rows)
    columns = {"method": [row["method"] for row in rows]} | ({} if whole else {"seeds": [r.get("seeds") for r in rows]})
    for name in gains:
        title = _changed(first, name) if name == change else _titled(name)
        columns[title] = [_ranged(over if name == change else name, row.get(name) or {}) for row in rows]
        if name == change:
            columns[title][0] = "-"  # nothing over itself
            columns |= {"p": [(row.get(name) or {}).get("p") for row in rows]}
            columns |= {"p by Holm": [(row.get(name) or {}).get("p_holm") for row in rows]} if len(rows) > 2 else {}
    seeded = f"Means over {seeds} {'seed' if seeds == 1 else 'seeds'}"
    about = f"{seeded}; in brackets, 95 % intervals; p of the paired test against the first"
    holm = ", and corrected for how many there are by Holm" if len(rows) > 2 else ""
    methods = [str(row["method"]) for row in rows]
    yield html(_table(columns), about + holm, methods=methods, badges=best_of(rows) if ranked else {})
    if len(remarks) > NOTES:
        items = "".join(f"<li>{escape(note)}.</li>" for note in remarks)
        yield fold(f"{len(remarks)} notes to read before you believe this table", f"<ul>{items}</ul>")
    else:
        yield from (f'<p class="quiet">Note: {escape(note)}.</p>' for note in remarks)
    columns = {"method": [row["method"] for row in rows]}
    columns |= {_titled(name): [_mean(name, row) for row in rows] for name in costs if name not in same}
    shared = ", ".join(f"{_titled(name)} {mean}" for name in costs if name in same and (mean := _shared(name, rows)))
    about = f"What it cost. {f'The same for all: {shared}.' if shared else ''}".strip()
    yield html(_table(columns), about, methods=methods) if len(columns) > 1 else f'<p class="quiet">{escape(about)}</p>'


def settings(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Return the table of what tuning chose and cost, where rows were tuned."""
    if grid := grid_of_settings(rows):
        about = legend_of_settings(rows)
        told = Table("settings", grid.titles, [list(line) for line in grid.lines])
        yield html(told, f"{about[0].upper()}{about[1:]}.")


def write_cell(name: str, value: Any) -> str:
    """Write a value for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, str):
        return value
    if name in PERCENT:
        return share(value)
    if name.startswith("bytes"):
        return write_bytes(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _table(columns: dict[str, list[Any]]) -> Table:
    return Table("comparison", list(columns), [list(row) for row in zip(*columns.values(), strict=True)])


def _titled(name: str) -> str:
    return TITLES.get(name, name.replace("_", " ").replace(":", " "))


def _changed(metric: str, name: str) -> str:
    points = "points " if is_share(metric) else ""
    brought = "brings" if is_share(metric) else "saves"
    return f"{points or 'what '}that the stage {brought}" if name == "brings" else f"{points}over the first"


def _mean(name: str, row: dict[str, Any]) -> str:
    return write_cell(name, (row.get(name) or {}).get("mean"))


def _shared(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """Return what all rows have in common, unless it is nothing."""
    return _mean(name, rows[0]) if (rows[0].get(name) or {}).get("mean") else ""


def _ranged(name: str, figure: dict[str, Any]) -> str:
    """Write a mean with its interval: shares in percent, differences of shares in points, others in their unit."""
    share = is_share(name) and not name.endswith((OVER_FIRST, BEST_OVER))
    unit = " %" if share and figure.get("mean") is not None else ""
    return write_figure(name, figure, interval=name != "rank") + unit


def _kind(values: Sequence[Any]) -> str:
    """Say how a column is set: sentences may break, words and numbers may not."""
    longest = max((len(value) for value in values if isinstance(value, str)), default=0)
    return ' class="text"' if longest > 40 else ' class="word"' if longest else ""
