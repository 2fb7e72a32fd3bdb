"""Figures of an inspection, in the look of all others."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from fedstrata.data.label_table import LabelTable
from fedstrata.inspection.heat_map import heat_map
from fedstrata.report.figures.colours import LINES
from fedstrata.report.figures.style import SHARE, colour_scale, figure, plain

ROWS, COLUMNS = 100, 100  # most that are shown one by one
NAMED = 40  # most rows that have their names beside them


def labels(table: LabelTable) -> go.Figure:
    """Show who holds which labels: a row a client, or about equally many similar ones."""
    shown = heat_map(table, ROWS, COLUMNS)
    rows, names = list(range(len(shown.rows))), [plain(name) for name in shown.rows]
    trace = go.Heatmap(
        z=np.round(shown.shares, 4),
        x=[plain(name) for name in shown.columns],
        y=rows,  # names of rows that stand for many clients may be the same
        customdata=np.array(names)[:, None].repeat(len(shown.columns), 1),
        colorscale=colour_scale(SHARE),
        meta={"scale": SHARE},
        zmin=0,
        zmax=1,
        colorbar={"thickness": 12, "tickformat": ".0%", "outlinewidth": 0},
        hovertemplate="%{customdata}<br>label %{x}: %{z:.1%}<extra></extra>",
    )
    drawn = figure(trace, height=min(140 + 14 * len(rows), 900), title=shown.title)
    step = max(1, -(-len(rows) // NAMED))
    ticks = {"tickvals": rows[::step], "ticktext": names[::step]}
    drawn.update_yaxes(title_text="clients", autorange="reversed", showgrid=False, zeroline=False, **ticks)
    drawn.update_xaxes(title_text="labels", type="category", showgrid=False)
    return drawn


def skew(table: LabelTable) -> go.Figure:
    """Show how clients differ: size, effective labels, distance to the global mix."""
    panels = (("samples", table.sizes), ("effective labels", table.effective), ("EMD", table.emd))
    drawn = figure(height=300, title="how clients differ", showlegend=False).set_subplots(rows=1, cols=len(panels))
    for column, (title, values) in enumerate(panels, 1):
        counts, edges = np.histogram(values, bins=min(30, max(5, len(table) // 4)))
        middle, width = (edges[:-1] + edges[1:]) / 2, np.diff(edges) * 0.95
        hover = f"{title} about %{{x:.3g}}: %{{y}} clients<extra></extra>"
        bars = go.Bar(x=middle, y=counts, width=width, marker_color=LINES[column - 1], hovertemplate=hover)
        drawn.add_trace(bars, row=1, col=column)
        drawn.update_xaxes(title_text=title, row=1, col=column)
    drawn.update_yaxes(title_text="clients", row=1, col=1)
    return drawn
