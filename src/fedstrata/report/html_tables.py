"""Tables as people read them in a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from fedstrata.report.outcome import share
from fedstrata.report.tables import Table
from fedstrata.runs.compare.tables import figures_of

ROWS = 40  # most rows of a table in the page; CSV files hold all
DIFFERENCES = ("accuracy_over_first", "brings")
GAINS = ("accuracy", *DIFFERENCES, "rank", "balanced_accuracy", "worst10")  # the other figures are costs
PERCENT = {"accuracy", "balanced_accuracy", "worst10", "share", "last_recall", "best_recall", "last_accuracy"}
TITLES = {
    "accuracy_over_first": "points over the first",
    "brings": "points that the stage brings",
    "worst10": "worst tenth of clients",
    "time": "virtual seconds",
}


def html(table: Table, caption: str = "", first: str = "") -> str:
    """Write a table; of a long one some rows, spread over the rounds or else the first."""
    skip = 1 if table.columns[0] == "run" and first != "run" else 0  # the heading names the run
    rows = table.rows
    if len(rows) > ROWS:
        step = len(rows) / ROWS if table.name == "rounds" else 1
        rows = [rows[min(int((i + 1) * step) - 1, len(rows) - 1)] for i in range(ROWS)]
    kinds = [_kind([row[i] for row in rows]) for i in range(len(table.columns))]
    head = "".join(
        f'<th scope="col"{kind}>{escape(name.replace("_", " "))}</th>'
        for name, kind in list(zip(table.columns, kinds, strict=True))[skip:]
    )
    lines = []
    for row in rows:
        cells = list(zip(table.columns, row, kinds, strict=True))[skip:]
        lines.append("".join(f"<td{kind}>{escape(said(name, value))}</td>" for name, value, kind in cells))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    note = f"<caption>{escape(caption)}</caption>" if caption else ""
    region = f'class="scroll" tabindex="0" role="region" aria-label="{escape(caption or table.name)}"'
    return f"<div {region}><table>{note}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def cut(table: Table) -> str:
    """Say that a page does not hold all rows."""
    return f"{ROWS} of {len(table.rows)} rows; --csv writes all." if len(table.rows) > ROWS else ""


def folded(title: str, content: str) -> str:
    """Return what opens on a click."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def compared(rows: Sequence[dict[str, Any]], remarks: Sequence[str] = ()) -> Iterator[str]:
    """Return the tables of a comparison: what came out, with intervals and tests.

    Then what it cost, where that differs.

    What a stage brings is its row's difference to the first, turned round: only one of the two is shown.
    """
    figures, seeds = figures_of(rows), max(row.get("seeds") or 0 for row in rows)
    gains = [name for name in GAINS if name in figures]
    if "brings" in gains:
        gains.remove("accuracy_over_first")
    costs = [name for name in figures if name not in GAINS]
    same = {name for name in costs if len(rows) > 1 and len({_mean(name, row) for row in rows}) == 1}
    whole = all(row.get("seeds") == seeds for row in rows)
    columns = {"method": [row["method"] for row in rows]} | ({} if whole else {"seeds": [r.get("seeds") for r in rows]})
    for name in gains:
        columns[_titled(name)] = [_ranged(name, row.get(name) or {}) for row in rows]
        if any("p" in (row.get(name) or {}) for row in rows):
            columns["p"] = [(row.get(name) or {}).get("p") for row in rows]
    over = f"Means over {seeds} {'seed' if seeds == 1 else 'seeds'}"
    yield html(_table(columns), f"{over}; in brackets, 95 % intervals; p of the paired test against the first")
    yield from (f'<p class="quiet">Note: {escape(note)}.</p>' for note in remarks)
    columns = {"method": [row["method"] for row in rows]}
    columns |= {_titled(name): [_mean(name, row) for row in rows] for name in costs if name not in same}
    shared = ", ".join(f"{_titled(name)} {mean}" for name in costs if name in same and (mean := _shared(name, rows)))
    about = f"What it cost. {f'The same for all: {shared}.' if shared else ''}".strip()
    yield html(_table(columns), about) if len(columns) > 1 else f'<p class="quiet">{escape(about)}</p>'


def said(name: str, value: Any) -> str:
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
        return f"{value / 1e6:,.2f} MB"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _table(columns: dict[str, list[Any]]) -> Table:
    return Table("comparison", list(columns), [list(row) for row in zip(*columns.values(), strict=True)])


def _titled(name: str) -> str:
    return TITLES.get(name, name.replace("_", " "))


def _mean(name: str, row: dict[str, Any]) -> str:
    return said(name, (row.get(name) or {}).get("mean"))


def _shared(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """Return what all rows have in common, unless it is nothing."""
    return _mean(name, rows[0]) if (rows[0].get(name) or {}).get("mean") else ""


def _ranged(name: str, figure: dict[str, Any]) -> str:
    """Write a mean with its interval: ranks as they are, shares in percent, differences of shares in points."""
    mean, ends = figure.get("mean"), figure.get("interval")
    if mean is None:
        return "-"
    if name == "rank":
        return f"{mean:.1f}"
    sign, unit = ("+", "") if name in DIFFERENCES else ("", " %")
    between = f" [{100 * ends[0]:{sign}.1f}, {100 * ends[1]:{sign}.1f}]" if ends else ""
    return f"{100 * mean:{sign}.1f}{between}{unit}"


def _kind(values: Sequence[Any]) -> str:
    """Say how a column is set: sentences may break, words and numbers may not."""
    longest = max((len(value) for value in values if isinstance(value, str)), default=0)
    return ' class="text"' if longest > 40 else ' class="word"' if longest else ""
