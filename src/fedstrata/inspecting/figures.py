"""Figures of an inspection, as plotly makes them; colours that the colour-blind can tell apart."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedstrata.inspecting.heat_map import heat_map
from fedstrata.inspecting.label_table import LabelTable

ROWS, COLUMNS = 100, 100  # most that are shown one by one
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"  # of Okabe and Ito
GREY = "#808080"  # text and lines that are read on light and on dark
NAMED = 40  # most rows that have their names beside them


def labels(table: LabelTable) -> go.Figure:
    """Show who holds which labels: a row a client, or about equally many similar ones."""
    shown = heat_map(table, ROWS, COLUMNS)
    rows = list(range(len(shown.rows)))
    figure = go.Figure(
        go.Heatmap(
            z=np.round(shown.shares, 4),
            x=[f"{name} " for name in shown.columns],  # the space keeps numbers from being read as positions
            y=rows,
            customdata=np.array(shown.rows)[:, None].repeat(len(shown.columns), 1),
            colorscale="Cividis",
            zmin=0,
            zmax=1,
            colorbar={"title": "share", "thickness": 12},
            hovertemplate="%{customdata}<br>label %{x}: %{z:.1%}<extra></extra>",
        )
    )
    step = max(1, -(-len(rows) // NAMED))
    names = {"tickvals": rows[::step], "ticktext": shown.rows[::step]}
    figure.update_yaxes(autorange="reversed", title="clients", showgrid=False, automargin=True, **names)
    figure.update_xaxes(title="labels", showgrid=False, side="bottom", automargin=True)
    return _styled(figure, f"Labels: {shown.title}", height=min(260 + 14 * len(rows), 900))


def skew(table: LabelTable) -> go.Figure:
    """Show how clients differ: size, effective labels, distance to the global mix."""
    panels = (
        ("samples", table.sizes, BLUE),
        ("effective labels", table.effective, ORANGE),
        ("EMD", table.emd, GREEN),
    )
    figure = make_subplots(rows=1, cols=len(panels), shared_yaxes=False, horizontal_spacing=0.09)
    for column, (title, values, colour) in enumerate(panels, 1):
        counts, edges = np.histogram(values, bins=min(30, max(5, len(table) // 4)))
        middle, width = (edges[:-1] + edges[1:]) / 2, np.diff(edges) * 0.95
        hover = f"{title} about %{{x:.3g}}: %{{y}} clients<extra></extra>"
        bars = go.Bar(x=middle, y=counts, width=width, marker_color=colour, hovertemplate=hover, showlegend=False)
        figure.add_trace(bars, row=1, col=column)
        figure.update_xaxes(title=title, row=1, col=column)
    figure.update_yaxes(title="clients", row=1, col=1)
    return _styled(figure, "How clients differ", height=320)


def _styled(figure: go.Figure, title: str, height: int) -> go.Figure:
    """Leave out every background, so that a page's own shows in light and dark."""
    figure.update_layout(
        title={"text": title, "x": 0, "xanchor": "left"},
        height=height,
        margin={"l": 60, "r": 20, "t": 50, "b": 50},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": GREY},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": BLUE},
        autosize=True,
    )
    figure.update_xaxes(gridcolor="rgba(128,128,128,0.25)", zeroline=False)
    figure.update_yaxes(gridcolor="rgba(128,128,128,0.25)", zeroline=False)
    return figure
