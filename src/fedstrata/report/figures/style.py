"""One look for all figures: light and dark paper, colours of heat maps for both; legends above, never over the data."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedstrata.report.figures.colours import LINES

ALARM = "#D55E00"
SHARE, APART, YES = "share", "apart", "yes"  # from nothing to all; less and more than even; no and yes
SCALES = {  # what is little is near to the paper, light or dark
    "light": {
        SHARE: ["#f0f3f7", "#c9dcee", "#8dbce0", "#4690c6", "#1c63a5", "#08306b"],
        APART: ["#b35806", "#f1a340", "#fbdcb0", "#f3f3f5", "#d8daeb", "#998ec3", "#542788"],
        YES: ["#f0f3f7", "#2f6ea8"],
    },
    "dark": {
        SHARE: ["#22282f", "#123a63", "#1c63a5", "#4690c6", "#8dbce0", "#e3eef9"],
        APART: ["#ffb45c", "#b8701c", "#5a3d1c", "#22282f", "#403563", "#7566b5", "#c3b6ff"],
        YES: ["#22282f", "#7cc4f5"],
    },
}
ROUNDS, CLIENTS, POINTS = 150, 80, 400  # most columns and rows of a heat map, and points of a curve
TICKS = 20  # most names beside a heat map


def template(dark: bool = False, size: float = 13, family: str = "system-ui, sans-serif") -> go.layout.Template:
    """Return what differs between light and dark paper, and what all figures share."""
    ink, grid, paper = ("#e6e6e6", "#3a3f44", "#16191d") if dark else ("#1f2328", "#dfe3e7", "#ffffff")
    axis = {"gridcolor": grid, "linecolor": grid, "zerolinecolor": grid, "automargin": True, "title": {"standoff": 8}}
    layout = {
        "paper_bgcolor": paper,
        "plot_bgcolor": paper,
        "font": {"color": ink, "family": family, "size": size},
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
    """Draw a matrix; beside it stand as many names as can be read, and all names show on hovering.

    What is only yes or no needs no scale.
    """
    many, names = len(rows), [plain(row) for row in rows]
    if scale == SHARE and not percent and set(np.unique(z[~np.isnan(z)])) <= {0.0, 1.0}:
        scale, limits = YES, (0.0, 1.0)
    bar = {"thickness": 12, "len": 1.0, "outlinewidth": 0, "ypad": 0, **({"tickformat": ".0%"} if percent else {})}
    trace = go.Heatmap(
        z=np.asarray(z, dtype=np.float32).round(4),
        x=columns if isinstance(columns, np.ndarray) else [plain(c) for c in columns],
        y=names,
        colorscale=colour_scale(scale),
        meta={"scale": scale},
        showscale=scale != YES,
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


def colour_scale(name: str, dark: bool = False) -> list[list[Any]]:
    """Return the colours of a heat map by height."""
    colours = SCALES["dark" if dark else "light"][name]
    return [[at / (len(colours) - 1), colour] for at, colour in enumerate(colours)]


def faint(colour: str, opacity: float = 0.2) -> str:
    """Return a colour for bands."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def plain(text: object) -> str:
    """Return text that is shown as it is: plotly reads some HTML, and users' labels may hold any character."""
    return escape(str(text), quote=False)
