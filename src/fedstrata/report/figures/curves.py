"""How runs go, against rounds and against what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedstrata.core.errors import RequestError
from fedstrata.report.figures.bands import add_band
from fedstrata.report.figures.colours import line_style, line_styles
from fedstrata.report.figures.style import POINTS, figure, plain, thin
from fedstrata.report.run_data import RunData

AXES = {  # what a curve can be drawn against; lines carry all of these in `meta`, so that a page can change its mind
    "rounds": "round",
    "bytes": "megabytes sent by all",
    "updates": "client updates",
    "time": "virtual seconds",
}
METRICS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "worst10": "worst tenth of clients",
    "loss_test": "loss on test data",
    "label_divergence": "divergence of a round's labels",
    "label_imbalance": "divergence of a round's labels from even shares",
    "update_norm": "mean length of updates",
    "jain": "fairness of participation (Jain)",
}
ALL_POINTS = 2400  # of all curves of a figure together
UNITS = {
    "loss_test": "loss",
    "label_divergence": "nats",
    "label_imbalance": "nats",
    "update_norm": "length of an update",
    "jain": "Jain's index",
}
SHARES = ("accuracy", "balanced_accuracy", "worst10", "jain")


def title_of(metric: str) -> str:
    """Return what to call a metric; one of the user's own has its name."""
    return METRICS.get(metric, metric.replace("_", " "))


def curves(runs_data: Sequence[RunData], metric: str = "accuracy", against: str = "rounds") -> go.Figure | None:
    """Draw a metric of several runs; runs of one group become their mean, with a band from the least to the most."""
    drawn = _empty(against, metric, title_of(metric))
    groups = group_runs(runs_data)
    lines = len(groups) * (3 if len(groups) < len(runs_data) else 1)
    most = max(2, min(POINTS, ALL_POINTS // max(lines, 1)))
    styles = styles_of(runs_data)
    for group, own in groups.items():
        found = [_points(run_data, metric) for run_data in own]
        _add(drawn, [points for points in found if len(points)], group, styles[group], against, metric, most)
    drawn.update_layout(showlegend=len(drawn.data) > 1)
    return drawn if drawn.data else None


def say_absent(runs_data: Sequence[RunData], metric: str) -> str:
    """Name the groups that a figure of a metric leaves out, because none of their rounds has it."""
    groups = group_runs(runs_data).items()
    absent = [group for group, own in groups if not any(len(_points(run_data, metric)) for run_data in own)]
    return f" Not drawn, because no round tells it: {', '.join(absent)}." if absent else ""


def accuracy(run_data: RunData, against: str = "rounds") -> go.Figure | None:
    """Draw three sides of one run's accuracy: of all samples, of all labels alike, of the clients it serves worst."""
    drawn = _empty(against, "accuracy", f"{run_data.name}: accuracy")
    for at, metric in enumerate(("accuracy", "balanced_accuracy", "worst10")):
        if len(points := _points(run_data, metric)):
            _add(drawn, [points], METRICS[metric], line_style(at), against, metric)
    return drawn if drawn.data else None


def group_runs(runs_data: Sequence[RunData]) -> dict[str, list[RunData]]:
    """Put runs of a group together, groups in the order in which they come."""
    order = list(dict.fromkeys(run_data.group for run_data in runs_data))
    ordered = sorted(runs_data, key=lambda run_data: order.index(run_data.group))
    return {group: list(own) for group, own in groupby(ordered, key=lambda run_data: run_data.group)}


def styles_of(runs_data: Sequence[RunData]) -> dict[str, dict[str, Any]]:
    """Return colour and dash of every group: those of its method."""
    return line_styles((run_data.group, run_data.line_name) for run_data in runs_data)


def _empty(against: str, metric: str, title: str) -> go.Figure:
    if against not in AXES:
        raise RequestError(f"against = {against!r} is not known; there are {', '.join(AXES)}")
    drawn = figure(title=title, hovermode="closest")
    drawn.update_xaxes(title_text=AXES[against], rangemode="tozero")
    drawn.update_yaxes(
        title_text=UNITS.get(metric, "accuracy" if metric in METRICS else title_of(metric)),
        rangemode="tozero" if metric in SHARES else "normal",
    )
    if metric in SHARES:
        drawn.update_yaxes(tickformat=".0%")
    return drawn


def _points(run_data: RunData, metric: str) -> np.ndarray:
    """Return the axes and the value of every round that has one, [points, 5]."""
    axes = (run_data.rounds, run_data.traffic / 1e6, run_data.known("client_updates"), run_data.known("time"))
    points = np.stack([*map(np.float64, axes), run_data.known(metric)], axis=1) if len(run_data) else np.zeros((0, 5))
    known: np.ndarray = points[~np.isnan(points[:, 4])]
    return known


def _add(
    drawn: go.Figure,
    runs: Sequence[np.ndarray],
    name: str,
    style: dict[str, Any],
    against: str,
    metric: str,
    most: int = POINTS,
) -> None:
    """Add a line and, over several runs, its band: over the rounds that all of them have."""
    if not runs:
        return
    shared = set.intersection(*(set(points[:, 0]) for points in runs))
    if not shared:
        return
    stacked = np.stack([points[np.isin(points[:, 0], list(shared))] for points in runs]).astype(np.float32)
    stacked = stacked[:, thin(stacked.shape[1], most)]
    axes, values = stacked[..., :4].mean(0), stacked[..., 4]
    x = axes[:, list(AXES).index(against)]
    common: dict[str, Any] = {"meta": dict(zip(AXES, axes.T, strict=True)), "legendgroup": name}
    if len(runs) > 1:
        add_band(drawn, x, values.min(0), values.max(0), style["color"], **common)
    hover = "%{y:.1%}" if metric in SHARES else "%{y:.4g}"
    mean = f", mean of {len(runs)}" if len(runs) > 1 else ""
    drawn.add_scatter(
        x=x,
        y=values.mean(0),
        mode="lines+markers" if len(x) <= 3 else "lines",
        name=plain(name),
        line=style,
        hovertemplate=f"{plain(name)}{mean}: {hover} at %{{x:.5~g}}<extra></extra>",
        **common,
    )
