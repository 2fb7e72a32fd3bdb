"""What a run does to the labels: which it learns, which it loses, and which its rounds see."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from fedstrata.report.figures.curves import group_runs, styles_of
from fedstrata.report.figures.style import APART, ROUNDS, bin_values, bins, figure, heat_map, plain
from fedstrata.report.run_data import RunData

SYMBOLS = ("circle", "diamond", "square", "cross", "x", "triangle-up")


def recall(run_data: RunData) -> go.Figure | None:
    """Draw how much of each label is recognised, by round; the rarest labels are at the bottom, and marked."""
    scored = ~np.isnan(run_data.recall).all(1) if run_data.recall.size else np.zeros(0, dtype=bool)
    if not scored.any():
        return None
    order, rounds = _by_share(run_data), run_data.rounds[scored]
    return heat_map(
        bin_values(run_data.recall[scored].T, ROUNDS)[order],
        rounds[bins(len(rounds), ROUNDS)],
        [_named(run_data, label) for label in order],
        hover="label %{y}, round %{x}: %{z:.1%} recognised",
        across="round",
        down="label",
        title=f"{run_data.name}: recall by label",
    )


def final_recall(runs_data: Sequence[RunData]) -> go.Figure | None:
    """Draw the last recall of each label, side by side for several runs: the mean over a group's."""
    shown = [run_data for run_data in runs_data if len(last_recall(run_data))]
    classes = max((run_data.classes for run_data in shown), key=len, default=[])
    if not shown or len(classes) > 100:
        return None
    drawn = figure(title="recall of each label in the last round")
    styles = styles_of(runs_data)
    for at, (group, own) in enumerate(group_runs(shown).items()):
        finals = [r for r in map(last_recall, own) if len(r) == len(classes)]
        if finals:
            marker = {"symbol": SYMBOLS[at % len(SYMBOLS)], "size": 10, "color": styles[group]["color"]}
            hover = f"{plain(group)}, label %{{x}}: %{{y:.1%}}<extra></extra>"
            names = [_named(shown[0], i) for i in range(len(classes))]
            y = np.mean(finals, axis=0)
            about = {"name": plain(group), "legendgroup": group, "marker": marker}
            drawn.add_scatter(x=names, y=y, mode="markers", hovertemplate=hover, **about)
    drawn.update_xaxes(title_text="label", type="category")
    drawn.update_yaxes(title_text="recall", tickformat=".0%", range=[-0.03, 1.03])
    drawn.update_layout(showlegend=len(drawn.data) > 1)
    return drawn


def last_recall(run_data: RunData) -> np.ndarray:
    """Return the recall of each label in the last round that was scored; empty if none was."""
    known = run_data.recall[~np.isnan(run_data.recall).all(1)] if run_data.recall.size else run_data.recall
    return known[-1] if len(known) else np.zeros(0)


def balance(run_data: RunData) -> go.Figure | None:
    """Draw each label's share of what the clients of a round hold, over its share of everything."""
    if run_data.mix is None or run_data.labels.shape[1] != len(run_data.mix):
        return None
    held = run_data.labels.sum(1, keepdims=True)
    shares = np.divide(run_data.labels, held, out=np.full(run_data.labels.shape, np.nan), where=held > 0)
    order = _by_share(run_data)
    points = 100 * (bin_values(shares.T, ROUNDS) - run_data.mix[:, None])[order]
    most = max(float(np.nanmax(np.abs(points), initial=0.0)), 1.0)
    return heat_map(
        points,
        run_data.rounds[bins(len(run_data), ROUNDS)],
        [_named(run_data, label) for label in order],
        hover="label %{y}, round %{x}: %{z:+.1f} points against all data",
        across="round",
        down="label",
        scale=APART,
        limits=(-most, most),
        percent=False,
        title=f"{run_data.name}: labels of each round against those of all clients, percentage points",
    )


def schedule(run_data: RunData) -> go.Figure | None:
    """Draw the order of Stratify's first samples: which label each of them has."""
    order = np.array(next((e["order"] for e in run_data.exposures if e.get("order")), ()), dtype=np.int64)
    if not len(order):
        return None
    many = max(int(order.max()) + 1, *(len(e.get("exposure") or ()) for e in run_data.exposures))
    seen = np.zeros((many, len(order)))
    seen[order, np.arange(len(order))] = 1.0
    return heat_map(
        seen,
        np.arange(1, len(order) + 1),
        _strata(run_data, many),
        hover="sample %{x} is of label %{y}",
        across="sample",
        down="label",
        percent=False,
        title=f"{run_data.name}: the first {len(order)} samples of the schedule",
    )


def exposure(run_data: RunData) -> go.Figure | None:
    """Draw Stratify's own account: the share of each label in what the model trained on, by round."""
    counted = [e for e in run_data.exposures if e.get("exposure")]
    if not counted:
        return None
    counts = np.array([e["exposure"] for e in counted], dtype=np.float64)
    totals = counts.sum(1, keepdims=True)
    shares = np.divide(counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0)
    rounds = np.array([e["round"] for e in counted])
    return heat_map(
        bin_values(shares.T, ROUNDS) * counts.shape[1],
        rounds[bins(len(rounds), ROUNDS)],
        _strata(run_data, counts.shape[1]),
        hover="label %{y}, round %{x}: %{z:.2f} of an even share",
        across="round",
        down="label",
        scale=APART,
        limits=(0.0, 2.0),
        percent=False,
        title=f"{run_data.name}: exposure to each label; 1 is an even share",
    )


def _strata(run_data: RunData, many: int) -> list[str]:
    return run_data.classes if len(run_data.classes) == many else [f"stratum {i}" for i in range(many)]


def _by_share(run_data: RunData) -> np.ndarray:
    """Return labels from the most common to the rarest; in their own order where none is rare."""
    if run_data.mix is None or not run_data.rare.any():
        return np.arange(len(run_data.classes))
    return np.argsort(-run_data.mix, kind="stable")


def _named(run_data: RunData, label: int) -> str:
    return f"{run_data.classes[label]} (rare)" if run_data.rare[label] else run_data.classes[label]
