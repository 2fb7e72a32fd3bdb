"""Figures of a run or of a comparison, for notebooks: `fedstrata.plots.accuracy(run, against="bytes")`.

Each function gives a plotly figure in the look of the report. What is drawn is given as a `Run`, as a `Comparison`, as
the folder of either, or, where several runs can be drawn, as a list of these. A figure for which a run holds nothing is
refused: it has no round yet, nothing of the kind happened, or the run is private.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from fedstrata.core.errors import RequestError, no_figure
from fedstrata.report import figures
from fedstrata.report.figures import curves
from fedstrata.report.gather import gather
from fedstrata.report.page import draw, replay_page
from fedstrata.report.paper import write_figures
from fedstrata.report.replay import CLIENTS as MOST_REPLAYED
from fedstrata.report.run_data import RunData
from fedstrata.runs.compare.comparison import Comparison
from fedstrata.runs.folder import Run

OneRun = Run | str | Path
RunOrComparison = Run | Comparison | str | Path
Source = RunOrComparison | Sequence[RunOrComparison]

__all__ = [
    "accuracy",
    "balance",
    "client_accuracy",
    "clients",
    "critical_difference",
    "faults",
    "federation",
    "labels",
    "method",
    "metric",
    "participation",
    "rounds",
    "save",
    "update_norm",
]


def accuracy(source: Source, against: str = "rounds") -> go.Figure:
    """Draw accuracy: of one run over samples, labels and the worst clients; of several as means and bands.

    Parameters
    ----------
    source
        A run or a comparison, its folder, or a list of such.
    against
        What a run has spent: "rounds", "bytes", "updates" or "time" (virtual seconds).

    Returns
    -------
    plotly.graph_objects.Figure

    Raises
    ------
    RequestError
        If no round was scored, or `against` is not known.

    Examples
    --------
    >>> from fedstrata import plots, train
    >>> from fedstrata.testing import tiny_federation
    >>> run = train(federation=tiny_federation(), overrides={"train.rounds": 2})
    >>> [line.name for line in plots.accuracy(run, against="bytes").data]
    ['accuracy', 'balanced accuracy', 'worst tenth of clients']
    """
    runs_data = _read_all(source, against)
    drawn = (
        curves.accuracy(runs_data[0], against) if len(runs_data) == 1 else curves.curves(runs_data, "accuracy", against)
    )
    return _there(drawn, "an accuracy")


def metric(source: Source, name: str, against: str = "rounds") -> go.Figure:
    """Draw any figure that rounds have.

    Parameters
    ----------
    source
        A run or a comparison, its folder, or a list of such.
    name
        A key of the events of rounds, such as "worst10", "loss_test" or "label_divergence".
    against
        As in `accuracy`.

    Returns
    -------
    plotly.graph_objects.Figure

    Raises
    ------
    RequestError
        If no round has that figure, or `against` is not known.
    """
    runs_data = _read_all(source, against)
    there = set[str]().union(*(run_data.figures for run_data in runs_data))
    if there and name not in there:
        raise no_figure(name, there)
    return _there(curves.curves(runs_data, name, against), f"a {name}")


def labels(source: Source) -> go.Figure:
    """Draw the recall of each label: by round or, of several runs, at the end."""
    runs_data = _read(source)
    drawn = figures.labels.recall(runs_data[0]) if len(runs_data) == 1 else figures.labels.final_recall(runs_data)
    return _there(drawn, "a recall by label")


def clients(source: Source) -> go.Figure:
    """Draw the clients' accuracies at the end, the worst first."""
    return _there(figures.clients.rank_clients(_read(source)), "an accuracy by client")


def critical_difference(comparison: Comparison | str | Path) -> go.Figure:
    """Draw the mean ranks of methods over conditions, and which of them cannot be told apart (Friedman, Nemenyi).

    Parameters
    ----------
    comparison
        A comparison of several methods under several conditions, or its folder.

    Returns
    -------
    plotly.graph_objects.Figure

    Raises
    ------
    RequestError
        If there are fewer than two methods or conditions, or their runs are not finished.
    """
    path = comparison.path if isinstance(comparison, Comparison) else comparison
    tested = comparison.friedman if isinstance(comparison, Comparison) else gather([path]).tested
    if tested is None:
        raise RequestError(f"{path} holds no two methods whose runs are finished under two conditions")
    return figures.ranks.critical_difference(tested)


def federation(run: OneRun) -> go.Figure:
    """Draw who holds what: clients by labels, those of a cluster together."""
    return _there(figures.federation.holds(_read_one(run)), "the label counts of its clients")


