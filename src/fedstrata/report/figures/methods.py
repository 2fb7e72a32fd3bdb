"""What single methods did: FLIPS's clusters, Terraform's splits, FedBSS's cuts. Stratify's is with the labels."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedstrata.report.figures.bands import add_band, spread
from fedstrata.report.figures.colours import LINES
from fedstrata.report.figures.style import (
    ALARM,
    ROUNDS,
    bin_values,
    bins,
    figure,
    heat_map,
    template,
)
from fedstrata.report.run_data import RunData


def clusters(run_data: RunData) -> go.Figure | None:
    """Draw the label mix of each cluster of clients."""
    members = np.array(run_data.clusters.get("members", ()), dtype=np.int64)
    if run_data.counts is None or len(members) != len(run_data.counts):
        return None
    found = np.unique(members[members >= 0])
    counts = np.array([run_data.counts[members == c].sum(0) for c in found], dtype=np.float64)
    times = np.bincount(run_data.client_updates.client[run_data.client_updates.arrived], minlength=len(members))
    names = [f"{c + 1}: {(members == c).sum()} clients, {times[members == c].sum()} visits" for c in found]
    return heat_map(
        counts / np.maximum(counts.sum(1, keepdims=True), 1),
        list(run_data.classes),
        names,
        hover="%{y}<br>label %{x}: %{z:.1%} of its samples",
        across="label",
        down="cluster",
        limits=None,
        title=f"{run_data.name}: clusters and their labels",
    )


def cluster_search(run_data: RunData) -> go.Figure | None:
    """Draw how the number of clusters was found: the Davies-Bouldin index by number, lower is better."""
    curve = run_data.clusters.get("davies_bouldin") or {}
    if len(curve) < 2:
        return None
    numbers, index = np.array([int(k) for k in curve]), np.array(list(curve.values()))
    drawn = figure(title=f"{run_data.name}: search for the number of clusters", height=280)
    drawn.add_scatter(x=numbers, y=index, mode="lines+markers", name="index", line={"color": LINES[0]})
    taken = int(run_data.clusters["clusters"])
    if taken in numbers:
        marker = {"size": 14, "color": ALARM, "symbol": "diamond"}
        y = index[numbers == taken]
        drawn.add_scatter(x=[taken], y=y, mode="markers", name=f"taken: {taken}", marker=marker)
    drawn.update_xaxes(title_text="clusters")
    drawn.update_yaxes(title_text="Davies-Bouldin index", rangemode="tozero")
    return drawn


def splits(run_data: RunData) -> go.Figure | None:
    """Draw how many clients trained in each step of Terraform's rounds."""
    if not run_data.splits:
        return None
    rounds = np.array([e["round"] for e in run_data.splits])
    steps = np.array([e["iteration"] for e in run_data.splits])
    trained = np.array([len(e["clients"]) for e in run_data.splits], dtype=np.float64)
    first = int(rounds.min())
    table = np.zeros((int(steps.max()), int(rounds.max()) - first + 1))
    table[steps - 1, rounds - first] = trained
    return heat_map(
        bin_values(table, ROUNDS),
        (first + bins(table.shape[1], ROUNDS)),
        [f"step {i + 1}" for i in range(len(table))],
        hover="round %{x}, %{y}: %{z:.1f} clients trained",
        across="round",
        down="",
        limits=(0.0, float(table.max(initial=1.0))),
        percent=False,
        title=f"{run_data.name}: clients that trained in each step of a round",
    )


def cuts(run_data: RunData) -> go.Figure | None:
    """Draw where FedBSS's clients cut their samples, and which share of them was biased."""
    client_updates = run_data.client_updates
    told = client_updates.arrived & ~np.isnan(client_updates.cut)
    if not told.any():
        return None
    drawn = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    for row, (values, name, colour) in enumerate(
        (
            (client_updates.cut, "loss at the cut", LINES[0]),
            (client_updates.biased, "share of biased samples", LINES[1]),
        ),
        start=1,
    ):
        rounds, low, middle, high = spread(client_updates.round[told], values[told])
        add_band(drawn, rounds, low, high, colour, xaxis=f"x{row}", yaxis=f"y{row}")
        line = {"color": colour, "width": 2}
        drawn.add_scatter(x=rounds, y=middle, name=name, mode="lines", line=line, xaxis=f"x{row}", yaxis=f"y{row}")
    drawn.update_layout(template=template(), height=420, hovermode="x unified")
    drawn.update_xaxes(title_text="round", row=2, col=1)
    drawn.update_yaxes(title_text="loss", row=1, col=1, rangemode="tozero")
    drawn.update_yaxes(title_text="share", row=2, col=1, tickformat=".0%", rangemode="tozero")
    return drawn
