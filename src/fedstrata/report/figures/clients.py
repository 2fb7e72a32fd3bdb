"""How clients fare: who takes part, whom the model serves badly, how far they pull it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from fedstrata.report.figures import bands
from fedstrata.report.figures.bands import add_band
from fedstrata.report.figures.colours import LINES
from fedstrata.report.figures.curves import group_runs, styles_of
from fedstrata.report.figures.style import (
    ALARM,
    CLIENTS,
    ROUNDS,
    bin_values,
    bins,
    faint,
    figure,
    heat_map,
    plain,
    thin,
)
from fedstrata.report.run_data import RunData

MANY = 10_000  # clients beyond which a matrix of them is not made


def participation(run_data: RunData) -> go.Figure | None:
    """Draw who took part in which round; those who did most often come first. Beyond 100, clients are binned."""
    if not len(run_data) or not len(run_data.client_updates.client) or run_data.clients > MANY:
        return None
    times = run_data.participation()
    order = np.argsort(-times.sum(1), kind="stable")
    shown = bin_values(bin_values(times[order], CLIENTS, axis=0), ROUNDS)
    most = float(max(shown.max(initial=0.0), 1.0))
    return heat_map(
        shown,
        run_data.rounds[bins(times.shape[1], ROUNDS)],
        client_rows(run_data, order),
        hover="client %{y}, round %{x}: took part %{z:.2f} times a round",
        across="round",
        down="clients by rank, most often first" if len(order) > CLIENTS else "client",
        limits=(0.0, most),
        percent=False,
        title=f"{run_data.name}: who took part",
    )


def accuracy_by_client(run_data: RunData) -> go.Figure | None:
    """Draw the accuracy of every client on its own test data, by round; those served worst are at the bottom."""
    scored = _scored(run_data)
    if not len(scored) or run_data.client_accuracy.shape[1] != run_data.clients:
        return None
    own = run_data.client_accuracy[scored].T
    own, tested = own[known := ~np.isnan(own).all(1)], np.flatnonzero(known)
    order = np.argsort(-np.nan_to_num(own[:, -1]), kind="stable")
    rounds = run_data.rounds[scored]
    return heat_map(
        bin_values(bin_values(own[order], CLIENTS, axis=0), ROUNDS),
        rounds[bins(len(rounds), ROUNDS)],
        client_rows(run_data, tested[order]),
        hover="client %{y}, round %{x}: accuracy %{z:.1%}",
        across="round",
        down="clients by rank, best first" if len(order) > CLIENTS else "client",
        title=f"{run_data.name}: accuracy of each client",
    )


def spread(run_data: RunData) -> go.Figure | None:
    """Draw the distribution of the clients' accuracy over the rounds, with the mean of the worst tenth."""
    scored = _scored(run_data)
    if not len(scored):
        return None
    scored = scored[thin(len(scored))]
    rounds, own = run_data.rounds[scored], run_data.client_accuracy[scored]
    low, quarter, middle, upper, high = np.nanquantile(own, (0.1, 0.25, 0.5, 0.75, 0.9), axis=1)
    drawn = figure(title=f"{run_data.name}: accuracy over clients", hovermode="x unified")
    add_band(drawn, rounds, low, high, LINES[0], name="eight in ten clients")
    add_band(drawn, rounds, quarter, upper, LINES[0], name="half of them")
    worst = run_data.known("worst10")[scored]
    for values, name, colour in ((middle, "median client", LINES[0]), (worst, "mean of the worst tenth", ALARM)):
        hover = "%{y:.1%}"
        line = {"color": colour, "width": 2}
        drawn.add_scatter(x=rounds, y=values, name=name, mode="lines", line=line, hovertemplate=hover)
    drawn.update_xaxes(title_text="round")
    drawn.update_yaxes(title_text="accuracy", tickformat=".0%", range=[-0.02, 1.02])
    return drawn


def rank_clients(runs_data: Sequence[RunData]) -> go.Figure | None:
    """Draw the clients' last accuracies, the worst first: the left tenth is whom a run serves worst."""
    drawn = figure(title="clients' accuracy in the last round, worst first", hovermode="closest")
    styles = styles_of(runs_data)
    for group, own in group_runs(runs_data).items():
        finals = [f for f in map(last_accuracies, own) if len(f)]
        if not finals:
            continue
        grid = np.linspace(0, 1, min(max(map(len, finals)), 201))
        y = np.mean([np.quantile(f, grid) for f in finals], axis=0)
        hover = f"{plain(group)}: %{{x:.0%}} of clients have at most %{{y:.1%}}<extra></extra>"
        dots = "lines+markers" if len(grid) <= 50 else "lines"
        about = {"name": plain(group), "legendgroup": group, "line": styles[group]}
        drawn.add_scatter(x=grid, y=y, mode=dots, hovertemplate=hover, **about)
    if not drawn.data:
        return None
    drawn.add_vrect(x0=0, x1=0.1, fillcolor=faint(ALARM, 0.18), line_width=0, layer="below")
    drawn.update_xaxes(title_text="share of clients", tickformat=".0%")
    drawn.update_yaxes(title_text="accuracy", tickformat=".0%", range=[-0.02, 1.02])
    drawn.update_layout(showlegend=len(drawn.data) > 1)
    return drawn


def last_accuracies(run_data: RunData) -> np.ndarray:
    """Return the clients' accuracies, or their deciles, in the last round that was scored."""
    scored = _scored(run_data)
    own = run_data.client_accuracy[scored[-1]] if len(scored) else np.zeros(0)
    known: np.ndarray = own[~np.isnan(own)]
    return known


def update_norm(run_data: RunData) -> go.Figure | None:
    """Draw how far clients move the model they received: the median client, and eight in ten."""
    client_updates = run_data.client_updates
    told = client_updates.arrived & ~np.isnan(client_updates.update_norm)
    if not told.any():
        return None
    rounds, low, middle, high = bands.spread(client_updates.round[told], client_updates.update_norm[told])
    drawn = figure(title=f"{run_data.name}: length of updates", hovermode="x unified")
    add_band(drawn, rounds, low, high, LINES[2], name="eight in ten clients")
    drawn.add_scatter(x=rounds, y=middle, name="median client", mode="lines", line={"color": LINES[2], "width": 2})
    drawn.update_xaxes(title_text="round")
    drawn.update_yaxes(title_text="length of an update", rangemode="tozero")
    return drawn


def _scored(run_data: RunData) -> np.ndarray:
    """Return the rounds in which clients were scored."""
    own = run_data.client_accuracy
    return np.flatnonzero(~np.isnan(own).all(1)) if own.size else np.zeros(0, dtype=int)


def client_rows(run_data: RunData, order: np.ndarray) -> list[str]:
    """Name clients or, where there are more than a heat map shows, ranks."""
    starts = bins(len(order), CLIENTS)
    if len(starts) == len(order):
        return [run_data.client_name(client) for client in order.tolist()]
    ends = [*starts[1:], len(order)]
    return [f"{start + 1}-{end}" if end - start > 1 else f"{end}" for start, end in zip(starts, ends, strict=True)]
