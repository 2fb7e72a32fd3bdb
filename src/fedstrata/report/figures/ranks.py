"""Mean ranks of methods over conditions, with the difference that they need to be told apart."""

from __future__ import annotations

import plotly.graph_objects as go

from fedstrata.report.figures.colours import line_styles
from fedstrata.report.figures.style import ALARM, figure, plain
from fedstrata.runs.compare.friedman import Friedman
from fedstrata.runs.compare.grid import title_of

GREY = "#808080"  # which shows on light and on dark paper
CHARACTER = 7.0  # pixels that a letter is wide: labels stand in margins, whatever the width of the figure
LONGEST = 22  # letters of a name that is written out; hovering tells the whole


def critical_difference(tested: Friedman) -> go.Figure:
    """Draw Demsar's diagram: methods hang from an axis of mean ranks, and bars join those that cannot be told apart."""
    names, count = list(tested.ranks), len(tested.ranks)
    top = figure(height=170 + 26 * (count // 2 + len(tested.alike)), title=f"Mean ranks by {title_of(tested.metric)}")
    styles = line_styles((name, name) for name in names)
    bars = 0.6 * (len(tested.alike) + 1)  # below the axis, above the names
    margins = {"l": 8.0, "r": 8.0}
    for place, name in enumerate(names):
        left = place < (count + 1) // 2
        depth = -bars - 0.8 * (place if left else count - 1 - place)
        end, rank = (0.8 if left else count + 0.2), tested.ranks[name]
        line = go.Scatter(
            x=[rank, rank, end],
            y=[0, depth, depth],
            mode="lines",
            line=styles[name],
            legendgroup=name,
            name=plain(name),
            hovertemplate=f"{plain(name)}: mean rank {rank:.2f}<extra></extra>",
        )
        top.add_trace(line)
        label, anchor = _label(name, rank), "right" if left else "left"
        said = plain(label)
        top.add_annotation(name=name, x=end, y=depth, text=said, xanchor=anchor, showarrow=False, yanchor="middle")
        side = "l" if left else "r"
        margins[side] = max(margins[side], CHARACTER * len(label) + 8)
    for at, group in enumerate(tested.alike):
        ends = [tested.ranks[group[0]] - 0.04, tested.ranks[group[-1]] + 0.04]
        said = f"{plain(' and '.join(group))}: cannot be told apart<extra></extra>"
        bar = go.Scatter(x=ends, y=[-0.6 * (at + 1)] * 2, mode="lines", line={"color": ALARM, "width": 6})
        top.add_trace(bar.update(hovertemplate=said, name="not apart"))
    needed = 1 + tested.critical_difference
    scale = go.Scatter(x=[1, needed], y=[1.5, 1.5], mode="lines+markers", line={"color": ALARM, "width": 2})
    top.add_trace(scale.update(marker={"symbol": "line-ns-open", "size": 10}, hoverinfo="skip", name="difference"))
    said = f"critical difference {tested.critical_difference:.2f}"
    top.add_annotation(x=(1 + needed) / 2, y=1.6, text=said, showarrow=False, yanchor="bottom")
    places = list(range(1, count + 1))
    axis = go.Scatter(x=places, y=[0] * count, text=[str(place) for place in places], mode="lines+markers+text")
    looks = {"line": {"color": GREY, "width": 1.5}, "marker": {"symbol": "line-ns-open", "size": 8, "color": GREY}}
    top.add_trace(axis.update(**looks, textposition="top center", hoverinfo="skip", name="rank"))
    top.update_xaxes(visible=False, range=[0.78, max(needed, count + 0.22)])
    top.update_yaxes(visible=False, range=[-bars - 0.8 * ((count + 1) // 2), 2.4])
    return top.update_layout(showlegend=False, margin=margins)


def _label(name: str, rank: float) -> str:
    """Write a method with its rank; variants have what tells them apart at the end of their names."""
    short = name if len(name) <= LONGEST else f"{name[: LONGEST // 3]}…{name[-(LONGEST - LONGEST // 3 - 1) :]}"
    return f"{short} ({rank:.2f})"
