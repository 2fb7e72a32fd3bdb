"""Where most of many values lie, by round."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedstrata.report.figures.style import faint, thin


def spread(rounds: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return rounds, and in each the values at a tenth, a half and nine tenths of all that are known."""
    rounds, values = rounds[known := ~np.isnan(values)], values[known]
    order = np.argsort(rounds, kind="stable")
    found, starts = np.unique(rounds[order], return_index=True)
    parts = np.split(values[order], starts[1:])
    shown = thin(len(found))
    low, middle, high = np.array([np.quantile(parts[i], (0.1, 0.5, 0.9)) for i in shown]).reshape(-1, 3).T
    return found[shown], low, middle, high


def add_band(
    drawn: go.Figure, x: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str, opacity: float = 0.22, **how: Any
) -> None:
    """Shade what lies between two lines; a band without a name is not in the legend."""
    edge = {"x": x, "mode": "lines", "line": {"width": 0, "color": colour}, "hoverinfo": "skip"}
    drawn.add_scatter(y=low, **edge | how | {"showlegend": False})
    drawn.add_scatter(
        y=high, fill="tonexty", fillcolor=faint(colour, opacity), **edge | {"showlegend": "name" in how} | how
    )
