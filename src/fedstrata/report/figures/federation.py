"""Who holds what: clients by labels, those of a cluster together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from fedstrata.report.figures.style import CLIENTS, heat_map, plain
from fedstrata.report.run_data import RunData

LABELS = 100  # most columns
GREY = "#808080"  # which shows on light and on dark paper


class Ordered(NamedTuple):
    """Clients in an order in which similar ones stand together."""

    order: np.ndarray
    cluster: np.ndarray  # of each client in that order
    found: bool  # by the method; else by the label that a client holds most of


def by_cluster(run_data: RunData) -> Ordered:
    """Put clients of a cluster together: as the method found them, or by the label that they hold most of."""
    members, counts = np.array(run_data.clusters.get("members", ()), dtype=np.int64), run_data.counts
    found = len(members) == run_data.clients > 0
    if counts is None:
        cluster = members if found else np.zeros(run_data.clients, dtype=np.int64)
        order = np.argsort(cluster, kind="stable")
        return Ordered(order, cluster[order], found)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    most = shares.argmax(1)
    cluster = members if found else most
    heads = {c: int(counts[cluster == c].sum(0).argmax()) for c in np.unique(cluster)}  # a cluster's chief label
    chief = np.array([heads[c] for c in cluster.tolist()])
    order = np.lexsort((-shares.max(1), cluster, chief))
    return Ordered(order, cluster[order], found)


def holds(run_data: RunData) -> go.Figure | None:
    """Draw each label's share of every client's samples, and how many it has; many clients are binned."""
    counts = run_data.counts
    if counts is None or counts.ndim != 2 or len(counts) != run_data.clients or not 0 < counts.shape[1] <= LABELS:
        return None
    order, cluster, _ = by_cluster(run_data)
    parts = np.array_split(np.arange(len(order)), min(len(order), CLIENTS))
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    if len(parts) == len(order):
        names = [run_data.client_name(client) for client in order.tolist()]
    else:
        names = [f"{part[0] + 1}-{part[-1] + 1}" for part in parts]
    drawn = heat_map(
        np.stack([shares[order[part]].mean(0) for part in parts]),
        run_data.classes,
        names,
        hover="client %{y}, label %{x}: %{z:.1%} of its samples",
        across="label",
        down="client" if len(parts) == len(order) else "clients, similar ones together",
        title=f"{run_data.name}: who holds what",
    )
    samples = [float(counts[order[part]].sum(1).mean()) for part in parts]
    hover = "client %{y}: %{x:.0f} samples<extra></extra>"
    bars = {"orientation": "h", "marker": {"color": GREY}, "showlegend": False, "hovertemplate": hover}
    drawn.add_bar(x=samples, y=[plain(name) for name in names], xaxis="x2", **bars)
    right = {"domain": [0.85, 1.0], "anchor": "y", "title": {"text": "samples"}, "nticks": 3, "rangemode": "tozero"}
    drawn.update_layout(xaxis={"domain": [0.0, 0.82]}, xaxis2=right, showlegend=False, bargap=0.25)
    drawn.update_traces(colorbar_x=1.01, selector={"type": "heatmap"})
    firsts = cluster[[part[0] for part in parts]]
    for edge in np.flatnonzero(np.diff(firsts)) if len(np.unique(firsts)) > 1 else ():
        line = {"color": GREY, "width": 1}
        drawn.add_shape(type="line", xref="x domain", x0=0, x1=1, y0=edge + 0.5, y1=edge + 0.5, line=line)
    return drawn


def partitions(runs_data: Sequence[RunData]) -> Iterator[RunData]:
    """Return a run of each partition, one that found clusters if there is any."""
    by_data: dict[str, RunData] = {}
    for run_data in runs_data:
        known = by_data.setdefault(str(run_data.start.get("fingerprint")), run_data)
        if run_data.clusters.get("members") and not known.clusters.get("members"):
            by_data[str(run_data.start.get("fingerprint"))] = run_data
    yield from by_data.values()