def rounds(run: OneRun) -> RoundPlayer:
    """Replay the rounds of a run: whom the server asked, whose report came too late, what went up and down.

    Parameters
    ----------
    run
        A run, or its folder.

    Returns
    -------
    RoundPlayer
        A notebook shows it; its `html` is a page of its own.

    Raises
    ------
    RequestError
        If the run has no round yet, or there are too many clients to tell them apart.
    """
    page = replay_page(_read_one(run))
    if page is None:
        raise RequestError(f"{run} cannot be replayed: it has no round yet, or more than {MOST_REPLAYED} clients")
    return RoundPlayer(page)


@dataclass(frozen=True)
class RoundPlayer:
    """A page in which the rounds of a run can be replayed.

    Attributes
    ----------
    html
        The page; it needs nothing beside it.
    """

    html: str

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html)}" style="width:100%;height:560px;border:0"></iframe>'


def save(
    source: Source | Mapping[str, go.Figure], folder: str | Path, format: str = "pdf", width: float = 3.5
) -> list[Path]:
    """Save figures ready for a paper: letters of 8 points, fonts inside, text that stays text. Needs matplotlib.

    Parameters
    ----------
    source
        A run, a comparison, the folder of either, or a list of such, for all figures of their report; or figures of
        this module by name.
    folder
        Where to.
    format
        "pdf", "svg" or "png".
    width
        In inches.

    Returns
    -------
    list of pathlib.Path

    Raises
    ------
    RequestError
        If the format or width is not allowed, or matplotlib is not installed (`pip install 'fedstrata[figures]'`).
    """
    if isinstance(source, Mapping):
        shown = [figures.Shown("", name, "", "", figure) for name, figure in source.items()]
    else:
        shown = draw(gather(_paths(source)))
    return write_figures(Path(folder), shown, format, width)


def balance(run: OneRun) -> go.Figure:
    """Draw the labels of each round against those of all clients."""
    return _there(figures.labels.balance(_read_one(run)), "the labels of its rounds")


def participation(run: OneRun) -> go.Figure:
    """Draw who took part in which round."""
    return _there(figures.clients.participation(_read_one(run)), "a list of who took part")


def client_accuracy(run: OneRun) -> go.Figure:
    """Draw the accuracy of each client by round."""
    return _there(figures.clients.accuracy_by_client(_read_one(run)), "an accuracy by client")


def update_norm(run: OneRun) -> go.Figure:
    """Draw how far clients move the model: the length of their updates."""
    return _there(figures.clients.update_norm(_read_one(run)), "the length of an update")


def method(run: OneRun) -> list[go.Figure]:
    """Draw what the method tells of itself: clusters, splits, cuts or exposure."""
    drawn = [shown.figure for shown in figures.of_one(_read_one(run)) if shown.section == "method"]
    return drawn or [_there(None, "a figure of its method")]


def faults(run: OneRun) -> go.Figure:
    """Draw lost reports and other faults."""
    return _there(figures.faults.faults(_read_one(run)), "a fault")


def _read(source: Source) -> list[RunData]:
    return gather(_paths(source)).runs_data


def _paths(source: Source) -> list[str | Path]:
    several = isinstance(source, Sequence) and not isinstance(source, str)
    given: Sequence[Any] = source if several else [source]  # type: ignore[assignment]
    paths: list[str | Path] = []
    for run in given:
        if not isinstance(run, str | Path | Run | Comparison):
            raise RequestError(
                f"{run!r} cannot be drawn; allowed: a run, a comparison, a folder of one, or a list of them"
            )
        paths.append(run if isinstance(run, str | Path) else run.path)
    return paths


def _read_all(source: Source, against: Any) -> list[RunData]:
    """Read what is drawn by round; a second run where the axis belongs was meant to be drawn too."""
    if not isinstance(against, str) or (against not in curves.AXES and Path(against).is_dir()):
        raise RequestError(f"against = {against!r} is no axis; several runs are given as a list, [a, b]")
    return _read(source)


def _read_one(run: OneRun) -> RunData:
    runs_data = _read(run)
    if len(runs_data) != 1:
        raise RequestError(f"this figure is of one run, and {run} holds {len(runs_data)}; give one of them")
    return runs_data[0]


def _there(drawn: go.Figure | None, what: str) -> go.Figure:
    if drawn is None:
        raise RequestError(
            f"this run does not have {what}: it has no round yet, nothing of it happened, or it is private"
        )
    return drawn
