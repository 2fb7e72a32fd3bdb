"""One look for all figures: colours that everybody can tell apart, light and dark; legends above, never over the data.

Colours of lines are Okabe and Ito's, without black, which vanishes on dark paper, and yellow, which does on white.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

LINES = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
DASHES = ("solid", "dash", "dot", "dashdot")
ALARM = "#D55E00"
SHARE = "cividis"  # from nothing to all
APART = "PuOr"  # less and more than even
ROUNDS, CLIENTS, POINTS = 150, 80, 400  # most columns and rows of a heat map, and points of a curve
TICKS = 20  # most names beside a heat map


def template(dark: bool = False) -> go.layout.Template:
    """Return what differs between light and dark paper, and what all figures share."""
    ink, grid, paper = ("#e6e6e6", "#3a3f44", "#16191d") if dark else ("#1f2328", "#dfe3e7", "#ffffff")
    axis = {"gridcolor": grid, "linecolor": grid, "zerolinecolor": grid, "automargin": True, "title": {"standoff": 8}}
    layout = {
        "paper_bgcolor": paper,
        "plot_bgcolor": paper,
        "font": {"color": ink, "family": "system-ui, sans-serif", "size": 13},
        "colorway": list(LINES),
        "xaxis": axis,
        "yaxis": axis,
        "hoverlabel": {"bgcolor": paper, "font": {"color": ink}},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
    }
    return go.layout.Template(layout=layout)


def figure(*traces: Any, height: int = 340, title: str = "", **layout: Any) -> go.Figure:
    """Return a figure of ours. Its title is for notebooks; a page has headings."""
    drawn = go.Figure(data=list(traces))
    drawn.update_layout(template=template(), height=height, **layout)
    if title:
        drawn.update_layout(title={"text": plain(title), "y": 0.98, "yanchor": "top"}, margin={"t": 60})
    return drawn


def heat_map(
    z: np.ndarray,
    columns: Sequence[str] | np.ndarray,
    rows: Sequence[str],
    *,
    hover: str,
    across: str,
    down: str,
    scale: str = SHARE,
    limits: tuple[float, float] | None = (0.0, 1.0),
    percent: bool = True,
    title: str = "",
) -> go.Figure:
    """Draw a matrix; beside it stand as many names as can be read, and all names show on hovering."""
    many, names = len(rows), [plain(row) for row in rows]
    bar = {"thickness": 12, "len": 1.0, "outlinewidth": 0, "ypad": 0, **({"tickformat": ".0%"} if percent else {})}
    trace = go.Heatmap(
        z=np.asarray(z, dtype=np.float32).round(4),
        x=columns if isinstance(columns, np.ndarray) else [plain(c) for c in columns],
        y=names,
        colorscale=scale,
        zmin=None if limits is None else limits[0],
        zmax=None if limits is None else limits[1],
        colorbar=bar,
        hovertemplate=f"{hover}<extra></extra>",
        hoverongaps=False,
    )
    drawn = figure(trace, height=int(np.clip(110 + 17 * many, 200, 460)), title=title)
    shown = names[:: max(1, -(-many // TICKS))]
    drawn.update_xaxes(title_text=across, showgrid=False, zeroline=False)
    ticks = {"type": "category", "tickmode": "array", "tickvals": shown, "ticktext": shown}
    drawn.update_yaxes(title_text=down, autorange="reversed", showgrid=False, zeroline=False, **ticks)
    if not isinstance(columns, np.ndarray):
        drawn.update_xaxes(type="category")
    return drawn


def bin_values(values: np.ndarray, most: int, axis: int = -1) -> np.ndarray:
    """Return means of neighbours, so that at most so many are left; what is not known does not count."""
    edges = bins(values.shape[axis], most)
    if len(edges) == values.shape[axis]:
        return values.astype(np.float64)
    moved = np.moveaxis(values.astype(np.float64), axis, -1)
    there = ~np.isnan(moved)
    total = np.add.reduceat(np.where(there, moved, 0.0), edges, axis=-1)
    count = np.add.reduceat(there, edges, axis=-1, dtype=np.int64)
    means = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return np.moveaxis(means, -1, axis)


def bins(size: int, most: int) -> np.ndarray:
    """Return where bins of neighbours begin."""
    return np.unique(np.linspace(0, size, min(size, most), endpoint=False).astype(np.int64))


def thin(size: int, most: int = POINTS) -> np.ndarray:
    """Return places of points to draw: all, or as many as can be seen, the last among them."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.int64)) if size else np.zeros(0, int)


def line_style(at: int) -> dict[str, Any]:
    """Return the colour and dash of the n-th line. Neighbours differ in both: one may lie on the other, or be grey."""
    dash = DASHES[(at + at // len(LINES)) % len(DASHES)]
    return {"color": LINES[at % len(LINES)], "dash": dash, "width": 2}


def faint(colour: str, opacity: float = 0.2) -> str:
    """Return a colour for bands."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def plain(text: object) -> str:
    """Return text that is shown as it is: plotly reads some HTML, and users' labels may hold any character."""
    return escape(str(text), quote=False)
