"""What single methods did: FLIPS's clusters, Terraform's splits, FedBSS's cuts. Stratify's is with the labels."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedstrata.report.figures.bands import add_band, spread
from fedstrata.report.figures.clients import MANY, client_rows
from fedstrata.report.figures.colours import LINES
from fedstrata.report.figures.style import (
    ALARM,
    CLIENTS,
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
    counted = [(c + 1, int((members == c).sum()), int(times[members == c].sum())) for c in found]
    names = [
        f"{at}: {own} client{'s' * (own > 1)}, {trained} participation{'s' * (trained != 1)}"
        for at, own, trained in counted
    ]
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


def cluster_participation(run_data: RunData) -> go.Figure | None:
    """Draw how many clients of each cluster took part, by round."""
    members = np.array(run_data.clusters.get("members", ()), dtype=np.int64)
    if len(members) != run_data.clients or not len(run_data) or not len(run_data.client_updates.client):
        return None
    times = run_data.participation()
    found = np.unique(members[members >= 0])
    participations = np.array([times[members == c].sum(0) for c in found], dtype=np.float64)
    shown = bin_values(participations, ROUNDS)
    return heat_map(
        shown,
        run_data.rounds[bins(participations.shape[1], ROUNDS)],
        [f"{c + 1}: {(members == c).sum()} clients" for c in found],
        hover="cluster %{y}, round %{x}: %{z:.1f} participations",
        across="round",
        down="cluster",
        limits=(0.0, float(max(shown.max(initial=0.0), 1.0))),
        percent=False,
        title=f"{run_data.name}: participations of each cluster",
    )


def hard_clients(run_data: RunData) -> go.Figure | None:
    """Draw in how many steps of Terraform's rounds each client trained: the more, the harder it is."""
    if not run_data.splits or not 0 < run_data.clients <= MANY:
        return None
    rounds = np.array([e["round"] for e in run_data.splits])
    first = int(rounds.min())
    depth = np.zeros((run_data.clients, int(rounds.max()) - first + 1))
    for event in run_data.splits:
        depth[event["clients"], event["round"] - first] += 1
    order = np.lexsort((-depth.sum(1), -(depth > 1).sum(1)))
    shown = bin_values(bin_values(depth[order], CLIENTS, axis=0), ROUNDS)
    return heat_map(
        shown,
        first + bins(depth.shape[1], ROUNDS),
        client_rows(run_data, order),
        hover="client %{y}, round %{x}: trained in %{z:.1f} steps",
        across="round",
        down="clients by rank, hardest first" if len(order) > CLIENTS else "client",
        limits=(0.0, float(max(shown.max(initial=0.0), 1.0))),
        percent=False,
        title=f"{run_data.name}: hard clients",
    )


def biased(run_data: RunData) -> go.Figure | None:
    """Draw the share of each client's samples that lay beyond FedBSS's cut, in the rounds in which it trained."""
    own = run_data.client_updates
    told = own.arrived & ~np.isnan(own.biased) & (own.client < run_data.clients)
    if not told.any() or run_data.clients > MANY or not len(run_data):
        return None
    first = int(run_data.rounds[0])
    table = np.full((run_data.clients, int(run_data.rounds[-1]) - first + 1), np.nan)
    table[own.client[told], own.round[told] - first] = own.biased[told]
    means = bin_values(table, 1)[:, 0]  # what is not known does not count
    order = np.argsort(-np.nan_to_num(means), kind="stable")
    return heat_map(
        bin_values(bin_values(table[order], CLIENTS, axis=0), ROUNDS),
        first + bins(table.shape[1], ROUNDS),
        client_rows(run_data, order),
        hover="client %{y}, round %{x}: %{z:.1%} of its samples are biased",
        across="round",
        down="clients by rank, most biased first" if len(order) > CLIENTS else "client",
        limits=None,
        title=f"{run_data.name}: samples beyond the cut",
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
