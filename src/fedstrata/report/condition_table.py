"""A comparison under several conditions as one table: rows methods, columns conditions, with heat and small curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from fedstrata.report.document import of_methods
from fedstrata.report.figures.curves import group_runs
from fedstrata.report.figures.style import thin
from fedstrata.report.gather import GatheredRuns, group_of
from fedstrata.report.html_tables import comparison_tables, fold
from fedstrata.report.run_data import RunData
from fedstrata.runs.compare.grid import (
    Row,
    cells_of,
    conditions_of,
    grid_of_conditions,
    metrics_in,
    standing,
    title_of,
    write_figure,
    write_value,
)
from fedstrata.runs.metrics import Criterion

WARMEST = 55  # percent of colour in the best cell of a condition
WIDE, HIGH, POINTS = 84, 20, 40  # of a small curve, in pixels, and its most points


def by_condition(gathered: GatheredRuns) -> Iterator[str]:
    """Return the table of all conditions; then, folded away, each condition's own with differences, tests and costs."""
    rows, names = gathered.rows, conditions_of(gathered.rows)
    yield _table(rows, names, group_runs(gathered.runs_data))
    yield from (f'<p class="quiet">Note: {escape(note)}.</p>' for note in gathered.remarks)
    if plain := [row for row in rows if not row.get("condition")]:  # of another comparison in the same report
        yield from comparison_tables(plain)
    for name in names:
        own = [row for row in rows if row.get("condition") == name]
        yield fold(f"Differences, tests and costs under {name}", "".join(comparison_tables(own)))


def _table(rows: Sequence[Mapping[str, Any]], names: Sequence[str], runs: Mapping[str, Sequence[RunData]]) -> str:
    grid, metric = grid_of_conditions(rows), metrics_in(rows)[0]
    at, methods = cells_of(rows), [line[0] for line in grid.lines]
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in grid.titles)
    groups = [[group_of({"condition": name, "method": method}) for method in methods] for name in names]
    columns = [
        _column([at[name, method] for method in methods], [runs.get(group, ()) for group in own], metric)
        for name, own in zip(names, groups, strict=True)
    ]
    lines = []
    for place, line in enumerate(grid.lines):
        cells = "".join(column[place] for column in columns)
        lines.append(
            f'<tr{of_methods([line[0]])}><th scope="row">{escape(line[0])}</th>{cells}<td>{escape(line[-1])}</td></tr>'
        )
    title = title_of(metric.name)
    about = (
        f"{title[0].upper()}{title[1:]}{', less is better' if metric.lower else ' in %'}: means over seeds; in "
        "brackets, 95 % intervals. The darker, the nearer to the best of its condition, which is bold. Curves are of "
        "the accuracy by round. Rank: mean over conditions and seeds."
    )
    region = 'class="scroll" tabindex="0" role="region" aria-label="Methods by condition"'
    table = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    note = f'<p class="quiet">{about}</p>'  # above what scrolls: a caption is as wide as its table
    return f'{note}<div {region}><table class="heat">{table}</table></div>'


def _column(rows: Sequence[Row], runs: Sequence[Sequence[RunData]], metric: Criterion) -> list[str]:
    """Return the cells of a condition; colours and curves share a scale within it, and only there."""
    figures = [row.get(metric.name) or {} for row in rows]
    places = [standing(row, metric) for row in rows]
    best = max((place for place in places if place is not None), default=None)
    means = np.array([np.nan if (mean := own.get("mean")) is None else mean for own in figures], dtype=np.float64)
    means = -means if metric.lower else means
    low, high = (np.nanmin(means), np.nanmax(means)) if not np.isnan(means).all() else (0.0, 0.0)
    curves = list(map(_mean_curve, runs))
    top = max((float(curve[:, 1].max()) for curve in curves if len(curve)), default=1.0)
    cells = []
    for own, mean, place, curve in zip(figures, means, places, curves, strict=True):
        heat = 0 if np.isnan(mean) or high == low else round(WARMEST * (mean - low) / (high - low))
        said = escape(write_figure(metric.name, own, interval=False))
        ends = own.get("interval")
        between = f"<small>[{', '.join(write_value(metric.name, end) for end in ends)}]</small>" if ends else ""
        figure = f"<strong>{said}</strong>" if place is not None and place == best and len(rows) > 1 else said
        cells.append(f'<td style="--heat:{heat}%">{figure} {between}{_drawn(curve, top)}</td>')
    return cells


def _mean_curve(runs: Sequence[RunData]) -> np.ndarray:
    """Return rounds and the mean accuracy over runs, [points, 2], where all of them were scored."""
    scored = []
    for run_data in runs:
        values = run_data.known("accuracy")
        known = ~np.isnan(values)
        scored.append(dict(zip(run_data.rounds[known].tolist(), values[known].tolist(), strict=True)))
    shared = sorted(set.intersection(*map(set, scored))) if scored else []
    points: np.ndarray = np.array([[r, np.mean([own[r] for own in scored])] for r in shared], dtype=np.float64).reshape(
        -1, 2
    )
    few: np.ndarray = points[thin(len(points), POINTS)]
    return few


def _drawn(curve: np.ndarray, top: float) -> str:
    """Draw a small curve."""
    if len(curve) < 2:
        return ""
    x = WIDE * (curve[:, 0] - curve[0, 0]) / (curve[-1, 0] - curve[0, 0])
    y = HIGH - 1 - (HIGH - 2) * curve[:, 1] / (top or 1.0)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    size = f'width="{WIDE}" height="{HIGH}" viewBox="0 0 {WIDE} {HIGH}"'
    return f'<svg {size} aria-hidden="true"><polyline points="{points}"/></svg>'
